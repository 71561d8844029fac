//! A connection that closes while its client does not read is closed after a while.

use std::time::Duration;

use beanring_testkit::config::config;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::{Patience, Peer, Received};

const BODY: &str = "0123456789";

/// A client that has asked for more than it reads, and then ends the connection in one of these ways.
fn unread(server: &mut InMemoryServer, end: impl FnOnce(&mut InMemoryServer, usize)) -> usize {
    let conn = server.open();
    server.send(conn, format!("put 0 0 9 10\r\n{BODY}\r\n").as_bytes());
    assert!(matches!(server.receive(conn, Patience::Quiet), Received::Bytes(_)));
    server.block(conn, true);
    server.send(conn, &b"peek 1\r\n".repeat(9));
    end(server, conn);
    conn
}

fn is_closed(server: &mut InMemoryServer, conn: usize) -> bool {
    server.receive(conn, Patience::Quiet) == Received::Closed
}

#[test]
fn a_client_that_does_not_read_its_last_replies_is_closed() {
    for cut in [Cut::Whole, Cut::EveryByte] {
        for end in [
            |server: &mut InMemoryServer, conn: usize| server.send(conn, b"quit\r\n"),
            |server: &mut InMemoryServer, conn: usize| server.half_close(conn),
        ] {
            let mut server = InMemoryServer::with(config(100), cut);
            let conn = unread(&mut server, end);
            server.advance(Duration::from_secs(59));
            assert!(!is_closed(&mut server, conn), "it has a minute");
            server.advance(Duration::from_secs(2));
            assert!(is_closed(&mut server, conn));
        }
    }
}

#[test]
fn a_client_that_reads_slowly_or_goes_on_is_not_closed() {
    let mut server = InMemoryServer::with(config(100), Cut::EveryByte);
    let slow = unread(&mut server, |server, conn| server.send(conn, b"quit\r\n"));
    let open = unread(&mut server, |_, _| {});
    let expected = format!("FOUND 1 10\r\n{BODY}\r\n").repeat(9);
    let mut read = Vec::new();
    while read.len() < expected.len() {
        server.advance(Duration::from_secs(25));
        server.send_pieces(slow, 20);
        match server.receive(slow, Patience::Quiet) {
            Received::Bytes(bytes) => read.extend(bytes),
            other => panic!("{other:?} after {} bytes", read.len()),
        }
    }
    assert_eq!(read, expected.as_bytes());
    assert!(is_closed(&mut server, slow));
    assert!(!is_closed(&mut server, open), "a connection that is not closing has no limit");
}
