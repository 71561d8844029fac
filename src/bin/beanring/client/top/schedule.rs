//! What to ask the server next. One request is in flight at a time.
//!
//! A poll asks for the statistics of the server and of the rows on the screen. The names of the tubes, and with an order other
//! than that of the names the statistics of all tubes, are read with each poll as long as there are few tubes, else every ten
//! seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::state::{Page, State};
use super::worker::{Report, Request};
use crate::cli::verbs::Column;

/// With more tubes than this, all of them are read less often.
const TUBES_MANY: usize = 1000;

/// How often many tubes are read.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// The tubes of one request. A key that needs the server waits for one request at most.
const BATCH_TUBES: usize = 256;

/// A reply that takes longer is shown as overdue, with its time.
const SLOW: Duration = Duration::from_secs(3);

/// The longest pause between two attempts to connect.
const BACK_OFF_MAX: Duration = Duration::from_secs(15);

/// A wait for something that has no time.
const LONG: Duration = Duration::from_secs(3600);

/// When the server is asked for what.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    next_poll: Instant,
    /// When the request in flight was sent.
    sent: Option<Instant>,
    /// What it changes, if a key has asked for it.
    action: Option<String>,
    poll: u64,
    /// The poll that has last asked for the tube that is shown in full.
    poll_of_details: u64,
    /// When the names were last asked for.
    listed: Option<Instant>,
    /// Tubes that are still to be read.
    queue: VecDeque<String>,
    /// When the reading of all tubes began, and whether it still goes on.
    sweep: Option<(Instant, bool)>,
    /// When the reading of all tubes began that the order is made of.
    order_from: Option<Instant>,
    /// Attempts to connect that have failed since the last reply.
    failures: u32,
}

impl Schedule {
    pub(super) fn new(interval: Duration, now: Instant) -> Self {
        Self {
            interval,
            next_poll: now,
            sent: None,
            action: None,
            poll: 0,
            poll_of_details: 0,
            listed: None,
            queue: VecDeque::new(),
            sweep: None,
            order_from: None,
            failures: 0,
        }
    }

    /// Returns the request to send now.
    pub(super) fn next(&mut self, now: Instant, state: &mut State) -> Option<Request> {
        if self.sent.is_some() {
            return None;
        }
        let request = self.choose(now, state);
        self.sent = request.is_some().then_some(now);
        request
    }

    fn choose(&mut self, now: Instant, state: &mut State) -> Option<Request> {
        let request = state.actions.pop_front();
        self.action = request.as_ref().and_then(Request::action);
        if request.is_some() {
            return request;
        }
        if state.is_frozen {
            return None;
        }
        if std::mem::take(&mut state.wants_poll) {
            self.next_poll = now;
            // A sweep that is not over reads the missing tubes after it.
            self.sweep = self.sweep.filter(|(_, is_on)| *is_on);
        }
        if now >= self.next_poll {
            self.next_poll = now + self.interval;
            self.poll += 1;
            let is_due = self.listed.is_none_or(|at| now.duration_since(at) >= SWEEP_INTERVAL);
            let is_known = !is_due && state.tubes.count() > TUBES_MANY;
            return Some(Request::Poll { known: is_known.then(|| state.tubes.count() as u64) });
        }
        if state.outage.is_some() {
            return None;
        }
        self.queue_rows(state);
        let names: Vec<String> = self.queue.drain(..self.queue.len().min(BATCH_TUBES)).collect();
        (!names.is_empty()).then_some(Request::Tubes(names))
    }

    /// Notes that a request is answered, and shows the answer.
    pub(super) fn answered(&mut self, now: Instant, at: Instant, report: Report, state: &mut State) {
        self.sent = None;
        match &report {
            Report::Gone(_) => {
                // The next poll may succeed, but what a key has asked for is not repeated then.
                if let Some(action) = self.action.take() {
                    state.undone(format!("not confirmed: {action}"));
                }
                self.queue.clear();
                self.sweep = None;
                self.listed = None;
                let pause =
                    self.interval.max(Duration::from_secs(1)) * 2u32.saturating_pow(self.failures.min(10));
                self.next_poll = now + pause.min(BACK_OFF_MAX);
                self.failures += 1;
            }
            Report::Done(_) => self.next_poll = now,
            Report::Server { names, .. } => {
                self.failures = 0;
                if names.is_some() {
                    self.listed = Some(now);
                }
            }
            Report::Tubes(_) | Report::Details(_) | Report::Refused(_) => {}
        }
        let is_poll = matches!(report, Report::Server { .. });
        let is_tubes = matches!(report, Report::Tubes(_));
        state.take(at, report);
        if is_poll {
            self.queue_sweep(now, state);
        } else if is_tubes && self.queue.is_empty() {
            if let Some((began, is_on @ true)) = &mut self.sweep {
                *is_on = false;
                self.order_from = Some(*began);
            }
            state.arrange();
        }
        self.tell_age(now, state);
    }

    /// Returns how long nothing is to be done unless a key is pressed or a reply comes.
    pub(super) fn wait(&mut self, now: Instant, state: &mut State) -> Duration {
        if let Some(sent) = self.sent {
            let waited = now.duration_since(sent);
            let is_slow = waited >= SLOW;
            state.silent_seconds = is_slow.then_some(waited.as_secs());
            let next = if is_slow { Duration::from_secs(waited.as_secs() + 1) } else { SLOW };
            return next - waited;
        }
        if state.is_frozen { LONG } else { self.next_poll.saturating_duration_since(now) }
    }

    /// Queues what this poll has not asked for yet of what is on the screen.
    fn queue_rows(&mut self, state: &mut State) {
        let poll = self.poll;
        let mut rows: Vec<String> =
            state.on_screen().filter_map(|place| state.tubes.ask_once(place, poll)).collect();
        if let Page::Details(view) = &state.page
            && self.poll_of_details < poll
        {
            self.poll_of_details = poll;
            if !rows.contains(&view.details.tube) {
                rows.push(view.details.tube.clone());
            }
        }
        for name in rows.into_iter().rev() {
            self.queue.push_front(name);
        }
    }

    /// Queues all other tubes, if the order depends on them.
    fn queue_sweep(&mut self, now: Instant, state: &mut State) {
        if state.tubes.sort() == Column::Name {
            self.queue.clear();
            self.sweep = None;
            self.order_from = None;
            return;
        }
        let is_due = match self.sweep {
            None => true,
            Some((_, true)) => false,
            Some((began, false)) => {
                state.tubes.count() <= TUBES_MANY || now.duration_since(began) >= SWEEP_INTERVAL
            }
        };
        if is_due {
            self.queue_rows(state);
            self.sweep = Some((now, true));
            let places = 0..state.tubes.shown();
            self.queue.extend(places.filter_map(|place| state.tubes.ask_once(place, self.poll)));
        }
    }

    /// Says how old the order is, rounded up so that it seldom changes.
    fn tell_age(&self, now: Instant, state: &mut State) {
        let is_old = state.tubes.sort() != Column::Name && state.tubes.count() > TUBES_MANY;
        let step = SWEEP_INTERVAL.as_secs();
        // A second for the sweep itself and for the poll that begins it.
        let age = |from: Instant| now.duration_since(from).as_secs().saturating_sub(1) / step * step + step;
        state.order_age_seconds = self.order_from.filter(|_| is_old).map(age);
    }
}
