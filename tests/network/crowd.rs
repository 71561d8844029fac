//! More connections with input at the same moment than any queue or pool of a driver holds.

use beanring::io::descriptors;
use beanring::io::driver::Driver;
use beanring::values::limits::{RECEIVE_BUFFERS, REQUESTS_QUEUED_MAX};
use beanring_testkit::client::{Client, put, serve_under};
use beanring_testkit::process::Transport;
use beanring_testkit::tests_of_drivers;
use nix::sys::signal::Signal;

/// More than the receive buffers, and more than the requests that one call submits.
const CROWD: usize = 1500;

const _: () = assert!(CROWD > RECEIVE_BUFFERS as usize && CROWD > REQUESTS_QUEUED_MAX as usize);

tests_of_drivers!("crowd", serve_a_crowd: epoll_serves_a_crowd, uring_serves_a_crowd, tokio_uring_serves_a_crowd);

/// All clients send a reserve at once. All replies come at once, from puts that one client pipelines.
fn serve_a_crowd(io: Driver) {
    descriptors::raise_limit().expect("a process may raise its soft limit");
    let transports = [
        Transport::Tcp,
        Transport::Unix,
        #[cfg(feature = "tls")]
        Transport::Tls,
    ];
    for transport in transports {
        let (server, mut giver) = serve_under(io, transport, &[]);
        let mut crowd: Vec<Client> = (0..CROWD).map(|_| server.client()).collect();
        // The server has accepted all connections before the input of the crowd comes at once.
        crowd[CROWD - 1].expect("list-tube-used\r\n", "USING default");
        server.signal(Signal::SIGSTOP);
        crowd.iter_mut().for_each(|client| client.send("watch nothing\r\nreserve\r\n"));
        server.signal(Signal::SIGCONT);
        crowd.iter_mut().for_each(|client| client.expect_reply("WATCHING 2"));
        giver.send(&put(0, 0, "hello").repeat(CROWD));
        let receive_job = |client: &mut Client| {
            let (line, data) = client.reply().expect("the server runs");
            let id = line.strip_prefix("RESERVED ").and_then(|rest| rest.strip_suffix(" 5")?.parse().ok());
            assert_eq!(data, "hello\r\n", "{line}");
            id.unwrap_or_else(|| panic!("not a job: {line}"))
        };
        let mut ids: Vec<u64> = crowd.iter_mut().map(receive_job).collect();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(1..=CROWD as u64), "each client gets one job");
    }
}
