//! Producers and workers that connect to any server, and record every reply.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use beanring_testkit::namespaces::enter;
use beanring_testkit::random::Random;

use super::keyed_puts::{KeyedProducer, put_text};
use super::record::{Asked, CONCURRENCY_KEYS, Clock, Event, RULED, Reply, Token};

/// Jobs that producers leave ready before they pause.
const JOBS_MAX: i64 = 3000;

/// How long a reserve waits.
const RESERVE_S: u64 = 1;

const TTRS_S: [u8; 4] = [2, 4, 60, 120];

/// What a worker sends first. Half of both kinds of workers draw tubes by weight.
const WATCHES: [&[&str]; 4] = [
    &["watch bulk", "watch mail", "watch dead"],
    &["watch bulk 3", "watch mail 2", "watch dead", "reserve-mode weighted"],
    &["watch bulk", "watch mail", "watch dead"],
    &["watch bulk 3", "watch mail 2", "watch dead", "reserve-mode weighted-fair"],
];

/// Jobs that a batch reserves, at most.
const BATCH_MAX: usize = 8;

/// The number of a rule that never refuses a put.
const RULE_BASE: u64 = 1_000_000;

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// Puts into `default`, and never pauses. The first one changes a rule now and then.
    Pinned,
    Producer,
    /// Puts with idempotency keys into `bulk`, in batches too.
    Keyed,
    /// Puts into `mail`, whose rules move jobs to `dead`.
    Ruled,
    Worker,
    /// Reserves and deletes batches.
    BatchWorker,
}

/// What clients are told.
#[derive(Clone)]
pub struct Plan {
    pub servers: Vec<SocketAddr>,
    /// The network namespace of the clients.
    pub namespace: Option<String>,
    /// How long a client waits for a reply before it connects again.
    pub patience: Duration,
    pub producers: usize,
    pub workers: usize,
    /// Bytes of a body, at most.
    pub body_bytes_max: usize,
    /// Jobs that producers leave ready before they pause.
    pub jobs_max: i64,
    pub seed: u64,
}

/// What clients share.
#[derive(Default)]
pub struct Shared {
    pub clock: Clock,
    is_over: AtomicBool,
    /// Only the first clients work, each of which has a server of its own.
    is_calm: AtomicBool,
    /// Jobs that were inserted and not deleted, without those that stay buried.
    jobs: AtomicI64,
    /// When the newest put was asked that was accepted.
    accepted: AtomicU64,
    /// When the newest command was asked that changed a job and was acknowledged.
    changed: AtomicU64,
    /// Commands that were acknowledged.
    pub acknowledged: AtomicU64,
    buried: Mutex<Vec<u64>>,
}

/// Clients that run.
pub struct Clients {
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Event>>>,
}

impl Plan {
    pub fn new(servers: Vec<SocketAddr>, seed: u64) -> Self {
        Self {
            servers,
            namespace: None,
            patience: Duration::from_secs(4),
            producers: 32,
            workers: 32,
            body_bytes_max: 400,
            jobs_max: JOBS_MAX,
            seed,
        }
    }
}

impl Clients {
    /// Starts producers and workers, and a producer for each server that never pauses.
    pub fn start(plan: &Plan) -> Self {
        let shared = Arc::new(Shared::default());
        let count = plan.servers.len() + plan.producers + plan.workers;
        let client = |number: usize| {
            let (plan, shared) = (plan.clone(), Arc::clone(&shared));
            thread::spawn(move || {
                if let Some(namespace) = &plan.namespace {
                    enter(namespace);
                }
                let random = Random::new(plan.seed.wrapping_mul(1000).wrapping_add(number as u64));
                let client = Client {
                    number: number as u16,
                    connection: 0,
                    tokens: 0,
                    stream: None,
                    greetings: 0,
                    keyed_producer: KeyedProducer::default(),
                    events: Vec::new(),
                    plan,
                    shared,
                    random,
                };
                client.run()
            })
        };
        let threads = (0..count).map(client).collect();
        Self { shared, threads }
    }

    /// Lets all clients work, or only some.
    pub fn set_calm(&self, is_calm: bool) {
        self.shared.is_calm.store(is_calm, Ordering::Relaxed);
    }

    /// Waits until a put was accepted that was asked after this time. Returns whether one was.
    pub fn wait_for_put(&self, since: u64, patience: Duration) -> bool {
        self.wait_for(&self.shared.accepted, since, patience)
    }

    /// Waits until a change was acknowledged that was asked after this time. Returns whether one was.
    pub fn wait_for_change(&self, since: u64, patience: Duration) -> bool {
        self.wait_for(&self.shared.changed, since, patience)
    }

    fn wait_for(&self, last: &AtomicU64, since: u64, patience: Duration) -> bool {
        let until = self.now() + patience.as_micros() as u64;
        while last.load(Ordering::Relaxed) <= since {
            if self.now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    pub fn now(&self) -> u64 {
        self.shared.clock.now()
    }

    /// Ends all clients after the command that each waits for. Returns what they have recorded.
    pub fn end(&mut self) -> Vec<Event> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.threads.drain(..).flat_map(|thread| thread.join().expect("no client panics")).collect()
    }
}

struct Client {
    number: u16,
    /// Counts its connections.
    connection: u32,
    /// Counts its puts.
    tokens: u32,
    stream: Option<BufReader<TcpStream>>,
    /// Replies to what a new connection has sent, which are not yet read.
    greetings: usize,
    keyed_producer: KeyedProducer,
    events: Vec<Event>,
    plan: Plan,
    shared: Arc<Shared>,
    random: Random,
}

impl Role {
    fn of(number: usize, plan: &Plan) -> Self {
        let pinned = plan.servers.len();
        let Some(number) = number.checked_sub(pinned) else { return Self::Pinned };
        match number.checked_sub(plan.producers) {
            None => [Self::Producer, Self::Keyed, Self::Producer, Self::Ruled][number % 4],
            Some(number) => [Self::Worker, Self::BatchWorker][number % 2],
        }
    }
}

impl Client {
    fn run(mut self) -> Vec<Event> {
        let role = Role::of(self.number as usize, &self.plan);
        let mut held = Vec::new();
        while !self.shared.is_over.load(Ordering::Relaxed) {
            if self.stream.is_none() && !self.connect(role) {
                continue;
            }
            let is_calm = role != Role::Pinned && self.shared.is_calm.load(Ordering::Relaxed);
            let has_enough = self.shared.jobs.load(Ordering::Relaxed) > self.plan.jobs_max;
            let is_paused = has_enough && !self.keyed_producer.must_repeat();
            match role {
                _ if is_calm && self.greetings == 0 => self.rest(Duration::from_millis(50)),
                _ if is_calm => thread::sleep(Duration::from_millis(50)),
                Role::Pinned => {
                    self.put(0);
                    thread::sleep(Duration::from_millis(4));
                    if self.number == 0 && self.stream.is_some() && self.random.one_in(50) {
                        self.change_rule();
                    }
                }
                Role::Worker | Role::BatchWorker => self.work(role, &mut held),
                _ if is_paused => thread::sleep(Duration::from_millis(5)),
                Role::Producer => self.put(0),
                Role::Keyed => self.ship(),
                Role::Ruled => {
                    let key = 1 + self.random.below(CONCURRENCY_KEYS as usize) as u8;
                    let key = if self.random.one_in(20) { key } else { 0 };
                    self.put(RULED | key);
                }
            }
        }
        if self.stream.is_some() {
            self.note(Asked::Leave, Reply::GaveUp, self.shared.clock.now());
        }
        self.events
    }

    /// The first clients each have a server of their own. The others choose one each time. The replies to the greeting are read
    /// before that of the first command.
    fn connect(&mut self, role: Role) -> bool {
        let servers = &self.plan.servers;
        let own = servers.get(self.number as usize).copied();
        let server = own.unwrap_or_else(|| servers[self.random.below(servers.len())]);
        let Ok(stream) = TcpStream::connect_timeout(&server, Duration::from_millis(500)) else {
            thread::sleep(Duration::from_millis(5));
            return false;
        };
        stream.set_nodelay(true).expect("a socket option");
        stream.set_read_timeout(Some(self.plan.patience)).expect("a socket option");
        stream.set_write_timeout(Some(self.plan.patience)).expect("a socket option");
        let greeting = match role {
            Role::Pinned | Role::Producer => &[][..],
            Role::Keyed => &["use bulk"],
            Role::Ruled => &["use mail"],
            Role::Worker | Role::BatchWorker => WATCHES[self.number as usize / 2 % WATCHES.len()],
        };
        let text: String = greeting.iter().map(|line| format!("{line}\r\n")).collect();
        if (&stream).write_all(text.as_bytes()).is_err() {
            return false;
        }
        self.connection += 1;
        self.greetings = greeting.len();
        self.stream = Some(BufReader::new(stream));
        true
    }

    fn put(&mut self, kind: u8) {
        self.tokens += 1;
        let of_kind = |ttr_s| Token::new(self.number, self.tokens, ttr_s).of_kind(kind);
        // A job with a concurrency key keeps others waiting.
        let has_key = of_kind(0).concurrency().is_some();
        let token = of_kind(self.random.pick(if has_key { &TTRS_S[..2] } else { &TTRS_S }));
        let delay_s = u8::from(self.random.one_in(50));
        let max = if self.random.one_in(20) { self.plan.body_bytes_max } else { 100 };
        let bytes = 16 + self.random.below(max);
        let text = put_text(token, delay_s, bytes, "", &mut self.random);
        self.ask(Asked::Put(token), &text);
    }

    /// Puts jobs with keys, again if the reply was lost, and waits for the end of some of them.
    fn ship(&mut self) {
        let now = self.shared.clock.now();
        let puts = self.keyed_producer.next(self.number, &mut self.tokens, now, &mut self.random);
        let asked: Vec<Asked> = puts.tokens.iter().copied().map(Asked::Put).collect();
        if self.random.one_in(20) {
            // It gives up before most replies come, as if they were lost.
            let stream = self.stream.as_ref().expect("it is connected").get_ref();
            stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket option");
        }
        let replies = self.ask_all(&asked, &puts.text);
        self.keyed_producer.sent(puts, self.stream.is_none(), &mut self.random);
        if let (&[Reply::Inserted(id)], true) = (&replies[..], self.random.one_in(10)) {
            self.ask(Asked::Wait(id), &format!("wait-job {id} {RESERVE_S}\r\n"));
        }
    }

    fn change_rule(&mut self) {
        self.tokens += 1;
        let value = RULE_BASE + u64::from(self.tokens);
        self.ask(Asked::Rule(value), &format!("tube-config mail max-jobs {value}\r\n"));
    }

    /// Reserves jobs and does something with them. `held` are jobs that are not finished, also of connections that were lost.
    fn work(&mut self, role: Role, held: &mut Vec<u64>) {
        if let Some(id) = held.pop() {
            // Any client may finish it, or the server does when its time is over.
            if self.random.chance(60) {
                self.finish(id, held);
            }
            return;
        }
        if self.random.one_in(10)
            && let Some(id) = self.take_buried()
        {
            let reply = self.ask(Asked::Kick(id), &format!("kick-job {id}\r\n"));
            if matches!(reply, Reply::Closed | Reply::GaveUp) {
                self.bury_again(id);
            }
            return;
        }
        let text = if role == Role::BatchWorker {
            format!("reserve-batch {} {RESERVE_S}\r\n", 1 + self.random.below(BATCH_MAX))
        } else {
            format!("reserve-with-timeout {RESERVE_S}\r\n")
        };
        let replies = self.ask_all(&[Asked::Reserve], &text);
        let id = |reply: &Reply| if let Reply::Reserved(id, _) = *reply { Some(id) } else { None };
        let ids: Vec<u64> = replies.iter().filter_map(id).collect();
        if ids.len() > 1 && self.stream.is_some() && self.random.one_in(2) {
            self.delete_batch(&ids, held);
        } else {
            for id in ids {
                if self.stream.is_some() { self.finish(id, held) } else { held.push(id) }
            }
        }
    }

    fn delete_batch(&mut self, ids: &[u64], held: &mut Vec<u64>) {
        let asked: Vec<Asked> = ids.iter().copied().map(Asked::Delete).collect();
        let words: String = ids.iter().map(|id| format!(" {id}")).collect();
        self.ask_all(&asked, &format!("delete-batch{words}\r\n"));
        if self.stream.is_none() && self.random.chance(50) {
            held.extend(ids);
        }
    }

    fn finish(&mut self, id: u64, held: &mut Vec<u64>) {
        let begun = self.connection;
        match self.random.below(100) {
            0..60 => {
                self.ask(Asked::Delete(id), &format!("delete {id}\r\n"));
            }
            60..75 => {
                let delay = u8::from(self.random.one_in(10));
                self.ask(Asked::Release(id), &format!("release {id} 1 {delay}\r\n"));
            }
            75..85 => {
                if self.ask(Asked::Bury(id), &format!("bury {id} 1\r\n")) == Reply::Buried {
                    if self.random.chance(60) {
                        self.bury_again(id);
                    } else {
                        // It stays buried.
                        self.shared.jobs.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            }
            85..93 => {
                self.ask(Asked::Touch(id), &format!("touch {id}\r\n"));
                held.push(id);
            }
            // Work that takes a while.
            _ => {
                let time_ms = 1 + self.random.below(400) as u64;
                self.rest(Duration::from_millis(time_ms));
                held.push(id);
            }
        }
        if self.stream.is_none() && self.connection == begun && self.random.chance(50) {
            held.push(id);
        }
    }

    /// Sends nothing for some time, but notices the end of the connection: the check must know when that was.
    fn rest(&mut self, time: Duration) {
        let asked_at = self.shared.clock.now();
        let stream = self.stream.as_mut().expect("it is connected");
        stream.get_ref().set_read_timeout(Some(time)).expect("a socket option");
        let result = stream.fill_buf();
        let is_open = result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        stream.get_ref().set_read_timeout(Some(self.plan.patience)).expect("a socket option");
        if !is_open {
            self.note(Asked::Leave, Reply::Closed, asked_at);
            self.stream = None;
        }
    }

    fn take_buried(&self) -> Option<u64> {
        let mut buried = self.shared.buried.lock().expect("no client panics");
        // The newest ones stay buried for a while.
        (buried.len() > 100).then(|| buried.remove(0))
    }

    fn bury_again(&self, id: u64) {
        self.shared.buried.lock().expect("no client panics").push(id);
    }

    fn ask(&mut self, asked: Asked, text: &str) -> Reply {
        self.ask_all(&[asked], text)[0]
    }

    /// Sends a command, or a batch of them, and notes each with its reply. One reserve may get several.
    fn ask_all(&mut self, asked: &[Asked], text: &str) -> Vec<Reply> {
        let asked_at = self.shared.clock.now();
        let stream = self.stream.as_mut().expect("it is connected");
        let greetings = mem::take(&mut self.greetings);
        let mut replies = Vec::new();
        let result = stream
            .get_mut()
            .write_all(text.as_bytes())
            .and_then(|()| (0..greetings).try_for_each(|_| read_greeting(stream)))
            .and_then(|()| read(stream, &mut replies));
        let lost = result.err().map(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Reply::GaveUp,
            _ => Reply::Closed,
        });
        if let Some(lost) = lost {
            replies.resize(asked.len().max(replies.len() + 1), lost);
        } else if replies.len() < asked.len() {
            // A batch that is refused gets one reply.
            assert_eq!(replies.len(), 1, "a batch has a reply for each job: {asked:?}, {replies:?}");
            replies.resize(asked.len(), replies[0]);
        }
        for (at, &reply) in replies.iter().enumerate() {
            let asked = asked[at.min(asked.len() - 1)];
            self.note(asked, if let Asked::Wait(_) = asked { of_wait(reply) } else { reply }, asked_at);
        }
        // After the time was noted: the server may pass on the jobs of this client at once.
        if lost.is_some() {
            self.stream = None;
        }
        if replies[0] == Reply::Refused {
            thread::sleep(Duration::from_millis(10));
        }
        replies
    }

    fn note(&mut self, asked: Asked, reply: Reply, asked_at: u64) {
        let replied_at = self.shared.clock.now();
        let (client, connection) = (self.number, self.connection);
        self.events.push(Event { client, connection, asked, reply, asked_at, replied_at });
        let shared = &self.shared;
        let newest = |last: &AtomicU64| last.fetch_max(asked_at, Ordering::Relaxed);
        match reply {
            Reply::Inserted(_) => {
                newest(&shared.accepted);
                shared.jobs.fetch_add(1, Ordering::Relaxed);
            }
            Reply::Deleted | Reply::MaybeDeleted => {
                shared.jobs.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        if let Reply::Inserted(_)
        | Reply::Deleted
        | Reply::Released
        | Reply::Buried
        | Reply::Reserved(..)
        | Reply::Configured = reply
        {
            newest(&shared.changed);
            shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The reply to a wait for the end of a job.
const fn of_wait(reply: Reply) -> Reply {
    match reply {
        Reply::Deleted | Reply::NotFound => Reply::Gone,
        Reply::Buried => Reply::SeenBuried,
        other => other,
    }
}

fn read_line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| ErrorKind::UnexpectedEof.into())
}

fn read_greeting(stream: &mut BufReader<TcpStream>) -> io::Result<()> {
    let line = read_line(stream)?;
    assert!(line.starts_with("USING ") || line.starts_with("WATCHING "), "an unexpected reply: {line}");
    Ok(())
}

/// Reads the reply to a command, or those of a batch.
fn read(stream: &mut BufReader<TcpStream>, replies: &mut Vec<Reply>) -> io::Result<()> {
    let line = read_line(stream)?;
    let number = |word: &str| word.parse::<u64>().expect("a number");
    let reply = match line.split(' ').collect::<Vec<_>>()[..] {
        ["INSERTED_BATCH" | "RESERVED_BATCH", count] => {
            return (0..number(count)).try_for_each(|_| read(stream, replies));
        }
        ["DELETED_BATCH", deleted, not_found] => {
            let (deleted, not_found) = (number(deleted), number(not_found));
            let reply = match (deleted, not_found) {
                (_, 0) => Reply::Deleted,
                (0, _) => Reply::NotFound,
                _ => Reply::MaybeDeleted,
            };
            replies.resize((deleted + not_found) as usize, reply);
            return Ok(());
        }
        ["RESERVED", id, bytes] => {
            let mut body = vec![0; number(bytes) as usize + 2];
            stream.read_exact(&mut body)?;
            let token = u64::from_str_radix(&String::from_utf8_lossy(&body[..16]), 16);
            Reply::Reserved(number(id), Token(token.expect("a body of this suite")))
        }
        ["INSERTED", id] => Reply::Inserted(number(id)),
        ["INSERTED", id, "DELETED"] => Reply::Finished(number(id)),
        ["INSERTED", id, ..] => Reply::Repeated(number(id)),
        ["OUT_OF_MEMORY" | "DRAINING", ..] => Reply::Refused,
        ["TIMED_OUT" | "DEADLINE_SOON", ..] => Reply::Nothing,
        ["DELETED", ..] => Reply::Deleted,
        ["RELEASED", ..] => Reply::Released,
        ["BURIED", ..] => Reply::Buried,
        ["KICKED", ..] => Reply::Kicked,
        ["TOUCHED", ..] => Reply::Touched,
        ["NOT_FOUND", ..] => Reply::NotFound,
        ["CONFIGURED", ..] => Reply::Configured,
        // Nothing is known about the command then.
        ["INTERNAL_ERROR", ..] => return Err(ErrorKind::Other.into()),
        _ => panic!("an unexpected reply: {line}"),
    };
    replies.push(reply);
    Ok(())
}
