//! Commands through the whole server, without a kernel: from received bytes to sent bytes.

use std::time::{Duration, Instant};

use beanring_testkit::bench::server::Rig;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Commands per receive.
const DEPTH: u64 = 32;

/// Returns commands that delete the jobs of these replies to puts.
fn deletes_of(replies: &[u8]) -> String {
    let replies = std::str::from_utf8(replies).expect("text");
    replies.lines().map(|line| line.replace("INSERTED", "delete") + "\r\n").collect()
}

/// Measures each of three steps that together leave no job behind.
fn commands(c: &mut Criterion) {
    let puts = format!("put 1024 0 60 64\r\n{}\r\n", "x".repeat(64)).repeat(DEPTH as usize);
    let reserves = "reserve\r\n".repeat(DEPTH as usize);
    let mut group = c.benchmark_group(format!("{DEPTH} in one receive"));
    group.throughput(Throughput::Elements(DEPTH));
    for (step, name) in ["put", "reserve", "delete"].into_iter().enumerate() {
        let mut rig = Rig::new();
        let conn = rig.connect();
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let mut spent = Duration::ZERO;
                for _ in 0..rounds {
                    let mut deletes = String::new();
                    for (at, input) in [&puts, &reserves, &String::new()].into_iter().enumerate() {
                        let input = if at == 2 { &deletes } else { input };
                        let started = Instant::now();
                        let replies = rig.turn(conn, input.as_bytes());
                        if at == step {
                            spent += started.elapsed();
                        }
                        if at == 0 {
                            deletes = deletes_of(replies);
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
