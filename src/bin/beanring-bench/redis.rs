//! The script for redis: LPUSH alone, and LPUSH with BRPOP as the closest equivalent to a job's life.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::body::{Bodies, Stamp};
use crate::failure::{Complaint, Failure};
use crate::meter::{Command, Sent};
use crate::resp::scan;
use crate::scan::{Reply, Scan};
use crate::script::{Script, Step, Taken};

/// A script in redis's protocol.
pub struct List {
    index: u32,
    bodies: Bodies,
    /// The BRPOP command of a cycle.
    pop: Option<Vec<u8>>,
    sent: Rc<Sent>,
    pending: VecDeque<(Command, u64)>,
}

impl List {
    /// Pushes to the list `key`. With `pops`, takes what was pushed.
    pub fn new(index: usize, key: &str, body_bytes: usize, pops: bool, sent: Rc<Sent>) -> List {
        let head = format!("*3\r\n$5\r\nLPUSH\r\n${}\r\n{key}\r\n${body_bytes}\r\n", key.len());
        let pop = format!("*3\r\n$5\r\nBRPOP\r\n${}\r\n{key}\r\n$1\r\n0\r\n", key.len());
        List {
            index: u32::try_from(index).expect("descriptors are 32 bits"),
            bodies: Bodies::new(head.as_bytes(), body_bytes),
            pop: pops.then(|| pop.into_bytes()),
            sent,
            pending: VecDeque::new(),
        }
    }

    fn expect(&mut self, command: Command, start_ns: u64) {
        self.sent.count(command);
        self.pending.push_back((command, start_ns));
    }
}

impl Script for List {
    fn begin(&mut self, start_ns: u64, out: &mut Vec<u8>) {
        self.bodies.put(Stamp { start_ns, producer: self.index }, out);
        self.expect(Command::Lpush, start_ns);
    }

    fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Taken, Failure> {
        let Some(&(command, start_ns)) = self.pending.front() else { return Err(Failure::Unasked) };
        let (reply, used) = match scan(input) {
            Scan::Partial { need } => return Ok(Taken::Partial { need }),
            Scan::Nonsense => return Err(Failure::nonsense(command, input)),
            Scan::Whole { reply, used } => (reply, used),
        };
        let done = Step { used, ..Step::done(start_ns, self.index) };
        let step = match (command, reply, &self.pop) {
            (Command::Lpush, Reply::Pushed, None) => done,
            (Command::Lpush, Reply::Pushed, Some(pop)) => {
                out.extend_from_slice(pop);
                self.expect(Command::Brpop, start_ns);
                Step { used, ..Step::default() }
            }
            (Command::Brpop, Reply::Popped(value), _) => {
                Step { complaint: self.bodies.check(value).err().map(Complaint::Body), ..done }
            }
            _ => return Err(Failure::nonsense(command, input)),
        };
        self.pending.pop_front();
        Ok(Taken::Step(step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_and_a_pop() {
        let mut list = List::new(0, "key", 16, true, Rc::default());
        let mut out = Vec::new();
        list.begin(9, &mut out);
        let head = b"*3\r\n$5\r\nLPUSH\r\n$3\r\nkey\r\n$16\r\n";
        let body = out.strip_prefix(head).expect("the command").to_vec();
        out.clear();
        let Ok(Taken::Step(step)) = list.take(b":1\r\n", &mut out) else { panic!() };
        assert_eq!((step, &out[..]), (Step { used: 4, ..Step::default() }, list.pop.as_deref().unwrap()));
        let reply = [b"*2\r\n$3\r\nkey\r\n$16\r\n", &body[..]].concat();
        let Ok(Taken::Step(step)) = list.take(&reply, &mut out) else { panic!() };
        assert_eq!(step, Step { used: reply.len(), ..Step::done(9, 0) });
    }

    #[test]
    fn an_error_ends_the_run() {
        let mut list = List::new(0, "key", 16, false, Rc::default());
        list.begin(9, &mut Vec::new());
        let failure = list.take(b"-OOM command not allowed\r\n", &mut Vec::new()).unwrap_err();
        assert_eq!(failure.to_string(), "the answer to LPUSH makes no sense: \"-OOM command not allowed\"");
    }
}
