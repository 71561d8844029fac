//! Rules of a tube, as `tube-config` and the configuration file set them.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::values::tube_name::TubeName;

/// What a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum RuleKey {
    /// A job whose failed attempts reach this number is buried, or moved to the tube of [`DeadLetter`](Self::DeadLetter).
    MaxAttempts,
    /// A failure this many seconds or more after the put is final, as one of the last attempt is.
    RetryFor,
    /// The delay after the first failure, in seconds.
    RetryDelay,
    /// What each further failure multiplies the delay by, in tenths.
    RetryFactor,
    /// The longest delay after a failure, in seconds.
    RetryMaxDelay,
    /// The part of a delay after a failure that is left to chance, in hundredths.
    RetryJitter,
    /// Whether the loss of a connection is a failure of the jobs that its client had reserved: [`NO`] or [`YES`].
    LostCounts,
    /// Maximum number of jobs.
    MaxJobs,
    /// Maximum size of all bodies together.
    MaxBytes,
    /// The time to run of a job that is put with 0, in seconds.
    DefaultTtr,
    /// How long a buried job is kept, in seconds.
    Retention,
    /// Jobs that reserves get per second.
    Rate,
    /// The tube that gets the jobs which have had all attempts. It stays the last: the rules before it are numbers.
    DeadLetter,
}

/// The largest `rate`: an interval of a microsecond.
pub const RATE_MAX: u64 = 1_000_000;

/// The largest `retry-factor`.
const RETRY_FACTOR_MAX: u64 = 100;

/// The values of a [switch](Unit::Switch).
pub const NO: u64 = 1;
/// The other one.
pub const YES: u64 = 2;

/// What the number of a rule counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A plain number.
    Count,
    /// Bytes.
    Bytes,
    /// Whole seconds.
    Seconds,
    /// A number with one decimal.
    Tenths,
    /// A number with two decimals.
    Hundredths,
    /// `no` or `yes`.
    Switch,
}

impl Unit {
    /// How many decimals its text may have.
    const fn decimals(self) -> usize {
        match self {
            Self::Tenths => 1,
            Self::Hundredths => 2,
            Self::Count | Self::Bytes | Self::Seconds | Self::Switch => 0,
        }
    }

    /// How many of its smallest parts one is.
    const fn scale(self) -> u64 {
        10_u64.pow(self.decimals() as u32)
    }

    /// The number in a text, which is that of its smallest part.
    fn parse(self, text: &[u8]) -> Option<u64> {
        if self == Self::Switch {
            return match text {
                b"no" => Some(NO),
                b"yes" => Some(YES),
                _ => None,
            };
        }
        let point = text.iter().position(|&byte| byte == b'.').filter(|_| self.decimals() > 0);
        let (whole, decimals) = text.split_at(point.unwrap_or(text.len()));
        let decimals = decimals.get(1..).unwrap_or_default();
        let is_decimal = !whole.is_empty()
            && decimals.len() <= self.decimals()
            && point.is_none_or(|_| !decimals.is_empty());
        let digits =
            whole.iter().chain(decimals).chain(&b"00"[..self.decimals().saturating_sub(decimals.len())]);
        digits
            .copied()
            .try_fold(0_u64, |number, digit| {
                let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
                number.checked_mul(10)?.checked_add(digit)
            })
            .filter(|_| is_decimal)
    }
}

impl RuleKey {
    /// Number of keys.
    pub const COUNT: usize = Self::DeadLetter as usize + 1;

    /// Every key, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::MaxAttempts,
        Self::RetryFor,
        Self::RetryDelay,
        Self::RetryFactor,
        Self::RetryMaxDelay,
        Self::RetryJitter,
        Self::LostCounts,
        Self::MaxJobs,
        Self::MaxBytes,
        Self::DefaultTtr,
        Self::Retention,
        Self::Rate,
        Self::DeadLetter,
    ];

    /// Whether it limits the jobs of a tube, so that a put may be refused.
    pub const fn limits_jobs(self) -> bool {
        matches!(self, Self::MaxJobs | Self::MaxBytes)
    }

    /// The word of the protocol for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max-attempts",
            Self::RetryFor => "retry-for",
            Self::RetryDelay => "retry-delay",
            Self::RetryFactor => "retry-factor",
            Self::RetryMaxDelay => "retry-max-delay",
            Self::RetryJitter => "retry-jitter",
            Self::LostCounts => "lost-counts",
            Self::MaxJobs => "max-jobs",
            Self::MaxBytes => "max-bytes",
            Self::DefaultTtr => "default-ttr",
            Self::Retention => "retention",
            Self::Rate => "rate",
            Self::DeadLetter => "dead-letter",
        }
    }

    /// Returns the key with this word.
    pub fn named(word: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.word().as_bytes() == word)
    }

    /// What its number counts. [`DeadLetter`](Self::DeadLetter) has none.
    pub const fn unit(self) -> Unit {
        match self {
            Self::MaxBytes => Unit::Bytes,
            Self::RetryFor | Self::RetryDelay | Self::RetryMaxDelay | Self::DefaultTtr | Self::Retention => {
                Unit::Seconds
            }
            Self::RetryFactor => Unit::Tenths,
            Self::RetryJitter => Unit::Hundredths,
            Self::LostCounts => Unit::Switch,
            Self::MaxAttempts | Self::MaxJobs | Self::Rate | Self::DeadLetter => Unit::Count,
        }
    }

    /// The smallest number that it may have.
    pub const fn min(self) -> u64 {
        if let Self::RetryFactor = self { 10 } else { 1 }
    }

    /// The largest number that it may have.
    pub const fn max(self) -> u64 {
        match self {
            Self::MaxBytes => i64::MAX as u64,
            Self::Rate => RATE_MAX,
            Self::RetryFactor => RETRY_FACTOR_MAX * 10,
            Self::RetryJitter => 100,
            Self::LostCounts => YES,
            _ => u32::MAX as u64,
        }
    }

    /// The text of a number, as [`Rule::parse`] reads it.
    pub const fn shown(self, number: u64) -> RuleNumber {
        RuleNumber { unit: self.unit(), number }
    }
}

/// The number of a rule, which prints itself as the protocol has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleNumber {
    /// What it counts.
    pub unit: Unit,
    /// That of its smallest parts.
    pub number: u64,
}

impl fmt::Display for RuleNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, number } = *self;
        if unit == Unit::Switch {
            return f.write_str(if number == NO { "no" } else { "yes" });
        }
        let (whole, rest) = (number / unit.scale(), number % unit.scale());
        match (rest, rest % 10) {
            (0, _) => write!(f, "{whole}"),
            (_, 0) => write!(f, "{whole}.{}", rest / 10),
            _ => write!(f, "{whole}.{rest:0width$}", width = unit.decimals()),
        }
    }
}

impl Serialize for RuleNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.unit {
            Unit::Switch => serializer.collect_str(self),
            Unit::Tenths | Unit::Hundredths if !self.number.is_multiple_of(self.unit.scale()) => {
                serializer.serialize_f64(self.number as f64 / self.unit.scale() as f64)
            }
            _ => serializer.serialize_u64(self.number / self.unit.scale()),
        }
    }
}

/// A rule, or the removal of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule<'a> {
    key: RuleKey,
    value: RuleValue<'a>,
}

/// The value of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleValue<'a> {
    /// There is no rule.
    None,
    /// Of any key but [`RuleKey::DeadLetter`]: a number, not 0.
    Number(u64),
    /// Of [`RuleKey::DeadLetter`].
    Tube(TubeName<'a>),
}

impl<'a> Rule<'a> {
    /// Checks the value of a rule for the tube `of`. Returns `None` if it is out of range, or of another type, or names the tube
    /// itself.
    pub fn new(of: TubeName<'_>, key: RuleKey, value: RuleValue<'a>) -> Option<Self> {
        let is_valid = match value {
            RuleValue::None => true,
            RuleValue::Number(number) => {
                key != RuleKey::DeadLetter && (key.min()..=key.max()).contains(&number)
            }
            RuleValue::Tube(tube) => key == RuleKey::DeadLetter && tube != of,
        };
        is_valid.then_some(Self { key, value })
    }

    /// Reads the text of a value. `0` is the removal of the rule.
    pub fn parse(of: TubeName<'_>, key: RuleKey, text: &'a [u8]) -> Option<Self> {
        let value = match text {
            b"0" => RuleValue::None,
            _ if key == RuleKey::DeadLetter => RuleValue::Tube(TubeName::new(text)?),
            _ => RuleValue::Number(key.unit().parse(text)?),
        };
        Self::new(of, key, value)
    }

    /// What it is about.
    pub const fn key(self) -> RuleKey {
        self.key
    }

    /// Its value.
    pub const fn value(self) -> RuleValue<'a> {
        self.value
    }
}

/// All rules of one tube.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TubeRules {
    /// By key. Zero is no rule.
    numbers: [u64; RuleKey::DeadLetter as usize],
    dead_letter: Option<Box<[u8]>>,
}

impl TubeRules {
    /// Sets a rule, or removes it.
    pub fn set(&mut self, rule: Rule<'_>) {
        match (rule.key, rule.value) {
            (RuleKey::DeadLetter, RuleValue::Tube(tube)) => self.dead_letter = Some(tube.as_bytes().into()),
            (RuleKey::DeadLetter, _) => self.dead_letter = None,
            (key, RuleValue::Number(number)) => self.numbers[key as usize] = number,
            (key, _) => self.numbers[key as usize] = 0,
        }
    }

    /// The rule of a key, if there is one.
    pub fn get(&self, key: RuleKey) -> RuleValue<'_> {
        match key {
            RuleKey::DeadLetter => self.dead_letter().map_or(RuleValue::None, RuleValue::Tube),
            _ => self.number(key).map_or(RuleValue::None, RuleValue::Number),
        }
    }

    /// The number of a key other than [`RuleKey::DeadLetter`], if there is a rule.
    pub fn number(&self, key: RuleKey) -> Option<u64> {
        Some(self.numbers[key as usize]).filter(|&number| number > 0)
    }

    /// The number of a key whose numbers have 32 bits.
    pub fn number_u32(&self, key: RuleKey) -> Option<u32> {
        self.number(key).map(|number| u32::try_from(number).expect("the number was checked"))
    }

    /// The tube that gets the jobs which have had all attempts.
    pub fn dead_letter(&self) -> Option<TubeName<'_>> {
        self.dead_letter.as_deref().map(|name| TubeName::new(name).expect("the name was checked"))
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.numbers == [0; RuleKey::DeadLetter as usize] && self.dead_letter.is_none()
    }

    /// All rules, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (RuleKey, RuleValue<'_>)> {
        let all = RuleKey::ALL.into_iter().map(|key| (key, self.get(key)));
        all.filter(|(_, value)| *value != RuleValue::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(key: &str, text: &str, expect: Option<RuleValue<'_>>) {
        let key = RuleKey::named(key.as_bytes()).expect("the key is known");
        let of = TubeName::new(b"mail").expect("a valid name");
        let rule = Rule::parse(of, key, text.as_bytes());
        assert_eq!(rule.map(Rule::value), expect, "{} {text}", key.word());
    }

    #[test]
    fn values_at_each_boundary() {
        let number = |number| Some(RuleValue::Number(number));
        let tube = TubeName::new(b"dead").map(RuleValue::Tube);
        for key in RuleKey::ALL {
            check(key.word(), "0", Some(RuleValue::None));
            for text in
                ["", "-1", "+1", "1.5", "1 ", " 1", "1\0", "18446744073709551616", "*", "1.", ".5", "1.5.5"]
            {
                let is_name = key == RuleKey::DeadLetter
                    && matches!(text, "+1" | "1.5" | "18446744073709551616" | "1." | ".5" | "1.5.5");
                if !is_name && (text, key) != ("1.5", RuleKey::RetryFactor) {
                    check(key.word(), text, None);
                }
            }
        }
        for (text, tenths) in [("1", 10), ("1.0", 10), ("2.5", 25), ("100", 1000), ("007.1", 71)] {
            check("retry-factor", text, number(tenths));
        }
        for text in ["0.9", "0.0", "100.1", "1.55", "1.x", "yes"] {
            check("retry-factor", text, None);
        }
        for (text, hundredths) in [("0.2", 20), ("0.20", 20), ("0.01", 1), ("1", 100), ("1.00", 100)] {
            check("retry-jitter", text, number(hundredths));
        }
        for text in ["0.0", "0.005", "1.01", "2", "0.200"] {
            check("retry-jitter", text, None);
        }
        check("lost-counts", "no", number(NO));
        check("lost-counts", "yes", number(YES));
        for text in ["1", "2", "No", "true", "n"] {
            check("lost-counts", text, None);
        }
        check("max-attempts", "1", number(1));
        check("max-attempts", "007", number(7));
        check("max-attempts", "00", None);
        check("max-attempts", "4294967295", number(u64::from(u32::MAX)));
        check("max-attempts", "4294967296", None);
        check("max-bytes", "4294967296", number(1 << 32));
        check("max-bytes", "9223372036854775808", None);
        check("rate", "1000000", number(RATE_MAX));
        check("rate", "1000001", None);
        check("dead-letter", "dead", tube);
        check("dead-letter", "mail", None);
        check("dead-letter", "00", TubeName::new(b"00").map(RuleValue::Tube));
        check("dead-letter", &"d".repeat(201), None);
        assert!(RuleKey::named(b"max-attempt").is_none() && RuleKey::named(b"").is_none());
    }

    #[test]
    fn a_number_is_shown_as_it_is_read() {
        for (key, number, text) in [
            (RuleKey::MaxAttempts, 7, "7"),
            (RuleKey::RetryFactor, 20, "2"),
            (RuleKey::RetryFactor, 25, "2.5"),
            (RuleKey::RetryJitter, 20, "0.2"),
            (RuleKey::RetryJitter, 5, "0.05"),
            (RuleKey::RetryJitter, 25, "0.25"),
            (RuleKey::RetryJitter, 100, "1"),
            (RuleKey::LostCounts, NO, "no"),
            (RuleKey::LostCounts, YES, "yes"),
        ] {
            assert_eq!(key.shown(number).to_string(), text);
            check(key.word(), text, Some(RuleValue::Number(number)));
        }
    }

    #[test]
    fn rules_are_set_replaced_and_removed() {
        let of = TubeName::DEFAULT;
        let mut rules = TubeRules::default();
        let mut set = |key, text: &str| {
            rules.set(Rule::parse(of, key, text.as_bytes()).expect("a valid rule"));
            rules.iter().map(|(key, _)| key).collect::<Vec<_>>()
        };
        assert_eq!(set(RuleKey::Rate, "5"), [RuleKey::Rate]);
        assert_eq!(set(RuleKey::DeadLetter, "dead"), [RuleKey::Rate, RuleKey::DeadLetter]);
        assert_eq!(set(RuleKey::Rate, "6"), [RuleKey::Rate, RuleKey::DeadLetter]);
        assert_eq!(set(RuleKey::DeadLetter, "0"), [RuleKey::Rate]);
        assert_eq!(set(RuleKey::Rate, "0"), []);
        assert!(rules.is_empty());
    }
}
