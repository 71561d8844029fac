//! Puts with idempotency keys, alone and in batches, which are repeated.

use std::collections::VecDeque;
use std::fmt::Write as _;

use beanring_testkit::random::Random;

use super::record::{CONCURRENCY_KEYS, KEYED, Token};

/// How long a key is kept after the deletion of its job.
const KEY_TTL_S: u64 = 60;

/// Until when a put is repeated, in microseconds after it was first sent.
const REPEATED_WITHIN: u64 = KEY_TTL_S * 1_000_000 / 2;

/// Accepted puts that a client keeps before it repeats the first of them.
const KEPT: usize = 8;

/// A put, or a batch of them.
pub struct KeyedPuts {
    pub tokens: Vec<Token>,
    pub text: String,
    first_at: u64,
}

/// What a client puts, and puts again.
#[derive(Default)]
pub struct KeyedProducer {
    /// It got no reply, and is repeated first.
    lost: Option<KeyedPuts>,
    kept: VecDeque<KeyedPuts>,
}

impl KeyedProducer {
    /// The next one to send: a repeat or a new one. `numbers` counts the puts of the client.
    pub fn next(&mut self, client: u16, numbers: &mut u32, now: u64, random: &mut Random) -> KeyedPuts {
        let kept = || (self.kept.len() > KEPT).then(|| self.kept.pop_front()).flatten();
        let repeat = self.lost.take().or_else(kept);
        let repeat = repeat.filter(|puts| now < puts.first_at + REPEATED_WITHIN);
        repeat.unwrap_or_else(|| KeyedPuts::new(client, numbers, now, random))
    }

    pub const fn must_repeat(&self) -> bool {
        self.lost.is_some()
    }

    /// Some are repeated even though they were accepted.
    pub fn sent(&mut self, puts: KeyedPuts, is_lost: bool, random: &mut Random) {
        if is_lost {
            self.lost = Some(puts);
        } else if random.one_in(4) {
            self.kept.push_back(puts);
        }
    }
}

impl KeyedPuts {
    fn new(client: u16, numbers: &mut u32, now: u64, random: &mut Random) -> Self {
        let some = 2 + random.below(4);
        let kinds = match random.below(20) {
            // Jobs that run one or two at a time.
            0..=1 => vec![KEYED | (1 + random.below(CONCURRENCY_KEYS as usize) as u8); 3],
            // The last one waits for the others.
            2..=4 => [vec![KEYED; some], vec![KEYED | (1 + CONCURRENCY_KEYS + some as u8)]].concat(),
            5..=8 => vec![KEYED; some],
            _ => vec![KEYED],
        };
        let ttr_s = if kinds[0] == KEYED { random.pick(&[2, 4, 60, 120]) } else { random.pick(&[2, 4]) };
        let token = |kind: u8| {
            *numbers += 1;
            Token::new(client, *numbers, ttr_s).of_kind(kind)
        };
        let tokens: Vec<Token> = kinds.into_iter().map(token).collect();
        let text = text(&tokens, random);
        Self { tokens, text, first_at: now }
    }
}

fn text(tokens: &[Token], random: &mut Random) -> String {
    let mut text = String::new();
    if tokens.len() > 1 {
        let _ = write!(text, "put-batch {}\r\n", tokens.len());
    }
    let last = tokens[tokens.len() - 1];
    let members: Vec<Token> = last.members().collect();
    for &token in tokens {
        let mut tags = format!(" idp:{:x}:{KEY_TTL_S}", token.0);
        if members.contains(&token) {
            let _ = write!(tags, " grp:{:x}", last.0);
        } else if !members.is_empty() {
            let _ = write!(tags, " aft:{:x}", last.0);
        }
        text += &put_text(token, 0, 16 + random.below(100), &tags, random);
    }
    text
}

/// A put of a job with this token, with tags that each begin with a space, and with that of its concurrency key.
pub fn put_text(token: Token, delay_s: u8, bytes: usize, tags: &str, random: &mut Random) -> String {
    let (pri, ttr_s) = (random.below(4), token.ttr_s());
    let concurrency =
        token.concurrency().map_or_else(String::new, |(key, limit)| format!(" con:c{key}:{limit}"));
    let body = format!("{:016x}", token.0);
    format!("put {pri} {delay_s} {ttr_s} {bytes}{tags}{concurrency}\r\n{body:0<bytes$}\r\n")
}
