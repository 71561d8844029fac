//! A connection under load. It begins what may begin, writes it, reads and checks the replies, and starts over. It is
//! the same for every workload and both transports.

use std::cell::Cell;
use std::future::pending;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;

use tokio::sync::Notify;

use crate::failure::Failure;
use crate::meter::Meter;
use crate::net::{Returned, Stream};
use crate::pace::{Clock, Pace};
use crate::script::{Script, Step, Taken};

/// Minimum and maximum size of the receive buffer. A reply that needs more exceeds the maximum.
const INBOX_BYTES: (usize, usize) = (4 * 1024, 256 * 1024);

/// Upper bound of a reply without its body.
const REPLY_BYTES: usize = 64;

/// A receive appends to the buffer while there is this much space in it.
const ROOM_BYTES_MIN: usize = 2 * 1024;

/// How others notify a connection's task: of an operation that is due, of a job that a consumer has received, and of
/// the end.
#[derive(Default)]
pub struct Lane {
    notify: Notify,
    /// Jobs that this producer has put and no consumer has received.
    outstanding: Cell<u64>,
}

impl Lane {
    /// Wakes the task, so that it checks what it may begin.
    pub fn wake(&self) {
        self.notify.notify_one();
    }
}

/// The role of a connection in a workload with producers and consumers.
#[derive(Clone)]
pub enum Part {
    /// It completes the operations that it begins.
    Alone,
    /// It puts jobs for consumers, up to a limit of jobs that are not received.
    Producer {
        /// Maximum number of jobs that are put and not received.
        window: u64,
    },
    /// It receives jobs of the producers with these lanes.
    Consumer(Rc<[Lane]>),
}

/// The state of a connection.
pub struct Line<S, P> {
    /// Its index among the measured connections.
    pub index: usize,
    pub stream: Rc<S>,
    /// The script that it runs.
    pub script: P,
    /// When it may begin operations.
    pub pace: Pace,
    /// Operations in flight at a time.
    pub depth: usize,
    /// The lanes of all connections that begin operations. Its own is at `index`.
    pub lanes: Rc<[Lane]>,
    pub part: Part,
    /// Size of the expected bodies in bytes: a hint for its buffer.
    pub body_bytes: usize,
    pub meter: Rc<Meter>,
    pub clock: Clock,
    /// Set if the end of the stream ends the run.
    pub closing: Rc<Cell<bool>>,
}

impl<S: Stream, P: Script> Line<S, P> {
    /// Works until there is nothing left to begin and nothing in flight.
    pub async fn work(mut self) -> Result<(), Failure> {
        let stream = self.stream.clone();
        let mut state = State { under_way: 0, begun: 0, out: Vec::new() };
        let mut inbox = self.inbox();
        let mut reading = pin!(None);
        loop {
            self.begin(&mut state);
            if !state.out.is_empty() {
                let (result, out) = stream.write_all(mem::take(&mut state.out)).await;
                match result {
                    Err(_) if self.closing.get() => return Ok(()),
                    result => result.map_err(Failure::Broken)?,
                }
                state.out = out;
                state.out.clear();
            }
            if state.under_way == 0 && self.is_over() {
                return Ok(());
            }
            // No read may be in flight when this returns, since the next phase reads the same stream.
            if state.under_way > 0 && reading.is_none() {
                reading.set(Some(stream.read(mem::take(&mut inbox.bytes))));
            }
            let Some((result, bytes)) = self.read_or_woken(reading.as_mut()).await else { continue };
            reading.set(None);
            inbox.bytes = bytes;
            match result {
                Ok(0) | Err(_) if self.closing.get() => return Ok(()),
                Ok(0) => return Err(Failure::Closed),
                Ok(_) => self.judge(&mut inbox, &mut state)?,
                Err(error) => return Err(Failure::Broken(error)),
            }
        }
    }

    /// The received bytes, or `None` if another task has woken the lane.
    async fn read_or_woken<F>(&self, reading: Pin<&mut Option<F>>) -> Option<Returned<usize>>
    where
        F: Future<Output = Returned<usize>>,
    {
        let read = async {
            match reading.as_pin_mut() {
                Some(read) => read.await,
                None => pending().await,
            }
        };
        match self.lane() {
            Some(lane) => tokio::select! {
                biased;
                returned = read => Some(returned),
                () = lane.notify.notified() => None,
            },
            None => Some(read.await),
        }
    }

    fn begin(&mut self, state: &mut State) {
        let mut now_ns = None;
        while state.under_way < self.depth && self.window_is_open() {
            let now_ns = *now_ns.get_or_insert_with(|| self.clock.now_ns());
            let start_ns = match &self.pace {
                Pace::Closed(supply) if supply.take() => now_ns,
                Pace::Closed(_) => break,
                Pace::Open(schedule) => match schedule.released_start(self.index, state.begun) {
                    Some(start_ns) => {
                        schedule.begun();
                        start_ns
                    }
                    None => break,
                },
            };
            self.script.begin(start_ns, &mut state.out);
            state.begun += 1;
            state.under_way += 1;
            if self.script.begins_operations() {
                self.meter.begun(start_ns, now_ns.saturating_sub(start_ns));
            }
            if let Part::Producer { .. } = self.part {
                self.lanes[self.index].outstanding.update(|count| count + 1);
            }
        }
    }

    /// Takes every complete reply and makes space for the rest.
    fn judge(&mut self, inbox: &mut Inbox, state: &mut State) -> Result<(), Failure> {
        let now_ns = self.clock.now_ns();
        let mut replies = 0;
        let mut need = 0;
        while inbox.at < inbox.bytes.len() {
            match self.script.take(&inbox.bytes[inbox.at..], &mut state.out)? {
                Taken::Partial { need: bytes } => {
                    need = bytes;
                    break;
                }
                Taken::Step(step) => {
                    inbox.at += step.used;
                    replies += 1;
                    self.apply(step, now_ns, state);
                }
            }
        }
        self.meter.replies.update(|count| count + replies);
        inbox.make_room(need);
        Ok(())
    }

    fn apply(&self, step: Step, now_ns: u64, state: &mut State) {
        state.under_way -= usize::from(step.freed);
        if step.settled {
            self.meter.settled();
        }
        if let Some(complaint) = step.complaint {
            self.meter.complain(complaint);
        }
        if let Some(stamp) = step.sample {
            self.meter.done(self.index, stamp.start_ns, now_ns);
        }
        match (&self.part, step.sample) {
            (Part::Consumer(producers), Some(stamp)) => {
                let lane = &producers[stamp.producer as usize];
                release(lane);
                lane.wake();
            }
            (Part::Producer { .. }, _) if step.settled => release(&self.lanes[self.index]),
            _ => {}
        }
    }

    fn window_is_open(&self) -> bool {
        match self.part {
            Part::Producer { window } => self.lanes[self.index].outstanding.get() < window,
            Part::Alone | Part::Consumer(_) => true,
        }
    }

    fn is_over(&self) -> bool {
        match &self.pace {
            Pace::Closed(supply) => supply.is_empty(),
            Pace::Open(schedule) => schedule.is_over(),
        }
    }

    /// Returns the lane to listen on. In a closed loop no other task wakes a connection that works alone, so it has
    /// none.
    fn lane(&self) -> Option<&Lane> {
        match (&self.part, &self.pace) {
            (Part::Consumer(_), _) | (Part::Alone, Pace::Closed(_)) => None,
            _ => Some(&self.lanes[self.index]),
        }
    }

    fn inbox(&self) -> Inbox {
        let (min, max) = INBOX_BYTES;
        let bytes = self.depth * (REPLY_BYTES + self.body_bytes);
        Inbox { bytes: Vec::with_capacity(bytes.clamp(min, max)), at: 0 }
    }
}

/// The mutable state of a working connection.
struct State {
    under_way: usize,
    begun: u64,
    out: Vec<u8>,
}

/// Records that a job of this producer was received, or never put.
fn release(lane: &Lane) {
    lane.outstanding.update(|count| count.checked_sub(1).expect("what was received was put"));
}

/// Received bytes. Those before `at` have been consumed.
struct Inbox {
    bytes: Vec<u8>,
    at: usize,
}

impl Inbox {
    /// Makes space for the next read, at least for a reply of `need` bytes.
    fn make_room(&mut self, need: usize) {
        let kept = self.bytes.len() - self.at;
        if kept == 0 {
            self.bytes.clear();
            self.at = 0;
        }
        let missing = need.saturating_sub(kept).max(ROOM_BYTES_MIN);
        if self.bytes.capacity() - self.bytes.len() < missing {
            self.bytes.drain(..self.at);
            self.at = 0;
            self.bytes.reserve(missing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_keeps_what_is_not_used() {
        let mut inbox = Inbox { bytes: Vec::with_capacity(4096), at: 0 };
        inbox.bytes.extend([7; 4000]);
        inbox.at = 3990;
        inbox.make_room(100);
        assert_eq!((inbox.bytes.len(), inbox.at), (10, 0));
        assert!(inbox.bytes.capacity() - inbox.bytes.len() >= 90);
        inbox.make_room(100_000);
        assert!(inbox.bytes.capacity() >= 100_000);
        inbox.at = 10;
        inbox.make_room(0);
        assert_eq!((inbox.bytes.len(), inbox.at), (0, 0));
    }
}
