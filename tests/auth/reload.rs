//! Changes of the users while clients are connected.

use beanring::server::{Service, Update};
use beanring_testkit::in_memory::InMemoryServer;
use beanring_testkit::peer::Peer;
use beanring_testkit::stepped::Stepped;

use super::{Authenticate, ROOT, one, server, users, with_users};

fn replace(bench: &mut InMemoryServer, text: &str) {
    bench.replace_users(users(&format!("{ROOT}{text}")));
}

#[test]
fn users_come_change_and_go() {
    let mut bench = server("");
    let early = bench.open();
    bench.expect(early, "use a\r\n", "FORBIDDEN\r\n");
    replace(&mut bench, &one("produce = [\"a\"]"));
    let conn = bench.one();
    bench.expect(conn, "use a\r\nput 0 0 9 1\r\nx\r\n", "USING a\r\nINSERTED 1\r\n");
    // The right on the used tube ends, too.
    replace(&mut bench, &one("produce = [\"b\"]"));
    bench.expect(
        conn,
        "put 0 0 9 1\r\nx\r\nuse b\r\nput 0 0 9 1\r\nx\r\n",
        "FORBIDDEN\r\nUSING b\r\nINSERTED 2\r\n",
    );
    replace(&mut bench, "[anonymous]\nproduce = [\"c\"]\n");
    assert_eq!(bench.reply(conn), "closed");
    bench.expect(early, "use c\r\nput 0 0 9 1\r\nx\r\n", "USING c\r\nINSERTED 3\r\n");
    let conn = bench.open();
    bench.expect(conn, "auth one-one-one-one-one\r\n", "");
}

#[test]
fn a_wait_ends_when_its_user_changes_or_goes() {
    let mut bench = server(&one("consume = [\"a\", \"b\"]"));
    let root = bench.root();
    let waiting = bench.one();
    bench.expect(waiting, "watch a\r\nwatch b\r\nreserve\r\n", "WATCHING 1\r\nWATCHING 2\r\n");
    // The same rights, another token: nothing happens to it.
    replace(&mut bench, &one("consume = [\"a\", \"b\"]").replace("one-one-one", "two-two-two"));
    assert_eq!(bench.reply(waiting), "");
    replace(&mut bench, &one("consume = [\"b\"]"));
    assert_eq!(bench.reply(waiting), "TIMED_OUT\r\n");
    bench.ask(root, "use a\r\nput 0 0 9 1\r\nx\r\n");
    bench.expect(waiting, "list-tubes-watched\r\nreserve\r\n", "OK 8\r\n---\n- b\n\r\n");
    replace(&mut bench, "");
    assert_eq!(bench.reply(waiting), "closed");
    bench.ask(root, "use b\r\nput 0 0 9 1\r\nx\r\n");
    assert!(bench.ask(root, "stats-tube b\r\n").contains("\ncurrent-jobs-ready: 1\n"));
}

#[test]
fn a_wait_for_a_job_ends_with_its_user() {
    let mut bench = server(&one("inspect = [\"*\"]"));
    let root = bench.root();
    bench.ask(root, "put 0 0 99 1\r\nx\r\n");
    let conn = bench.one();
    bench.expect(conn, "wait-job 1 99\r\n", "");
    assert_eq!(bench.stat(root, "current-job-waits"), 1);
    replace(&mut bench, "");
    assert_eq!(bench.reply(conn), "closed");
    assert_eq!(bench.stat(root, "current-job-waits"), 0);
    bench.expect(root, "delete 1\r\n", "DELETED\r\n");
}

#[test]
fn jobs_of_a_removed_user_are_released_to_others() {
    let mut bench = server(&one("consume = [\"default\"]"));
    let root = bench.root();
    bench.ask(root, "put 0 0 99 1\r\nx\r\n");
    let conn = bench.one();
    bench.expect(conn, "reserve\r\n", "RESERVED 1 1\r\nx\r\n");
    bench.expect(root, "reserve\r\n", "");
    replace(&mut bench, "");
    assert_eq!(bench.reply(conn), "closed");
    assert_eq!(bench.reply(root), "RESERVED 1 1\r\nx\r\n");
}

#[test]
fn a_put_that_is_arriving_ends_with_its_user() {
    let mut bench = server(&one("produce = [\"default\"]"));
    let puts = bench.one();
    bench.expect(puts, "put 0 0 9 5\r\nab", "");
    let batch = bench.one();
    bench.expect(batch, "put-batch 2\r\nput 0 0 9 1\r\nx\r\n", "");
    replace(&mut bench, "");
    assert_eq!([bench.reply(puts), bench.reply(batch)], ["closed", "closed"]);
    let root = bench.root();
    assert!(bench.ask(root, "stats\r\n").contains("\ntotal-jobs: 0\n"));
}

/// The rest comes before the connection has had its turn.
#[test]
fn a_removed_user_completes_nothing() {
    let mut bench = server(&one("produce = [\"default\"]\nconsume = [\"default\"]"));
    let [puts, batch, idle, waiting] = [(); 4].map(|()| bench.one());
    bench.expect(puts, "put 0 0 9 5\r\nab", "");
    bench.expect(batch, "put-batch 2\r\nput 0 0 9 1\r\nx\r\nput 0 0 9 1\r\n", "");
    bench.expect(waiting, "reserve\r\n", "");
    let root = bench.root();
    bench.replace_users_at_once(users(ROOT));
    bench.receive_at_once(puts, "cde\r\n");
    bench.receive_at_once(batch, "y\r\n");
    bench.receive_at_once(idle, "put 0 0 9 1\r\nz\r\n");
    bench.receive_at_once(root, "put 0 0 9 1\r\nr\r\n");
    for conn in [puts, batch, idle, waiting] {
        assert_eq!(bench.reply(conn), "closed", "{conn}");
    }
    assert_eq!(bench.reply(root), "INSERTED 2\r\n");
    let stats = bench.ask(root, "stats\r\n");
    assert!(stats.contains("\ntotal-jobs: 1\n") && stats.contains("\ncurrent-jobs-ready: 1\n"), "{stats}");
}

/// The lines come before the connection has had its turn in the sweep.
#[test]
fn the_next_line_has_the_rights_of_the_new_file() {
    let mut bench = server(&one("produce = [\"a\"]\nconsume = [\"a\", \"b\"]"));
    let (root, conn) = (bench.root(), bench.one());
    bench.ask(root, "use a\r\nput 0 0 99 1\r\nx\r\nput 0 0 99 1\r\ny\r\n");
    bench.expect(conn, "use a\r\nwatch a\r\nreserve\r\n", "USING a\r\nWATCHING 1\r\nRESERVED 1 1\r\nx\r\n");
    let lines = [
        ("delete 1\r\n", "FORBIDDEN\r\n"),
        ("touch 1\r\n", "FORBIDDEN\r\n"),
        ("reserve-job 2\r\n", "FORBIDDEN\r\n"),
        ("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n"),
        ("reserve-batch 2 0\r\n", "TIMED_OUT\r\n"),
        ("put 0 0 9 1\r\nz\r\n", "FORBIDDEN\r\n"),
        ("use a\r\n", "FORBIDDEN\r\n"),
    ];
    for (line, reply) in lines {
        replace(&mut bench, &one("produce = [\"a\"]\nconsume = [\"a\", \"b\"]"));
        bench.ask(conn, "use a\r\nwatch a\r\nwatch b\r\n");
        bench.replace_users_at_once(users(&format!("{ROOT}{}", one("consume = [\"b\"]"))));
        bench.receive_at_once(conn, line);
        bench.turn();
        assert_eq!(bench.reply(conn), reply, "{line}");
    }
    bench.check();
}

/// Other clients use up the turns, so the sweep ends the connections, and the driver has not closed them when they would have theirs.
#[test]
fn a_user_goes_whose_connections_have_commands_left() {
    let mut bench = Stepped::new(with_users(&one("produce = [\"*\"]")));
    let mut authenticated = |token: &str| {
        let conn = bench.open();
        bench.send(conn, format!("auth {token}\r\n").as_bytes());
        bench.run();
        assert_eq!(bench.replies(conn), "AUTHENTICATED\r\n");
        conn
    };
    let others = [(); 8].map(|()| authenticated("root-root-root-root"));
    let conns = [(); 8].map(|()| authenticated("one-one-one-one-one"));
    for conn in others.into_iter().chain(conns) {
        bench.send(conn, "use a\r\n".repeat(2000).as_bytes());
    }
    bench.server.update(bench.now, Update::Users(Some(users(ROOT))));
    for _ in 0..10 {
        bench.server.turn(bench.now);
    }
    let mut closed = bench.run();
    closed.sort_unstable();
    assert_eq!(closed, conns);
    for conn in others {
        assert_eq!(bench.replies(conn), "USING a\r\n".repeat(2000));
    }
}

#[test]
fn a_put_that_is_arriving_needs_its_right_at_its_end() {
    let mut bench = server(&one("produce = [\"default\"]"));
    let [puts, batch] = [(); 2].map(|()| bench.one());
    bench.expect(puts, "put 0 0 9 5\r\nab", "");
    bench.expect(batch, "put-batch 2\r\nput 0 0 9 1\r\nx\r\nput 0 0 9 1\r\n", "");
    replace(&mut bench, &one("produce = [\"other\"]"));
    bench.expect(puts, "cde\r\nuse other\r\n", "FORBIDDEN\r\nUSING other\r\n");
    bench.expect(batch, "y\r\nuse other\r\n", "FORBIDDEN\r\nUSING other\r\n");
    let root = bench.root();
    assert!(bench.ask(root, "stats\r\n").contains("\ntotal-jobs: 0\n"));
}

#[test]
fn many_waiting_connections_follow() {
    let mut bench = server(&one("consume = [\"default\"]"));
    let conns: Vec<usize> = (0..2_000).map(|_| bench.open()).collect();
    for &conn in &conns {
        bench.expect(conn, "auth one-one-one-one-one\r\nreserve\r\n", "AUTHENTICATED\r\n");
    }
    replace(&mut bench, "");
    assert!(conns.iter().all(|&conn| bench.reply(conn) == "closed"));
    let root = bench.root();
    assert!(bench.ask(root, "stats\r\n").contains("\ncurrent-waiting: 0\n"));
    bench.close(root);
}

/// Watches the tubes tube-0 to tube-4999, and a.
fn watch_many(bench: &mut InMemoryServer, conn: usize) {
    let mut lines = String::from("watch a\r\n");
    lines.extend((0..5_000).map(|number| format!("watch tube-{number}\r\n")));
    bench.load(conn, &lines);
    assert!(bench.ask(conn, "watch a\r\n").contains("WATCHING 5002\r\n"));
}

const WATCHED_A: &str = "OK 8\r\n---\n- a\n\r\n";

#[test]
fn many_watches_end_in_pieces_before_the_next_command() {
    let mut bench = server(&one("consume = [\"a\"]"));
    let conn = bench.root();
    watch_many(&mut bench, conn);
    bench.expect(
        conn,
        "auth one-one-one-one-one\r\nlist-tubes-watched\r\nreserve-with-timeout 0\r\n",
        &format!("AUTHENTICATED\r\n{WATCHED_A}TIMED_OUT\r\n"),
    );
    let root = bench.root();
    bench.expect(root, "list-tubes\r\n", "OK 18\r\n---\n- default\n- a\n\r\n");

    // A change of the users does the same, while a client waits, and while it does not.
    replace(&mut bench, &one("consume = [\"*\"]"));
    let [idle, waiting] = [(); 2].map(|()| {
        let conn = bench.one();
        watch_many(&mut bench, conn);
        conn
    });
    bench.expect(waiting, "reserve\r\n", "");
    replace(&mut bench, &one("consume = [\"a\"]"));
    bench.expect(root, "list-tubes\r\n", "OK 18\r\n---\n- default\n- a\n\r\n");
    bench.expect(waiting, "list-tubes-watched\r\n", &format!("TIMED_OUT\r\n{WATCHED_A}"));
    bench.expect(idle, "list-tubes-watched\r\n", WATCHED_A);
    bench.close(waiting);
    // Pipelined commands wait too.
    let other = bench.root();
    watch_many(&mut bench, other);
    bench.ask(other, "auth one-one-one-one-one\r\nquit\r\n");
    assert_eq!(bench.reply(other), "closed");
    bench.expect(root, "list-tubes\r\n", "OK 18\r\n---\n- default\n- a\n\r\n");
}
