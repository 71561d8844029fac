//! A memory limit, and producers that never stop. Memory stays below the limit, consumers work as fast as before, and
//! puts succeed again when there is room.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Fault;
use crate::client::{Client, put};
use crate::context::Context;
use crate::failure::Failure;
use crate::options::Options;
use crate::server::{Server, Setup};

const FLAGS: [&str; 2] = ["--max-memory", "256m"];

/// Resident memory allowed under that limit.
const RESIDENT_BYTES_MAX: u64 = 300_000_000;

const BODY_BYTES: usize = 1000;
const PRODUCERS: usize = 2;
const CONSUMERS: usize = 2;

/// Commands in flight at once.
const PUTS: usize = 64;
const RESERVES: usize = 32;

/// Jobs in the queue when consumers start without a limit, and at which producers stop.
const JOBS_BEFORE: u64 = 100_000;
const JOBS_MAX: u64 = 1_500_000;

/// Throughput of consumers under the limit, as a share of their throughput without one.
const SPEED_MIN: f64 = 0.8;

/// How long it may take to fill the server, and to drain it again.
const FILL_MAX: Duration = Duration::from_secs(60);

pub struct Memory;

impl Fault for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn title(&self) -> &'static str {
        "--max-memory 256m and producers that never stop"
    }

    fn seconds(&self, options: &Options, is_first: bool) -> f64 {
        options.seconds(if is_first { 600.0 } else { 120.0 }, 4.0)
    }

    fn setup(&self, _: &Options, _: &Path) -> Result<Setup, String> {
        let help = Command::new(env!("CARGO_BIN_EXE_beanring")).arg("--help").output();
        let knows = help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains(FLAGS[0]));
        if !knows {
            return Err(format!("this server has no {}", FLAGS[0]));
        }
        Ok(Setup { flags: FLAGS.map(str::to_owned).to_vec(), ..Setup::default() })
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        context.resident_bytes_max = Some(RESIDENT_BYTES_MAX);
        context.control.allow_refusals();
        let free = speed_without_limit(context)?;
        context.begin = Instant::now();

        let load = Load::start(context.server.addr);
        let refused = |load: &Load| load.refused.load(Ordering::Relaxed);
        await_until(context, || refused(&load) > 0)?;
        let filled = context.begin.elapsed().as_secs_f64();
        if refused(&load) == 0 {
            context.broken.push("puts are never refused".to_owned());
        }
        load.is_consuming.store(true, Ordering::Relaxed);
        let (begin, before) = (Instant::now(), load.deleted.load(Ordering::Relaxed));
        let most = context.length.mul_f64(0.7);
        while context.is_running()? && context.begin.elapsed() < most {
            context.pause(Duration::from_millis(100))?;
        }
        let deleted = load.deleted.load(Ordering::Relaxed) - before;
        let under = deleted as f64 / begin.elapsed().as_secs_f64();
        // Fills the server once more, and then makes room.
        load.is_consuming.store(false, Ordering::Relaxed);
        context.pause(context.length.mul_f64(0.1))?;
        let inserted = load.inserted.load(Ordering::Relaxed);
        load.is_consuming.store(true, Ordering::Relaxed);
        while context.is_running()? {
            context.pause(Duration::from_millis(100))?;
        }
        let resumed = load.inserted.load(Ordering::Relaxed) - inserted;
        if resumed == 0 {
            context.broken.push("puts do not succeed when there is room again".to_owned());
        }
        load.is_producing.store(false, Ordering::Relaxed);
        await_until(context, || {
            load.inserted.load(Ordering::Relaxed) == load.deleted.load(Ordering::Relaxed)
        })?;
        let (inserted, deleted, refused) = load.end()?;
        if inserted != deleted {
            context.broken.push(format!("{inserted} jobs were put, {deleted} deleted"));
        }
        if under < SPEED_MIN * free {
            context
                .broken
                .push(format!("consumers take {under:.0} jobs per second, {free:.0} without a memory limit"));
        }
        context.notes.push(format!(
            "full after {filled:.1} s; {inserted} puts, {refused} refused; consumers take {under:.0} jobs per second \
             ({free:.0} without a memory limit); {resumed} puts once there was room again"
        ));
        Ok(())
    }
}

/// Measures how many jobs per second consumers take beside such producers, without a limit.
fn speed_without_limit(context: &mut Context<'_>) -> Result<f64, Failure> {
    let server: Server = context.servers.start(1, context.server.driver, &Setup::default(), None)?;
    let load = Load::start(server.addr);
    let inserted = || load.inserted.load(Ordering::Relaxed);
    await_until(context, || inserted() > JOBS_BEFORE)?;
    load.is_consuming.store(true, Ordering::Relaxed);
    let (begin, before) = (Instant::now(), load.deleted.load(Ordering::Relaxed));
    let length = Duration::from_millis(context.options.scale(4000, 1000));
    while begin.elapsed() < length && inserted() - load.deleted.load(Ordering::Relaxed) < JOBS_MAX {
        context.pause(Duration::from_millis(20))?;
    }
    let deleted = load.deleted.load(Ordering::Relaxed) - before;
    let speed = deleted as f64 / begin.elapsed().as_secs_f64();
    load.end()?;
    Ok(speed)
}

fn await_until(context: &mut Context<'_>, is_so: impl Fn() -> bool) -> Result<(), Failure> {
    let begin = Instant::now();
    while !is_so() && begin.elapsed() < FILL_MAX {
        context.pause(Duration::from_millis(10))?;
    }
    Ok(())
}

/// Producers and consumers.
#[derive(Default)]
struct Counters {
    is_producing: AtomicBool,
    is_consuming: AtomicBool,
    is_over: AtomicBool,
    inserted: AtomicU64,
    refused: AtomicU64,
    deleted: AtomicU64,
}

struct Load {
    counters: Arc<Counters>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl std::ops::Deref for Load {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        &self.counters
    }
}

impl Load {
    /// Starts the producers. The consumers wait.
    fn start(addr: SocketAddr) -> Load {
        let counters = Arc::new(Counters { is_producing: AtomicBool::new(true), ..Counters::default() });
        let mut threads = Vec::new();
        for _ in 0..PRODUCERS {
            let counters = Arc::clone(&counters);
            threads.push(thread::spawn(move || produce(addr, &counters)));
        }
        for _ in 0..CONSUMERS {
            let counters = Arc::clone(&counters);
            threads.push(thread::spawn(move || consume(addr, &counters)));
        }
        Load { counters, threads }
    }

    /// Stops all. Returns the numbers of jobs that were put, taken and refused.
    fn end(mut self) -> Result<(u64, u64, u64), Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let result = thread.join().expect("no thread of the load panics");
            result.map_err(|error| Failure::Client("put or take a job", error))?;
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok((count(&self.inserted), count(&self.deleted), count(&self.refused)))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.counters.is_over.store(true, Ordering::Relaxed);
    }
}

fn produce(addr: SocketAddr, counters: &Counters) -> io::Result<()> {
    let mut client = Client::connect(addr)?;
    client.request(b"use load\r\n")?;
    let puts = put(0, 0, 600, &[b'b'; BODY_BYTES]).repeat(PUTS);
    while !counters.is_over.load(Ordering::Relaxed) {
        if !counters.is_producing.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        client.send(&puts)?;
        for _ in 0..PUTS {
            let reply = client.reply()?;
            let counter = match reply.line.split(' ').next() {
                Some("INSERTED") => &counters.inserted,
                Some("OUT_OF_MEMORY") => &counters.refused,
                _ => return Err(io::Error::other(format!("put was answered {:?}", reply.line))),
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

fn consume(addr: SocketAddr, counters: &Counters) -> io::Result<()> {
    let mut client = Client::connect(addr)?;
    client.request(b"watch load\r\n")?;
    let reserves = b"reserve-with-timeout 0\r\n".repeat(RESERVES);
    while !counters.is_over.load(Ordering::Relaxed) {
        if !counters.is_consuming.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(10));
            continue;
        }
        client.send(&reserves)?;
        let mut deletes = Vec::new();
        let mut count = 0;
        for _ in 0..RESERVES {
            let reply = client.reply()?;
            if let Some(id) = reply.number(1).filter(|_| reply.line.starts_with("RESERVED ")) {
                deletes.extend_from_slice(format!("delete {id}\r\n").as_bytes());
                count += 1;
            }
        }
        client.send(&deletes)?;
        for _ in 0..count {
            let reply = client.reply()?;
            if reply.line != "DELETED" {
                return Err(io::Error::other(format!("delete was answered {:?}", reply.line)));
            }
        }
        counters.deleted.fetch_add(count, Ordering::Relaxed);
        if count == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}
