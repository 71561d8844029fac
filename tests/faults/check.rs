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
    /// When it was asked, and when it replied.
    pub asked_at: u64,
    pub replied_at: u64,
}

/// The queue at the end.
#[derive(Default, Debug)]
pub struct Survivor {
    /// Each job that the record names; none if it does not exist.
    pub jobs: HashMap<u64, Option<Left>>,
    /// All jobs of the tube, also those that the record does not name.
    pub count: usize,
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
    left: usize,
    buried: usize,
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
    events: &'a [Event],
    survivor: &'a Survivor,
    /// When servers may have closed connections to a leader that went on. It makes the jobs of their clients ready.
    closing: &'a [Range<u64>],
    of_id: BTreeMap<u64, Vec<&'a Event>>,
    ends: HashMap<(u16, u32), End>,
    violations: Vec<(Option<u64>, String)>,
    figures: Figures,
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

    fn violation(&mut self, text: String) {
        self.violations.push((None, text));
    }

    /// Each id has one body, each body one id, and both were put. Jobs that the record does not name are of lost puts.
    fn check_bodies(&mut self) {
        let (mut ids, mut tokens) = (HashMap::new(), HashMap::new());
        let mut puts: HashMap<Token, &Event> = HashMap::new();
        let mut lost_puts = 0;
        for event in self.events {
            if let Asked::Put(token) = event.asked {
                lost_puts += usize::from(event.is_lost());
                if puts.insert(token, event).is_some() {
                    self.violation(format!("{token:?} was put twice: a defect of the suite"));
                }
            }
        }
        for event in self.events {
            let (id, token) = match (event.asked, event.reply) {
                (Asked::Put(token), Reply::Inserted(id)) => (id, token),
                (_, Reply::Reserved(id, token)) => (id, token),
                _ => continue,
            };
            match puts.get(&token) {
                None => self.violation(format!("job {id} has a body that was never put: {event:?}")),
                Some(put) if put.asked_at > event.replied_at => {
                    self.violation(format!("job {id} was reserved before it was put: {event:?}, {put:?}"));
                }
                Some(put) if put.reply == Reply::Refused => {
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
        let unknown_max =
            puts.iter().filter(|(token, put)| put.is_lost() && !ids.contains_key(*token)).count();
        let unknown = self.survivor.count.saturating_sub(known);
        if known > self.survivor.count || unknown > unknown_max {
            let count = self.survivor.count;
            self.violation(format!(
                "{count} jobs are left, {known} of them known, and {unknown_max} of {lost_puts} lost puts may have made more"
            ));
        }
    }

    fn check_job(&mut self, id: u64, events: &[&Event]) {
        let inserted = events.iter().filter(|event| matches!(event.reply, Reply::Inserted(_))).count();
        if inserted > 1 {
            self.violation("its id was given twice".to_owned());
        }
        self.check_deletion(id, events);
        self.check_reservations(events);
        self.check_buried(events);
        self.check_refusals(events);
        if let Some(Some(left)) = self.survivor.jobs.get(&id).cloned() {
            self.check_state(events, &left);
        }
    }

    fn check_deletion(&mut self, id: u64, events: &[&Event]) {
        let is_left = self.survivor.jobs.get(&id).is_some_and(Option::is_some);
        let deleted: Vec<_> = events.iter().filter(|event| event.reply == Reply::Deleted).collect();
        if deleted.len() > 1 {
            self.violation("it was deleted twice".to_owned());
        }
        if let Some(deleted) = deleted.first() {
            if is_left {
                self.violation("it was deleted, and is back".to_owned());
            }
            let is_later = |event: &&&Event| {
                event.asked_at > deleted.replied_at && event.reply != Reply::NotFound && !event.is_lost()
            };
            if let Some(later) = events.iter().find(is_later) {
                self.violation(format!("it was deleted, and is there later: {later:?}"));
            }
        } else if !events.iter().any(|event| event.may_delete()) {
            let is_there = events.iter().any(|event| event.reply != Reply::NotFound && !event.is_lost());
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

    fn is_orphan(&self, event: &Event) -> bool {
        self.ends.contains_key(&(event.client, event.connection)) && self.released_at(event).is_none()
    }

    /// Two clients have a job only if the first reservation may have ended.
    fn check_reservations(&mut self, events: &[&Event]) {
        let reserved: Vec<&&Event> =
            events.iter().filter(|event| matches!(event.reply, Reply::Reserved(..))).collect();
        for pair in reserved.windows(2) {
            let (first, second) = (*pair[0], *pair[1]);
            let at = second.replied_at;
            let is_ended = events
                .iter()
                .any(|event| event.may_end() && event.replied_at >= first.replied_at && event.asked_at <= at);
            let is_over = at >= self.runs_until(events, first, at);
            let is_released = self.released_at(first).is_some_and(|end| end <= at);
            self.figures.kept += usize::from(self.is_orphan(first) && !is_ended);
            if !is_ended && !is_over && !is_released {
                self.violation(format!("it was reserved twice: {first:?}, {second:?}"));
            }
        }
    }

    /// A buried job is reserved only after a kick.
    fn check_buried(&mut self, events: &[&Event]) {
        for buried in events.iter().filter(|event| event.reply == Reply::Buried) {
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
            let others = |what: fn(&Event) -> bool, since: u64| {
                events.iter().any(|event| what(event) && event.asked_at <= at && event.replied_at >= since)
            };
            let text = if let Asked::Kick(_) = refused.asked {
                let before =
                    |event: &&&Event| event.reply == Reply::Buried && event.replied_at <= refused.asked_at;
                let Some(buried) = events.iter().filter(before).max_by_key(|event| event.replied_at) else {
                    continue;
                };
                let is_gone = others(Event::may_kick, 0) || others(Event::may_delete, 0);
                (!is_gone).then(|| format!("it was buried, and not found: {buried:?}, {refused:?}"))
            } else {
                let Some(own) = events.iter().filter(is_own).max_by_key(|event| event.replied_at) else {
                    continue;
                };
                let is_ended = others(Event::may_end, own.replied_at);
                let is_over = at >= self.runs_until(events, own, at);
                let is_released = self.released_at(own).is_some_and(|end| end <= at);
                (!is_ended && !is_over && !is_released)
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
        let changes = |event: &&&Event| !matches!(event.reply, Reply::NotFound | Reply::Refused);
        let Some(last) = events.iter().filter(changes).max_by_key(|event| event.asked_at) else { return };
        if last.is_lost() || events.iter().any(|event| event.is_lost() && event.replied_at > last.asked_at) {
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
                is(&["reserved"]) || !is_running && is(&["ready"])
            }
            // The reply of a reserve may be lost.
            _ => is(&["ready", "reserved", "delayed"]),
        };
        if !is_right {
            self.violation(format!("it is {} after {last:?}", left.state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u64 = 1;
    const ALWAYS: Range<u64> = 0..u64::MAX;
    const TOKEN: Token = Token::new(1, 1, 60);

    /// Checks what clients 1, 2, ... asked, each on its first connection. A command takes a millisecond.
    fn check(
        said: &[(u16, Asked, Reply)],
        left: Option<&str>,
        closing: &[Range<u64>],
    ) -> Result<Figures, String> {
        let event = |(at, &(client, asked, reply)): (u64, &(u16, Asked, Reply))| {
            let asked_at = at * 100_000;
            Event { client, connection: 1, asked, reply, asked_at, replied_at: asked_at + 1000 }
        };
        let events: Vec<Event> = (1..).zip(said).map(event).collect();
        let at = 100_000 * (1 + events.len() as u64);
        let left = left.map(|state| Left { state: state.to_owned(), asked_at: at, replied_at: at + 1000 });
        let count = usize::from(left.is_some());
        let survivor = Survivor { jobs: HashMap::from([(ID, left)]), count };
        Check::new(&events, &survivor, closing).run()
    }

    fn refuse(text: &str, said: &[(u16, Asked, Reply)], left: Option<&str>) {
        let violations = check(said, left, &[]).expect_err(text);
        assert!(violations.contains(text), "{violations}");
    }

    const PUT: (u16, Asked, Reply) = (1, Asked::Put(TOKEN), Reply::Inserted(ID));
    const RESERVED: Reply = Reply::Reserved(ID, TOKEN);

    #[test]
    fn a_record_without_faults_is_accepted() {
        let figures = check(
            &[
                PUT,
                (2, Asked::Reserve, RESERVED),
                (2, Asked::Release(ID), Reply::Released),
                (3, Asked::Reserve, RESERVED),
                (3, Asked::Bury(ID), Reply::Buried),
                (2, Asked::Kick(ID), Reply::Kicked),
                (2, Asked::Reserve, RESERVED),
                (2, Asked::Touch(ID), Reply::Touched),
            ],
            Some("reserved"),
            &[],
        );
        assert_eq!(figures.expect("it is clean").left, 1);
        let deleted = [PUT, (2, Asked::Reserve, RESERVED), (2, Asked::Delete(ID), Reply::Deleted)];
        check(&deleted, None, &[]).expect("it is deleted");
        let unknown = [PUT, (2, Asked::Reserve, RESERVED), (2, Asked::Delete(ID), Reply::Closed)];
        check(&unknown, None, &[]).expect("it may be deleted");
        check(&unknown, Some("reserved"), &[]).expect("it may be there");
    }

    #[test]
    fn a_lost_or_revived_job_is_a_violation() {
        refuse("it is lost", &[PUT], None);
        let reserved = (2, Asked::Reserve, RESERVED);
        let deleted = (2, Asked::Delete(ID), Reply::Deleted);
        refuse("it was deleted, and is back", &[PUT, reserved, deleted], Some("ready"));
        refuse(
            "it was deleted, and is there later",
            &[PUT, reserved, deleted, (3, Asked::Reserve, RESERVED)],
            None,
        );
        refuse("it was deleted twice", &[PUT, reserved, deleted, deleted], None);
        refuse(
            "its id was given twice",
            &[PUT, (3, Asked::Put(Token(7)), Reply::Inserted(ID))],
            Some("ready"),
        );
        let other = (2, Asked::Reserve, Reply::Reserved(2, TOKEN));
        refuse("one put made the jobs", &[PUT, other], Some("ready"));
        refuse("never put", &[PUT, (2, Asked::Reserve, Reply::Reserved(2, Token(7)))], Some("ready"));
    }

    #[test]
    fn a_reservation_that_is_lost_is_a_violation() {
        let (first, second) = ((2, Asked::Reserve, RESERVED), (3, Asked::Reserve, RESERVED));
        refuse("it was reserved twice", &[PUT, first, second], Some("reserved"));
        let closed = (2, Asked::Reserve, Reply::Closed);
        refuse("it was reserved twice", &[PUT, first, closed, second], Some("reserved"));
        check(&[PUT, first, closed, second], Some("reserved"), &[ALWAYS]).expect("a leader went on");
        check(&[PUT, first, (2, Asked::Leave, Reply::GaveUp), second], Some("reserved"), &[])
            .expect("it left");
        refuse("it is ready after", &[PUT, first, closed], Some("ready"));
        refuse(
            "it was reserved, and not found",
            &[PUT, first, (2, Asked::Delete(ID), Reply::NotFound)],
            Some("reserved"),
        );
    }

    #[test]
    fn a_burial_that_is_lost_is_a_violation() {
        let reserved = (2, Asked::Reserve, RESERVED);
        let buried = (2, Asked::Bury(ID), Reply::Buried);
        refuse(
            "it was buried, and reserved",
            &[PUT, reserved, buried, (3, Asked::Reserve, RESERVED)],
            Some("reserved"),
        );
        refuse("it is ready after", &[PUT, reserved, buried], Some("ready"));
        refuse(
            "it was buried, and not found",
            &[PUT, reserved, buried, (3, Asked::Kick(ID), Reply::NotFound)],
            Some("buried"),
        );
    }
}
