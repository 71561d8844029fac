//! Replies of any bytes, as the client reads and prints them. It reads a bounded number of them, and prints none that a terminal
//! would obey or hide.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use beanring::config::address::Remote;
use beanring::io::socket::Address;
use beanring::replies::{ClientError, Follows, Kind, Refusal, Reply, Stats, Untrusted, items, json};
use serde::Serialize;

use super::input::Input;

/// Replies of one input.
const REPLIES_MAX: usize = 8;

/// More than the longest line of a reply, and what a reader may have buffered.
const LINE_BYTES: u64 = 64 * 1024;

/// A server that repeats its bytes without end.
struct Endless<'a> {
    bytes: &'a [u8],
    taken: u64,
}

/// Runs an input. Its bytes are the number of replies, what each command asks for, and then all that the server sends.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let is_endless = input.below(2) == 1;
    let count = 1 + input.below(REPLIES_MAX);
    let commands: Vec<(Follows, Kind)> = (0..count).map(|_| command(&mut input)).collect();
    let mut bytes = input.bytes(usize::MAX);
    if !is_endless || bytes.is_empty() {
        commands.iter().all(|&(follows, kind)| read(&mut bytes, follows, kind));
        return;
    }
    for (follows, kind) in commands {
        // Larger ones are only refused by their number: reading 1 GiB takes too long.
        if matches!(follows, Follows::Nothing | Follows::Statistics) {
            let mut server = Endless { bytes, taken: 0 };
            read(&mut server, follows, kind);
            assert!(server.taken <= follows.bytes_max() + LINE_BYTES, "{} bytes are read", server.taken);
        }
    }
}

fn command(input: &mut Input<'_>) -> (Follows, Kind) {
    let follows = input.pick(&[Follows::Nothing, Follows::Statistics, Follows::List, Follows::Job]);
    (follows, input.pick(&[Kind::Server, Kind::Tube, Kind::Group, Kind::Job, Kind::Schedule]))
}

/// Reads and shows a reply. Returns whether there may be another one.
fn read(server: &mut impl BufRead, follows: Follows, kind: Kind) -> bool {
    match Reply::read(server, follows) {
        Ok(reply) => {
            show(reply, follows, kind);
            true
        }
        Err(error) => {
            let error = ClientError::of_server(
                error,
                &Remote { address: Address::default(), is_tls: false },
                Duration::from_secs(60),
            );
            check_error(&error);
            false
        }
    }
}

fn show(reply: Reply, follows: Follows, kind: Kind) {
    assert!(reply.word().bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'));
    check_text(reply.line());
    if let Err(refusal) = reply.clone().expect("INSERTED", "job 1") {
        check(&refusal.word().to_ascii_lowercase());
        check_error(&refusal.meaning("NOT_FOUND", "there is no such job").into());
    }
    if let Err(error) = reply.count() {
        check_error(&error);
    }
    match follows {
        Follows::Nothing => {}
        Follows::Statistics => show_data(reply.into_ok("stats"), |data| show_statistics(data, kind)),
        Follows::List => show_data(reply.into_ok("list-tubes"), show_list),
        Follows::Job => show_data(reply.into_job("job 1").map(|(_, body)| body), |body| {
            check_text(body);
            check(&body.lines().replace(['\n', '\t'], " "));
        }),
    }
}

fn show_data(data: Result<Untrusted, Refusal>, show: impl FnOnce(&Untrusted)) {
    match data {
        Ok(data) => show(&data),
        Err(refusal) => check_error(&refusal.into()),
    }
}

fn show_statistics(data: &Untrusted, kind: Kind) {
    let stats = match Stats::parse(kind, data) {
        Ok(stats) => stats,
        Err(error) => return check_error(&error),
    };
    check_json(&stats);
    for (key, value) in stats.iter() {
        check_text(key);
        check(&value.to_string());
        value.texts(key.bytes()).iter().for_each(|text| check(text));
    }
    for key in ["state", "waits-for", "name", "tags", "version"] {
        check_text(stats.text(key));
        let _ = (stats.number(key), stats.time(key));
    }
}

fn show_list(data: &Untrusted) {
    match items(data, |name| Some(Untrusted::from(name))) {
        Ok(names) => names.iter().for_each(|name| {
            check_text(name);
            name.tube_name().into_iter().for_each(check);
        }),
        Err(error) => check_error(&error),
    }
}

fn check_error(error: &ClientError) {
    check(&error.to_string());
    check(&error.event());
    check(&format!("{error:?}"));
}

fn check_text(text: &Untrusted) {
    check(&text.to_string());
    check(&format!("{text:?}"));
    check_json(text);
}

fn check_json(value: &impl Serialize) {
    let text = json(value).expect("it is plain");
    check(&text);
    serde_json::from_str::<serde_json::Value>(&text).expect("it is JSON");
}

/// Asserts that a text has no character that moves the cursor, ends a line, reorders text or is not seen.
fn check(text: &str) {
    let is_hidden = |character: char| {
        matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
    };
    let raw = text.chars().find(|&character| character.is_control() || is_hidden(character));
    assert_eq!(raw, None, "{text:?}");
}

impl Read for Endless<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let some = self.fill_buf()?;
        let count = some.len().min(into.len());
        into[..count].copy_from_slice(&some[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Endless<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(&self.bytes[(self.taken % self.bytes.len() as u64) as usize..])
    }

    fn consume(&mut self, count: usize) {
        self.taken += count as u64;
    }
}
