//! Slow senders: a byte a second, of lines and of bodies.

use std::time::{Duration, Instant};

use super::Fault;
use crate::bounds::Term;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;

const WORDS: &[u8] =
    b"use slow\r\nput 0 0 60 10\r\n0123456789\r\nwatch slow\r\npeek-ready\r\nput 9 0 60 20000\r\n";

/// In each second there are so many moments, at which a part of the crowd sends its byte.
const MOMENTS: usize = 50;

pub struct Slow;

impl Fault for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn title(&self) -> &'static str {
        "5,000 clients that send a byte a second"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let count = field.options.scale(5_000, 1_000);
        let seconds = field.length.as_secs() + 10;
        let mut crowd = Crowd::open(field.server.addr, count, Link::Narrow)?;
        let words = [WORDS, &vec![b'b'; seconds as usize]].concat();
        // Each has come a different way already.
        for rogue in &mut crowd.rogues {
            let before = field.random.below(WORDS.len());
            rogue.say(&words[..before]);
        }
        field.await_connections(crowd.len())?;
        field.terms.extend([
            Term::connections(crowd.len()),
            Term::inboxes(crowd.len()),
            Term::bodies(crowd.len(), words.len() as u64),
            Term::jobs(crowd.len(), 10),
        ]);
        let mut moment = 0;
        let begin = Instant::now();
        let mut heard = Vec::new();
        while field.rages()? {
            for rogue in crowd.rogues.iter_mut().skip(moment % MOMENTS).step_by(MOMENTS) {
                let next = (rogue.sent as usize).min(words.len() - 1);
                rogue.say(&words[next..=next]);
                rogue.hear(&mut heard);
                heard.clear();
            }
            moment += 1;
            let due = Duration::from_secs_f64(moment as f64 / MOMENTS as f64);
            field.pause(due.saturating_sub(begin.elapsed()))?;
        }
        if let Some(which) = crowd.rogues.iter().position(|rogue| rogue.is_closed) {
            field.broken.push(format!("slow client {which} was hung up on"));
        }
        crowd.leave();
        Ok(())
    }
}
