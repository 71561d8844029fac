//! Checks of the extensions of beanring: concurrency keys, groups, and rules of tubes.

use std::collections::HashMap;

use beanring_testkit::statistics::value;

use super::check::Check;
use super::record::{ATTEMPTS_MAX, Asked, Event, Reply, Token};

impl Check<'_> {
    pub(super) fn check_extensions(&mut self) {
        let tokens: HashMap<Token, u64> =
            self.events.iter().filter_map(Event::identity).map(|(id, token)| (token, id)).collect();
        let violations = [
            self.above_limits(),
            self.passed_over(&tokens),
            self.not_awaited(&tokens),
            self.in_wrong_tubes(&tokens),
            self.lost_rules(),
        ];
        violations.into_iter().flatten().for_each(|text| self.violation(text));
    }

    /// Jobs of a concurrency key that were reserved at a time, more than its limit.
    fn above_limits(&mut self) -> Vec<String> {
        // The ends of reservations, then their begins.
        let mut moments: Vec<(u64, bool, Token, &Event)> = Vec::new();
        for events in self.of_id.values() {
            for &event in events {
                let Reply::Reserved(_, token) = event.reply else { continue };
                let until = self.held_until(events, event);
                if token.concurrency().is_some() && until > event.replied_at {
                    moments.push((event.replied_at, true, token, event));
                    moments.push((until, false, token, event));
                }
            }
        }
        moments.sort_by_key(|&(at, begins, ..)| (at, begins));
        self.figures.limited = moments.len() / 2;
        let mut held: HashMap<u8, Vec<&Event>> = HashMap::new();
        let mut violations = Vec::new();
        for (_, begins, token, event) in moments {
            let (key, limit) = token.concurrency().expect("it has a key");
            let held = held.entry(key).or_default();
            if begins {
                held.push(event);
                if held.len() > limit {
                    violations
                        .push(format!("{} jobs of one key are reserved at a time: {held:#?}", held.len()));
                }
            } else {
                held.retain(|other| !std::ptr::eq(*other, event));
            }
        }
        violations
    }

    /// Jobs that wait for their concurrency key, although no job of it can be reserved.
    fn passed_over(&self, tokens: &HashMap<Token, u64>) -> Vec<String> {
        let key = |token: &Token| token.concurrency().map(|(key, _)| key);
        let mut may_run: Vec<u8> = Vec::new();
        let mut waiting: Vec<(u8, u64)> = Vec::new();
        for (token, id) in tokens {
            let (Some(key), Some(Some(left))) = (key(token), self.survivor.jobs.get(id)) else { continue };
            if left.state == "reserved" {
                may_run.push(key);
            } else if left.is_passed_over {
                waiting.push((key, *id));
            }
        }
        // A lost put may have made a job, and a lost reserve may have reserved it.
        for event in self.events {
            if let Asked::Put(token) = event.asked
                && event.is_lost()
                && !tokens.contains_key(&token)
            {
                may_run.extend(key(&token));
            }
        }
        waiting.retain(|(key, _)| !may_run.contains(key));
        waiting.iter().map(|(key, id)| format!("job {id} waits for the key {key}, which is free")).collect()
    }

    /// Jobs that were reserved before all members of their group were deleted.
    fn not_awaited(&mut self, tokens: &HashMap<Token, u64>) -> Vec<String> {
        let mut violations = Vec::new();
        for event in self.events {
            let Reply::Reserved(_, token) = event.reply else { continue };
            self.figures.awaited += usize::from(token.members().next().is_some());
            for member in token.members() {
                let events = tokens.get(&member).and_then(|id| self.of_id.get(id));
                let may_be_deleted =
                    |other: &&Event| other.may_delete() && other.asked_at <= event.replied_at;
                if !events.is_some_and(|events| events.iter().copied().any(|other| may_be_deleted(&other))) {
                    violations
                        .push(format!("reserved before {member:?} was deleted: {event:?}, {events:#?}"));
                }
            }
        }
        violations
    }

    /// A job is in the tube of its put. The rules move it to that of dead letters after some attempts.
    fn in_wrong_tubes(&mut self, tokens: &HashMap<Token, u64>) -> Vec<String> {
        let mut violations = Vec::new();
        for (token, id) in tokens {
            let Some(Some(left)) = self.survivor.jobs.get(id) else { continue };
            let released = self.of_id[id].iter().filter(|event| event.reply == Reply::Released).count();
            let may_be_in: &[&str] = match token.tube() {
                "mail" if released >= ATTEMPTS_MAX => &["dead"],
                "mail" => &["mail", "dead"],
                other => &[other],
            };
            self.figures.dead_letters += usize::from(left.tube == "dead");
            if !may_be_in.contains(&left.tube.as_str()) {
                let tube = &left.tube;
                violations
                    .push(format!("job {id} is in {tube} after {released} releases, not in {may_be_in:?}"));
            }
        }
        violations
    }

    /// The rules that were set are there, and that which was changed has the last value that was acknowledged, or a later one.
    fn lost_rules(&self) -> Vec<String> {
        let rules = &self.survivor.rules;
        let mut violations = Vec::new();
        let attempts = value(rules, "max-attempts").and_then(|text| text.parse().ok());
        if attempts != Some(ATTEMPTS_MAX) || value(rules, "dead-letter").is_none() {
            violations.push(format!("rules are lost: {rules:?}"));
        }
        let mut may_be = vec![None];
        for event in self.events {
            let Asked::Rule(asked) = event.asked else { continue };
            match event.reply {
                Reply::Configured => may_be = vec![Some(asked)],
                _ if event.is_lost() => may_be.push(Some(asked)),
                _ => {}
            }
        }
        let value = value(rules, "max-jobs").and_then(|text| text.parse().ok());
        if !may_be.contains(&value) {
            violations.push(format!("a rule is {value:?}, not one of {may_be:?}"));
        }
        violations
    }
}
