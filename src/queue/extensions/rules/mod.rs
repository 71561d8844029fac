//! Rules of tubes, which clients and the configuration file set.
//!
//! They are kept by the name of the tube, because a tube is removed when nothing refers to it. A tube with rules has their slot,
//! so that a tube without rules costs one comparison where a rule could apply.

mod rate;
pub mod retry;

use self::rate::Bucket;
use crate::intrusive::{NIL, Table, intrusive};
use crate::queue::store::Store;
use crate::queue::store::names::{hash_names, text_bytes};
use crate::queue::store::tube::Tube;
use crate::time::{Seconds, Span, Time};
use crate::values::ids::{ClientKey, JobKey, RulesSlot, TubeKey, TubeSlot};
use crate::values::limits::RULED_TUBES_MAX;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, RuleKey, RuleValue, TubeRules};

/// Numbers of burials from here on are times: the first 17 minutes of 1970 are over. Smaller ones counted burials, in logs of
/// earlier versions and of beanstalkd.
pub const BURIAL_TIMES_MIN: u64 = 1_000_000_000_000;

/// The rules of all tubes.
pub struct Rules {
    table: Table<RuledTube>,
    /// The memory of all names.
    name_bytes: usize,
    /// Of all tubes since the start.
    totals: RuleCounts,
}

/// A tube with rules. It may not exist.
struct RuledTube {
    name: Box<[u8]>,
    rules: TubeRules,
    bucket: Bucket,
    counts: RuleCounts,
    hash: u64,
    chain: u32,
}

/// A tube one of whose rules was set.
pub struct RuleSet {
    pub tube: TubeSlot,
    /// Its jobs are to be assigned to clients that wait: its rate does not keep them any more.
    pub is_released: bool,
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
    /// Commands, and runs of schedules, that `max-jobs` or `max-bytes` refused.
    pub refusals: u64,
    /// Jobs that have had all attempts: buried, or moved to the tube of dead letters.
    pub dead_letters: u64,
    /// Jobs that failed and that `retry-delay` delayed.
    pub retries: u64,
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
        let totals = RuleCounts { refusals: 0, dead_letters: 0, retries: 0, expiries: 0, rate_waits: 0 };
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

    fn replace(&mut self, slot: RulesSlot, rule: Rule<'_>) {
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

    #[inline]
    pub fn is_any(&self) -> bool {
        !self.table.is_empty()
    }

    pub const fn len(&self) -> usize {
        self.table.len()
    }

    pub const fn totals(&self) -> RuleCounts {
        self.totals
    }

    pub fn of(&self, name: TubeName<'_>) -> Option<(&TubeRules, RuleCounts)> {
        let RulesSlot(slot) = self.find(name)?;
        let ruled = &self.table[slot];
        Some((&ruled.rules, ruled.counts))
    }

    pub fn counts(&self, tube: TubeKey, store: &Store) -> Option<RuleCounts> {
        store.tubes.get(tube).rules().map(|RulesSlot(slot)| self.table[slot].counts)
    }

    pub fn tubes(&self) -> impl Iterator<Item = (TubeName<'_>, &TubeRules)> {
        // Bounded by RULED_TUBES_MAX: the tubes that have rules.
        self.table.iter().map(|(_, ruled)| (ruled.name(), &ruled.rules))
    }

    /// Whether there is room for a rule: the tube has others, or fewer than [`RULED_TUBES_MAX`] tubes have rules.
    pub fn can_set(&self, name: TubeName<'_>, rule: Rule<'_>) -> bool {
        rule.value() == RuleValue::None || self.table.len() < RULED_TUBES_MAX || self.find(name).is_some()
    }

    /// Sets a rule of a tube, or removes it. Returns the tube if it exists.
    // Bounded by the one tube that may have this name.
    pub fn set(&mut self, name: TubeName<'_>, rule: Rule<'_>, store: &mut Store) -> Option<RuleSet> {
        let rules = match self.find(name) {
            None if rule.value() == RuleValue::None => return None,
            None => self.add(name),
            Some(rules) => rules,
        };
        self.replace(rules, rule);
        let tube = store.tubes.find_slot(name);
        if let Some(tube) = tube {
            store.tubes[tube].set_rules(Some(rules));
        }
        let mut is_released = false;
        match (rule.key(), tube) {
            (RuleKey::Rate, _) => is_released = self.restart_rate(rules, tube, store),
            (RuleKey::Retention, Some(tube)) => self.arm_tube_timer(tube, store),
            _ => {}
        }
        if self.table[rules.0].rules.is_empty() {
            tube.into_iter().for_each(|tube| store.tubes[tube].set_rules(None));
            self.remove(rules);
        }
        tube.map(|tube| RuleSet { tube, is_released })
    }

    /// Gives a new tube the rules of its name.
    #[inline]
    pub fn attach(&self, tube: TubeSlot, store: &mut Store) {
        if self.is_any() {
            let rules = self.find(store.tubes[tube].name());
            store.tubes[tube].set_rules(rules);
        }
    }

    /// Arms the timer of a tube for its next deadline.
    pub fn arm_tube_timer(&self, tube: TubeSlot, store: &mut Store) {
        if let Some(at) = self.tube_deadline(tube, store) {
            store.timers.arm(store.tubes[tube].timer, at);
        }
    }

    /// The next time at which a delay or the pause of a tube ends, or a rule has an effect by itself.
    pub fn tube_deadline(&self, key: TubeSlot, store: &Store) -> Option<Time> {
        let tube = &store.tubes[key];
        let delay_end = tube.delayed.min().map(|lifecycle| store.jobs.lifecycles[lifecycle].deadline);
        let pause_end = tube.pause.map(|pause| pause.until);
        let rule_end = tube.rules().and_then(|rules| self.next_deadline(key, rules, store));
        [delay_end, pause_end, rule_end].into_iter().flatten().min()
    }

    /// The next time at which a rule of the tube has an effect by itself.
    pub fn next_deadline(&self, tube: TubeSlot, rules: RulesSlot, store: &Store) -> Option<Time> {
        [self.throttle_end(tube, rules, store), self.first_expiry(tube, store)].into_iter().flatten().min()
    }

    // Puts.

    /// The TTR of a job that a client puts: zero becomes the default of the tube.
    #[inline]
    pub fn ttr_of_put(&self, client: ClientKey, ttr: Seconds, store: &Store) -> Seconds {
        // mutant rule-default-ttr-for-one-second: ttr != Seconds::ZERO => ttr > Seconds::ONE
        if ttr != Seconds::ZERO { ttr } else { self.default_ttr(store.used(client)) }
    }

    /// The TTR of a job that the server puts: zero becomes the default of the tube.
    pub fn ttr_in(&self, tube: TubeSlot, ttr: Seconds, store: &Store) -> Seconds {
        if ttr != Seconds::ZERO { ttr } else { self.default_ttr(&store.tubes[tube]) }
    }

    #[cold]
    fn default_ttr(&self, tube: &Tube) -> Seconds {
        let rules = tube.rules().map(|rules| &self.table[rules.0].rules);
        rules.and_then(|rules| rules.number_u32(RuleKey::DefaultTtr)).map_or(Seconds::ONE, Seconds::whole)
    }

    #[inline]
    pub fn admits(
        &mut self,
        client: ClientKey,
        jobs: usize,
        body_bytes: u64,
        store: &Store,
    ) -> Result<(), FullBy> {
        let tube = store.used(client);
        match tube.rules() {
            None => Ok(()),
            Some(rules) => self.admits_by(rules, tube, jobs, body_bytes),
        }
    }

    #[cold]
    fn admits_by(
        &mut self,
        rules: RulesSlot,
        tube: &Tube,
        jobs: usize,
        body_bytes: u64,
    ) -> Result<(), FullBy> {
        let exceeded = self.exceeded(rules, Some(tube), jobs, body_bytes);
        if exceeded.is_some() {
            self.count_refusal(rules);
        }
        exceeded.map_or(Ok(()), Err)
    }

    /// Counts a job that the rules of the tube of this name keep from getting there.
    pub fn count_refusal_in(&mut self, name: TubeName<'_>) {
        if let Some(rules) = self.find(name) {
            self.count_refusal(rules);
        }
    }

    /// Returns the rule of the tube of this name that forbids a further job with a body of this size, if one does.
    pub fn full_by(&self, name: TubeName<'_>, body_bytes: u64, store: &Store) -> Option<FullBy> {
        let tube = store.tubes.find_slot(name).map(|tube| &store.tubes[tube]);
        self.exceeded(self.find(name)?, tube, 1, body_bytes)
    }

    fn exceeded(
        &self,
        rules: RulesSlot,
        tube: Option<&Tube>,
        jobs: usize,
        body_bytes: u64,
    ) -> Option<FullBy> {
        let rules = &self.table[rules.0].rules;
        let (count, bytes) = tube.map_or((0, 0), |tube| (tube.jobs(), tube.body_bytes));
        let then = [(RuleKey::MaxJobs, (count + jobs) as u64), (RuleKey::MaxBytes, bytes + body_bytes)];
        then.into_iter().find_map(|(rule, number)| {
            let limit = rules.number(rule).filter(|&limit| number > limit)?;
            Some(FullBy { rule, limit })
        })
    }

    // Attempts.

    /// Counts a job of a tube that has had all attempts. Returns the name of the tube of dead letters, if the rules have one.
    pub fn begin_retirement(&mut self, tube: TubeSlot, store: &Store) -> Option<TubeName<'_>> {
        let RulesSlot(rules) = store.tubes[tube].rules().expect("the tube has a rule");
        let ruled = &mut self.table[rules];
        ruled.counts.dead_letters += 1;
        self.totals.dead_letters += 1;
        ruled.rules.dead_letter()
    }

    // Retention.

    /// When the job of the tube that was buried first expires.
    fn first_expiry(&self, tube: TubeSlot, store: &Store) -> Option<Time> {
        let record = &store.tubes[tube];
        let rules = &self.table[record.rules()?.0].rules;
        let seconds = rules.number_u32(RuleKey::Retention)?;
        let first = JobKey(record.buried.front()?);
        let lifecycle = store.jobs.lifecycle(first).expect("a buried job has a lifecycle");
        // mutant rule-retention-from-the-put: lifecycle.deadline => store.jobs.get(first).created
        Some(lifecycle.deadline + Span::from_secs(seconds))
    }

    /// The job of a tube that was buried first, if it has expired. [`count_expiry`](Self::count_expiry) must follow.
    pub fn next_expired(&self, tube: TubeSlot, now: Time, store: &Store) -> Option<JobKey> {
        self.first_expiry(tube, store).filter(|&at| at <= now)?;
        store.tubes[tube].buried.front().map(JobKey)
    }

    pub fn count_expiry(&mut self, tube: TubeSlot, store: &Store) {
        let RulesSlot(rules) = store.tubes[tube].rules().expect("the tube has a rule");
        self.table[rules].counts.expiries += 1;
        self.totals.expiries += 1;
    }

    // Bounded by its caller: a test.
    pub fn check(&self, store: &Store) {
        let Self { table, name_bytes, .. } = self;
        table.check(0);
        assert_eq!(*name_bytes, table.iter().map(|(_, ruled)| ruled.name_bytes()).sum::<usize>());
        assert!(table.iter().all(|(_, ruled)| !ruled.rules.is_empty()), "a tube without rules is removed");
        for (key, tube) in store.tubes.iter() {
            let name = tube.name().as_str();
            assert_eq!(tube.rules(), self.find(tube.name()), "tube {name} has its rules");
            let has_rate = tube.rules().and_then(|rules| self.throttle_end(key.slot, rules, store)).is_some();
            assert_eq!(tube.is_throttled, has_rate, "tube {name} is throttled by a rate");
            let since = |job| store.jobs.lifecycle(JobKey(job)).map(|lifecycle| lifecycle.deadline);
            assert!(tube.buried.iter(&store.jobs.slab).is_sorted_by_key(since), "the first expires first");
        }
    }
}

intrusive!(RuledTube: in tables by |ruled, _seed| ruled.hash);
