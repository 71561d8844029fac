//! Runs a conversation with a peer and reports where it fails.

use std::fmt::Write as _;

use super::conversation::{Action, Conversation, DataKind, Step};
use super::pattern::{Outcome, Pattern, show};
use super::peer::{Patience, Peer, Received};

/// A deliberate difference between servers that every conversation accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Strings in statistics are in double quotes.
    Quoted,
    /// Strings are not quoted, as in beanstalkd before 1.13.
    Bare,
}

/// Runs `conversation` with a new `peer`. An error is a printable report that begins with `file:line`.
pub fn run(conversation: &Conversation, peer: &mut impl Peer, dialect: Dialect) -> Result<(), String> {
    let ends = conversation.connections.iter().map(|_| End::default()).collect();
    let mut run = Run { peer, dialect, ends };
    for step in &conversation.steps {
        run.step(&step.action).map_err(|problem| report(conversation, step, &problem))?;
    }
    let last = conversation.steps.last().ok_or_else(|| format!("{}: empty", conversation.path.display()))?;
    run.all_quiet(&conversation.connections).map_err(|problem| report(conversation, last, &problem))
}

struct Run<'a, P> {
    peer: &'a mut P,
    dialect: Dialect,
    ends: Vec<End>,
}

/// The client's side of a connection.
#[derive(Default)]
struct End {
    /// The number of the connection at the peer, once it is open.
    number: Option<usize>,
    /// Bytes that were received and not expected yet.
    unread: Vec<u8>,
    /// The conversation is done with this connection.
    closed: bool,
}

impl<P: Peer> Run<'_, P> {
    fn step(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Open { conn } => {
                self.number(*conn);
            }
            Action::Send { conn, bytes } => {
                let number = self.number(*conn);
                self.peer.send(number, bytes);
            }
            Action::Expect { conn, pattern } => self.expect(*conn, pattern)?,
            Action::ExpectData { conn, kind, lines } => self.expect_data(*conn, *kind, lines)?,
            Action::Nothing { conn } => self.expect_nothing(*conn)?,
            Action::Closed { conn } => {
                if self.receive(*conn, Patience::Reply) != More::Closed {
                    return Err(format!("expected  end of the connection\n{}", self.got(*conn)));
                }
                self.ends[*conn].closed = true;
            }
            Action::HalfClose { conn } => {
                let number = self.number(*conn);
                self.peer.half_close(number);
            }
            Action::Close { conn } => {
                let number = self.number(*conn);
                self.peer.close(number);
                self.ends[*conn].closed = true;
            }
            Action::Advance(span) => self.peer.advance(*span),
            Action::Drain => self.peer.drain(),
        }
        Ok(())
    }

    fn expect(&mut self, conn: usize, pattern: &Pattern) -> Result<(), String> {
        loop {
            match pattern.compare(&self.ends[conn].unread) {
                Outcome::Match { bytes } => {
                    self.ends[conn].unread.drain(..bytes);
                    return Ok(());
                }
                Outcome::Mismatch { at } => {
                    let received = &self.ends[conn].unread;
                    let right = show(&received[..at]);
                    return Err(format!(
                        "expected  the line above\nreceived  {}\n          {:>2$}",
                        show(received),
                        "^",
                        right.chars().count() + 1
                    ));
                }
                Outcome::Incomplete => self.more(conn, "the line above")?,
            }
        }
    }

    fn expect_data(&mut self, conn: usize, kind: DataKind, expected: &[String]) -> Result<(), String> {
        let body = self.data_reply(conn)?;
        let Some(body) = body.strip_prefix("---\n") else {
            return Err(format!(
                "expected  a body that begins with ---\nreceived  {}",
                show(body.as_bytes())
            ));
        };
        let received: Vec<String> = body.lines().map(|line| self.plain(line)).collect();
        let expected: Vec<String> = expected.iter().map(|line| self.plain(line)).collect();
        let problem = match kind {
            DataKind::Some => missing_in_order(&expected, &received)?,
            DataKind::First => expected.iter().enumerate().find_map(|(i, line)| {
                let got = received.get(i).map_or("nothing more", String::as_str);
                (!same_line(line, got)).then(|| format!("expected  {line}\nreceived  {got}"))
            }),
            DataKind::Set => {
                let sorted = |mut lines: Vec<String>| {
                    lines.sort();
                    lines
                };
                let (expected, received) = (sorted(expected), sorted(received.clone()));
                (expected != received).then(|| format!("expected  {expected:?}"))
            }
        };
        match problem {
            None => Ok(()),
            Some(problem) => Err(format!("{problem}\nin\n{}", received.join("\n"))),
        }
    }

    fn expect_nothing(&mut self, conn: usize) -> Result<(), String> {
        if self.ends[conn].unread.is_empty() && self.receive(conn, Patience::Quiet) == More::Silence {
            return Ok(());
        }
        Err(format!("expected  nothing\n{}", self.got(conn)))
    }

    fn all_quiet(&mut self, names: &[String]) -> Result<(), String> {
        for (conn, name) in names.iter().enumerate() {
            if !self.ends[conn].closed {
                self.receive(conn, Patience::Quiet);
            }
            if !self.ends[conn].unread.is_empty() {
                return Err(format!("expected  nothing more on {name}\n{}", self.got(conn)));
            }
        }
        Ok(())
    }

    /// Takes one `OK <bytes>` reply and returns its body.
    fn data_reply(&mut self, conn: usize) -> Result<String, String> {
        loop {
            let unread = &self.ends[conn].unread;
            if let Some(end) = unread.windows(2).position(|pair| pair == b"\r\n") {
                let length = std::str::from_utf8(&unread[..end])
                    .ok()
                    .and_then(|line| line.strip_prefix("OK "))
                    .and_then(|length| length.parse::<usize>().ok())
                    .ok_or_else(|| format!("expected  OK <bytes>\n{}", self.got(conn)))?;
                let body = end + 2..end + 2 + length;
                if unread.len() >= body.end + 2 {
                    let text = String::from_utf8_lossy(&unread[body.clone()]).into_owned();
                    if &unread[body.end..body.end + 2] != b"\r\n" {
                        return Err(format!("expected  CR LF after the body\n{}", self.got(conn)));
                    }
                    self.ends[conn].unread.drain(..body.end + 2);
                    return Ok(text);
                }
            }
            self.more(conn, "a data reply")?;
        }
    }

    fn more(&mut self, conn: usize, expected: &str) -> Result<(), String> {
        let end = match self.receive(conn, Patience::Reply) {
            More::Bytes => return Ok(()),
            More::Silence => "and then silence",
            More::Closed => "and then the end of the connection",
        };
        Err(format!("expected  {expected}\n{}, {end}", self.got(conn)))
    }

    fn receive(&mut self, conn: usize, patience: Patience) -> More {
        let number = self.number(conn);
        match self.peer.receive(number, patience) {
            Received::Bytes(bytes) => {
                self.ends[conn].unread.extend_from_slice(&bytes);
                More::Bytes
            }
            Received::Silence => More::Silence,
            Received::Closed => More::Closed,
        }
    }

    fn number(&mut self, conn: usize) -> usize {
        *self.ends[conn].number.get_or_insert_with(|| self.peer.open())
    }

    fn got(&self, conn: usize) -> String {
        match self.ends[conn].unread.as_slice() {
            [] => "received  nothing".to_owned(),
            unread => format!("received  {}", show(unread)),
        }
    }

    fn plain(&self, line: &str) -> String {
        match self.dialect {
            Dialect::Quoted => line.to_owned(),
            Dialect::Bare => line.replace('"', ""),
        }
    }
}

#[derive(PartialEq, Eq)]
enum More {
    Bytes,
    Silence,
    Closed,
}

/// Returns the first line of `expected` that does not follow its predecessors in `received`.
fn missing_in_order(expected: &[String], received: &[String]) -> Result<Option<String>, String> {
    let mut rest = received.iter();
    for line in expected {
        let (key, _) = line.split_once(": ").ok_or_else(|| format!("not key: value: {line}"))?;
        let found = rest.find(|got| got.split_once(": ").is_some_and(|(name, _)| name == key));
        match found {
            None => {
                return Ok(Some(format!("expected  {line}\nreceived  no such key, or not in this order")));
            }
            Some(got) if !same_line(line, got) => {
                return Ok(Some(format!("expected  {line}\nreceived  {got}")));
            }
            Some(_) => {}
        }
    }
    Ok(None)
}

fn same_line(pattern: &str, line: &str) -> bool {
    let Ok(mut pattern) = Pattern::parse(pattern) else { return false };
    pattern.push_bytes(b"\n");
    let line = format!("{line}\n");
    pattern.compare(line.as_bytes()) == Outcome::Match { bytes: line.len() }
}

fn report(conversation: &Conversation, step: &Step, problem: &str) -> String {
    let mut text = format!("{}:{}: {}\n", conversation.path.display(), step.line, step.text);
    for line in problem.lines() {
        writeln!(text, "    {line}").expect("writing to a string");
    }
    text
}
