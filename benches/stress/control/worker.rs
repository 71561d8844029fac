//! One connection of the control client, which times and checks what it does.

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Fault, Shared, body};
use crate::client::{Client, Reply, put};
use crate::record::{Tally, note};

/// A job as it came.
pub struct Delivered {
    pub id: u64,
    pub number: u64,
    /// When the command was sent, and when the job was there.
    pub asked: Instant,
    pub came: Instant,
}

/// A connection to a tube that only the control client knows.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub tally: Tally,
    client: Client,
    /// Jobs that were put here.
    accepted: u64,
}

impl Worker {
    /// Connects to the tube.
    pub fn connect(shared: &Arc<Shared>, tube: &str) -> io::Result<Worker> {
        let mut client = Client::connect(shared.addr)?;
        for command in [format!("use {tube}\r\n"), format!("watch {tube}\r\n"), "ignore default\r\n".into()] {
            client.ask(command.as_bytes())?;
        }
        Ok(Worker { shared: Arc::clone(shared), tally: Tally::default(), client, accepted: 0 })
    }

    /// Asks, and writes down how long it took.
    pub fn ask(&mut self, command: &[u8]) -> Result<Reply, Fault> {
        let begin = Instant::now();
        let reply = self.client.ask(command)?;
        self.note(begin, Instant::now());
        Ok(reply)
    }

    /// Writes down what passed between two moments, while the server ran.
    pub fn note(&mut self, begin: Instant, end: Instant) {
        let latency = self.shared.stops.without(begin, end);
        note(&mut self.tally.latencies, latency);
    }

    /// Asks what has one right answer.
    pub fn expect(&mut self, command: &str, right: &str) -> Result<(), Fault> {
        let reply = self.ask(command.as_bytes())?;
        if reply.line == right { Ok(()) } else { Err(unexpected(command, &reply)) }
    }

    /// Puts the body of this number; its id, or none where the server may refuse it and does.
    pub fn put(
        &mut self,
        pri: u32,
        delay: u32,
        ttr: u32,
        number: u64,
        bytes: usize,
    ) -> Result<Option<u64>, Fault> {
        let reply = self.ask(&put(pri, delay, ttr, &body::make(number, bytes)))?;
        if reply.line.starts_with("INSERTED ") {
            self.accepted += 1;
            return Ok(reply.number(1));
        }
        let may_refuse = self.shared.may_refuse.load(std::sync::atomic::Ordering::Acquire);
        if may_refuse && (reply.line == "DRAINING" || reply.line == "OUT_OF_MEMORY") {
            self.tally.refused += 1;
            return Ok(None);
        }
        Err(unexpected("put", &reply))
    }

    /// Reserves, without writing down how long it took; none if it timed out, and when that came.
    pub fn reserve(&mut self, seconds: u32) -> Result<(Option<Delivered>, Instant, Instant), Fault> {
        let asked = Instant::now();
        let reply = self.client.ask(format!("reserve-with-timeout {seconds}\r\n").as_bytes())?;
        let came = Instant::now();
        if reply.line == "TIMED_OUT" {
            return Ok((None, asked, came));
        }
        let id = reply.number(1).filter(|_| reply.line.starts_with("RESERVED "));
        let id = id.ok_or_else(|| unexpected("reserve-with-timeout", &reply))?;
        let number = body::number(id, &reply.data)?;
        Ok((Some(Delivered { id, number, asked, came }), asked, came))
    }

    /// The job is done.
    pub fn delete(&mut self, id: u64) -> Result<(), Fault> {
        self.expect(&format!("delete {id}\r\n"), "DELETED")?;
        self.tally.cycles += 1;
        Ok(())
    }

    /// Pauses, and writes down how late the pause ended: that is the machine's doing.
    pub fn rest(&mut self, pause: Duration) {
        let begin = Instant::now();
        sleep(pause);
        note(&mut self.tally.lateness, begin.elapsed().saturating_sub(pause));
    }

    /// What the server says of the tube in the end: it has got all that was put, and has nothing left.
    pub fn settle(&mut self, tube: &str) -> Result<(), Fault> {
        let command = format!("stats-tube {tube}\r\n");
        let reply = self.client.ask(command.as_bytes())?;
        let states = ["ready", "reserved", "delayed", "buried"].map(|state| format!("current-jobs-{state}"));
        let is_empty = states.iter().all(|state| reply.field(state) == Some(0.0));
        if is_empty && reply.field("total-jobs") == Some(self.accepted as f64) {
            return Ok(());
        }
        let got = String::from_utf8_lossy(&reply.data).replace('\n', " ");
        Err(Fault::Answer { to: format!("{command} after {} puts", self.accepted), got })
    }

    /// What came of it.
    pub fn end(mut self, result: Result<(), Fault>) -> Tally {
        self.tally.faults.extend(result.err());
        self.tally
    }
}

/// An answer that cannot be right.
pub fn unexpected(command: &str, reply: &Reply) -> Fault {
    Fault::Answer { to: command.to_owned(), got: reply.line.clone() }
}
