//! A producer and a waiting worker. The pair measures how long a job takes from one to the other, and how late a
//! reserve times out.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::worker::Worker;
use super::{Shared, TURN_MAX, Violation};
use crate::record::Tally;
use beanring_testkit::random::Random;

/// Jobs in flight at once.
pub const JOBS_MAX: u64 = 64;

const TUBE: &str = "control-pair";
const PAUSE: Duration = Duration::from_millis(6);
/// From time to time the producer is silent for this long, so that the worker's reserve times out.
const SILENCE: Duration = Duration::from_millis(1200);
const SILENCE_EVERY: usize = 300;
const WAIT_SECONDS: u32 = 1;
/// A job that has not arrived this long after the last put is lost.
const LAST_JOB_MAX: Duration = Duration::from_secs(30);
const TTR: u32 = 600;

/// State that both ends share.
#[derive(Default)]
struct Way {
    /// Numbers of the jobs in flight, and when they were put.
    jobs: Mutex<HashMap<u64, Instant>>,
    has_ended: AtomicBool,
}

impl Way {
    fn len(&self) -> usize {
        self.jobs.lock().expect("no thread panicked while holding the lock").len()
    }
}

pub struct Putter {
    worker: Worker,
    random: Random,
    way: Arc<Way>,
}

pub struct Waiter {
    worker: Worker,
    way: Arc<Way>,
}

pub fn connect(shared: &Arc<Shared>, seed: u64) -> io::Result<(Putter, Waiter)> {
    let way = Arc::new(Way::default());
    let worker = Worker::connect(shared, TUBE)?;
    let putter = Putter { worker, random: Random::new(seed ^ 0x70), way: Arc::clone(&way) };
    Ok((putter, Waiter { worker: Worker::connect(shared, TUBE)?, way }))
}

impl Putter {
    pub fn run(mut self) -> Tally {
        let result = self.work();
        self.way.has_ended.store(true, Ordering::Release);
        let settled = result.and_then(|()| self.settle());
        self.worker.end(settled)
    }

    fn work(&mut self) -> Result<(), Violation> {
        let mut number = 1 << 56;
        while !self.worker.shared.is_over() {
            self.worker.shared.pause_if_held();
            let is_silent = self.random.below(SILENCE_EVERY) == 0;
            self.worker.rest(if is_silent { SILENCE } else { PAUSE });
            if self.way.len() >= JOBS_MAX as usize {
                continue;
            }
            number += 1;
            self.way
                .jobs
                .lock()
                .expect("no thread panicked while holding the lock")
                .insert(number, Instant::now());
            let bytes = self.random.below(500);
            if self.worker.put(0, 0, TTR, number, bytes)?.is_none() {
                self.way.jobs.lock().expect("no thread panicked while holding the lock").remove(&number);
            }
        }
        Ok(())
    }

    /// Waits until the worker has received the last jobs.
    fn settle(&mut self) -> Result<(), Violation> {
        let begin = Instant::now();
        // A received job is deleted a little later.
        let mut result = Ok(());
        while begin.elapsed() < LAST_JOB_MAX {
            result = self.worker.settle(TUBE);
            if result.is_ok() {
                break;
            }
            self.worker.rest(Duration::from_millis(50));
        }
        result
    }
}

impl Waiter {
    pub fn run(mut self) -> Tally {
        let result = self.work();
        self.worker.tally.lost += self.way.len() as u64;
        self.worker.end(result)
    }

    fn work(&mut self) -> Result<(), Violation> {
        let mut ended = None;
        loop {
            if self.way.has_ended.load(Ordering::Acquire) {
                let since = *ended.get_or_insert_with(Instant::now);
                if self.way.len() == 0 || since.elapsed() > LAST_JOB_MAX {
                    return Ok(());
                }
            }
            let (delivered, sent, arrived) = self.worker.reserve(WAIT_SECONDS)?;
            let Some(job) = delivered else {
                let due = sent + Duration::from_secs(u64::from(WAIT_SECONDS));
                self.worker.tally.note_early(due.saturating_duration_since(arrived));
                if arrived + TURN_MAX < due {
                    let us = (due - arrived).as_micros() as u64;
                    return Err(Violation::Early { what: "a time-out of a reserve", us });
                }
                self.worker.note(due, arrived);
                continue;
            };
            let put =
                self.way.jobs.lock().expect("no thread panicked while holding the lock").remove(&job.number);
            // If the worker was busy, the job waited in the queue: the latency starts at the later of the two commands.
            let put = put.ok_or(Violation::Unknown { number: job.number })?;
            self.worker.note(put.max(job.sent), job.arrived);
            self.worker.delete(job.id)?;
        }
    }
}
