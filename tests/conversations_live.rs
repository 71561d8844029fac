//! Every conversation with the real server under each of its drivers, over TCP and over a UNIX socket; and
//! with Debian's beanstalkd, so that the conversations themselves are known to be right.

#[allow(dead_code)] // Each test program uses a part of it.
mod support;

use std::path::Path;

use beanring::io::driver::Driver;
use support::driver;
use support::hold::{flags, hold_all, in_real_time};
use support::live::{Live, Transport, reference};
use support::runner::{Dialect, run};

const BEANRING: &str = support::lines::PROGRAM;

/// A conversation in which the reference is unsteady gets this many tries with it. It fails about one
/// in three.
const TRIES_MAX: usize = 20;

#[test]
fn epoll_over_tcp() {
    hold_under(Driver::Epoll, Transport::Tcp);
}

#[test]
fn epoll_over_a_unix_socket() {
    hold_under(Driver::Epoll, Transport::Unix);
}

#[cfg(feature = "uring")]
#[test]
fn uring_over_tcp() {
    hold_under(Driver::Uring, Transport::Tcp);
}

#[cfg(feature = "uring")]
#[test]
fn uring_over_a_unix_socket() {
    hold_under(Driver::Uring, Transport::Unix);
}

#[cfg(feature = "tokio-uring")]
#[test]
fn tokio_uring_over_tcp() {
    hold_under(Driver::TokioUring, Transport::Tcp);
}

#[cfg(feature = "tokio-uring")]
#[test]
fn tokio_uring_over_a_unix_socket() {
    hold_under(Driver::TokioUring, Transport::Unix);
}

#[test]
fn debians_beanstalkd_over_tcp() {
    let Some(program) = reference() else {
        println!("skipped: conversations with the reference, because beanstalkd is not installed");
        return;
    };
    let mut conversations = Vec::new();
    for conversation in in_real_time() {
        match &conversation.not_reference {
            Some(reason) => println!("not held: {}: {reason}", conversation.path.display()),
            None => conversations.push(conversation),
        }
    }
    hold_all(conversations, |conversation| {
        let tries = conversation.unsteady_reference.as_ref().map_or(1, |_| TRIES_MAX);
        let mut attempts = (0..tries).map(|_| {
            let mut peer = Live::start(&program, Transport::Tcp, &flags(conversation));
            run(conversation, &mut peer, Dialect::Bare)
        });
        let first = attempts.next().expect("one try at least");
        first.or_else(|failure| attempts.find(Result::is_ok).unwrap_or(Err(failure)))
    });
}

fn hold_under(io: Driver, transport: Transport) {
    if !driver::is_allowed(io, "conversations") {
        return;
    }
    hold_all(in_real_time().collect(), |conversation| {
        let flags = [flags(conversation), driver::flags(io)].concat();
        let mut peer = Live::start(Path::new(BEANRING), transport, &flags);
        run(conversation, &mut peer, Dialect::Quoted)
    });
}
