//! Latencies, and the windows that percentiles cover.

use beanring::time::{Span, Time};

/// All times from ready to reserved, and all times reserved, in nanoseconds.
#[derive(Clone, Default, Debug)]
pub struct Lapses {
    pub queue: Vec<u64>,
    pub reserved: Vec<u64>,
    /// When each of them ended.
    queue_ends: Vec<Time>,
    reserved_ends: Vec<Time>,
    window_end: Time,
}

/// The length of the windows that percentiles cover.
const WINDOW: Span = Span::from_secs(300);

impl Lapses {
    /// Adds a time that ends now.
    pub fn note(&mut self, is_queue: bool, span: u64, now: Time) {
        if self.queue.is_empty() && self.reserved.is_empty() {
            self.window_end = now + WINDOW;
        } else if now >= self.window_end {
            let next = self.window_end + WINDOW;
            self.window_end = if now < next { next } else { now + WINDOW };
        }
        let (spans, ends) = match is_queue {
            true => (&mut self.queue, &mut self.queue_ends),
            false => (&mut self.reserved, &mut self.reserved_ends),
        };
        spans.push(span);
        ends.push(now);
    }

    /// The times from ready to reserved, and the times reserved, that ended in the current window or the one before it.
    pub fn recent(&self, now: Time) -> [Vec<u64>; 2] {
        let windows = match now {
            _ if now < self.window_end => 2,
            _ if now < self.window_end + WINDOW => 1,
            _ => 0,
        };
        let counts = |end: Time| self.window_end.since(end).as_nanos() <= windows * WINDOW.as_nanos();
        [(&self.queue, &self.queue_ends), (&self.reserved, &self.reserved_ends)].map(|(spans, ends)| {
            spans.iter().zip(ends).filter(|&(_, &end)| counts(end)).map(|(&span, _)| span).collect()
        })
    }
}
