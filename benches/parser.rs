//! The cost of parsing a command and of rendering a reply, without the queue.

use std::hint::black_box;

use beanring::protocol::framing::LineReader;
use beanring::protocol::parse::parse;
use beanring::protocol::reply::Reply;
use beanring::values::ids::JobId;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn parsing(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    for (name, line) in [
        ("put", "put 0 0 60 1024"),
        ("put-wide", "put 4294967295 4294967295 4294967295 4294967295"),
        ("reserve", "reserve"),
        ("reserve-with-timeout", "reserve-with-timeout 5"),
        ("delete", "delete 1234567"),
        ("release", "release 1234567 1024 10"),
        ("touch", "touch 1234567"),
        ("use", "use emails"),
        ("stats", "stats"),
        ("pause-tube", "pause-tube emails 60"),
        ("unknown", "GET / HTTP/1.1"),
    ] {
        group.bench_function(name, |b| b.iter(|| parse(black_box(line.as_bytes()))));
    }
    group.finish();
}

/// A full receive buffer of a client that pipelines.
fn framing(c: &mut Criterion) {
    const LINE: &[u8] = b"delete 1234567\r\n";
    let input = LINE.repeat(16 * 1024 / LINE.len());

    let mut group = c.benchmark_group("framing/16KiB");
    group.throughput(Throughput::Elements((input.len() / LINE.len()) as u64));
    group.bench_function("whole", |b| b.iter(|| for_each_line(&mut LineReader::new(), &input)));
    // With pieces of 61 bytes, about every fourth line is split.
    group.bench_function("split", |b| {
        b.iter(|| {
            let mut reader = LineReader::new();
            for piece in input.chunks(61) {
                for_each_line(&mut reader, piece);
            }
        });
    });
    group.finish();
}

fn for_each_line(reader: &mut LineReader, input: &[u8]) {
    let mut input = black_box(input);
    while let Some(line) = reader.next(&mut input) {
        black_box(line);
    }
}

fn rendering(c: &mut Criterion) {
    let mut group = c.benchmark_group("render");
    let mut out = Vec::with_capacity(256);
    for (name, reply) in [
        ("deleted", Reply::Deleted),
        ("inserted", Reply::Inserted(JobId(1_234_567))),
        ("reserved", Reply::Reserved { id: JobId(1_234_567), bytes: 1024 }),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| {
                out.clear();
                black_box(&reply).render(&mut out);
                black_box(out.as_slice());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parsing, framing, rendering);
criterion_main!(benches);
