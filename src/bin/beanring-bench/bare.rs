//! The no-op baseline: a driver of the server over a stand-in that frames commands and replies to them, and queues
//! nothing. It costs as much as the kernel and the driver, so it is the lower bound for the server.

use std::convert::Infallible;
use std::io::IoSlice;
use std::mem;

use beanring::bodies::Bodies;
use beanring::io::Resources;
use beanring::io::clock::Clock;
use beanring::io::descriptors;
use beanring::io::driver::{Choice, PreparedDriver};
use beanring::io::host::ProcessFiles;
use beanring::io::signal::Signals;
use beanring::io::socket::{Address, Listener};
use beanring::io::watched_files::WatchedFiles;
use beanring::server::{ConnNames, Effect, Entry, Event, Priced, Protocol, Service};
use beanring::time::Time;
use beanring::values::budget::Budget;
use beanring::values::ids::ConnId;
use memchr::memchr;

use crate::body::push_number;
use crate::failure::Failure;

/// Serves at `addr` until SIGTERM or SIGINT.
pub fn serve(choice: Choice, addr: &str) -> Result<(), Failure> {
    let failed = |what: &dyn ToString| Failure::BareLoop(what.to_string());
    let address = address(addr).ok_or_else(|| failed(&"--addr has to be HOST:PORT or unix:PATH"))?;
    descriptors::raise_limit().map_err(|errno| failed(&errno))?;
    let signals = Signals::block().map_err(|errno| failed(&errno))?;
    let listeners = vec![Listener::open(&address).map_err(|error| failed(&error))?];
    let resources = Resources {
        listeners,
        signals,
        clock: Clock::start(),
        disk: None,
        database: None,
        forwarding: None,
        connections_max: None,
        keepalive: None,
        registered_bytes_max: 0,
        process: ProcessFiles::default(),
        watched_files: WatchedFiles::default(),
    };
    let (driver, _) = PreparedDriver::choose(choice).map_err(|error| failed(&error))?;
    driver.run(Bare::default(), resources).map(drop).map_err(|error| failed(&error))
}

fn address(text: &str) -> Option<Address> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Some(Address::Unix(path.into()));
    }
    let (host, port) = text.rsplit_once(':')?;
    Some(Address::Tcp { host: host.trim_matches(['[', ']']).to_owned(), port: port.parse().ok()? })
}

/// The stand-in. It delivers the last job that was put on the same connection.
#[derive(Default)]
struct Bare {
    sessions: Vec<Session>,
    free: Vec<u32>,
    effects: Vec<Effect>,
    generation: u32,
    id: u64,
    budget: Budget,
}

#[derive(Default)]
struct Session {
    generation: u32,
    /// The start of a command whose line is incomplete.
    line: Vec<u8>,
    /// The last body, with its CR LF.
    body: Vec<u8>,
    /// Bytes of the body that have not arrived.
    missing: usize,
    /// Bytes that the driver was shown must not move, so further replies go to a second buffer.
    flight: Vec<u8>,
    sent: usize,
    answers: Vec<u8>,
    is_closed: bool,
}

impl Service for Bare {
    type Identity = Infallible;

    fn accept(&mut self, _: Time, _: Protocol, _: Entry) -> ConnId {
        self.generation += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sessions.push(Session::default());
            self.sessions.len() as u32 - 1
        });
        let conn = ConnId::client(slot, self.generation);
        self.sessions[slot as usize] = Session { generation: conn.generation, ..Session::default() };
        conn
    }

    fn names(&self, conn: ConnId) -> ConnNames<'_> {
        ConnNames { number: conn.to_u64(), ..ConnNames::default() }
    }

    fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    fn handle_event(&mut self, _: Time, event: Priced<'_>) {
        match event.into_event() {
            Event::Received { conn, bytes } => self.received(conn, bytes),
            Event::Sent { conn, bytes } => self.session(conn).sent += bytes,
            Event::InputEnded { conn } | Event::HungUp { conn } => {
                if !mem::replace(&mut self.session(conn).is_closed, true) {
                    self.effects.push(Effect::Close(conn));
                }
            }
            Event::Closed { conn } => self.free.push(conn.slot),
            Event::ReceivedDirect { .. }
            | Event::InputEnding { .. }
            | Event::Peer { .. }
            | Event::Certified { .. }
            | Event::Stop
            | Event::Log(_)
            | Event::OuterMemory(_)
            | Event::SystemClock(_)
            | Event::Drain => {}
        }
    }

    fn turn(&mut self, _: Time) {
        self.budget.begin_iteration();
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop()
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn direct(&mut self, _: ConnId) -> Option<&mut [u8]> {
        None
    }

    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>) {
        let session = self.session(conn);
        if session.sent == session.flight.len() {
            session.flight.clear();
            session.sent = 0;
            mem::swap(&mut session.flight, &mut session.answers);
        }
        if session.sent < session.flight.len() {
            slices.push(IoSlice::new(&session.flight[session.sent..]));
        }
    }

    fn body_memory(&mut self) -> Option<&mut Bodies> {
        None
    }
}

impl Bare {
    fn session(&mut self, conn: ConnId) -> &mut Session {
        let session = &mut self.sessions[conn.slot as usize];
        assert_eq!(session.generation, conn.generation, "an event names a connection that is open");
        session
    }

    fn received(&mut self, conn: ConnId, mut bytes: &[u8]) {
        let id = &mut self.id;
        let session = &mut self.sessions[conn.slot as usize];
        if session.is_closed {
            return;
        }
        let is_idle = session.sent == session.flight.len() && session.answers.is_empty();
        while !bytes.is_empty() {
            if session.missing > 0 {
                bytes = session.fill(bytes, id);
                continue;
            }
            let Some(lf) = memchr(b'\n', bytes) else {
                session.line.extend_from_slice(bytes);
                break;
            };
            let (line, rest) = bytes.split_at(lf + 1);
            bytes = rest;
            if session.line.is_empty() {
                session.command(line, *id);
            } else {
                session.line.extend_from_slice(line);
                let mut line = mem::take(&mut session.line);
                session.command(&line, *id);
                line.clear();
                session.line = line;
            }
        }
        if is_idle && !session.answers.is_empty() {
            self.effects.push(Effect::Send(conn));
        }
    }
}

impl Session {
    /// Takes the bytes of an incomplete body. Returns what follows it.
    fn fill<'a>(&mut self, bytes: &'a [u8], id: &mut u64) -> &'a [u8] {
        let (body, rest) = bytes.split_at(bytes.len().min(self.missing));
        self.body.extend_from_slice(body);
        self.missing -= body.len();
        if self.missing == 0 {
            *id += 1;
            self.answer(b"INSERTED ", *id);
        }
        rest
    }

    fn command(&mut self, line: &[u8], id: u64) {
        let line = line.trim_ascii_end();
        if line.starts_with(b"put ") {
            self.missing = last_number(line).saturating_add(2);
            self.body.clear();
        } else if line == b"reserve" {
            self.answers.extend_from_slice(b"RESERVED ");
            push_number(id, &mut self.answers);
            let bytes = self.body.len().saturating_sub(2);
            self.answer(b" ", bytes as u64);
            self.answers.extend_from_slice(&self.body);
        } else if line.starts_with(b"reserve-with-timeout") {
            self.answers.extend_from_slice(b"TIMED_OUT\r\n");
        } else if line.starts_with(b"delete ") {
            self.answers.extend_from_slice(b"DELETED\r\n");
        } else if line.starts_with(b"touch ") {
            self.answers.extend_from_slice(b"TOUCHED\r\n");
        } else if let Some(tube) = line.strip_prefix(b"use ") {
            self.answers.extend_from_slice(b"USING ");
            self.answers.extend_from_slice(tube);
            self.answers.extend_from_slice(b"\r\n");
        } else if line.starts_with(b"watch ") || line.starts_with(b"ignore ") {
            self.answer(b"WATCHING ", 1);
        } else if line == b"list-tubes" {
            self.answers.extend_from_slice(b"OK 14\r\n---\n- default\n\r\n");
        } else {
            self.answers.extend_from_slice(b"UNKNOWN_COMMAND\r\n");
        }
    }

    fn answer(&mut self, word: &[u8], number: u64) {
        self.answers.extend_from_slice(word);
        push_number(number, &mut self.answers);
        self.answers.extend_from_slice(b"\r\n");
    }
}

/// Returns the number at the end of a line, or 0 if there is none.
fn last_number(line: &[u8]) -> usize {
    let digits = line.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&line[line.len() - digits..]).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use beanring::server::handle;

    use super::*;

    /// Returns the stand-in's replies to the pieces.
    fn answers(pieces: &[&str]) -> String {
        let mut bare = Bare::default();
        let conn = bare.accept(Time::ZERO, Protocol::Beanstalk, Entry::Plain(None));
        let mut all = Vec::new();
        for piece in pieces {
            handle(&mut bare, Time::ZERO, Event::Received { conn, bytes: piece.as_bytes() });
            while let Some(effect) = bare.poll_effect() {
                assert_eq!(effect, Effect::Send(conn));
                loop {
                    let mut slices = Vec::new();
                    bare.outgoing(conn, &mut slices);
                    let Some(slice) = slices.first() else { break };
                    all.extend_from_slice(slice);
                    let bytes = slice.len();
                    handle(&mut bare, Time::ZERO, Event::Sent { conn, bytes });
                }
            }
        }
        String::from_utf8(all).expect("text")
    }

    #[test]
    fn a_cycle_however_it_is_cut() {
        let talk = "put 0 0 1 5\r\nhello\r\nreserve\r\ndelete 1\r\n";
        let expected = "INSERTED 1\r\nRESERVED 1 5\r\nhello\r\nDELETED\r\n";
        assert_eq!(answers(&[talk]), expected);
        for at in 1..talk.len() {
            assert_eq!(answers(&[&talk[..at], &talk[at..]]), expected, "cut at {at}");
        }
    }

    #[test]
    fn what_the_generator_says_besides() {
        assert_eq!(
            answers(&["use a\r\nwatch a\r\nreserve-with-timeout 0\r\nlist-tubes\r\nmoo\r\n"]),
            "USING a\r\nWATCHING 1\r\nTIMED_OUT\r\nOK 14\r\n---\n- default\n\r\nUNKNOWN_COMMAND\r\n"
        );
    }
}
