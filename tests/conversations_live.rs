//! Every conversation with the real server, over TCP and over a UNIX socket; and with Debian's
//! beanstalkd, so that the conversations themselves are known to be right.

#[allow(dead_code)] // Each test program uses a part of it.
mod support;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use support::conversation::Conversation;
use support::live::{Live, Transport, reference};
use support::runner::{Dialect, run};

const BEANRING: &str = env!("CARGO_BIN_EXE_beanring");

/// Conversations mostly sleep, so this has nothing to do with the number of cores.
const AT_ONCE: usize = 16;

/// A conversation in which the reference is unsteady gets this many tries with it. It fails about one
/// in three.
const TRIES_MAX: usize = 20;

#[test]
fn beanring_over_tcp() {
    let conversations = in_real_time().collect();
    hold_all(conversations, |conversation| {
        let mut peer = Live::start(Path::new(BEANRING), Transport::Tcp, conversation.max_job_size);
        run(conversation, &mut peer, Dialect::Quoted)
    });
}

#[test]
fn beanring_over_a_unix_socket() {
    let conversations = in_real_time().collect();
    hold_all(conversations, |conversation| {
        let mut peer = Live::start(Path::new(BEANRING), Transport::Unix, conversation.max_job_size);
        run(conversation, &mut peer, Dialect::Quoted)
    });
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
            let mut peer = Live::start(&program, Transport::Tcp, conversation.max_job_size);
            run(conversation, &mut peer, Dialect::Bare)
        });
        let first = attempts.next().expect("one try at least");
        first.or_else(|failure| attempts.find(Result::is_ok).unwrap_or(Err(failure)))
    });
}

fn in_real_time() -> impl Iterator<Item = Conversation> {
    Conversation::all().into_iter().filter(|conversation| !conversation.needs_virtual_time)
}

fn hold_all(conversations: Vec<Conversation>, hold: impl Fn(&Conversation) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(conversation) = conversations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = hold(conversation) {
                        failures.lock().expect("no thread panicked with it").push(failure);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked with it");
    failures.sort();
    println!("{} conversations held", conversations.len());
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n"));
}
