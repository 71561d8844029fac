//! Every conversation with the real server under each driver, over TCP, a UNIX socket and TLS. Debian's beanstalkd holds them
//! too, which proves that the conversations themselves are right.

use std::path::Path;

use beanring::io::driver::Driver;
use beanring_testkit::beanstalkd::{QUOTES_FROM, Version, installed, version};
use beanring_testkit::conversation::Conversation;
use beanring_testkit::driver;
use beanring_testkit::live::Live;
use beanring_testkit::process::{Transport, program};
use beanring_testkit::runner::{Dialect, run};
use beanring_testkit::suite::{flags, in_real_time, run_all, with_beanstalkd};

/// Maximum number of attempts at a conversation in which beanstalkd is unsteady. About one attempt in three fails.
const TRIES_MAX: usize = 20;

/// A test for each driver and transport.
macro_rules! tests {
    ($($(#[$needs:meta])? $name:ident: $io:ident, $transport:ident;)*) => {$(
        $(#[$needs])?
        #[test]
        fn $name() {
            run_under(Driver::$io, Transport::$transport);
        }
    )*};
}

tests! {
    epoll_over_tcp: Epoll, Tcp;
    epoll_over_a_unix_socket: Epoll, Unix;
    #[cfg(feature = "uring")]
    uring_over_tcp: Uring, Tcp;
    #[cfg(feature = "uring")]
    uring_over_a_unix_socket: Uring, Unix;
    #[cfg(feature = "tokio-uring")]
    tokio_uring_over_tcp: TokioUring, Tcp;
    #[cfg(feature = "tokio-uring")]
    tokio_uring_over_a_unix_socket: TokioUring, Unix;
    #[cfg(feature = "tls")]
    epoll_over_tls: Epoll, Tls;
    #[cfg(all(feature = "tls", feature = "uring"))]
    uring_over_tls: Uring, Tls;
    #[cfg(all(feature = "tls", feature = "tokio-uring"))]
    tokio_uring_over_tls: TokioUring, Tls;
}

#[test]
fn debians_beanstalkd_over_tcp() {
    let Some(program) = installed() else {
        println!("skipped: conversations with beanstalkd, because it is not installed");
        return;
    };
    let version = version(&program);
    println!("compared with beanstalkd {version}");
    let conversations = with_beanstalkd(version);
    run_all(conversations, |conversation| {
        // Conversations for old versions show strings as those versions write them.
        let has_quotes = version >= QUOTES_FROM || conversation.beanstalkd_until.is_some();
        let dialect = if has_quotes { Dialect::Quoted } else { Dialect::Bare };
        let tries = conversation.unsteady_reference.as_ref().map_or(1, |_| TRIES_MAX);
        let mut attempts = (0..tries).map(|_| {
            let mut peer = Live::start(&program, Transport::Tcp, &flags(conversation));
            run(conversation, &mut peer, dialect)
        });
        let first = attempts.next().expect("there is at least one attempt");
        first.or_else(|failure| attempts.find(Result::is_ok).unwrap_or(Err(failure)))
    });
}

#[test]
fn each_version_of_beanstalkd_has_its_own_conversations() {
    let name = |each: &Conversation| each.path.file_name().expect("a name").to_string_lossy().into_owned();
    let held = |version| with_beanstalkd(version).iter().map(name).collect::<Vec<String>>();
    let (old, new) = (held(Version(1, 12)), held(Version(1, 13)));
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|name| !those.contains(name)).cloned().collect()
    };
    let (old, new) = (only(&old, &new), only(&new, &old));
    assert_eq!(old, ["beanstalkd-1.12-reserve-with-timeout.txt", "beanstalkd-1.12-strings-are-bare.txt"]);
    assert_eq!(new, ["integers-reserve-with-timeout-is-strict.txt", "stats-strings-are-quoted.txt"]);
    let ours: Vec<String> = in_real_time().map(|each| name(&each)).collect();
    assert!(new.iter().all(|name| ours.contains(name)) && !ours.contains(&old[0]), "{ours:?}");
}

fn run_under(io: Driver, transport: Transport) {
    if !driver::is_allowed(io, "conversations") {
        return;
    }
    run_all(in_real_time().collect(), |conversation| {
        let flags = [&flags(conversation)[..], &driver::flags(io).map(str::to_owned)].concat();
        let mut peer = Live::start(Path::new(program()), transport, &flags);
        run(conversation, &mut peer, Dialect::Quoted)
    });
}
