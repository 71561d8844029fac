//! Watches that delays and reservations end when they are due: not before, and not long after.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::worker::{Worker, unexpected};
use super::{Fault, Shared, TURN_MAX};
use crate::record::Tally;

const TUBE: &str = "control-time";
const SECOND: Duration = Duration::from_secs(1);
/// While puts are refused it only waits.
const PAUSE: Duration = Duration::from_millis(100);
const WAIT_SECONDS: u32 = 60;
const BODY_BYTES: usize = 100;

pub struct Keeper {
    /// Puts, and lets a reservation run out.
    careless: Worker,
    /// Takes what comes back.
    careful: Worker,
    number: u64,
}

impl Keeper {
    pub fn connect(shared: &Arc<Shared>, seed: u64) -> io::Result<Keeper> {
        let (careless, careful) = (Worker::connect(shared, TUBE)?, Worker::connect(shared, TUBE)?);
        Ok(Keeper { careless, careful, number: (seed & 0xffff) << 32 | 1 << 57 })
    }

    pub fn run(mut self) -> Tally {
        let result = self.work();
        let other = self.careful.end(Ok(()));
        let mut tally = self.careless.end(result);
        tally.add(other);
        tally
    }

    fn work(&mut self) -> Result<(), Fault> {
        while !self.careless.shared.is_over() {
            self.careless.shared.pause_if_held();
            self.delayed()?;
            if !self.careless.shared.is_over() {
                self.run_out()?;
            }
        }
        self.careless.settle(TUBE)
    }

    /// A job that is put with a delay.
    fn delayed(&mut self) -> Result<(), Fault> {
        self.number += 1;
        let asked = Instant::now();
        let Some(id) = self.careless.put(0, 1, 600, self.number, BODY_BYTES)? else {
            self.careless.rest(PAUSE);
            return Ok(());
        };
        self.take(id, "a delayed job", asked, Instant::now())
    }

    /// A job that somebody reserves and forgets.
    fn run_out(&mut self) -> Result<(), Fault> {
        self.number += 1;
        let Some(id) = self.careless.put(0, 0, 1, self.number, BODY_BYTES)? else { return Ok(()) };
        let (job, asked, answered) = self.careless.reserve(WAIT_SECONDS)?;
        match job {
            Some(job) if job.id == id => self.take(id, "a job that was forgotten", asked, answered),
            Some(job) => Err(Fault::OutOfTurn { expected: id, got: job.id }),
            None => Err(Fault::Answer { to: format!("a reserve of job {id}"), got: "TIMED_OUT".to_owned() }),
        }
    }

    /// Takes the job that comes a second after something was asked and answered.
    fn take(&mut self, id: u64, what: &'static str, asked: Instant, answered: Instant) -> Result<(), Fault> {
        let (job, _, came) = self.careful.reserve(WAIT_SECONDS)?;
        let Some(job) = job else {
            self.careful.tally.lost += 1;
            return Err(Fault::Answer { to: format!("a reserve of job {id}"), got: "TIMED_OUT".to_owned() });
        };
        if (job.id, job.number) != (id, self.number) {
            return Err(Fault::OutOfTurn { expected: id, got: job.id });
        }
        let earliest = asked + SECOND;
        self.careful.tally.note_early(earliest.saturating_duration_since(came));
        if came + TURN_MAX < earliest {
            return Err(Fault::Early { what, us: (earliest - came).as_micros() as u64 });
        }
        self.careful.note(answered + SECOND, came);
        let reply = self.careful.ask(format!("delete {id}\r\n").as_bytes())?;
        if reply.line != "DELETED" {
            return Err(unexpected("delete", &reply));
        }
        self.careful.tally.cycles += 1;
        Ok(())
    }
}
