//! What a user can learn of the tubes of others, and influence there: each row of the table in docs/SECURITY.md, and nothing by keys
//! or groups.

use std::time::Duration;

use beanring::server::{Config, PeerKind};
use beanring_testkit::config::config;
use beanring_testkit::http_client::{HttpInMemory, OCTETS, get, request, signed};
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::measured::thread_cpu_time;

use super::{Authenticate, ROOT, one, server, users, with_users};

/// The user `two`, with rights on another tube.
const TWO: &str = "[users.two]\ntoken = \"two-two-two-two-two\"\nproduce = [\"b*\"]\nconsume = [\"b*\"]\n";

const ONE_RIGHTS: &str = "produce = [\"a\"]\nconsume = [\"a*\"]\n";

fn two_users(more: &str) -> String {
    format!("{}{TWO}", one(&format!("{ONE_RIGHTS}{more}")))
}

/// A server with both users, and their connections, which use and watch their own tubes.
fn bench(more: &str) -> (InMemoryServer, [usize; 2]) {
    bench_with(with_users(&two_users(more)))
}

fn bench_with(config: Config) -> (InMemoryServer, [usize; 2]) {
    let mut bench = InMemoryServer::with(config, Cut::Whole);
    let (one, two) = (bench.one(), bench.user("two-two-two-two-two"));
    for (conn, tube) in [(one, "a"), (two, "b")] {
        let replies = format!("USING {tube}\r\nWATCHING 1\r\nWATCHING 1\r\n");
        bench.expect(conn, &format!("use {tube}\r\nwatch {tube}\r\nignore default\r\n"), &replies);
    }
    (bench, [one, two])
}

fn put(tags: &str) -> String {
    format!("put 0 0 9 1{tags}\r\nx\r\n")
}

#[test]
fn keys_and_groups_of_others_cannot_be_named() {
    let (mut bench, [one, two]) = bench("");
    for name in ["b", "b.key", "key", "A"] {
        for tags in [format!(" con:{name}:9"), format!(" grp:{name}"), format!(" aft:{name}")] {
            for tags in
                [tags.clone(), format!("{tags} idp:k"), format!(" con:a{tags}").replace(" con:a con", " con")]
            {
                bench.expect(one, &put(&tags), "FORBIDDEN\r\n");
                let batch = format!("put-batch 2\r\n{}{}", put(""), put(&tags));
                bench.expect(one, &batch, "FORBIDDEN\r\n");
            }
        }
    }
    // Its own: the names of tubes that it may produce to or consume from.
    bench.expect(one, &put(" con:a grp:a.x aft:ab idp:b"), "INSERTED 1\r\n");
    bench.expect(two, &put(" con:b.key:2 grp:b"), "INSERTED 2\r\n");
    let root = bench.root();
    bench.expect(root, "stats-group key\r\n", "NOT_FOUND\r\n");
    assert!(bench.ask(root, "stats-group b\r\n").contains("\nready: 1\n"));
}

#[test]
fn a_key_is_not_raised_held_or_watched_from_another_tube() {
    let (mut bench, [one, two]) = bench("");
    // Raised: the limit of the newest job counts.
    bench.expect(two, &format!("{}{}", put(" con:b"), put(" con:b")), "INSERTED 1\r\nINSERTED 2\r\n");
    bench.expect(one, &put(" con:b:9"), "FORBIDDEN\r\n");
    bench.expect(two, "reserve\r\n", "RESERVED 1 1\r\nx\r\n");
    bench.expect(two, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    // Watched: by a job that becomes ready when the key is free, or the group has ended.
    bench.expect(one, &put(" con:b"), "FORBIDDEN\r\n");
    bench.expect(one, &put(" aft:b"), "FORBIDDEN\r\n");
    bench.expect(one, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    // Held: by a member of a group.
    bench.expect(two, "delete 1\r\n", "DELETED\r\n");
    bench.expect(one, &put(" grp:b"), "FORBIDDEN\r\n");
    bench.expect(two, &put(" aft:b"), "INSERTED 3\r\n");
    bench.expect(two, "reserve\r\nreserve\r\n", "RESERVED 2 1\r\nx\r\nRESERVED 3 1\r\nx\r\n");
}

#[test]
fn a_refused_job_is_skipped_whole() {
    let (mut bench, [one, _]) = bench("");
    let body = "put 0 0 9 6 con:b\r\nquit\r\n\r\n";
    bench.expect(one, &format!("{body}list-tube-used\r\n"), "FORBIDDEN\r\nUSING a\r\n");
    // The form and the size of a put come first.
    bench.expect(one, "put 0 0 9 6 con:b con:b\r\nquit\r\n\r\n", "BAD_FORMAT\r\n");
    bench.expect(one, &format!("put 0 0 9 65536 con:b\r\n{}\r\n", "x".repeat(65_536)), "JOB_TOO_BIG\r\n");
    let root = bench.root();
    assert!(bench.ask(root, "stats\r\n").contains("\ntotal-jobs: 0\n"));
}

#[test]
fn shared_keys_are_those_that_the_file_names() {
    let keys = "keys = [\"shared\", \"customer-*\"]\n";
    let mut bench = server(&format!("{}{TWO}{keys}", one(&format!("{ONE_RIGHTS}{keys}"))));
    let (one, two) = (bench.one(), bench.user("two-two-two-two-two"));
    bench.ask(one, "use a\r\nwatch a\r\nignore default\r\n");
    bench.ask(two, "use b\r\nwatch b\r\nignore default\r\n");
    bench.expect(one, &put(" con:customer-7"), "INSERTED 1\r\n");
    bench.expect(two, &put(" con:customer-7 grp:shared"), "INSERTED 2\r\n");
    bench.expect(one, "reserve\r\n", "RESERVED 1 1\r\nx\r\n");
    bench.expect(two, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    bench.expect(one, "delete 1\r\n", "DELETED\r\n");
    bench.expect(two, "reserve\r\n", "RESERVED 2 1\r\nx\r\n");
    for other in ["sharedx", "customer", "b"] {
        bench.expect(one, &put(&format!(" aft:{other}")), "FORBIDDEN\r\n");
    }
    // They are no tubes.
    bench.expect(one, "use shared\r\nwatch customer-7\r\n", "FORBIDDEN\r\nFORBIDDEN\r\n");
}

#[test]
fn a_reload_takes_a_key_from_jobs_to_come() {
    let (mut bench, [one, _]) = bench("keys = [\"k\"]\n");
    bench.expect(one, &put(" con:k"), "INSERTED 1\r\n");
    bench.replace_users(users(&format!("{ROOT}{}", two_users(""))));
    bench.expect(one, &put(" con:k"), "FORBIDDEN\r\n");
    bench.expect(one, "reserve\r\n", "RESERVED 1 1\r\nx\r\n");
}

/// The rest comes after the connection has had its turn, or before.
#[test]
fn a_key_is_lost_while_its_job_arrives() {
    let with = |keys: &str| users(&format!("{ROOT}{}", two_users(keys)));
    for is_before in [false, true] {
        let (mut bench, _) = bench("keys = [\"k\", \"kept\"]\n");
        let open = |bench: &mut InMemoryServer, lines: &str| {
            let conn = bench.one();
            bench.expect(conn, &format!("use a\r\n{lines}"), "USING a\r\n");
            conn
        };
        let lost =
            ["con:k", "grp:k", "aft:k"].map(|tag| open(&mut bench, &format!("put 0 0 9 5 {tag}\r\nab")));
        let batch = open(
            &mut bench,
            "put-batch 3\r\nput 0 0 9 1 con:kept\r\nx\r\nput 0 0 9 1 con:k\r\ny\r\nput 0 0 9 5\r\nab",
        );
        let kept =
            ["con:kept", "grp:a", "idp:k"].map(|tag| open(&mut bench, &format!("put 0 0 9 5 {tag}\r\nab")));
        let kept_batch = open(&mut bench, "put-batch 2\r\nput 0 0 9 1 con:kept\r\nx\r\nput 0 0 9 5\r\nab");
        if is_before {
            bench.replace_users_at_once(with("keys = [\"kept\"]\n"));
        } else {
            bench.replace_users(with("keys = [\"kept\"]\n"));
        }
        for conn in lost.into_iter().chain([batch]) {
            bench.receive_at_once(conn, "cde\r\n");
            bench.turn();
            assert_eq!(bench.reply(conn), "FORBIDDEN\r\n", "{conn}, {is_before}");
        }
        for conn in kept.into_iter().chain([kept_batch]) {
            bench.receive_at_once(conn, "cde\r\n");
            bench.turn();
            let reply = bench.reply(conn);
            assert!(reply.starts_with("INSERTED"), "{reply}");
        }
        bench.check();
    }
}

#[test]
fn keys_are_refused_over_http_too() {
    let mut bench = HttpInMemory::new(with_users(&two_users("")), Cut::Whole);
    let mut ask = |tag: &str| {
        let target = format!("tubes/a/jobs?{tag}");
        let put = request("POST", &format!("/api/v1/{target}"), "", Some((OCTETS, b"x")));
        bench.reconnect(PeerKind::Network);
        bench.ask(&signed(&put, "one-one-one-one-one"))
    };
    assert_eq!(ask("con=a").status, 201);
    let refused = ask("con=b");
    let said = "this user may not name the key or group of a tag: its name must match one of produce, consume or keys: see \
                the file of --auth";
    assert_eq!((refused.error(), refused.message()), ((403, "forbidden".to_owned()), said.to_owned()));
}

// The rows of the table in docs/SECURITY.md.

#[test]
fn ids_tell_how_many_jobs_others_put() {
    let (mut bench, [one, two]) = bench("");
    bench.expect(one, &put(""), "INSERTED 1\r\n");
    bench.ask(two, &format!("{}{}", put(""), put("")));
    bench.expect(one, &put(""), "INSERTED 4\r\n");
}

#[test]
fn an_id_tells_whether_there_is_a_job() {
    let (mut bench, [one, two]) = bench("");
    bench.ask(two, &put(""));
    for command in ["delete", "reserve-job", "touch", "stats-job", "wait-job"] {
        let more = if command == "wait-job" { " 0" } else { "" };
        let lines = format!("{command} 1{more}\r\n{command} 2{more}\r\n");
        bench.expect(one, &lines, "FORBIDDEN\r\nNOT_FOUND\r\n");
    }
}

#[test]
fn drain_mode_is_that_of_the_server() {
    let (mut bench, [one, _]) = bench("");
    let root = bench.root();
    bench.expect(root, "drain\r\n", "DRAINING\r\n");
    bench.expect(one, &put(""), "DRAINING\r\n");
    bench.expect(one, "undrain\r\n", "FORBIDDEN\r\n");
}

#[test]
fn memory_and_tubes_are_shared() {
    let users = Some(users(&format!("{ROOT}{}", two_users(""))));
    let config = Config { users, max_memory_bytes: Some(4 << 20), max_tubes: Some(4), ..config(65_535) };
    let (mut bench, [one, two]) = bench_with(config);
    let big = format!("put 0 0 9 65000\r\n{}\r\n", "x".repeat(65_000));
    let mut puts = 0;
    while bench.ask(one, &big).starts_with("INSERTED ") {
        puts += 1;
        assert!(puts < 100, "the limit is reached");
    }
    bench.expect(two, &big, "OUT_OF_MEMORY\r\n");
    // `default`, `a` and `b` are there.
    bench.expect(one, "watch a1\r\n", "WATCHING 2\r\n");
    bench.expect(two, "watch b1\r\n", "OUT_OF_MEMORY\r\n");
}

#[test]
fn the_share_of_kept_keys_is_one() {
    let users = Some(users(&format!("{ROOT}{}", two_users(""))));
    let config = Config { users, max_memory_bytes: Some(16 << 20), ..config(65_535) };
    let (mut bench, [one, two]) = bench_with(config);
    // Keys for more than an hour have half of the share.
    let put = |number: usize| format!("put 0 0 9 1 idp:{number:0>190}:7200\r\nx\r\n");
    let mut puts = 0;
    while bench.ask(one, &put(puts)).starts_with("INSERTED ") {
        puts += 1;
        assert!(puts < 20_000, "the share is used up");
    }
    assert!(puts > 1000, "{puts}");
    bench.expect(two, &put(puts), "OUT_OF_MEMORY\r\n");
    // The two refused puts have taken ids.
    bench.expect(two, "put 0 0 9 1\r\nx\r\n", &format!("INSERTED {}\r\n", puts + 3));
}

#[test]
fn a_key_or_group_that_both_may_name_is_shared() {
    let (mut bench, [one, two]) = {
        let keys = "keys = [\"k\"]\n";
        let text = format!("{}{TWO}{keys}", one(&format!("{ONE_RIGHTS}{keys}")));
        bench_with(with_users(&text))
    };
    // It may raise the limit of the key, ...
    bench.expect(two, &put(" con:k").repeat(2), "INSERTED 1\r\nINSERTED 2\r\n");
    bench.expect(two, "reserve\r\nreserve-with-timeout 0\r\n", "RESERVED 1 1\r\nx\r\nTIMED_OUT\r\n");
    bench.expect(one, &put(" con:k:2"), "INSERTED 3\r\n");
    bench.expect(two, "reserve-with-timeout 0\r\n", "RESERVED 2 1\r\nx\r\n");
    // ... learns whether it is at its limit, ...
    bench.expect(one, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    bench.expect(two, "delete 1\r\n", "DELETED\r\n");
    bench.expect(one, "reserve-with-timeout 0\r\n", "RESERVED 3 1\r\nx\r\n");
    bench.expect(one, "delete 3\r\n", "DELETED\r\n");
    bench.expect(two, "delete 2\r\n", "DELETED\r\n");
    // ... adds members to the group, and learns whether it has ended.
    bench.expect(two, &put(" grp:k"), "INSERTED 4\r\n");
    bench.expect(one, &put(" grp:k"), "INSERTED 5\r\n");
    bench.expect(two, &put(" aft:k"), "INSERTED 6\r\n");
    bench.expect(one, &put(" aft:k"), "INSERTED 7\r\n");
    bench.expect(two, "delete 4\r\nreserve-with-timeout 0\r\n", "DELETED\r\nTIMED_OUT\r\n");
    bench.expect(one, "delete 5\r\nreserve-with-timeout 0\r\n", "DELETED\r\nRESERVED 7 1\r\nx\r\n");
    bench.expect(two, "reserve-with-timeout 0\r\n", "RESERVED 6 1\r\nx\r\n");
}

/// Replies take longer beside the load of another user: by a few event-loop iterations, each within its budget.
#[test]
fn load_of_others_delays_a_reply_within_the_budgets() {
    const COMMANDS: usize = 20_000;
    const OTHERS: usize = 8;
    /// CPU time of an iteration, without optimization.
    const ITERATION_MAX: Duration = Duration::from_millis(8);
    let (mut bench, [_, two]) = bench("");
    let others: Vec<usize> = (0..OTHERS).map(|_| bench.one()).collect();
    let mut bench = bench.unchecked();
    // Each command is one that its user may not give.
    for &other in &others {
        bench.receive_at_once(other, &"delete 1\r\nuse b\r\n".repeat(COMMANDS / 2));
    }
    bench.turn();
    assert!(bench.is_busy(), "the load is more than one iteration does");
    bench.receive_at_once(two, "list-tube-used\r\n");
    let (mut turns, mut longest) = (0, Duration::ZERO);
    while bench.take(two).is_empty() {
        let begun = thread_cpu_time();
        bench.turn();
        longest = longest.max(thread_cpu_time() - begun);
        turns += 1;
        assert!(turns <= OTHERS, "each other connection has had its turn");
    }
    println!("a reply after {turns} iterations, the longest of {longest:?}");
    assert!(longest < ITERATION_MAX, "an iteration takes {longest:?}");
    let answered: usize = others.iter().map(|&other| bench.take(other).lines().count()).sum();
    assert!(answered < OTHERS * COMMANDS, "it does not wait for the end of the load");
}

#[test]
fn a_consumer_holds_the_keys_of_its_jobs() {
    let keys = "keys = [\"k\"]\n";
    let mut bench = server(&format!("{}{TWO}{keys}", one("consume = [\"a\"]\n")));
    let (root, one, two) = (bench.root(), bench.one(), bench.user("two-two-two-two-two"));
    bench.ask(root, &format!("use a\r\n{}", put(" con:k")));
    bench.ask(two, &format!("use b\r\nwatch b\r\nignore default\r\n{}", put(" con:k")));
    bench.expect(one, "watch a\r\nreserve\r\n", "WATCHING 1\r\nRESERVED 1 1\r\nx\r\n");
    bench.expect(two, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
}

#[test]
fn numbers_of_the_server_are_for_whoever_may_inspect_a_tube() {
    let (mut bench, [one, _]) = bench("inspect = [\"a\"]\n");
    let root = bench.root();
    bench.ask(root, &put(""));
    let stats = bench.ask(one, "stats\r\n");
    assert!(
        stats.contains("\ncurrent-jobs-ready: 1\n") && stats.contains("\ncurrent-connections: 3\n"),
        "{stats}"
    );
    bench.expect(one, "list-tubes\r\n", "OK 8\r\n---\n- a\n\r\n");
    bench.expect(one, "stats-tube default\r\n", "FORBIDDEN\r\n");
}

#[test]
fn metrics_without_a_token_name_no_tube() {
    let mut bench = HttpInMemory::new(with_users(&two_users("")), Cut::Whole);
    bench.command("auth root-root-root-root\r\nuse secret-tube\r\nput 0 0 9 1 con:secret-key\r\nx\r\n");
    for (target, is_open) in [("/metrics", true), ("/healthz", true), ("/readyz", true)] {
        bench.reconnect(PeerKind::Network);
        let page = bench.ask(&request("GET", target, "", None));
        assert_eq!(page.status == 200, is_open, "{target}");
        assert!(!page.text().contains("secret"), "{target}");
    }
    bench.reconnect(PeerKind::Network);
    assert_eq!(bench.ask(&get("server")).status, 401);
}
