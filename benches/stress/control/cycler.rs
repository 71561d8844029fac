//! Puts a few jobs into a tube of its own and takes them out in the order of their priorities and ids.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::worker::Worker;
use super::{BODY_BYTES_MAX, Shared, Violation};
use crate::record::Tally;
use beanring_testkit::random::Random;

/// Jobs in the tube at once.
pub const JOBS_MAX: u64 = 4;

const PAUSE: Duration = Duration::from_millis(4);

/// A job in the tube is reserved without waiting. If the reserve times out, the job is lost.
const RESERVE_SECONDS: u32 = 30;

/// TTR of its jobs in seconds: longer than any violation stops the server.
const TTR: u32 = 600;

pub struct Cycler {
    worker: Worker,
    tube: String,
    random: Random,
    next_number: u64,
    /// Priority, id and number of each job in the tube.
    jobs: Vec<(u32, u64, u64)>,
}

impl Cycler {
    pub fn connect(shared: &Arc<Shared>, seed: u64, which: u64) -> io::Result<Cycler> {
        let tube = format!("control-{which}");
        let worker = Worker::connect(shared, &tube)?;
        let random = Random::new(seed ^ which << 32);
        Ok(Cycler { worker, tube, random, next_number: which << 48, jobs: Vec::new() })
    }

    pub fn run(mut self) -> Tally {
        let result = self.work();
        self.worker.tally.lost += self.jobs.len() as u64;
        self.worker.end(result)
    }

    fn work(&mut self) -> Result<(), Violation> {
        while !self.worker.shared.is_over() {
            self.cycle()?;
            self.worker.shared.pause_if_held();
            self.worker.rest(PAUSE);
        }
        self.worker.settle(&self.tube)
    }

    fn cycle(&mut self) -> Result<(), Violation> {
        for _ in 0..=self.random.below(JOBS_MAX as usize - 1) {
            let bytes = match self.random.below(50) {
                0 => self.random.below(BODY_BYTES_MAX as usize),
                _ => self.random.below(1000),
            };
            let pri = self.random.below(3) as u32;
            self.next_number += 1;
            if let Some(id) = self.worker.put(pri, 0, TTR, self.next_number, bytes)? {
                self.jobs.push((pri, id, self.next_number));
            }
        }
        self.jobs.sort_unstable();
        if self.random.below(8) == 0 && !self.jobs.is_empty() {
            self.try_twice()?;
        }
        while let Some(&(_, id, number)) = self.jobs.first() {
            self.take(id, number)?;
            self.worker.delete(id)?;
            self.jobs.remove(0);
        }
        Ok(())
    }

    /// The first job goes back once: it is released, or buried and kicked.
    fn try_twice(&mut self) -> Result<(), Violation> {
        let (pri, id, number) = self.jobs[0];
        self.take(id, number)?;
        if self.random.below(2) == 0 {
            return self.worker.expect(&format!("release {id} {pri} 0\r\n"), "RELEASED");
        }
        self.worker.expect(&format!("bury {id} {pri}\r\n"), "BURIED")?;
        self.worker.expect("kick 10\r\n", "KICKED 1")
    }

    fn take(&mut self, id: u64, number: u64) -> Result<(), Violation> {
        let (delivered, sent, arrived) = self.worker.reserve(RESERVE_SECONDS)?;
        self.worker.note(sent, arrived);
        match delivered {
            Some(job) if job.id == id && job.number == number => Ok(()),
            Some(job) => Err(Violation::OutOfTurn { expected: id, got: job.id }),
            None => {
                Err(Violation::Answer { to: format!("a reserve of job {id}"), got: "TIMED_OUT".to_owned() })
            }
        }
    }
}
