//! The control client: seven connections that work at a modest rate and know each reply in advance. They find jobs that are lost,
//! altered, delivered twice, out of order, early or late.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::client::Client;
use beanring_testkit::process::ServerProcess;
use beanring_testkit::random::Random;
use beanring_testkit::statistics::number;
use beanring_testkit::wait::Stop;
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};

/// Connections that put, reserve and delete in tubes of their own, and the jobs in such a tube at once.
const CYCLERS: u64 = 3;
const JOBS_MAX: usize = 4;

/// Jobs between the two ends of a tube.
const JOBS_BETWEEN_MAX: usize = 64;

const PAUSE: Duration = Duration::from_millis(5);
/// From time to time a producer is silent for this long, so that the reserve of its worker times out.
const SILENCE: Duration = Duration::from_millis(1200);
const SECOND: Duration = Duration::from_secs(1);

/// A server reads its clock once per event-loop iteration. A command that it handles late in one has a deadline that is early by
/// as much.
const EARLY_MAX: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct Control {
    is_over: AtomicBool,
    /// The server may refuse puts.
    pub may_refuse: AtomicBool,
    /// How long the server was stopped, and since when it is.
    stopped: Mutex<(Duration, Option<Duration>)>,
    latencies: Mutex<Vec<Duration>>,
}

impl Control {
    /// Does something to the server, beside the control client. Returns the number of latencies, and their 99th percentile.
    pub fn beside(server: &ServerProcess, fault: impl FnOnce(&Self)) -> (usize, Duration) {
        let control = Self::default();
        let has_given = AtomicBool::new(false);
        thread::scope(|scope| {
            let worker = |tube: &str| Worker::new(&control, server.client(), tube);
            for seed in 0..CYCLERS {
                let worker = worker(&format!("control-{seed}"));
                scope.spawn(move || worker.cycle(Random::new(seed)));
            }
            let (sender, receiver) = sync_channel(JOBS_BETWEEN_MAX);
            let [giver, taker] = [(); 2].map(|()| worker("control-pair"));
            let has_given = &has_given;
            scope.spawn(move || giver.give(sender, has_given));
            scope.spawn(move || taker.take_given(receiver, has_given));
            let [careless, careful] = [(); 2].map(|()| worker("control-time"));
            scope.spawn(move || careless.keep_time(careful));
            let _stop = Stop(&control.is_over);
            fault(&control);
        });
        let mut latencies = control.latencies.into_inner().expect("no thread panicked with the lock");
        latencies.sort_unstable();
        (latencies.len(), latencies[latencies.len() * 99 / 100])
    }

    /// Stops the server during `what`. That time is no latency.
    pub fn while_stopped(&self, server: &ServerProcess, what: impl FnOnce()) {
        self.lock().1 = Some(now());
        server.signal(Signal::SIGSTOP);
        what();
        server.signal(Signal::SIGCONT);
        let mut stopped = self.lock();
        let since = stopped.1.take().expect("it is stopped");
        stopped.0 += now() - since;
    }

    fn lock(&self) -> MutexGuard<'_, (Duration, Option<Duration>)> {
        self.stopped.lock().expect("no thread panicked with the lock")
    }

    /// The time so far without that in which the server was stopped.
    fn clock(&self) -> Duration {
        let (before, since) = *self.lock();
        since.unwrap_or_else(now) - before
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has this clock").into()
}

/// A job as it was put.
type Put = (u64, String);

/// A connection, in a tube that only the control client uses.
struct Worker<'a> {
    control: &'a Control,
    client: Client,
    tube: String,
    accepted: u64,
}

impl<'a> Worker<'a> {
    fn new(control: &'a Control, mut client: Client, tube: &str) -> Self {
        client.expect(&format!("use {tube}\r\n"), &format!("USING {tube}"));
        client.expect(&format!("watch {tube}\r\n"), "WATCHING 2");
        client.expect("ignore default\r\n", "WATCHING 1");
        Self { control, client, tube: tube.to_owned(), accepted: 0 }
    }

    /// Puts a few jobs, and takes them in the order of their priorities and ids.
    fn cycle(mut self, mut random: Random) {
        while self.control.goes_on() {
            let mut jobs = Vec::new();
            for _ in 0..=random.below(JOBS_MAX - 1) {
                let bytes = if random.one_in(50) { 60_000 } else { random.below(1000) };
                let pri = random.below(3);
                jobs.extend(self.put(pri, 0, 60, bytes).map(|job| (pri, job)));
            }
            jobs.sort_unstable();
            if random.one_in(8)
                && let Some((pri, job)) = jobs.first()
            {
                self.take(job);
                if random.one_in(2) {
                    self.expect(&format!("release {} {pri} 0\r\n", job.0), "RELEASED");
                } else {
                    self.expect(&format!("bury {} {pri}\r\n", job.0), "BURIED");
                    self.expect("kick 10\r\n", "KICKED 1");
                }
            }
            for (_, job) in &jobs {
                self.take(job);
                self.delete(job.0);
            }
            thread::sleep(PAUSE);
        }
        self.settle();
    }

    /// Puts jobs, and tells the other end what must arrive there.
    fn give(mut self, jobs: SyncSender<(Put, Duration)>, has_given: &AtomicBool) {
        let (_stop, mut random) = (Stop(has_given), Random::new(CYCLERS));
        while self.control.goes_on() {
            thread::sleep(if random.one_in(200) { SILENCE } else { PAUSE });
            let begun = self.control.clock();
            if let Some(job) = self.put(0, 0, 60, random.below(500)) {
                jobs.send((job, begun)).expect("the other end waits");
            }
        }
    }

    /// Waits for these jobs.
    fn take_given(mut self, jobs: Receiver<(Put, Duration)>, has_given: &AtomicBool) {
        loop {
            let is_all = has_given.load(Ordering::Relaxed);
            let (sent, clock) = (Instant::now(), self.control.clock());
            if let Some(found) = self.reserve(1) {
                let (job, put) = jobs.recv().expect("no job arrives that was not put");
                assert!(found == job, "{}: job {} instead of {}", self.tube, found.0, job.0);
                // A worker that is late has left the job in the queue.
                self.note(put.max(clock));
                self.delete(job.0);
                self.accepted += 1;
                continue;
            }
            assert!(sent.elapsed() + EARLY_MAX > SECOND, "a reserve times out after {:?}", sent.elapsed());
            self.note(clock + SECOND);
            if is_all {
                assert!(jobs.try_recv().is_err(), "a job was put and does not arrive");
                return self.settle();
            }
        }
    }

    /// Checks that a delay and a reservation end when they are due, and not before.
    fn keep_time(mut self, mut other: Self) {
        while self.control.goes_on() {
            let sent = Instant::now();
            let Some(job) = self.put(0, 1, 60, 100) else {
                thread::sleep(PAUSE);
                continue;
            };
            other.take_due(&job, "a delayed job", sent);
            if let Some(job) = self.put(0, 0, 1, 100) {
                let sent = Instant::now();
                self.take(&job);
                other.take_due(&job, "a job that was not deleted in time", sent);
            }
        }
        self.settle();
    }

    /// Reserves and deletes a job that is due a second after a command.
    fn take_due(&mut self, job: &Put, what: &str, sent: Instant) {
        let due = self.control.clock() + SECOND;
        assert!(self.reserve(60).as_ref() == Some(job), "{what} does not arrive");
        assert!(sent.elapsed() + EARLY_MAX > SECOND, "{what} arrives after {:?}", sent.elapsed());
        self.note(due);
        self.delete(job.0);
    }

    /// Records the time since `begun`.
    fn note(&mut self, begun: Duration) {
        let latency = self.control.clock().saturating_sub(begun);
        self.control.latencies.lock().expect("no thread panicked with the lock").push(latency);
    }

    fn expect(&mut self, command: &str, reply: &str) {
        let begun = self.control.clock();
        self.client.expect(command, reply);
        self.note(begun);
    }

    /// Puts a job. Returns it, unless the server refuses it and may do so.
    fn put(&mut self, pri: usize, delay: u32, ttr: u32, bytes: usize) -> Option<Put> {
        let line = format!("{} {} ", self.tube, self.accepted);
        let body = line.repeat(1 + bytes / line.len());
        let begun = self.control.clock();
        let command = format!("put {pri} {delay} {ttr} {}\r\n{body}\r\n", body.len());
        let (reply, _) = self.client.ask(&command);
        self.note(begun);
        if reply == "DRAINING" && self.control.may_refuse.load(Ordering::Relaxed) {
            return None;
        }
        let id = reply.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
        self.accepted += 1;
        Some((id.unwrap_or_else(|| panic!("{reply} for a put")), body))
    }

    /// Reserves a job. Returns none if the reserve times out.
    fn reserve(&mut self, seconds: u32) -> Option<Put> {
        let (line, data) = self.client.ask(&format!("reserve-with-timeout {seconds}\r\n"));
        let id = line.strip_prefix("RESERVED ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        assert!(id.is_some() || line == "TIMED_OUT", "{line} for a reserve");
        Some((id?, data.trim_end_matches("\r\n").to_owned()))
    }

    /// Reserves the job that is next.
    fn take(&mut self, job: &Put) {
        let begun = self.control.clock();
        let found = self.reserve(30);
        self.note(begun);
        let id = found.as_ref().map(|(id, _)| *id);
        assert!(found.as_ref() == Some(job), "{}: {id:?} arrives instead of job {}", self.tube, job.0);
    }

    fn delete(&mut self, id: u64) {
        self.expect(&format!("delete {id}\r\n"), "DELETED");
    }

    /// Checks the statistics of the tube: it has received every put, and is empty.
    fn settle(mut self) {
        let stats = self.client.ask(&format!("stats-tube {}\r\n", self.tube)).1;
        for state in ["ready", "reserved", "delayed", "buried"] {
            assert_eq!(number(&stats, &format!("current-jobs-{state}")), 0, "{stats}");
        }
        assert_eq!(number(&stats, "total-jobs"), self.accepted, "{stats}");
    }
}
