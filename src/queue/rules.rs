//! Rules of tubes, which clients and the configuration file set.
//!
//! They are kept by the name of the tube, because a tube is removed when nothing refers to it. A tube with rules has their slot,
//! so that a tube without rules costs one comparison where a rule could apply.

use super::background::BACKGROUND_STEPS;
use super::change::Change;
use super::engine::Engine;
use super::job::Counts;
use super::names::{hash_names, text_bytes};
use super::rate::Bucket;
use super::transitions::To;
use crate::intrusive::{NIL, Table, intrusive};
use crate::time::{Seconds, Span, Time};
use crate::values::budget::{Cost, Limit};
use crate::values::ids::{ClientKey, JobKey, RulesSlot, TubeKey, TubeSlot};
use crate::values::limits::RULED_TUBES_MAX;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, RuleKey, RuleValue, TubeRules};

/// Numbers of burials from here on are times: the first 17 minutes of 1970 are over. Smaller ones counted burials, in logs of
/// earlier versions and of beanstalkd.
pub(super) const BURIAL_TIMES_MIN: u64 = 1_000_000_000_000;

/// The rules of all tubes.
pub(super) struct Rules {
    pub(super) table: Table<RuledTube>,
    /// The memory of all names.
    name_bytes: usize,
    /// Of all tubes since the start.
    pub(super) totals: RuleCounts,
}

/// A tube with rules. It may not exist.
pub(super) struct RuledTube {
    name: Box<[u8]>,
    pub(super) rules: TubeRules,
    pub(super) bucket: Bucket,
    pub(super) counts: RuleCounts,
    hash: u64,
    chain: u32,
}

/// A rule that forbids another job in its tube, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FullBy {
    /// `max-jobs` or `max-bytes`.
    pub rule: RuleKey,
    /// A number of jobs, or of bytes.
    pub limit: u64,
}

/// What rules have led to.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RuleCounts {
    /// Commands that `max-jobs` or `max-bytes` refused.
    pub refusals: u64,
    /// Jobs that have had all attempts: buried, or moved to the tube of dead letters.
    pub dead_letters: u64,
    /// Buried jobs that `retention` deleted.
    pub expiries: u64,
    /// Times at which `rate` permitted no further job for a while.
    pub rate_waits: u64,
}

impl RuledTube {
    fn name(&self) -> TubeName<'_> {
        TubeName::new(&self.name).expect("the name was checked")
    }

    fn name_bytes(&self) -> usize {
        text_bytes(&self.name) + self.rules.dead_letter().map_or(0, |name| text_bytes(name.as_bytes()))
    }
}

impl Rules {
    /// No rules. `seed` keeps clients from choosing names that collide.
    pub const fn new(seed: u64) -> Self {
        let totals = RuleCounts { refusals: 0, dead_letters: 0, expiries: 0, rate_waits: 0 };
        Self { table: Table::new(seed), name_bytes: 0, totals }
    }

    pub const fn bytes(&self) -> usize {
        self.table.bytes() + self.name_bytes
    }

    fn find(&self, name: TubeName<'_>) -> Option<RulesSlot> {
        self.table.find(self.hash(name), |ruled| *ruled.name == *name.as_bytes()).map(RulesSlot)
    }

    fn count_refusal(&mut self, rules: RulesSlot) {
        // mutant rule-refusal-not-counted: removed
        self.totals.refusals += 1;
        self.table[rules.0].counts.refusals += 1;
    }

    fn add(&mut self, name: TubeName<'_>) -> RulesSlot {
        self.name_bytes += text_bytes(name.as_bytes());
        RulesSlot(self.table.insert(RuledTube {
            name: name.as_bytes().into(),
            rules: TubeRules::default(),
            bucket: Bucket::FULL,
            counts: RuleCounts::default(),
            hash: self.hash(name),
            chain: NIL,
        }))
    }

    fn set(&mut self, slot: RulesSlot, rule: Rule<'_>) {
        let ruled = &mut self.table[slot.0];
        self.name_bytes -= ruled.name_bytes();
        ruled.rules.set(rule);
        self.name_bytes += ruled.name_bytes();
    }

    fn remove(&mut self, slot: RulesSlot) {
        let ruled = self.table.remove(slot.0);
        assert!(ruled.rules.is_empty(), "a tube that is removed from here has no rule");
        self.name_bytes -= ruled.name_bytes();
    }

    fn hash(&self, name: TubeName<'_>) -> u64 {
        hash_names(self.table.seed(), &[name.as_bytes()])
    }
}

impl Engine {
    /// Whether any tube has rules.
    #[inline]
    pub fn has_rules(&self) -> bool {
        !self.rules.table.is_empty()
    }

    /// The rules of the tube of this name, which need not exist, and what they have led to. `None` if it has no rules.
    pub fn rules_of(&self, name: TubeName<'_>) -> Option<(&TubeRules, RuleCounts)> {
        let RulesSlot(slot) = self.rules.find(name)?;
        let ruled = &self.rules.table[slot];
        Some((&ruled.rules, ruled.counts))
    }

    /// Counts of what the rules of a tube have done. `None` if it has no rules.
    pub fn rule_counts(&self, tube: TubeKey) -> Option<RuleCounts> {
        self.store.tubes.get(tube).rules().map(|RulesSlot(slot)| self.rules.table[slot].counts)
    }

    /// All tubes with rules, in no order.
    pub fn ruled_tubes(&self) -> impl Iterator<Item = (TubeName<'_>, &TubeRules)> {
        // Bounded by RULED_TUBES_MAX: the tubes that have rules.
        self.rules.table.iter().map(|(_, ruled)| (ruled.name(), &ruled.rules))
    }

    /// The number of tubes with rules, with those that do not exist.
    pub const fn ruled_tubes_len(&self) -> usize {
        self.rules.table.len()
    }

    /// What rules have led to since the start.
    pub const fn rule_totals(&self) -> RuleCounts {
        self.rules.totals
    }

    /// Whether there is room for a rule: the tube has others, or fewer than [`RULED_TUBES_MAX`] tubes have rules.
    pub fn can_set_rule(&self, name: TubeName<'_>, rule: Rule<'_>) -> bool {
        rule.value() == RuleValue::None
            || self.rules.table.len() < RULED_TUBES_MAX
            || self.rules.find(name).is_some()
    }

    /// Sets a rule of a tube, which need not exist, or removes it.
    pub fn set_rule(&mut self, name: TubeName<'_>, rule: Rule<'_>, now: Time) {
        self.restore_rule(name, rule, now);
        self.effects.changes.push(Change::RuleSet(name.as_bytes().into(), rule.key()));
    }

    /// Does the same without a change for the job log.
    // Bounded by the one tube that may have this name.
    pub fn restore_rule(&mut self, name: TubeName<'_>, rule: Rule<'_>, now: Time) {
        let rules = match self.rules.find(name) {
            None if rule.value() == RuleValue::None => return,
            None => self.rules.add(name),
            Some(rules) => rules,
        };
        self.rules.set(rules, rule);
        let tube = self.store.tubes.find_slot(name);
        if let Some(tube) = tube {
            self.store.tubes[tube].set_rules(Some(rules));
            self.store.tubes[tube].pins += 1;
        }
        match rule.key() {
            RuleKey::Rate => self.restart_rate(rules, tube, self.budget.within(BACKGROUND_STEPS), now),
            RuleKey::Retention => tube.into_iter().for_each(|tube| self.arm_tube_timer(tube)),
            _ => {}
        }
        if self.rules.table[rules.0].rules.is_empty() {
            tube.into_iter().for_each(|tube| self.store.tubes[tube].set_rules(None));
            self.rules.remove(rules);
        }
        if let Some(tube) = tube {
            self.unpin(tube);
        }
    }

    /// Gives a new tube the rules of its name.
    #[inline]
    pub(super) fn attach_rules(&mut self, tube: TubeSlot) {
        if self.has_rules() {
            let rules = self.rules.find(self.store.tubes[tube].name());
            self.store.tubes[tube].set_rules(rules);
        }
    }

    /// The next time at which a rule of the tube has an effect by itself.
    pub(super) fn next_rule_deadline(&self, tube: TubeSlot, rules: RulesSlot) -> Option<Time> {
        [self.throttle_end(tube, rules), self.first_expiry(tube)].into_iter().flatten().min()
    }

    // Puts.

    /// The time to run of a job that the client puts with this one.
    #[inline]
    pub fn ttr_of_put(&self, client: ClientKey, ttr: Seconds) -> Seconds {
        // mutant rule-default-ttr-for-one-second: ttr != Seconds::ZERO => ttr > Seconds::ONE
        if ttr != Seconds::ZERO { ttr } else { self.default_ttr(self.store.clients.get(client).used) }
    }

    #[cold]
    fn default_ttr(&self, tube: TubeSlot) -> Seconds {
        let rules = self.store.tubes[tube].rules().map(|rules| &self.rules.table[rules.0].rules);
        rules.and_then(|rules| rules.number_u32(RuleKey::DefaultTtr)).map_or(Seconds::ONE, Seconds::whole)
    }

    /// Returns the rule that forbids this many further jobs in the tube that the client uses, if one does. Their bodies have this
    /// size together without their CR LF. A refusal is counted.
    #[inline]
    pub fn admits(&mut self, client: ClientKey, jobs: usize, body_bytes: u64) -> Result<(), FullBy> {
        let tube = self.store.clients.get(client).used;
        match self.store.tubes[tube].rules() {
            None => Ok(()),
            Some(rules) => self.admits_by(rules, tube, jobs, body_bytes),
        }
    }

    #[cold]
    fn admits_by(
        &mut self,
        rules: RulesSlot,
        tube: TubeSlot,
        jobs: usize,
        body_bytes: u64,
    ) -> Result<(), FullBy> {
        let exceeded = self.exceeded(rules, Some(tube), jobs, body_bytes);
        if exceeded.is_some() {
            self.rules.count_refusal(rules);
        }
        exceeded.map_or(Ok(()), Err)
    }

    /// Counts a job that the rules of the tube of this name keep from moving there.
    pub(super) fn count_refusal(&mut self, name: TubeName<'_>) {
        if let Some(rules) = self.rules.find(name) {
            self.rules.count_refusal(rules);
        }
    }

    /// Returns the rule of the tube of this name that forbids a further job with a body of this size, if one does.
    pub(super) fn full_by(&self, name: TubeName<'_>, body_bytes: u64) -> Option<FullBy> {
        self.exceeded(self.rules.find(name)?, self.store.tubes.find_slot(name), 1, body_bytes)
    }

    fn exceeded(
        &self,
        rules: RulesSlot,
        tube: Option<TubeSlot>,
        jobs: usize,
        body_bytes: u64,
    ) -> Option<FullBy> {
        let rules = &self.rules.table[rules.0].rules;
        let there = tube.map(|tube| &self.store.tubes[tube]);
        let (count, bytes) = there.map_or((0, 0), |tube| (tube.jobs(), tube.body_bytes));
        let then = [(RuleKey::MaxJobs, (count + jobs) as u64), (RuleKey::MaxBytes, bytes + body_bytes)];
        then.into_iter().find_map(|(rule, number)| {
            let limit = rules.number(rule).filter(|&limit| number > limit)?;
            Some(FullBy { rule, limit })
        })
    }

    // Attempts.

    /// Whether a job has had all attempts that its tube permits. Its last timeout or release is counted.
    #[inline]
    pub(super) fn is_exhausted(&self, job: JobKey) -> bool {
        match self.store.tubes[self.store.jobs.get(job).tube].rules() {
            None => false,
            Some(rules) => self.has_had_attempts(job, rules),
        }
    }

    #[cold]
    fn has_had_attempts(&self, job: JobKey, rules: RulesSlot) -> bool {
        let Counts { timeouts, releases, .. } =
            self.store.jobs.lifecycle(job).expect("it was reserved").counts;
        let max = self.rules.table[rules.0].rules.number(RuleKey::MaxAttempts);
        // mutant rule-attempts-without-releases: u64::from(releases) => 0
        max.is_some_and(|max| u64::from(timeouts) + u64::from(releases) >= max)
    }

    /// Moves a reserved job that has had all attempts to the tube of dead letters, or buries it where it is.
    #[cold]
    pub(super) fn retire(&mut self, job: JobKey, limit: Limit, now: Time) {
        self.budget.charge(Cost::STEP);
        let from = self.store.jobs.get(job).tube;
        let RulesSlot(rules) = self.store.tubes[from].rules().expect("the tube has a rule");
        self.rules.table[rules].counts.dead_letters += 1;
        self.rules.totals.dead_letters += 1;
        match self.dead_letter_tube(job, rules, now) {
            None => self.bury_reserved(job, limit, now),
            to => self.transfer(job, To::Ready, to, Some(Change::Moved(job)), limit, now),
        }
        self.remove_if_unreferenced(from);
    }

    /// The tube of dead letters, which is created if it does not exist. `None` if the rules name none or it cannot get the job.
    fn dead_letter_tube(&mut self, job: JobKey, rules: u32, now: Time) -> Option<TubeSlot> {
        let name: Box<[u8]> = self.rules.table[rules].rules.dead_letter()?.as_bytes().into();
        let name = TubeName::new(&name).expect("the name was checked");
        let has_room = self.has_room_in(name, job) && self.has_key_room_in(name, job);
        let may_get = has_room && self.is_key_free_in(name, job, now) && self.can_use(name);
        may_get.then(|| self.find_or_create_tube(name))
    }

    /// Changes the tube of a job that is in no container. Its idempotency key moves with it, and must be free there.
    pub(super) fn set_tube(&mut self, job: JobKey, to: TubeSlot, now: Time) {
        // It has the time at which the job became ready in this tube.
        self.store.jobs.lifecycle_mut(job);
        // mutant rule-dead-letter-counts-in-its-old-tube: self.store.body_bytes(job) => 0
        let (from, bytes) = (self.store.jobs.get(job).tube, self.store.body_bytes(job));
        self.store.tubes[from].body_bytes -= bytes;
        self.store.tubes[to].body_bytes += bytes;
        // mutant idp-key-stays-in-the-old-tube: self.move_key(job, to, now) => self.store.jobs.get_mut(job).tube = to
        self.move_key(job, to, now);
    }

    // Retention.

    /// When the job of the tube that was buried first expires.
    fn first_expiry(&self, tube: TubeSlot) -> Option<Time> {
        let record = &self.store.tubes[tube];
        let rules = &self.rules.table[record.rules()?.0].rules;
        let seconds = rules.number_u32(RuleKey::Retention)?;
        let first = JobKey(record.buried.front()?);
        let lifecycle = self.store.jobs.lifecycle(first).expect("a buried job has a lifecycle");
        // mutant rule-retention-from-the-put: lifecycle.deadline => self.store.jobs.get(first).created
        Some(lifecycle.deadline + Span::from_secs(seconds))
    }

    /// Deletes expired jobs up to the limit. A job that was buried so long ago has no change that the caller has yet to read, but it
    /// may be on such a page.
    pub(super) fn expire(&mut self, tube: TubeSlot, limit: Limit, now: Time) {
        while self.first_expiry(tube).is_some_and(|at| at <= now) {
            if self.budget.is_reached(limit) || self.has_unread_page() {
                return;
            }
            self.budget.charge(Cost::STEP);
            let record = &self.store.tubes[tube];
            let job = record.buried.front().expect("a buried job has expired");
            let RulesSlot(rules) = record.rules().expect("the tube has a rule");
            self.rules.table[rules].counts.expiries += 1;
            self.rules.totals.expiries += 1;
            self.delete_job(JobKey(job), now);
        }
    }

    // Bounded by its caller: a test.
    pub(super) fn check_rules(&self) {
        let Rules { table, name_bytes, .. } = &self.rules;
        table.check(0);
        assert_eq!(*name_bytes, table.iter().map(|(_, ruled)| ruled.name_bytes()).sum::<usize>());
        assert!(table.iter().all(|(_, ruled)| !ruled.rules.is_empty()), "a tube without rules is removed");
        for (key, tube) in self.store.tubes.iter() {
            let name = tube.name().as_str();
            assert_eq!(tube.rules(), self.rules.find(tube.name()), "tube {name} has its rules");
            let has_rate = tube.rules().and_then(|rules| self.throttle_end(key.slot, rules)).is_some();
            assert_eq!(tube.is_throttled, has_rate, "tube {name} is throttled by a rate");
            let since = |job| self.store.jobs.lifecycle(JobKey(job)).map(|lifecycle| lifecycle.deadline);
            assert!(
                tube.buried.iter(&self.store.jobs.slab).is_sorted_by_key(since),
                "the first expires first"
            );
        }
    }
}

intrusive!(RuledTube: in tables by |ruled, _seed| ruled.hash);
