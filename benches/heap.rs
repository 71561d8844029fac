//! The pairing heap and the standard library's binary heap: one element in and the smallest out, at a constant size.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use beanring::intrusive::{Heap, Linked, Links, Pages, Ranked};
use beanring_testkit::random::Random;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

/// An element as large as a job.
#[repr(align(64))]
struct Node {
    key: (u32, u64),
    links: Links,
    rank: u8,
}

impl Linked for Node {
    fn links(&self) -> &Links {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

impl Ranked for Node {
    type Key = (u32, u64);

    fn key(&self) -> (u32, u64) {
        self.key
    }

    fn rank(&self) -> u8 {
        self.rank
    }

    fn set_rank(&mut self, rank: u8) {
        self.rank = rank;
    }
}

/// The priority of the element with this id.
type Order = fn(u64) -> u32;

/// Keys in the order of arrival.
struct Keys {
    next: Order,
    id: u64,
}

impl Keys {
    fn next(&mut self) -> (u32, u64) {
        self.id += 1;
        ((self.next)(self.id), self.id)
    }
}

fn put_and_pop(c: &mut Criterion) {
    let orders: [(&str, Order); 3] = [
        ("id order", |_| 0),
        ("reverse", |id| u32::MAX - id as u32),
        ("random", |id| Random::new(id).next() as u32),
    ];
    for (order, next) in orders {
        let mut group = c.benchmark_group(format!("heap, {order}"));
        for size in [1_000, 1_000_000] {
            let mut keys = Keys { next, id: 0 };
            let mut slab = Pages::new();
            let mut heap = Heap::new();
            let mut insert = |slab: &mut Pages<Node>, heap: &mut Heap| {
                let node = slab.insert(Node { key: keys.next(), links: Links::NONE, rank: 0 });
                heap.insert(slab, node);
            };
            (0..size).for_each(|_| insert(&mut slab, &mut heap));
            group.bench_function(BenchmarkId::new("pairing", size), |b| {
                b.iter(|| {
                    insert(&mut slab, &mut heap);
                    let node = heap.pop(&mut slab).expect("the heap is not empty");
                    slab.remove(node)
                });
            });
            let mut keys = Keys { next, id: 0 };
            let mut heap: BinaryHeap<_> = (0..size).map(|_| Reverse(keys.next())).collect();
            group.bench_function(BenchmarkId::new("std binary", size), |b| {
                b.iter(|| {
                    heap.push(Reverse(keys.next()));
                    heap.pop()
                });
            });
        }
    }
}

criterion_group!(benches, put_and_pop);
criterion_main!(benches);
