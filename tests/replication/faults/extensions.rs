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

#[cfg(test)]
mod tests {
    use super::super::check::tests::{ID, PUT, RESERVED, TOKEN, check, events, refuse, survivor};
    use super::*;
    use crate::faults::record::{CONCURRENCY_KEYS, KEYED, RULED};

    /// The limit of this key is 1.
    const KEY: u8 = 2;

    const AT: u64 = 5_000_000;

    fn token(number: u32, kind: u8) -> Token {
        Token::new(1, number, 60).of_kind(KEYED | kind)
    }

    fn put(id: u64, token: Token) -> (u16, Asked, Reply) {
        (1, Asked::Put(token), Reply::Inserted(id))
    }

    fn reserve(client: u16, id: u64, token: Token) -> (u16, Asked, Reply) {
        (client, Asked::Reserve, Reply::Reserved(id, token))
    }

    fn refuse_all(text: &str, said: &[(u16, Asked, Reply)], jobs: &[(u64, &str, &str)]) {
        let events = events(said);
        let violations = Check::new(&events, &survivor(jobs, AT), &[]).run().expect_err(text);
        assert!(violations.contains(text), "{violations}");
    }

    fn accept(said: &[(u16, Asked, Reply)], jobs: &[(u64, &str, &str)]) {
        Check::new(&events(said), &survivor(jobs, AT), &[]).run().expect("no violation");
    }

    #[test]
    fn more_jobs_of_a_key_than_its_limit_are_a_violation() {
        let (one, two) = (token(1, KEY), token(2, KEY));
        let puts = [put(1, one), put(2, two), reserve(2, 1, one)];
        let both = [(1, "reserved", "bulk"), (2, "reserved", "bulk")];
        let with = |more: &[(u16, Asked, Reply)]| [&puts[..], more].concat();
        let text = "2 jobs of one key";
        refuse_all(text, &with(&[reserve(3, 2, two)]), &both);
        // The reservation outlives its connection.
        refuse_all(text, &with(&[(2, Asked::Reserve, Reply::Closed), reserve(3, 2, two)]), &both);
        refuse_all(text, &with(&[(2, Asked::Touch(1), Reply::Touched), reserve(3, 2, two)]), &both);
        let released = [(1, "ready", "bulk"), (2, "reserved", "bulk")];
        accept(&with(&[(2, Asked::Release(1), Reply::Released), reserve(3, 2, two)]), &released);
        // A command without a reply may have been executed.
        accept(&with(&[(2, Asked::Delete(1), Reply::Closed), reserve(3, 2, two)]), &both[1..]);
        accept(&with(&[(2, Asked::Leave, Reply::GaveUp), reserve(3, 2, two)]), &released);
        let (one, two) = (token(1, KEY + 1), token(2, KEY + 1));
        accept(&[put(1, one), put(2, two), reserve(2, 1, one), reserve(3, 2, two)], &both);
    }

    #[test]
    fn a_key_that_stays_taken_is_a_violation() {
        let (one, two) = (token(1, KEY), token(2, KEY));
        let run = |said: &[(u16, Asked, Reply)], state: &str| {
            let mut left = survivor(&[(1, state, "bulk"), (2, "ready", "bulk")], AT);
            left.jobs.get_mut(&2).and_then(Option::as_mut).expect("it is there").is_passed_over = true;
            Check::new(&events(said), &left, &[]).run()
        };
        let puts = [put(1, one), put(2, two)];
        assert!(run(&puts, "ready").expect_err("none is reserved").contains("which is free"));
        run(&[&puts[..], &[reserve(2, 1, one)]].concat(), "reserved").expect("one is reserved");
        let lost = (1, Asked::Put(token(3, KEY)), Reply::Closed);
        run(&[&puts[..], &[lost]].concat(), "ready").expect("one may be reserved");
    }

    #[test]
    fn a_job_that_does_not_wait_for_its_group_is_a_violation() {
        let (one, two, last) = (token(1, 0), token(2, 0), token(3, 1 + CONCURRENCY_KEYS + 2));
        let deleted = (2, Asked::Delete(1), Reply::Deleted);
        let said = [put(1, one), put(2, two), put(3, last), reserve(2, 1, one), deleted, reserve(2, 2, two)];
        let with = |more: &[(u16, Asked, Reply)]| [&said[..], more].concat();
        let (member, held) = ((2, "reserved", "bulk"), (3, "held", "bulk"));
        accept(&said, &[member, held]);
        let reserved = (3, "reserved", "bulk");
        refuse_all("was deleted: Event", &with(&[reserve(3, 3, last)]), &[member, reserved]);
        let delete = |reply: Reply| with(&[(2, Asked::Delete(2), reply), reserve(3, 3, last)]);
        accept(&delete(Reply::Deleted), &[reserved]);
        accept(&delete(Reply::GaveUp), &[reserved]);
        refuse_all("was deleted: Event", &delete(Reply::NotFound), &[member, reserved]);
    }

    #[test]
    fn a_job_in_another_tube_is_a_violation() {
        let ruled = Token::new(1, 1, 60).of_kind(RULED);
        let attempt = [reserve(2, 1, ruled), (2, Asked::Release(1), Reply::Released)];
        let after = |attempts: usize| [&[put(1, ruled)][..], &attempt.repeat(attempts)].concat();
        refuse_all("in default", &after(0), &[(1, "ready", "default")]);
        accept(&after(1), &[(1, "ready", "mail")]);
        accept(&after(2), &[(1, "ready", "dead")]);
        refuse_all("after 2 releases", &after(2), &[(1, "ready", "mail")]);
    }

    #[test]
    fn a_rule_that_is_lost_is_a_violation() {
        let set = |value: u64, reply: Reply| (1, Asked::Rule(value), reply);
        let run = |said: &[(u16, Asked, Reply)], rules: &str| {
            let mut left = survivor(&[], AT);
            left.rules += rules;
            Check::new(&events(said), &left, &[]).run()
        };
        let set_twice = [set(7, Reply::Configured), set(8, Reply::Configured)];
        run(&set_twice, "max-jobs: 8\n").expect("it is the last one");
        run(&set_twice, "max-jobs: 7\n").expect_err("it is the first one");
        run(&set_twice, "").expect_err("it is gone");
        let second_lost = [set(7, Reply::Configured), set(8, Reply::Closed)];
        run(&second_lost, "max-jobs: 7\n").expect("it may be");
        run(&second_lost, "max-jobs: 8\n").expect("it may be");
        let mut left = survivor(&[], AT);
        left.rules.clear();
        assert!(Check::new(&[], &left, &[]).run().expect_err("none are left").contains("rules are lost"));
    }

    const KEYED_TOKEN: Token = TOKEN.of_kind(KEYED);
    const LOST: (u16, Asked, Reply) = (1, Asked::Put(KEYED_TOKEN), Reply::Closed);
    const AGAIN: Asked = Asked::Put(KEYED_TOKEN);

    #[test]
    fn a_key_that_is_lost_is_a_violation() {
        let reserved = (2, Asked::Reserve, Reply::Reserved(ID, KEYED_TOKEN));
        let deleted = (2, Asked::Delete(ID), Reply::Deleted);
        let repeated = (1, AGAIN, Reply::Repeated(ID));
        let finished = (1, AGAIN, Reply::Finished(ID));
        let again = (1, AGAIN, Reply::Inserted(2));
        check(&[LOST, (1, AGAIN, Reply::Inserted(ID)), repeated], Some("ready"), &[]).expect("it was lost");
        check(&[LOST, reserved, repeated, deleted, finished], None, &[]).expect("it was executed");
        refuse("one put made the jobs", &[LOST, reserved, again], Some("ready"));
        refuse("one put made the jobs", &[LOST, reserved, deleted, again], None);
        refuse("is lost", &[LOST, repeated], None);
        refuse("it was deleted, and is there later", &[LOST, reserved, deleted, repeated], None);
        refuse("it is gone, and was not deleted", &[LOST, finished], None);
        // A take-over has lost the job, and its id was given again.
        let inserted = (1, AGAIN, Reply::Inserted(ID));
        refuse("it was inserted, and there before", &[LOST, reserved, inserted], Some("ready"));
        refuse("its id was given twice", &[inserted, inserted], Some("ready"));
        // A job that no client knows is one too many.
        let events = events(&[LOST, repeated]);
        let left = [(ID, "ready", "bulk"), (2, "ready", "bulk")];
        let mut survivor = survivor(&left, 500_000);
        survivor.jobs.remove(&2);
        assert!(
            Check::new(&events, &survivor, &[]).run().expect_err("it is unknown").contains("jobs are left")
        );
    }

    #[test]
    fn a_part_of_a_batch_that_is_lost_is_a_violation() {
        let reserved = (2, Asked::Reserve, RESERVED);
        let maybe = (2, Asked::Delete(ID), Reply::MaybeDeleted);
        check(&[PUT, reserved, maybe], None, &[]).expect("it may be deleted");
        check(&[PUT, reserved, maybe], Some("reserved"), &[]).expect("it may be there");
        let events = events(&[PUT, (1, Asked::Put(Token(7)), Reply::Inserted(2))]);
        let left = survivor(&[(ID, "ready", "default")], 500_000);
        assert!(Check::new(&events, &left, &[]).run().expect_err("one is lost").contains("it is lost"));
    }

    #[test]
    fn a_false_end_of_a_wait_is_a_violation() {
        let reserved = (2, Asked::Reserve, RESERVED);
        let gone = (1, Asked::Wait(ID), Reply::Gone);
        check(&[PUT, reserved, (2, Asked::Delete(ID), Reply::Closed), gone], None, &[])
            .expect("it was deleted");
        refuse("it is gone, and was not deleted", &[PUT, reserved, gone], None);
        refuse("it was deleted, and is back", &[PUT, reserved, gone], Some("ready"));
        let buried = (1, Asked::Wait(ID), Reply::SeenBuried);
        refuse("it was buried, and reserved", &[PUT, reserved, buried, (3, Asked::Reserve, RESERVED)], None);
    }
}
