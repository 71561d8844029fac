//! Rules of a tube, as `tube-config` and the configuration file set them.

use crate::values::tube_name::TubeName;

/// What a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum RuleKey {
    /// A job whose timeouts and releases reach this number is buried, or moved to the tube of [`DeadLetter`](Self::DeadLetter).
    MaxAttempts,
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

impl RuleKey {
    /// Number of keys.
    pub const COUNT: usize = Self::DeadLetter as usize + 1;

    /// Every key, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::MaxAttempts,
        Self::MaxJobs,
        Self::MaxBytes,
        Self::DefaultTtr,
        Self::Retention,
        Self::Rate,
        Self::DeadLetter,
    ];

    /// The word of the protocol for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max-attempts",
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

    /// The largest number that it may have.
    pub const fn max(self) -> u64 {
        match self {
            Self::MaxBytes => i64::MAX as u64,
            Self::Rate => RATE_MAX,
            _ => u32::MAX as u64,
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
            RuleValue::Number(number) => key != RuleKey::DeadLetter && (1..=key.max()).contains(&number),
            RuleValue::Tube(tube) => key == RuleKey::DeadLetter && tube != of,
        };
        is_valid.then_some(Self { key, value })
    }

    /// Reads the text of a value. `0` is the removal of the rule.
    pub fn parse(of: TubeName<'_>, key: RuleKey, text: &'a [u8]) -> Option<Self> {
        let value = match text {
            b"0" => RuleValue::None,
            _ if key == RuleKey::DeadLetter => RuleValue::Tube(TubeName::new(text)?),
            _ => RuleValue::Number(number(text)?),
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

/// Decimal digits without a sign. Zeros alone are no number, because only `0` itself removes a rule.
fn number(text: &[u8]) -> Option<u64> {
    let is_decimal = text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_decimal)?.parse().ok()
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
            for text in ["", "-1", "+1", "1.5", "1 ", " 1", "1\0", "18446744073709551616", "*"] {
                if key != RuleKey::DeadLetter || !matches!(text, "+1" | "1.5" | "18446744073709551616") {
                    check(key.word(), text, None);
                }
            }
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
