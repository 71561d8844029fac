//! Rules of tubes.

use beanring::queue::Reserved;
use beanring::time::Span;
use beanring::values::tube_name::TubeName;
use beanring::values::tube_rules::{Rule, RuleKey, RuleValue};

use super::bench::{Bench, named};

impl Bench {
    fn set_rule(&mut self, tube: TubeName<'_>, key: RuleKey, number: u64) {
        let rule = Rule::new(tube, key, RuleValue::Number(number)).expect("a valid rule");
        self.engine.set_rule(tube, rule, self.now);
    }
}

#[test]
fn buried_jobs_that_expire_together_are_deleted_in_steps() {
    const JOBS: u32 = 10_000;
    let mut bench = Bench::new();
    let worker = bench.connect();
    bench.put_many(worker, JOBS, 0);
    bench.bury_many(worker, JOBS);
    bench.set_rule(TubeName::DEFAULT, RuleKey::Retention, 5);
    bench.pass(Span::from_secs(5));
    let steps = bench.run_all_steps(|bench| bench.engine.rule_totals().expiries as u32);
    assert!(steps > 10, "{steps} steps");
    assert_eq!(bench.engine.rule_totals().expiries, u64::from(JOBS));
    assert!(bench.engine.jobs().is_empty());
}

#[test]
fn a_reserve_looks_at_no_tube_that_waits_for_its_rate() {
    const TUBES: u32 = 1000;
    let mut bench = Bench::new();
    let worker = bench.connect();
    for number in 0..TUBES {
        let name = format!("slow-{number}");
        bench.set_rule(named(&name), RuleKey::Rate, 1);
        bench.use_and_watch(worker, &name);
        bench.put_many(worker, 2, 0);
    }
    (0..TUBES).for_each(|_| _ = bench.reserve_id(worker));
    bench.spent();
    assert_eq!(bench.reserve_now(worker), Reserved::TimedOut);
    assert_eq!(bench.spent(), 0, "there is no tube to look at");
    // Nothing happens before the first token.
    assert_eq!(bench.engine.next_deadline(), Some(bench.now + Span::from_secs(1)));
    bench.pass(Span::from_secs(1));
    while bench.step() {}
    bench.reserve_id(worker);
}
