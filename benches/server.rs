//! Commands through the whole server, without a kernel: from received bytes to sent bytes.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use beanring::ids::ConnId;
use beanring::limits::JOB_BYTES_DEFAULT;
use beanring::server::{Effect, Event, Protocol, Server, Service};
use beanring::time::Time;
use beanring_testkit::config::config;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Commands per receive.
const DEPTH: u64 = 32;

struct Rig {
    server: Server,
    conn: ConnId,
    answers: Vec<u8>,
}

impl Rig {
    fn new() -> Self {
        let mut server = Server::new(config(JOB_BYTES_DEFAULT));
        let conn = server.accept(Protocol::Beanstalk);
        Self { server, conn, answers: Vec::new() }
    }

    /// One event-loop iteration of a driver.
    fn turn(&mut self, input: &[u8]) {
        self.answers.clear();
        let conn = self.conn;
        self.server.handle(Time::ZERO, Event::Received { conn, bytes: input });
        while let Some(effect) = self.server.next_effect() {
            assert_eq!(effect, Effect::Send(conn));
            let mut slices: Vec<IoSlice<'_>> = Vec::new();
            self.server.outgoing(conn, &mut slices);
            slices.iter().for_each(|slice| self.answers.extend_from_slice(slice));
            let bytes = self.answers.len();
            self.server.handle(Time::ZERO, Event::Sent { conn, bytes });
        }
        self.server.turn(Time::ZERO);
    }

    /// Returns the ids in the replies to puts.
    fn deletes(&self) -> String {
        let answers = std::str::from_utf8(&self.answers).expect("text");
        answers.lines().map(|line| line.replace("INSERTED", "delete") + "\r\n").collect()
    }
}

/// Measures each of three steps that together leave no job behind.
fn commands(c: &mut Criterion) {
    let puts = format!("put 1024 0 60 64\r\n{}\r\n", "x".repeat(64)).repeat(DEPTH as usize);
    let reserves = "reserve\r\n".repeat(DEPTH as usize);
    let mut group = c.benchmark_group(format!("{DEPTH} in one receive"));
    group.throughput(Throughput::Elements(DEPTH));
    for (step, name) in ["put", "reserve", "delete"].into_iter().enumerate() {
        let mut rig = Rig::new();
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let mut deletes = String::new();
                    for (at, input) in [&puts, &reserves, &String::new()].into_iter().enumerate() {
                        let input = if at == 2 { &deletes } else { input };
                        let started = Instant::now();
                        rig.turn(input.as_bytes());
                        if at == step {
                            spent += started.elapsed();
                        }
                        if at == 0 {
                            deletes = rig.deletes();
                        }
                    }
                }
                spent
            });
        });
    }
}

criterion_group!(benches, commands);
criterion_main!(benches);
