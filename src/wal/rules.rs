//! Rules of tubes, and which segment each is logged in.

use super::Wal;
use super::placed::{Placed, PlacedRecord};
use super::record::{Record, RuleRecord};
use super::segment::SegmentNumber;
use super::segment_index::SegmentIndex;
use crate::queue::Engine;
use crate::values::limits::TUBE_NAME_BYTES_MAX;
use crate::values::tube_name::TubeName;
use crate::values::tube_rules::{Rule, RuleKey, RuleValue};

/// The tube and the key of a rule.
pub type RuleId = (Box<[u8]>, RuleKey);

/// All logged rules.
pub type LoggedRules = Placed<RuleId, LoggedRule>;

/// The value of a rule.
#[derive(Clone, Debug)]
pub enum LoggedRule {
    Number(u64),
    Tube(Box<[u8]>),
}

/// Memory of one rule, at most: its tube twice, the tube of dead letters, and its share of two trees.
const RULE_BYTES: usize = 3 * TUBE_NAME_BYTES_MAX + 4 * size_of::<(RuleId, PlacedRecord<LoggedRule>)>();

impl LoggedRule {
    fn value(&self) -> RuleValue<'_> {
        match self {
            Self::Number(number) => RuleValue::Number(*number),
            Self::Tube(tube) => RuleValue::Tube(name_of(tube)),
        }
    }
}

impl LoggedRules {
    /// Takes a record of this size, which is in this segment, and accounts for it in the index. It replaces an earlier one
    /// of the same rule.
    pub fn apply(
        &mut self,
        record: &RuleRecord<'_>,
        place: (SegmentNumber, usize),
        index: &mut SegmentIndex,
    ) {
        let id = (record.tube.as_bytes().into(), record.rule.key());
        let content = match record.rule.value() {
            RuleValue::Number(number) => LoggedRule::Number(number),
            RuleValue::Tube(tube) => LoggedRule::Tube(tube.as_bytes().into()),
            RuleValue::None => {
                index.add_garbage(place.1 as u64);
                self.remove(&id, index);
                return;
            }
        };
        self.insert(id, content, place, index);
    }

    /// An upper bound of the memory that rules take.
    pub fn memory_bytes(&self) -> usize {
        self.len() * RULE_BYTES
    }

    /// All rules that are set.
    pub fn records(&self) -> impl Iterator<Item = RuleRecord<'_>> {
        self.iter().map(|((tube, key), rule)| record_of(tube, *key, rule.value()))
    }
}

impl Wal {
    /// Logs the value that a rule has in the queue.
    pub(super) fn append_rule(&mut self, tube: &[u8], key: RuleKey, engine: &Engine) {
        let rules = engine.rules_of(name_of(tube));
        let value = rules.map_or(RuleValue::None, |(rules, _)| rules.get(key));
        self.append_rule_record(&record_of(tube, key, value), engine);
    }

    /// Logs a rule again, as it was logged: since a start it may have another value in the queue, from the configuration.
    /// Returns the size of the record in bytes.
    pub(super) fn compact_rule(&mut self, id: &RuleId, engine: &Engine) -> usize {
        let logged = self.rules.get(id).expect("the rule is logged").clone();
        // mutant rule-lost-by-compaction: logged.value() => RuleValue::None
        self.append_rule_record(&record_of(&id.0, id.1, logged.value()), engine)
    }

    /// Returns the size of the record in bytes.
    fn append_rule_record(&mut self, record: &RuleRecord<'_>, engine: &Engine) -> usize {
        let place = self.append(&Record::Rule(*record), engine);
        self.rules.apply(record, place, &mut self.index);
        place.1
    }
}

fn record_of<'a>(tube: &'a [u8], key: RuleKey, value: RuleValue<'a>) -> RuleRecord<'a> {
    let tube = name_of(tube);
    RuleRecord { tube, rule: Rule::new(tube, key, value).expect("the rule was checked") }
}

fn name_of(name: &[u8]) -> TubeName<'_> {
    TubeName::new(name).expect("the name was checked")
}
