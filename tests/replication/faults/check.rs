//! Compares the queue that is left with the record.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::ops::Range;

use super::record::{Asked, Event, Reply, Token};

/// By how much clocks of processes and their roundings may differ, in microseconds.
const SLACK: u64 = 20_000;

/// Violations that are printed with the history of their job.
const SHOWN_MAX: usize = 8;

/// What a server says about a job.
#[derive(Clone, Debug)]
pub struct Left {
    pub state: String,
    pub tube: String,
    /// Its concurrency key is at its limit, still when all other jobs were asked for.
    pub is_passed_over: bool,
    /// When it was asked, and when it replied.
    pub asked_at: u64,
    pub replied_at: u64,
}

/// The queue at the end.
#[derive(Default, Debug)]
pub struct Survivor {
    /// Each job that the record names; none if it does not exist.
    pub jobs: HashMap<u64, Option<Left>>,
    /// All jobs of the tubes, also those that the record does not name.
    pub count: usize,
    /// The rules of the tube `mail`.
    pub rules: String,
}

/// What a check counts.
#[derive(Default, Debug)]
#[allow(dead_code, reason = "it is printed")]
pub struct Figures {
    events: usize,
    inserted: usize,
    deleted: usize,
    reserved: usize,
    /// Commands without a reply.
    lost: usize,
    /// Reservations whose client lost its connection, and which were probed: by a command of the same client, by the
    /// next reservation, or at the end.
    kept: usize,
    /// Jobs at the end that must be there, and that must be buried.
    pub(super) left: usize,
    buried: usize,
    /// Puts that repeated a key, and those of them whose job a lost put had made.
    repeated: usize,
    found: usize,
    /// What [`extensions`](super::extensions) has checked: reservations of jobs with concurrency keys and of jobs that waited for
    /// a group, and jobs in the tube of dead letters.
    pub(super) limited: usize,
    pub(super) awaited: usize,
    pub(super) dead_letters: usize,
}

/// What the record says about the puts of a token.
#[derive(Default, Debug)]
struct Puts {
    asked_at: u64,
    /// Not all of them were refused.
    may_be_there: bool,
    is_lost: bool,
    is_inserted: bool,
}

/// The end of a connection.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "it is printed")]
struct End {
    /// When it may have ended at the earliest, and when the client noticed.
    at: u64,
    noticed_at: u64,
    /// The client has closed it.
    is_own: bool,
}

/// Checks a record. A reservation outlives a connection that was lost because its leader has ended.
pub struct Check<'a> {
    pub(super) events: &'a [Event],
    pub(super) survivor: &'a Survivor,
    /// When servers may have closed connections to a leader that went on. It makes the jobs of their clients ready.
    closing: &'a [Range<u64>],
    pub(super) of_id: BTreeMap<u64, Vec<&'a Event>>,
    ends: HashMap<(u16, u32), End>,
    violations: Vec<(Option<u64>, String)>,
    pub(super) figures: Figures,
}

impl<'a> Check<'a> {
    pub fn new(events: &'a [Event], survivor: &'a Survivor, closing: &'a [Range<u64>]) -> Self {
        let mut of_id: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
        let (mut ends, mut last_replies) = (HashMap::new(), HashMap::new());
        for event in events {
            if let Some(id) = event.id() {
                of_id.entry(id).or_default().push(event);
            }
            let connection = (event.client, event.connection);
            if event.is_lost() {
                let (is_own, noticed_at) = (event.reply == Reply::GaveUp, event.replied_at);
                let last = last_replies.get(&connection).copied().unwrap_or(0);
                let at = if is_own { noticed_at } else { last };
                ends.insert(connection, End { at, noticed_at, is_own });
            } else {
                last_replies.insert(connection, event.replied_at);
            }
        }
        for of_one in of_id.values_mut() {
            of_one.sort_by_key(|event| (event.replied_at, event.asked_at));
        }
        let (violations, figures) = (Vec::new(), Figures { events: events.len(), ..Figures::default() });
        Self { events, survivor, closing, of_id, ends, violations, figures }
    }

    /// # Errors
    /// With all violations.
    pub fn run(mut self) -> Result<Figures, String> {
        self.check_bodies();
        self.check_extensions();
        for (id, events) in std::mem::take(&mut self.of_id) {
            let before = self.violations.len();
            self.check_job(id, &events);
            for (at, violation) in &mut self.violations[before..] {
                *at = Some(id);
                if before < SHOWN_MAX {
                    for event in &events {
                        let end = self.ends.get(&(event.client, event.connection));
                        let _ = write!(violation, "\n      {event:?}, {end:?}");
                    }
                    let _ = write!(violation, "\n      at the end: {:?}", self.survivor.jobs.get(&id));
                }
            }
        }
        let count = |what: fn(&Event) -> bool| self.events.iter().filter(|event| what(event)).count();
        self.figures.inserted = count(|event| matches!(event.reply, Reply::Inserted(_)));
        self.figures.deleted = count(|event| event.reply == Reply::Deleted);
        self.figures.reserved = count(|event| matches!(event.reply, Reply::Reserved(..)));
        self.figures.repeated = count(|event| matches!(event.reply, Reply::Repeated(_) | Reply::Finished(_)));
        self.figures.lost = count(|event| event.is_lost() && event.asked != Asked::Leave);
        if self.violations.is_empty() {
            return Ok(self.figures);
        }
        let mut text = format!("{} violations; {:?}", self.violations.len(), self.figures);
        for (id, violation) in self.violations.iter().take(SHOWN_MAX) {
            let _ = write!(text, "\n  job {id:?}: {violation}");
        }
        Err(text)
    }

    pub(super) fn violation(&mut self, text: String) {
        self.violations.push((None, text));
    }

    /// The puts by their tokens. Only a put with a key is repeated.
    fn puts(&mut self) -> HashMap<Token, Puts> {
        let mut puts: HashMap<Token, Puts> = HashMap::new();
        for event in self.events {
            let Asked::Put(token) = event.asked else { continue };
            if puts.contains_key(&token) && !token.is_keyed() {
                self.violation(format!("{token:?} was put twice: a defect of the suite"));
            }
            let put = puts.entry(token).or_insert(Puts { asked_at: event.asked_at, ..Puts::default() });
            put.may_be_there |= event.reply != Reply::Refused;
            put.is_lost |= event.is_lost();
            put.is_inserted |= matches!(event.reply, Reply::Inserted(_));
            let is_found = matches!(event.reply, Reply::Repeated(_) | Reply::Finished(_)) && !put.is_inserted;
            self.figures.found += usize::from(is_found);
        }
        puts
    }

    /// Each id has one body, each body one id, and both were put. Jobs that the record does not name are of lost puts.
    fn check_bodies(&mut self) {
        let (mut ids, mut tokens) = (HashMap::new(), HashMap::new());
        let puts = self.puts();
        for event in self.events {
            let Some((id, token)) = event.identity() else { continue };
            match puts.get(&token) {
                None => self.violation(format!("job {id} has a body that was never put: {event:?}")),
                Some(put) if put.asked_at > event.replied_at => {
                    self.violation(format!("job {id} was reserved before it was put: {event:?}, {put:?}"));
                }
                Some(put) if !put.may_be_there => {
                    self.violation(format!("job {id} was refused, and is there: {event:?}, {put:?}"));
                }
                Some(_) => {}
            }
            if *ids.entry(token).or_insert(id) != id {
                self.violation(format!("one put made the jobs {id} and {}: {event:?}", ids[&token]));
            }
            if *tokens.entry(id).or_insert(token) != token {
                self.violation(format!("two puts made the job {id}: {event:?}"));
            }
        }
        let known = self.survivor.jobs.values().flatten().count();
        let unknown_max = puts.iter().filter(|(token, put)| put.is_lost && !ids.contains_key(*token)).count();
        let unknown = self.survivor.count.saturating_sub(known);
        if known > self.survivor.count || unknown > unknown_max {
            let count = self.survivor.count;
            self.violation(format!(
                "{count} jobs are left, {known} of them known, and {unknown_max} lost puts may have made more"
            ));
        }
    }

    fn check_job(&mut self, id: u64, events: &[&Event]) {
        self.check_insertion(events);
        self.check_deletion(id, events);
        self.check_reservations(events);
        self.check_buried(events);
        self.check_refusals(events);
        if let Some(Some(left)) = self.survivor.jobs.get(&id).cloned() {
            self.check_state(events, &left);
        }
    }

    /// A job is inserted once, and nothing is known about it before.
    fn check_insertion(&mut self, events: &[&Event]) {
        let mut inserted = events.iter().filter(|event| matches!(event.reply, Reply::Inserted(_)));
        let Some(first) = inserted.next() else { return };
        if inserted.next().is_some() {
            self.violation("its id was given twice".to_owned());
        }
        let is_before = |event: &&&Event| {
            event.replied_at < first.asked_at && (event.shows_there() || event.shows_gone())
        };
        if let Some(before) = events.iter().find(is_before) {
            self.violation(format!("it was inserted, and there before: {before:?}"));
        }
    }

    fn check_deletion(&mut self, id: u64, events: &[&Event]) {
        let is_left = self.survivor.jobs.get(&id).is_some_and(Option::is_some);
        if events.iter().filter(|event| event.reply == Reply::Deleted).count() > 1 {
            self.violation("it was deleted twice".to_owned());
        }
        let may_delete =
            |until: u64| events.iter().any(|event| event.may_delete() && event.asked_at <= until);
        if let Some(gone) = events.iter().find(|event| event.shows_gone()) {
            if is_left {
                self.violation("it was deleted, and is back".to_owned());
            }
            if !may_delete(gone.replied_at) {
                self.violation(format!("it is gone, and was not deleted: {gone:?}"));
            }
            let is_later = |event: &&&Event| event.asked_at > gone.replied_at && event.shows_there();
            if let Some(later) = events.iter().find(is_later) {
                self.violation(format!("it was deleted, and is there later: {later:?}"));
            }
        } else if !may_delete(u64::MAX) {
            let is_there = events.iter().any(|event| event.shows_there());
            self.figures.left += usize::from(is_there);
            if is_there && !is_left {
                self.violation("it is lost".to_owned());
            }
        }
    }

    /// When the connection of an event ended in a way that ends reservations.
    fn released_at(&self, event: &Event) -> Option<u64> {
        let end = self.ends.get(&(event.client, event.connection))?;
        let is_closed = self.closing.iter().any(|range| range.contains(&end.noticed_at));
        (end.is_own || is_closed).then_some(end.at)
    }

    /// The earliest end of the time to run of a reservation, at a later time.
    fn runs_until(&self, events: &[&Event], reserved: &Event, at: u64) -> u64 {
        let Reply::Reserved(_, token) = reserved.reply else { unreachable!("it is a reservation") };
        let touched = events
            .iter()
            .filter(|event| event.reply == Reply::Touched && event.client == reserved.client)
            .filter(|event| event.asked_at >= reserved.replied_at && event.replied_at <= at);
        let begun = touched.map(|event| event.asked_at).max().unwrap_or(reserved.asked_at);
        begun + token.ttr() - SLACK
    }

    /// When a connection ended that had the job: that of the reservation, or one that has touched it since.
    fn let_go_at(&self, events: &[&Event], reserved: &Event) -> Option<u64> {
        let touches = events.iter().filter(|event| {
            matches!(event.asked, Asked::Touch(_))
                && event.client == reserved.client
                && event.asked_at >= reserved.replied_at
                && event.reply != Reply::NotFound
        });
        touches.copied().chain([reserved]).filter_map(|event| self.released_at(event)).min()
    }

    /// Until when the reservation holds for certain.
    pub(super) fn held_until(&self, events: &[&Event], reserved: &Event) -> u64 {
        let Reply::Reserved(_, token) = reserved.reply else { unreachable!("it is a reservation") };
        let mut until = reserved.asked_at + token.ttr() - SLACK;
        let own = |event: &&&Event| event.client == reserved.client && event.reply == Reply::Touched;
        for touched in events.iter().filter(own) {
            if (reserved.replied_at..until).contains(&touched.asked_at) {
                until = touched.asked_at + token.ttr() - SLACK;
            }
        }
        let ended = events.iter().filter(|event| event.may_end() && event.replied_at >= reserved.replied_at);
        let ended = ended.map(|event| event.asked_at).min();
        [ended, self.let_go_at(events, reserved)].into_iter().flatten().fold(until, u64::min)
    }

    fn is_orphan(&self, event: &Event) -> bool {
        self.ends.contains_key(&(event.client, event.connection)) && self.released_at(event).is_none()
    }

    /// Whether the reservation may have ended by then: by a command, with its time to run, or with a connection.
    fn may_be_over(&self, events: &[&Event], reserved: &Event, at: u64) -> bool {
        may_have(events, Event::may_end, reserved.replied_at, at)
            || at >= self.runs_until(events, reserved, at)
            || self.let_go_at(events, reserved).is_some_and(|end| end <= at)
    }

    /// Two clients have a job only if the first reservation may have ended.
    fn check_reservations(&mut self, events: &[&Event]) {
        let reserved: Vec<&&Event> =
            events.iter().filter(|event| matches!(event.reply, Reply::Reserved(..))).collect();
        for pair in reserved.windows(2) {
            let (first, second) = (*pair[0], *pair[1]);
            let is_ended = may_have(events, Event::may_end, first.replied_at, second.replied_at);
            self.figures.kept += usize::from(self.is_orphan(first) && !is_ended);
            // Replies that wait for the same acknowledgement leave together, and reach their clients in any order.
            let is_second_first = second.asked_at < first.replied_at
                && self.runs_until(events, second, first.replied_at) <= first.replied_at;
            if !is_second_first && !self.may_be_over(events, first, second.replied_at) {
                self.violation(format!("it was reserved twice: {first:?}, {second:?}"));
            }
        }
    }

    /// A buried job is reserved only after a kick.
    fn check_buried(&mut self, events: &[&Event]) {
        let is_buried = |event: &&&Event| matches!(event.reply, Reply::Buried | Reply::SeenBuried);
        for buried in events.iter().filter(is_buried) {
            let next = events.iter().find(|event| {
                matches!(event.reply, Reply::Reserved(..)) && event.asked_at > buried.replied_at
            });
            let Some(next) = next else { continue };
            let is_kicked = events.iter().any(|event| {
                event.may_kick()
                    && event.asked_at <= next.replied_at
                    && (event.is_lost() || event.replied_at >= buried.asked_at)
            });
            if !is_kicked {
                self.violation(format!("it was buried, and reserved: {next:?}"));
            }
        }
    }

    /// `NOT_FOUND` for a job that the client has reserved needs a reason. So does one for a kick of a buried job.
    fn check_refusals(&mut self, events: &[&Event]) {
        for refused in events.iter().filter(|event| event.reply == Reply::NotFound) {
            let at = refused.replied_at;
            let is_own = |event: &&&Event| {
                event.client == refused.client
                    && matches!(event.reply, Reply::Reserved(..))
                    && event.replied_at <= refused.asked_at
            };
            let text = if let Asked::Kick(_) = refused.asked {
                let before =
                    |event: &&&Event| event.reply == Reply::Buried && event.replied_at <= refused.asked_at;
                let Some(buried) = events.iter().filter(before).max_by_key(|event| event.replied_at) else {
                    continue;
                };
                let is_gone = |event: &Event| event.may_kick() || event.may_delete();
                (!may_have(events, is_gone, 0, at))
                    .then(|| format!("it was buried, and not found: {buried:?}, {refused:?}"))
            } else {
                let Some(own) = events.iter().filter(is_own).max_by_key(|event| event.replied_at) else {
                    continue;
                };
                (!self.may_be_over(events, own, at))
                    .then(|| format!("it was reserved, and not found: {own:?}, {refused:?}"))
            };
            if let Some(text) = text {
                self.violation(text);
            }
        }
        // Commands of a client on a job that a connection before has reserved.
        let probed = events.iter().filter(|event| event.may_end() && !event.is_lost()).filter(|event| {
            let is_before = |own: &&&Event| {
                own.client == event.client
                    && own.connection < event.connection
                    && matches!(own.reply, Reply::Reserved(..))
            };
            events.iter().any(|own| is_before(&own))
        });
        self.figures.kept += probed.count();
    }

    /// The state at the end follows from the last change that was acknowledged, if no other one can have followed it.
    fn check_state(&mut self, events: &[&Event], left: &Left) {
        // A repeated put and a wait leave the state as it is.
        let changes = |event: &&&Event| {
            !matches!(event.asked, Asked::Wait(_))
                && !matches!(event.reply, Reply::NotFound | Reply::Refused | Reply::Repeated(_))
        };
        let Some(last) = events.iter().filter(changes).max_by_key(|event| event.asked_at) else { return };
        let is_unsure = last.is_lost() || last.reply == Reply::MaybeDeleted;
        if is_unsure || events.iter().any(|event| event.is_lost() && event.replied_at > last.asked_at) {
            return;
        }
        let is = |states: &[&str]| states.contains(&left.state.as_str());
        let is_right = match last.reply {
            Reply::Buried => {
                self.figures.buried += 1;
                let is_kicked = events.iter().any(|event| event.may_kick() && event.is_lost());
                is_kicked || is(&["buried"])
            }
            Reply::Reserved(..) if self.released_at(last).is_none() => {
                let is_running = left.replied_at < self.runs_until(events, last, left.asked_at);
                self.figures.kept += usize::from(is_running && self.is_orphan(last));
                // A rule may delay the next attempt.
                is(&["reserved"]) || !is_running && is(&["ready", "delayed"])
            }
            Reply::Inserted(_) => is(&["ready", "reserved", "delayed", "held"]),
            // The reply of a reserve may be lost.
            _ => is(&["ready", "reserved", "delayed"]),
        };
        if !is_right {
            self.violation(format!("it is {} after {last:?}", left.state));
        }
    }
}

/// Whether a command may have been executed between these times.
fn may_have(events: &[&Event], what: impl Fn(&Event) -> bool, since: u64, at: u64) -> bool {
    events.iter().any(|event| what(event) && event.replied_at >= since && event.asked_at <= at)
}
