//! The two servers, and how to determine that one has processed all its input.

use std::collections::VecDeque;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::deadlines::{BEFORE, Lateness, Stop};
use super::generator::{Awaited, MAX_JOB_SIZE};
use super::reply::{Comparable, Ids, Quotes, Reply};
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport};
use beanring_testkit::stream::Stream;

/// A server and its connections.
pub struct Side {
    server: ServerProcess,
    /// Requests statistics between the steps.
    control: Link,
    links: Vec<Link>,
    quotes: Quotes,
    pub ids: Ids,
}

struct Link {
    /// None after this side or the server has closed it.
    stream: Option<Stream>,
    unread: Vec<u8>,
    awaited: VecDeque<Awaited>,
}

/// Commands and their replies; the end of the connection is last.
type Replies = Vec<(Option<Awaited>, Option<Reply>)>;

/// The replies of a connection, with their commands.
pub type Answers = Vec<(Option<Awaited>, Comparable)>;

impl Side {
    pub fn start(program: &Path, quotes: Quotes) -> Self {
        let flags = ["-z", &MAX_JOB_SIZE.to_string()];
        // beanstalkd has no TLS.
        let transport = if program.ends_with("beanstalkd") { Transport::Tcp } else { Transport::of_suite() };
        let (server, control) = ServerProcess::start(program, transport, &flags);
        let control = Link::new(control);
        Self { server, control, links: Vec::new(), quotes, ids: Ids::default() }
    }

    /// Opens the next connection.
    pub fn open(&mut self) {
        self.links.push(Link::new(self.server.connect()));
    }

    /// Sends `bytes`, which must have these replies.
    pub fn send(&mut self, conn: usize, bytes: &[u8], awaited: &[Awaited]) {
        let link = &mut self.links[conn];
        link.awaited.extend(awaited.iter().cloned());
        link.stream.as_mut().expect("the connection is open").send(bytes);
    }

    /// Shuts down the sending side of a connection. Its reserve no longer waits, and the server closes the connection
    /// after its replies.
    pub fn half_close(&mut self, conn: usize) {
        let link = &mut self.links[conn];
        for awaited in &mut link.awaited {
            if *awaited == Awaited::Reservation {
                *awaited = Awaited::Reply;
            }
        }
        link.awaited.push_back(Awaited::End);
        link.stream.as_mut().expect("the connection is open").half_close();
    }

    pub fn close(&mut self, conn: usize) {
        let link = &mut self.links[conn];
        link.stream.take().into_iter().for_each(Stream::close);
        link.awaited.clear();
    }

    /// Makes the server drain, and waits until it does.
    pub fn drain(&mut self) -> Result<(), String> {
        self.server.drain();
        let started = Instant::now();
        while !self.probe()?.says_draining() {
            if started.elapsed() > REPLY_PATIENCE {
                return Err("does not drain".to_owned());
            }
        }
        Ok(())
    }

    /// Lets time pass. Returns, for each stop, when the server was continued and when it had processed everything.
    ///
    /// beanstalkd checks its deadlines all the time in the last millisecond before one, and forgets a reservation that
    /// it checks in the very microsecond of its end. So both servers are stopped over each deadline. A server that
    /// finds several deadlines over at once ends them in an order of its own. So each server must have gone to sleep
    /// before the next stop. A server that was stopped after it had computed how long to sleep sleeps as long, beyond the
    /// deadline. So each is asked something first, which wakes it.
    pub fn sleep_until(
        &mut self,
        until: Instant,
        stops: &[Stop],
    ) -> Result<Vec<(Instant, Instant)>, Lateness> {
        let mut passed = Vec::with_capacity(stops.len());
        for (number, stop) in stops.iter().enumerate() {
            sleep_until(stop.from);
            self.server.signal(Signal::SIGSTOP);
            let was_late = Instant::now() > stop.from + BEFORE;
            sleep_until(stop.to);
            let went_on = Instant::now();
            self.server.signal(Signal::SIGCONT);
            if was_late {
                return Err(Lateness::StoppedLate);
            }
            // `settle` reports a server that does not answer.
            let _ = self.probe();
            let next = stops.get(number + 1).map_or(until, |next| next.from);
            passed.push((went_on, self.asleep_before(next).ok_or(Lateness::NotAsleep)?));
        }
        sleep_until(until);
        Ok(passed)
    }

    /// Returns when the server sleeps, if that is before `limit`.
    fn asleep_before(&self, limit: Instant) -> Option<Instant> {
        loop {
            let is_asleep = self.server.state() == 'S';
            let now = Instant::now();
            match () {
                () if now > limit => return None,
                () if is_asleep => return Some(now),
                () => thread::sleep(Duration::from_micros(200)),
            }
        }
    }

    /// Waits until every command has its reply, except those behind a waiting reserve. Returns the replies by
    /// connection.
    ///
    /// Silence does not prove that a reserve waits: the statistics count waiting reserves.
    pub fn settle(&mut self) -> Result<Vec<Answers>, String> {
        let mut replies = vec![Vec::new(); self.links.len()];
        let started = Instant::now();
        loop {
            for (conn, link) in self.links.iter_mut().enumerate() {
                while link.read(Duration::ZERO) {}
                link.take_replies(&mut replies[conn]);
            }
            if started.elapsed() > REPLY_PATIENCE {
                return Err(format!("no answer: {:?}", self.unanswered()));
            }
            let owing = self.links.iter_mut().find(|link| {
                link.stream.is_some()
                    && link.awaited.front().is_some_and(|front| *front != Awaited::Reservation)
            });
            if let Some(link) = owing {
                link.read(Duration::from_millis(100));
                continue;
            }
            let waiting = self.links.iter().filter(|link| !link.awaited.is_empty()).count() as u64;
            let open = self.links.iter().filter(|link| link.stream.is_some()).count() as u64 + 1;
            let stats = self.probe()?;
            if stats.value("current-waiting") == Some(waiting)
                && stats.value("current-connections") == Some(open)
            {
                return self.answers(replies);
            }
        }
    }

    /// Returns whether a reserve of the connection waits. Only valid after [`Side::settle`].
    pub fn waits(&self, conn: usize) -> bool {
        !self.links[conn].awaited.is_empty()
    }

    /// Returns whether commands follow that reserve.
    pub fn has_more(&self, conn: usize) -> bool {
        self.links[conn].awaited.len() > 1
    }

    /// Returns whether the connection is open.
    pub fn is_open(&self, conn: usize) -> bool {
        self.links[conn].stream.is_some()
    }

    fn answers(&mut self, replies: Vec<Replies>) -> Result<Vec<Answers>, String> {
        let new = replies.iter().flatten().filter_map(|(_, reply)| reply.as_ref()?.inserted());
        self.ids.add(new.collect())?;
        let comparable = |reply: Option<Reply>| match reply {
            Some(reply) => reply.comparable(&self.ids, self.quotes),
            None => Comparable::end(),
        };
        let of_one = |replies: Replies| {
            replies.into_iter().map(|(awaited, reply)| (awaited, comparable(reply))).collect()
        };
        Ok(replies.into_iter().map(of_one).collect())
    }

    fn probe(&mut self) -> Result<Reply, String> {
        self.control.stream.as_mut().expect("the control connection is open").send(b"stats\r\n");
        loop {
            if let Some(reply) = Reply::take(&mut self.control.unread) {
                return Ok(reply);
            }
            if !self.control.read(REPLY_PATIENCE) {
                return Err("no statistics".to_owned());
            }
        }
    }

    fn unanswered(&self) -> Vec<(usize, &VecDeque<Awaited>)> {
        let waiting = self.links.iter().enumerate().filter(|(_, link)| !link.awaited.is_empty());
        waiting.map(|(conn, link)| (conn, &link.awaited)).collect()
    }
}

impl Link {
    fn new(stream: Stream) -> Self {
        Self { stream: Some(stream), unread: Vec::new(), awaited: VecDeque::new() }
    }

    /// Receives once. Returns whether something arrived.
    fn read(&mut self, patience: Duration) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let received = if patience.is_zero() { stream.receive_now() } else { stream.receive(patience) };
        match received {
            Received::Bytes(bytes) => {
                self.unread.extend_from_slice(&bytes);
                true
            }
            Received::Silence => false,
            Received::Closed => {
                self.stream = None;
                false
            }
        }
    }

    fn take_replies(&mut self, replies: &mut Replies) {
        while let Some(reply) = Reply::take(&mut self.unread) {
            replies.push((self.awaited.pop_front(), Some(reply)));
        }
        if self.stream.is_none() && !self.awaited.is_empty() {
            replies.push((self.awaited.pop_front(), None));
            self.awaited.clear();
        }
    }
}

fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}
