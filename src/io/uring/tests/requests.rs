//! The requests that must be in flight at any moment: a watch of each listener, and a receive on each connection. If the kernel or
//! the driver has lost one, the self-check finds it.

use std::time::Duration;

use nix::errno::Errno;

use super::super::connection::ReceiveRequest;
use super::super::ring::{Ring, Token};
use super::{Simulated, UNKNOWN_COMMAND};
use crate::io::descriptors::ACCEPT_PAUSE;
use crate::io::uring::self_check::SELF_CHECK_INTERVAL;
use crate::time::Span;
use beanring_testkit::peer::Peer;
use beanring_testkit::random::seeds;

#[test]
fn accept_is_paused_without_descriptors_and_resumed() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        let conn = peer.open();
        for makes_room in [false, true] {
            peer.driver.ring.backlog.push_back(Err(Errno::ECONNABORTED));
            peer.settle();
            assert!(peer.driver.ring.accepts(), "seed {seed}: accept continues after one failure");
            peer.driver.ring.backlog.push_back(Err(Errno::EMFILE));
            peer.settle();
            assert!(!peer.driver.ring.accepts(), "seed {seed}: accept is paused");
            if makes_room {
                peer.close(conn);
            } else {
                peer.now = peer.now + ACCEPT_PAUSE;
                peer.settle();
            }
            assert!(peer.driver.ring.accepts(), "seed {seed}: accept is resumed");
        }
    }
}

/// Longer than the time from unreported input to its repair.
const UNTIL_REPAIRED: Duration = Duration::from_nanos(3 * SELF_CHECK_INTERVAL.as_nanos());

#[test]
fn the_self_check_finds_unreported_input() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.is_steady = true;
        peer.lateness = Span::from_nanos(seed * 50_000);
        let conn = peer.open();
        for repairs in 1..4 {
            peer.assert_serves(conn);
            peer.socket(conn).loses_wakeup = true;
            peer.send(conn, b"pick\r\n");
            assert_eq!(peer.read(conn), b"", "seed {seed}: the wake-up is lost");
            peer.advance(UNTIL_REPAIRED);
            assert_eq!(peer.read(conn), UNKNOWN_COMMAND, "seed {seed}");
            assert_eq!(peer.driver.shell.counts.kept().self_check_repairs, repairs, "seed {seed}");
        }
        peer.send(conn, b"pick\r\n");
        peer.socket(conn).loses_wakeup = true;
        peer.close(conn);
        assert!(!peer.is_closed(conn), "seed {seed}: the hang-up is lost");
        peer.advance(UNTIL_REPAIRED);
        assert!(peer.is_closed(conn), "seed {seed}");
        peer.check();
    }
}

/// The loop is not woken for connections that stay quiet, either.
#[test]
fn the_self_check_finds_nothing_if_nothing_is_wrong() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        let conn = peer.open();
        for number in 0..20 {
            peer.assert_serves(conn);
            peer.advance(Duration::from_millis(number * 150));
        }
        peer.advance(UNTIL_REPAIRED);
        assert_eq!(peer.deadline, None, "seed {seed}");
        assert_eq!(peer.driver.shell.counts.kept().self_check_repairs, 0, "seed {seed}");
    }
}

/// Receives of one shot follow a multishot one, and more input lies there at each check.
#[test]
fn the_self_check_leaves_receives_of_one_shot_alone() {
    for seed in seeds(20) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.is_steady = true;
        let conn = peer.open();
        peer.assert_serves(conn);
        let conn_id = peer.driver.shell.connections.at_slot(0).expect("it is open").0;
        peer.driver.cancel_receive(conn_id);
        for _ in 0..50 {
            peer.driver.shell.connections.at_slot(0).expect("it is open").1.expect_large_bodies();
            peer.driver.ring.enter(None).expect("the fake ring does not fail");
            peer.socket(conn).input.extend(b"pick\r\n");
            peer.driver.iterate(peer.now).expect("the driver does not fail");
            peer.now = peer.now + Span::from_millis(100);
        }
        peer.settle();
        assert_eq!(peer.read(conn), UNKNOWN_COMMAND.repeat(50), "seed {seed}");
        assert_eq!(peer.driver.shell.counts.kept().self_check_repairs, 0, "seed {seed}");
    }
}

/// Clients come and go much faster than they are checked. The last one has a slot that is due already.
#[test]
fn the_self_check_keeps_nothing_of_closed_connections() {
    for seed in seeds(5) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.is_steady = true;
        let mut bytes = None;
        for _ in 0..100 {
            let conn = peer.open();
            peer.assert_serves(conn);
            peer.close(conn);
            let now = peer.driver.self_check.bytes();
            assert_eq!(*bytes.get_or_insert(now), now, "seed {seed}");
        }
        peer.advance(Duration::from_nanos(SELF_CHECK_INTERVAL.as_nanos() / 2));
        let conn = peer.open();
        peer.assert_serves(conn);
        peer.socket(conn).loses_wakeup = true;
        peer.send(conn, b"pick\r\n");
        peer.advance(UNTIL_REPAIRED);
        assert_eq!(peer.read(conn), UNKNOWN_COMMAND, "seed {seed}");
        assert_eq!(peer.driver.shell.counts.kept().self_check_repairs, 1, "seed {seed}");
    }
}

#[test]
fn missing_requests_are_made() {
    for seed in seeds(5) {
        let mut peer = Simulated::start(seed);
        peer.driver.ring.is_steady = true;
        let (lost, other) = (peer.open(), peer.open());
        let is_lost = |token| matches!(token, Token::Receive(0) | Token::Listener(0));
        peer.driver.ring.requests.retain(|request| !is_lost(request.token));
        peer.driver.shell.listeners[0].is_watched = false;
        peer.driver.shell.connections.at_slot(0).expect("the connection is open").1.receive =
            ReceiveRequest::None;
        peer.socket(lost).input.extend(b"pick\r\n");
        // The input of any other client triggers the self-check.
        peer.socket(other).input.extend(b"pick\r\n");
        while !peer.driver.ring.is_at_rest() {
            peer.driver.ring.enter(None).expect("the fake ring does not fail");
            peer.driver.iterate(peer.now).expect("the driver does not fail");
        }
        assert_eq!(peer.read(lost), b"", "seed {seed}");
        peer.now = peer.now + SELF_CHECK_INTERVAL + SELF_CHECK_INTERVAL;
        peer.settle();
        assert_eq!(peer.read(lost), UNKNOWN_COMMAND, "seed {seed}");
        assert!(peer.driver.ring.accepts(), "seed {seed}");
        assert_eq!(peer.driver.shell.counts.kept().self_check_repairs, 2, "seed {seed}");
    }
}
