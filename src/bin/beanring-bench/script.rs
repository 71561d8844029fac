//! The commands of one connection and the checks of its replies. It does no I/O: commands are appended to a buffer, and
//! replies are taken from one.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::body::{Bodies, Random, SEED, Stamp, push_number};
use crate::failure::{Complaint, Failure};
use crate::meter::{Command, Sent};
use crate::scan::{Reply, Scan, is_refusal, scan};

/// The script of one connection.
pub trait Script: 'static {
    /// Appends the first command of a new operation.
    fn begin(&mut self, start_ns: u64, out: &mut Vec<u8>);

    /// Takes the first reply of `input`. Commands that follow from it are appended to `out`.
    fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Taken, Failure>;

    /// Returns whether this side begins the measured operations. A consumer only waits for them.
    fn begins_operations(&self) -> bool {
        true
    }
}

/// The result of [`Script::take`].
#[derive(Debug)]
pub enum Taken {
    /// Incomplete: at least `need` bytes are required.
    Partial {
        need: usize,
    },
    Step(Step),
}

/// The effect of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// The length of the reply.
    pub used: usize,
    /// Another operation may begin on this connection.
    pub freed: bool,
    /// An operation has ended.
    pub settled: bool,
    /// The operation succeeded: whose it was and when it began.
    pub sample: Option<Stamp>,
    /// The operation failed, and why.
    pub complaint: Option<Complaint>,
}

impl Step {
    /// An operation of this connection succeeded and may be followed by another.
    pub fn done(start_ns: u64, producer: u32) -> Step {
        let sample = Some(Stamp { start_ns, producer });
        Step { freed: true, settled: true, sample, ..Step::default() }
    }

    /// An operation of this connection failed and may be followed by another.
    pub fn failed(complaint: Complaint) -> Step {
        Step { freed: true, settled: true, complaint: Some(complaint), ..Step::default() }
    }
}

/// The commands of a workload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Put,
    Cycle,
    /// put, for another connection to reserve.
    Produce,
    /// reserve, then delete and reserve at once: one job at a time, as a worker does.
    Consume,
    /// reserve what is ready, delete.
    Drain,
}

/// The tubes of a run in which each job has a random tube.
#[derive(Clone)]
pub struct Spread {
    /// Prefix of the names, which end with a number.
    pub prefix: Rc<str>,
    pub tubes: usize,
}

/// A script in beanstalk's protocol.
pub struct Jobs {
    flow: Flow,
    index: u32,
    bodies: Rc<Bodies>,
    sent: Rc<Sent>,
    spread: Option<Spread>,
    random: Random,
    /// Commands without a reply, and when their operations began.
    pending: VecDeque<(Command, u64)>,
}

impl Jobs {
    /// Creates the script of connection `index`. With `spread`, every put goes to a random tube.
    pub fn new(flow: Flow, index: usize, bodies: Rc<Bodies>, sent: Rc<Sent>, spread: Option<Spread>) -> Jobs {
        let random = Random::new(SEED + index as u64);
        let index = u32::try_from(index).expect("descriptors are 32 bits");
        Jobs { flow, index, bodies, sent, spread, random, pending: VecDeque::new() }
    }

    fn expect(&mut self, command: Command, start_ns: u64) {
        self.sent.count(command);
        self.pending.push_back((command, start_ns));
    }

    fn put(&mut self, start_ns: u64, out: &mut Vec<u8>) {
        if let Some(Spread { prefix, tubes }) = &self.spread {
            out.extend_from_slice(b"use ");
            out.extend_from_slice(prefix.as_bytes());
            push_number(self.random.below(*tubes) as u64, out);
            out.extend_from_slice(b"\r\n");
            self.expect(Command::Use, start_ns);
        }
        self.bodies.put(Stamp { start_ns, producer: self.index }, out);
        self.expect(Command::Put, start_ns);
    }

    fn reserve(&mut self, start_ns: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"reserve\r\n");
        self.expect(Command::Reserve, start_ns);
    }

    fn delete(&mut self, id: u64, start_ns: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"delete ");
        push_number(id, out);
        out.extend_from_slice(b"\r\n");
        self.expect(Command::Delete, start_ns);
    }

    fn inserted(&mut self, start_ns: u64, out: &mut Vec<u8>) -> Step {
        match self.flow {
            Flow::Cycle => {
                self.reserve(start_ns, out);
                Step::default()
            }
            Flow::Produce => Step { freed: true, ..Step::default() },
            _ => Step::done(start_ns, self.index),
        }
    }

    fn reserved(&mut self, id: u64, body: &[u8], start_ns: u64, out: &mut Vec<u8>) -> Step {
        let checked = self.bodies.check(body);
        self.delete(id, start_ns, out);
        let consumes = self.flow == Flow::Consume;
        if consumes {
            self.reserve(start_ns, out);
        }
        match checked {
            Ok(stamp) => Step { sample: consumes.then_some(stamp), ..Step::default() },
            Err(fault) => Step { complaint: Some(Complaint::Body(fault)), ..Step::default() },
        }
    }

    fn deleted(&self, start_ns: u64) -> Step {
        match self.flow {
            Flow::Consume => Step { settled: true, ..Step::default() },
            _ => Step::done(start_ns, self.index),
        }
    }

    /// Handles a valid reply to `command` that means failure. Any other reply ends the run.
    fn refused(&self, command: Command, word: &'static str) -> Result<Step, Failure> {
        let step = Step::failed(Complaint::Refused(command, word));
        match (command, word) {
            (Command::Put, "BURIED" | "DRAINING" | "OUT_OF_MEMORY") => Ok(step),
            // A consumer's reserve is not an operation of its own, and its delete does not delay the next one.
            (Command::Reserve | Command::ReserveWithTimeout, "TIMED_OUT" | "DEADLINE_SOON") => {
                Ok(Step { settled: self.begins_operations(), ..step })
            }
            (Command::Delete, "NOT_FOUND") => Ok(Step { freed: self.begins_operations(), ..step }),
            _ => Err(Failure::Refused { to: command, word }),
        }
    }
}

impl Script for Jobs {
    fn begin(&mut self, start_ns: u64, out: &mut Vec<u8>) {
        match &self.flow {
            Flow::Put | Flow::Cycle | Flow::Produce => self.put(start_ns, out),
            Flow::Consume => self.reserve(start_ns, out),
            Flow::Drain => {
                out.extend_from_slice(b"reserve-with-timeout 0\r\n");
                self.expect(Command::ReserveWithTimeout, start_ns);
            }
        }
    }

    fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Taken, Failure> {
        let Some(&(command, start_ns)) = self.pending.front() else { return Err(Failure::Unasked) };
        let (reply, used) = match scan(input) {
            Scan::Partial { need } => return Ok(Taken::Partial { need }),
            Scan::Nonsense => return Err(Failure::nonsense(command, input)),
            Scan::Whole { reply, used } => (reply, used),
        };
        self.pending.pop_front();
        let step = match (command, reply) {
            (Command::Put, Reply::Inserted(_)) => self.inserted(start_ns, out),
            (Command::Reserve | Command::ReserveWithTimeout, Reply::Reserved { id, body }) => {
                self.reserved(id, body, start_ns, out)
            }
            (Command::Delete, Reply::Word("DELETED")) => self.deleted(start_ns),
            (Command::Use, Reply::Using) => Step::default(),
            (command, Reply::Word(word)) if is_refusal(word) => self.refused(command, word)?,
            _ => return Err(Failure::nonsense(command, input)),
        };
        Ok(Taken::Step(Step { used, ..step }))
    }

    fn begins_operations(&self) -> bool {
        self.flow != Flow::Consume
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(flow: Flow) -> (Jobs, Rc<Bodies>) {
        let bodies = Rc::new(Bodies::for_put(16));
        (Jobs::new(flow, 3, bodies.clone(), Rc::default(), None), bodies)
    }

    fn take(jobs: &mut Jobs, input: &[u8], out: &mut Vec<u8>) -> Step {
        out.clear();
        match jobs.take(input, out) {
            Ok(Taken::Step(step)) => Step { used: 0, ..step },
            other => panic!("{other:?}"),
        }
    }

    /// Returns the reply that delivers job 9 with the body of the last `put` in `sent`.
    fn reserved(sent: &[u8]) -> Vec<u8> {
        [b"RESERVED 9 16\r\n", &sent[sent.len() - 18..]].concat()
    }

    #[test]
    fn a_cycle() {
        let (mut jobs, _) = jobs(Flow::Cycle);
        let mut out = Vec::new();
        jobs.begin(77, &mut out);
        assert!(out.starts_with(b"put 1024 0 86400 16\r\n"));
        let reply = reserved(&out);
        assert_eq!(take(&mut jobs, b"INSERTED 9\r\n", &mut out), Step::default());
        assert_eq!(out, b"reserve\r\n");
        assert_eq!(take(&mut jobs, &reply, &mut out), Step::default());
        assert_eq!(out, b"delete 9\r\n");
        assert_eq!(take(&mut jobs, b"DELETED\r\n", &mut out), Step::done(77, 3));
        assert!(out.is_empty());
    }

    #[test]
    fn a_consumer_samples_when_it_receives() {
        let (mut jobs, bodies) = jobs(Flow::Consume);
        let mut out = Vec::new();
        jobs.begin(0, &mut out);
        assert_eq!(out, b"reserve\r\n");
        let stamp = Stamp { start_ns: 5, producer: 8 };
        bodies.put(stamp, &mut out);
        let step = take(&mut jobs, &reserved(&out.clone()), &mut out);
        assert_eq!(step, Step { sample: Some(stamp), ..Step::default() });
        assert_eq!(out, b"delete 9\r\nreserve\r\n");
        let step = take(&mut jobs, b"DELETED\r\n", &mut out);
        assert_eq!(step, Step { settled: true, ..Step::default() });
    }

    #[test]
    fn an_answer_without_a_question() {
        let (mut jobs, _) = jobs(Flow::Put);
        assert!(matches!(jobs.take(b"INSERTED 1\r\n", &mut Vec::new()), Err(Failure::Unasked)));
    }
}
