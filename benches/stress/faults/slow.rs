//! Slow senders: a byte per second, of lines and of bodies.

use std::time::{Duration, Instant};

use super::Fault;
use crate::bounds::MemoryItem;
use crate::context::Context;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::options::Options;

const WORDS: &[u8] =
    b"use slow\r\nput 0 0 60 10\r\n0123456789\r\nwatch slow\r\npeek-ready\r\nput 9 0 60 20000\r\n";

/// Moments per second, at each of which a part of the crowd sends its byte.
const MOMENTS: usize = 50;

pub struct Slow;

impl Fault for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn title(&self) -> &'static str {
        "5,000 clients that send a byte per second"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let count = context.options.scale(5_000, 1_000);
        let seconds = context.length.as_secs() + 10;
        let mut crowd = Crowd::open(context.server.addr, count, Link::Narrow)?;
        let words = [WORDS, &vec![b'b'; seconds as usize]].concat();
        // Each client starts at another position of the text.
        for rogue in &mut crowd.rogues {
            let before = context.random.below(WORDS.len());
            rogue.send(&words[..before]);
        }
        context.await_connections(crowd.len())?;
        context.memory_items.extend([
            MemoryItem::connections(crowd.len()),
            MemoryItem::inboxes(crowd.len()),
            MemoryItem::bodies(crowd.len(), words.len() as u64),
            MemoryItem::jobs(crowd.len(), 10),
        ]);
        let mut moment = 0;
        let begin = Instant::now();
        let mut received = Vec::new();
        while context.is_running()? {
            for rogue in crowd.rogues.iter_mut().skip(moment % MOMENTS).step_by(MOMENTS) {
                let next = (rogue.sent as usize).min(words.len() - 1);
                rogue.send(&words[next..=next]);
                rogue.receive(&mut received);
                received.clear();
            }
            moment += 1;
            let due = Duration::from_secs_f64(moment as f64 / MOMENTS as f64);
            context.pause(due.saturating_sub(begin.elapsed()))?;
        }
        if let Some(which) = crowd.rogues.iter().position(|rogue| rogue.is_closed) {
            context.broken.push(format!("the server closed the connection of slow client {which}"));
        }
        crowd.leave();
        Ok(())
    }
}
