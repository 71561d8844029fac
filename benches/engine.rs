//! put + reserve + delete of one job of 64 bytes, with more and more jobs, tubes and clients around it.

use std::hint::black_box;

use beanring::queue::Reserved;
use beanring::values::tube_name::TubeName;
use beanring_testkit::bench::engine::{BODY_BYTES, Rig};
use criterion::{Criterion, criterion_group, criterion_main};

fn body_alone(c: &mut Criterion) {
    let mut rig = Rig::new();
    c.bench_function("body alone", |b| {
        b.iter(|| {
            let body = rig.engine.bodies_mut().allocate(BODY_BYTES).expect("there is memory");
            rig.engine.bodies_mut().free(black_box(body));
        });
    });
}

fn jobs(c: &mut Criterion) {
    let mut group = c.benchmark_group("ready jobs");
    for jobs in [0, 1_000_000] {
        let mut rig = Rig::new();
        for _ in 0..jobs {
            rig.put(rig.client, 5000, 0);
        }
        group.bench_function(format!("{}", jobs + 1), |b| b.iter(|| rig.cycle(rig.client)));
    }
}

/// Ready jobs of ten concurrency keys at their limits, more urgent than the job of the cycle.
fn parked_jobs(c: &mut Criterion) {
    let mut group = c.benchmark_group("parked jobs");
    for jobs in [0, 1_000_000] {
        let mut rig = Rig::new();
        if jobs > 0 {
            rig.park(rig.client, 10, jobs);
        }
        group.bench_function(format!("{jobs}"), |b| b.iter(|| rig.cycle(rig.client)));
    }
}

/// Each client uses a tube of its own, in turn.
fn tubes(c: &mut Criterion) {
    let mut group = c.benchmark_group("tubes");
    for tubes in [1, 10_000] {
        let mut rig = Rig::new();
        let clients: Vec<_> = (0..tubes).map(|tube| rig.connect_to(&format!("tube-{tube}"))).collect();
        let mut next = clients.iter().cycle();
        group.bench_function(format!("{tubes} in turn"), |b| {
            b.iter(|| rig.cycle(*next.next().expect("there is a client")));
        });
        group.bench_function(format!("{tubes}, one busy"), |b| b.iter(|| rig.cycle(clients[0])));
    }
}

fn held(c: &mut Criterion) {
    let mut group = c.benchmark_group("held jobs");
    for held in [0, 20_000] {
        let mut rig = Rig::new();
        for _ in 0..held {
            rig.put(rig.client, 5000, 0);
            rig.reserve(rig.client);
        }
        group.bench_function(format!("{}", held + 1), |b| b.iter(|| rig.cycle(rig.client)));
    }
}

/// A job is delivered to a waiting worker, which then waits again.
fn waiting_workers(c: &mut Criterion) {
    let mut group = c.benchmark_group("waiting workers");
    for workers in [1, 10_000] {
        let mut rig = Rig::new();
        for _ in 0..workers {
            let worker = rig.connect();
            assert_eq!(rig.engine.reserve(worker, None, rig.now), Reserved::Waiting);
        }
        group.bench_function(format!("{workers}"), |b| b.iter(|| rig.deliver(rig.client)));
    }
}

fn idle_watchers(c: &mut Criterion) {
    let mut group = c.benchmark_group("idle watchers");
    for watchers in [0, 10_000] {
        let mut rig = Rig::new();
        for _ in 0..watchers {
            rig.connect();
        }
        group.bench_function(format!("{watchers}"), |b| b.iter(|| rig.cycle(rig.client)));
    }
}

/// A client that watches many tubes, four of which have a ready job besides the one that is put and reserved.
fn wide_client(c: &mut Criterion) {
    let mut group = c.benchmark_group("watched tubes");
    for tubes in [1, 16, 17, 10_000] {
        let mut rig = Rig::new();
        for tube in 0..tubes {
            let name = format!("tube-{tube}");
            rig.engine.watch(rig.client, TubeName::new(name.as_bytes()).expect("a valid name"));
        }
        for tube in 0..tubes.min(4) {
            let producer = rig.connect_to(&format!("tube-{tube}"));
            rig.put(producer, 6000, 0);
        }
        group.bench_function(format!("{tubes}, few with jobs"), |b| b.iter(|| rig.cycle(rig.client)));
        let mut rig = Rig::new();
        let worker = rig.connect();
        for tube in 0..tubes {
            let name = format!("tube-{tube}");
            rig.engine.watch(worker, TubeName::new(name.as_bytes()).expect("a valid name"));
        }
        assert_eq!(rig.engine.reserve(worker, None, rig.now), Reserved::Waiting);
        group.bench_function(format!("{tubes}, waiting"), |b| b.iter(|| rig.deliver(rig.client)));
    }
}

criterion_group!(
    benches,
    body_alone,
    jobs,
    parked_jobs,
    tubes,
    held,
    waiting_workers,
    idle_watchers,
    wide_client
);
criterion_main!(benches);
