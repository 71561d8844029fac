//! One connection of the control client. It times and checks its commands.

use std::io;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Shared, Violation, body};
use crate::client::{Client, Reply, put};
use crate::record::{Tally, note};

/// A reserved job.
pub struct Delivered {
    pub id: u64,
    pub number: u64,
    /// When the command was sent, and when the job arrived.
    pub sent: Instant,
    pub arrived: Instant,
}

/// A connection with a tube that only the control client uses.
pub struct Worker {
    pub shared: Arc<Shared>,
    pub tally: Tally,
    client: Client,
    /// Number of accepted puts.
    accepted: u64,
}

impl Worker {
    /// Connects, and uses and watches the tube.
    pub fn connect(shared: &Arc<Shared>, tube: &str) -> io::Result<Worker> {
        let mut client = Client::connect(shared.addr)?;
        for command in [format!("use {tube}\r\n"), format!("watch {tube}\r\n"), "ignore default\r\n".into()] {
            client.request(command.as_bytes())?;
        }
        Ok(Worker { shared: Arc::clone(shared), tally: Tally::default(), client, accepted: 0 })
    }

    /// Sends a command and records its latency.
    pub fn request(&mut self, command: &[u8]) -> Result<Reply, Violation> {
        let begin = Instant::now();
        let reply = self.client.request(command)?;
        self.note(begin, Instant::now());
        Ok(reply)
    }

    /// Records the time between two moments, without the time in which the server was stopped.
    pub fn note(&mut self, begin: Instant, end: Instant) {
        let latency = self.shared.stops.without(begin, end);
        note(&mut self.tally.latencies, latency);
    }

    /// Sends a command that has one correct reply.
    pub fn expect(&mut self, command: &str, right: &str) -> Result<(), Violation> {
        let reply = self.request(command.as_bytes())?;
        if reply.line == right { Ok(()) } else { Err(unexpected(command, &reply)) }
    }

    /// Puts the body of a number. Returns the job's id, or none if the server refused it and may do so.
    pub fn put(
        &mut self,
        pri: u32,
        delay: u32,
        ttr: u32,
        number: u64,
        bytes: usize,
    ) -> Result<Option<u64>, Violation> {
        let reply = self.request(&put(pri, delay, ttr, &body::make(number, bytes)))?;
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

    /// Reserves a job without recording the latency. Returns none, and the time, if the reserve timed out.
    pub fn reserve(&mut self, seconds: u32) -> Result<(Option<Delivered>, Instant, Instant), Violation> {
        let sent = Instant::now();
        let reply = self.client.request(format!("reserve-with-timeout {seconds}\r\n").as_bytes())?;
        let arrived = Instant::now();
        if reply.line == "TIMED_OUT" {
            return Ok((None, sent, arrived));
        }
        let id = reply.number(1).filter(|_| reply.line.starts_with("RESERVED "));
        let id = id.ok_or_else(|| unexpected("reserve-with-timeout", &reply))?;
        let number = body::number(id, &reply.data)?;
        Ok((Some(Delivered { id, number, sent, arrived }), sent, arrived))
    }

    /// Deletes a job.
    pub fn delete(&mut self, id: u64) -> Result<(), Violation> {
        self.expect(&format!("delete {id}\r\n"), "DELETED")?;
        self.tally.cycles += 1;
        Ok(())
    }

    /// Pauses, and records how late the pause ended: that delay is the machine's.
    pub fn rest(&mut self, pause: Duration) {
        let begin = Instant::now();
        sleep(pause);
        note(&mut self.tally.lateness, begin.elapsed().saturating_sub(pause));
    }

    /// Checks the final statistics of the tube: it has received every put, and is empty.
    pub fn settle(&mut self, tube: &str) -> Result<(), Violation> {
        let command = format!("stats-tube {tube}\r\n");
        let reply = self.client.request(command.as_bytes())?;
        let states = ["ready", "reserved", "delayed", "buried"].map(|state| format!("current-jobs-{state}"));
        let is_empty = states.iter().all(|state| reply.field(state) == Some(0.0));
        if is_empty && reply.field("total-jobs") == Some(self.accepted as f64) {
            return Ok(());
        }
        let got = String::from_utf8_lossy(&reply.data).replace('\n', " ");
        Err(Violation::Answer { to: format!("{command} after {} puts", self.accepted), got })
    }

    pub fn end(mut self, result: Result<(), Violation>) -> Tally {
        self.tally.violations.extend(result.err());
        self.tally
    }
}

/// Returns the error for a wrong reply.
pub fn unexpected(command: &str, reply: &Reply) -> Violation {
    Violation::Answer { to: command.to_owned(), got: reply.line.clone() }
}
