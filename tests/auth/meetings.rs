//! Where rights meet batches, keys, groups, rules, lists, drain mode and the memory limit.

use std::time::Duration;

use beanring::server::Config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::measured::thread_cpu_time;

use super::{Authenticate, ROOT, server, with_users};

const ONE: &str =
    "[users.one]\ntoken = \"one-one-one-one-one\"\nproduce = [\"a\"]\nconsume = [\"a\"]\nadmin = [\"a\"]\n";

#[test]
fn a_batch_is_deleted_or_moved_as_a_whole() {
    let mut bench = server(ONE);
    let root = bench.root();
    bench.ask(root, "use a\r\nput 0 0 9 1\r\n1\r\nuse b\r\nput 0 0 9 1\r\n2\r\n");
    let one = bench.one();
    bench.expect(one, "delete-batch 1 2\r\n", "FORBIDDEN\r\n");
    bench.expect(one, "delete-batch 1 99\r\n", "DELETED_BATCH 1 1\r\n");
    bench.expect(one, "move-jobs b ready a 9\r\nmove-jobs a ready b 9\r\n", &"FORBIDDEN\r\n".repeat(2));
    bench.expect(one, "move-job 2 a\r\nmove-job 98 a\r\n", "FORBIDDEN\r\nNOT_FOUND\r\n");
    assert!(bench.ask(root, "stats-job 2\r\n").contains("\ntube: \"b\"\n"));
}

#[test]
fn a_forbidden_put_takes_no_key_and_joins_no_group() {
    let mut bench = server(ONE);
    let root = bench.root();
    let one = bench.one();
    bench.expect(one, "put 0 0 9 1 idp:k grp:g\r\nx\r\n", "FORBIDDEN\r\n");
    bench.expect(root, "stats-group g\r\n", "NOT_FOUND\r\n");
    bench.expect(root, "put 0 0 9 1 idp:k\r\nx\r\n", "INSERTED 1\r\n");
    // Keys belong to tubes.
    bench.expect(one, "use a\r\nput 0 0 9 1 idp:k\r\nx\r\n", "USING a\r\nINSERTED 2\r\n");
}

#[test]
fn rules_and_drain_mode_are_for_their_administrators() {
    let mut bench = server(ONE);
    let root = bench.root();
    let one = bench.one();
    bench.expect(
        one,
        "tube-config a max-jobs 1\r\ntube-config b max-jobs 1\r\n",
        "CONFIGURED\r\nFORBIDDEN\r\n",
    );
    bench.expect(one, "tube-config a dead-letter b\r\n", "FORBIDDEN\r\n");
    bench.expect(one, "drain\r\n", "FORBIDDEN\r\n");
    bench.expect(root, "drain\r\n", "DRAINING\r\n");
    // The right comes first.
    bench.expect(
        one,
        "put 0 0 9 1\r\nx\r\nuse a\r\nput 0 0 9 1\r\nx\r\n",
        "FORBIDDEN\r\nUSING a\r\nDRAINING\r\n",
    );
    bench.expect(one, "undrain\r\n", "FORBIDDEN\r\n");
}

#[test]
fn forbidden_tubes_are_not_created() {
    let config = Config { max_tubes: Some(2), max_memory_bytes: Some(1 << 24), ..with_users(ONE) };
    let mut bench = InMemoryServer::with(config, Cut::Whole);
    let one = bench.one();
    bench.expect(one, "use b\r\nwatch b\r\nmove-job 1 b\r\n", &"FORBIDDEN\r\n".repeat(3));
    bench.expect(one, "use a\r\nwatch a\r\n", "USING a\r\nWATCHING 1\r\n");
    let root = bench.root();
    bench.expect(root, "list-tubes\r\n", "OK 18\r\n---\n- default\n- a\n\r\n");
    // Users count for the memory limit.
    let with = bench.memory_bytes();
    bench.replace_users(super::users(ROOT));
    assert!(bench.memory_bytes() < with);
}

/// Each tube is compared with all patterns of the user, of which the last one matches.
#[test]
fn very_many_tubes_are_compared_with_many_patterns_in_short_iterations() {
    const TUBES: usize = 20_000;
    const CLIENTS: usize = 8;
    /// CPU time of an iteration, without optimization.
    const ITERATION_MAX: Duration = Duration::from_millis(4);
    let patterns: String = (0..63).map(|number| format!("\"a{number}*\", ")).collect();
    let mut bench = server(&super::one(&format!("inspect = [{patterns}\"z*\"]"))).unchecked();
    let root = bench.root();
    let puts: String = (0..TUBES).map(|tube| format!("use z{tube}\r\nput 0 0 9 1\r\nx\r\n")).collect();
    bench.load(root, &puts);
    let clients: Vec<usize> = (0..CLIENTS).map(|_| bench.one()).collect();
    clients.iter().for_each(|&client| bench.receive_at_once(client, "list-tubes\r\n"));
    let (mut longest, mut lines) = (Duration::ZERO, 0);
    while bench.is_busy() {
        let begun = thread_cpu_time();
        bench.turn();
        longest = longest.max(thread_cpu_time() - begun);
        lines += clients.iter().map(|&client| bench.take(client).lines().count()).sum::<usize>();
    }
    println!("the longest of the iterations took {longest:?}");
    assert!(longest < ITERATION_MAX, "an iteration takes {longest:?}");
    assert!(lines >= CLIENTS * TUBES, "the lists are complete");
}

#[test]
fn a_wait_for_a_job_needs_its_tube_only_at_its_beginning() {
    let mut bench = server(ONE);
    let root = bench.root();
    let one = bench.one();
    bench.ask(root, "use a\r\nput 0 0 9 1\r\n1\r\nuse b\r\nput 0 0 9 1\r\n2\r\n");
    bench.expect(one, "wait-job 2 9\r\n", "FORBIDDEN\r\n");
    bench.expect(one, "wait-job 1 9\r\n", "");
    bench.ask(root, "move-job 1 b\r\ndelete 1\r\n");
    assert_eq!(bench.reply(one), "DELETED\r\n");
}
