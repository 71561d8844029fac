//! Clients that connect, or send, in the moment in which a server has processed everything before. After more than 128 other
//! wake-ups, kernels lose that of an io_uring then (docs/internals/IO.md).
//!
//! A round meets that moment by chance. `BEANRING_TEST_ROUNDS` sets the number of rounds.

use std::time::Duration;
use std::{env, thread};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, serve_under};
use beanring_testkit::process::{ServerProcess, Transport};
use beanring_testkit::random::Random;
use beanring_testkit::{tests_of_drivers, wait};
use nix::sys::signal::Signal;

/// More wake-ups than the kernel counts.
const BURST: usize = 200;

const COMMAND: &str = "list-tube-used\r\n";
const REPLY: &str = "USING default\r\n";

/// The time in which a server accepts or receives a burst.
const DELAY_MAX: Duration = Duration::from_micros(2_500);

tests_of_drivers!(
    "the last of a burst", serve_the_last_of_a_burst:
    epoll_serves_the_last_of_a_burst, uring_serves_the_last_of_a_burst, tokio_uring_serves_the_last_of_a_burst
);

fn serve_the_last_of_a_burst(io: Driver) {
    let rounds =
        env::var("BEANRING_TEST_ROUNDS").map_or(50, |text| text.parse().expect("a number of rounds"));
    for transport in [Transport::Unix, Transport::Tcp] {
        let (server, mut first) = serve_under(io, transport, &[]);
        first.send(COMMAND);
        first.expect_bytes(REPLY);
        let mut random = Random::new(7);
        for _ in 0..rounds {
            pause(&server);
            let _burst: Vec<Client> = (0..BURST).map(|_| server.client()).collect();
            resume_and_wait(&server, &mut random);
            let mut last = server.client();
            last.send(COMMAND);
            last.expect_bytes(REPLY);

            pause(&server);
            let commands = BURST / COMMAND.len() + 1;
            let input = COMMAND.repeat(commands);
            let (burst, end) = input.split_at(input.len() - 1);
            burst.as_bytes().chunks(1).for_each(|byte| first.stream.send(byte));
            resume_and_wait(&server, &mut random);
            first.send(end);
            first.expect_bytes(REPLY.repeat(commands));
        }
        let repairs = first.stat("io-self-check-repairs");
        println!("{}, {transport:?}: {repairs} repairs in {rounds} rounds", io.name());
    }
}

/// Stops the process, and waits until it has stopped.
fn pause(server: &ServerProcess) {
    server.signal(Signal::SIGSTOP);
    wait::until("the process stops", || server.state() == 'T');
}

fn resume_and_wait(server: &ServerProcess, random: &mut Random) {
    let delay = Duration::from_nanos(random.below(DELAY_MAX.as_nanos() as usize) as u64);
    server.signal(Signal::SIGCONT);
    thread::sleep(delay);
}
