//! `auth`: tokens and certificates.

use std::time::Duration;

use beanring::server::{Config, Protocol};
use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::Peer;

use super::{Authenticate, server, users, with_users};

const ONE: &str =
    "[users.one]\ntoken = \"one-one-one-one-one\"\ncertificate = [\"one.example\"]\nproduce = [\"a\"]\n";

#[test]
fn without_users_the_command_is_unknown() {
    let mut bench = InMemoryServer::with(config(65_535), Cut::Whole);
    let conn = bench.open();
    bench.expect(conn, "auth root-root-root-root\r\n", "UNKNOWN_COMMAND\r\n");
    bench.expect(conn, "use a\r\n", "USING a\r\n");
}

#[test]
fn a_wrong_token_closes_the_connection_after_a_second() {
    for token in ["root-root-root-roo", "root-root-root-root1", "", " ", "x", &"x".repeat(217)] {
        let mut bench = server(ONE);
        let conn = bench.open();
        // Commands after it are not run.
        bench.expect(conn, &format!("auth {token}\r\nauth root-root-root-root\r\ndrain\r\n"), "");
        let other = bench.root();
        bench.expect(other, "use b\r\n", "USING b\r\n");
        bench.advance(Duration::from_millis(999));
        assert_eq!(bench.reply(conn), "", "{token}");
        bench.advance(Duration::from_millis(1));
        assert_eq!(bench.reply(conn), "UNAUTHORIZED\r\n", "{token}");
        assert_eq!(bench.reply(conn), "closed", "{token}");
        bench.expect(other, "put 0 0 9 1\r\nx\r\n", "INSERTED 1\r\n");
    }
    let mut bench = server(ONE);
    let conn = bench.open();
    bench.expect(conn, "auth\r\n", "");
    bench.advance(Duration::from_millis(1000));
    assert_eq!(bench.reply(conn), "UNAUTHORIZED\r\n");
    // A line that is too long for any token is too long for any command.
    let conn = bench.open();
    bench.expect(conn, &format!("auth {}\r\n", "x".repeat(218)), "BAD_FORMAT\r\n");
    bench.expect(
        conn,
        "authroot-root-root-root\r\nAUTH root-root-root-root\r\n",
        &"UNKNOWN_COMMAND\r\n".repeat(2),
    );
}

#[test]
fn a_token_may_be_sent_again_and_in_the_middle_of_a_pipeline() {
    for cut in [Cut::Whole, Cut::EveryByte, Cut::Random { seed: 7 }] {
        let mut bench = InMemoryServer::with(with_users(ONE), cut);
        let conn = bench.open();
        let sent = "use a\r\nauth one-one-one-one-one\r\nuse a\r\nput 0 0 9 1\r\nx\r\nuse b\r\nauth root-root-root-root\r\n\
                    use b\r\nauth one-one-one-one-one\r\nput 0 0 9 1\r\ny\r\nlist-tube-used\r\n";
        let expected = "FORBIDDEN\r\nAUTHENTICATED\r\nUSING a\r\nINSERTED 1\r\nFORBIDDEN\r\nAUTHENTICATED\r\n\
                        USING b\r\nAUTHENTICATED\r\nFORBIDDEN\r\nUSING b\r\n";
        bench.expect(conn, sent, expected);
    }
}

#[test]
fn a_token_after_a_waiting_reserve_is_served_after_it() {
    let mut bench = server(ONE);
    let conn = bench.root();
    let other = bench.root();
    bench.expect(conn, "reserve\r\nauth one-one-one-one-one\r\nreserve\r\n", "");
    bench.expect(other, "put 0 0 9 1\r\nx\r\n", "INSERTED 1\r\n");
    assert_eq!(bench.reply(conn), "RESERVED 1 1\r\nx\r\nAUTHENTICATED\r\nFORBIDDEN\r\n");
    bench.expect(conn, "delete 1\r\n", "FORBIDDEN\r\n");
    // A wrong one closes the connection, and its jobs are released.
    bench.expect(conn, "auth x\r\n", "");
    bench.advance(Duration::from_millis(1000));
    assert_eq!(bench.reply(conn), "UNAUTHORIZED\r\n");
    assert!(bench.ask(other, "stats-job 1\r\n").contains("\nstate: ready\n"));
}

#[test]
fn many_wrong_tokens_do_not_keep_connections() {
    let mut bench = server(ONE);
    let conns: Vec<usize> = (0..100).map(|_| bench.open()).collect();
    for &conn in &conns {
        bench.expect(conn, "auth x\r\n", "");
    }
    let early = conns.iter().filter(|&&conn| bench.reply(conn) == "UNAUTHORIZED\r\n").count();
    assert_eq!(early, 100 - 64);
    bench.advance(Duration::from_millis(1000));
    let late = conns.iter().filter(|&&conn| bench.reply(conn) == "UNAUTHORIZED\r\n").count();
    assert_eq!(late, 64);
}

#[test]
fn a_refused_client_may_leave_before_its_reply() {
    let mut bench = server(ONE);
    let conn = bench.open();
    bench.expect(conn, "auth x\r\n", "");
    bench.close(conn);
    let next = bench.open();
    bench.advance(Duration::from_millis(2000));
    bench.expect(next, "list-tube-used\r\n", "USING default\r\n");
    bench.expect(next, "auth x\r\n", "");
    bench.half_close(next);
    bench.advance(Duration::from_millis(1000));
    assert_eq!(bench.reply(next), "UNAUTHORIZED\r\n");
    assert_eq!(bench.reply(next), "closed");
}

#[test]
fn a_certificate_is_a_user() {
    let two = "[users.two]\ncertificate = [\"one.example\", \"two.example\"]\nproduce = [\"b\"]\n";
    let mut bench = server(&format!("{ONE}{two}"));
    let one = bench.open_certified(Protocol::Beanstalk, &["ONE.example"]);
    bench.expect(one, "use a\r\nuse b\r\n", "USING a\r\nFORBIDDEN\r\n");
    let two = bench.open_certified(Protocol::Beanstalk, &["other.example", "two.example"]);
    bench.expect(two, "use a\r\nuse b\r\n", "FORBIDDEN\r\nUSING b\r\n");
    let none = bench.open_certified(Protocol::Beanstalk, &["other.example"]);
    bench.expect(none, "use a\r\n", "FORBIDDEN\r\n");
    bench.expect(none, "auth one-one-one-one-one\r\nuse a\r\n", "AUTHENTICATED\r\nUSING a\r\n");
}

#[test]
fn anonymous_clients_have_the_rights_of_their_table() {
    let mut bench = server("[anonymous]\nproduce = [\"public\"]\nconsume = [\"default\"]\n");
    let conn = bench.open();
    bench.expect(
        conn,
        "use public\r\nput 0 0 9 1\r\nx\r\nuse a\r\n",
        "USING public\r\nINSERTED 1\r\nFORBIDDEN\r\n",
    );
    bench.expect(conn, "reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    let config = Config { users: Some(users("")), ..config(65_535) };
    let mut bench = InMemoryServer::with(config, Cut::Whole);
    let conn = bench.open();
    bench.expect(conn, "use a\r\nstats\r\n", "FORBIDDEN\r\nFORBIDDEN\r\n");
}
