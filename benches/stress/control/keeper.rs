//! Checks that delays and reservations end when they are due: not before, and not long after.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::worker::{Worker, unexpected};
use super::{Shared, TURN_MAX, Violation};
use crate::record::Tally;

const TUBE: &str = "control-time";
const SECOND: Duration = Duration::from_secs(1);
/// While puts are refused, the keeper only waits.
const PAUSE: Duration = Duration::from_millis(100);
const WAIT_SECONDS: u32 = 60;
const BODY_BYTES: usize = 100;

pub struct Keeper {
    /// Puts a job whose reservation will time out.
    careless: Worker,
    /// Reserves the job that becomes ready again.
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

    fn work(&mut self) -> Result<(), Violation> {
        while !self.careless.shared.is_over() {
            self.careless.shared.pause_if_held();
            self.delayed()?;
            if !self.careless.shared.is_over() {
                self.run_out()?;
            }
        }
        self.careless.settle(TUBE)
    }

    /// Reserves a job when its delay ends.
    fn delayed(&mut self) -> Result<(), Violation> {
        self.number += 1;
        let sent = Instant::now();
        let Some(id) = self.careless.put(0, 1, 600, self.number, BODY_BYTES)? else {
            self.careless.rest(PAUSE);
            return Ok(());
        };
        self.take(id, "a delayed job", sent, Instant::now())
    }

    /// Puts and reserves a job, and lets the reservation time out.
    fn run_out(&mut self) -> Result<(), Violation> {
        self.number += 1;
        let Some(id) = self.careless.put(0, 0, 1, self.number, BODY_BYTES)? else { return Ok(()) };
        let (job, sent, answered) = self.careless.reserve(WAIT_SECONDS)?;
        match job {
            Some(job) if job.id == id => self.take(id, "a job that was forgotten", sent, answered),
            Some(job) => Err(Violation::OutOfTurn { expected: id, got: job.id }),
            None => {
                Err(Violation::Answer { to: format!("a reserve of job {id}"), got: "TIMED_OUT".to_owned() })
            }
        }
    }

    /// Reserves the job that is due a second after the reply to a command.
    fn take(
        &mut self,
        id: u64,
        what: &'static str,
        sent: Instant,
        answered: Instant,
    ) -> Result<(), Violation> {
        let (job, _, arrived) = self.careful.reserve(WAIT_SECONDS)?;
        let Some(job) = job else {
            self.careful.tally.lost += 1;
            return Err(Violation::Answer {
                to: format!("a reserve of job {id}"),
                got: "TIMED_OUT".to_owned(),
            });
        };
        if (job.id, job.number) != (id, self.number) {
            return Err(Violation::OutOfTurn { expected: id, got: job.id });
        }
        let earliest = sent + SECOND;
        self.careful.tally.note_early(earliest.saturating_duration_since(arrived));
        if arrived + TURN_MAX < earliest {
            return Err(Violation::Early { what, us: (earliest - arrived).as_micros() as u64 });
        }
        self.careful.note(answered + SECOND, arrived);
        let reply = self.careful.request(format!("delete {id}\r\n").as_bytes())?;
        if reply.line != "DELETED" {
            return Err(unexpected("delete", &reply));
        }
        self.careful.tally.cycles += 1;
        Ok(())
    }
}
