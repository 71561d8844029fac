//! A producer, and a worker that waits for it: what is written down is how long a job takes from the one to the
//! other, and how late a wait that ends without a job ends.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::worker::Worker;
use super::{Fault, Shared, TURN_MAX};
use crate::record::Tally;
use beanring_testkit::random::Random;

/// Jobs on the way at once; more are not put before some have come.
pub const JOBS_MAX: u64 = 64;

const TUBE: &str = "control-pair";
const PAUSE: Duration = Duration::from_millis(6);
/// Now and then it is silent for so long, and the worker's wait ends.
const SILENCE: Duration = Duration::from_millis(1200);
const SILENCE_EVERY: usize = 300;
const WAIT_SECONDS: u32 = 1;
/// What has not come so long after the last put is lost.
const LAST_JOB_MAX: Duration = Duration::from_secs(30);
const TTR: u32 = 600;

/// What both know.
#[derive(Default)]
struct Way {
    /// Numbers on the way, and when they were put.
    jobs: Mutex<HashMap<u64, Instant>>,
    has_ended: AtomicBool,
}

impl Way {
    fn len(&self) -> usize {
        self.jobs.lock().expect("nobody panics with it").len()
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

    fn work(&mut self) -> Result<(), Fault> {
        let mut number = 1 << 56;
        while !self.worker.shared.is_over() {
            self.worker.shared.pause_if_held();
            let is_silent = self.random.below(SILENCE_EVERY) == 0;
            self.worker.rest(if is_silent { SILENCE } else { PAUSE });
            if self.way.len() >= JOBS_MAX as usize {
                continue;
            }
            number += 1;
            self.way.jobs.lock().expect("nobody panics with it").insert(number, Instant::now());
            let bytes = self.random.below(500);
            if self.worker.put(0, 0, TTR, number, bytes)?.is_none() {
                self.way.jobs.lock().expect("nobody panics with it").remove(&number);
            }
        }
        Ok(())
    }

    /// The worker takes the last jobs first.
    fn settle(&mut self) -> Result<(), Fault> {
        let begin = Instant::now();
        // One that has come is deleted some time later.
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

    fn work(&mut self) -> Result<(), Fault> {
        let mut ended = None;
        loop {
            if self.way.has_ended.load(Ordering::Acquire) {
                let since = *ended.get_or_insert_with(Instant::now);
                if self.way.len() == 0 || since.elapsed() > LAST_JOB_MAX {
                    return Ok(());
                }
            }
            let (delivered, asked, came) = self.worker.reserve(WAIT_SECONDS)?;
            let Some(job) = delivered else {
                let due = asked + Duration::from_secs(u64::from(WAIT_SECONDS));
                self.worker.tally.note_early(due.saturating_duration_since(came));
                if came + TURN_MAX < due {
                    let us = (due - came).as_micros() as u64;
                    return Err(Fault::Early { what: "the end of a wait", us });
                }
                self.worker.note(due, came);
                continue;
            };
            let put = self.way.jobs.lock().expect("nobody panics with it").remove(&job.number);
            // It waits in the queue where the worker was busy, so what counts begins with the later of the two.
            let put = put.ok_or(Fault::Unknown { number: job.number })?;
            self.worker.note(put.max(job.asked), job.came);
            self.worker.delete(job.id)?;
        }
    }
}
