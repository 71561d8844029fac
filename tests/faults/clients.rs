//! Producers and workers that connect to any server, and record every reply.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use beanring_testkit::namespaces::enter;
use beanring_testkit::random::Random;

use super::record::{Asked, Clock, Event, Reply, Token};

/// Jobs that producers leave ready before they pause.
const JOBS_MAX: i64 = 3000;

/// How long a reserve waits.
const RESERVE_S: u64 = 1;

const TTRS_S: [u8; 4] = [2, 4, 60, 120];

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
pub struct Shared {
    pub clock: Clock,
    is_over: AtomicBool,
    /// Jobs that were inserted and not deleted.
    jobs: AtomicI64,
    /// When the newest put was asked that was accepted.
    pub accepted: AtomicU64,
    /// When the newest command was asked that changed a job and was acknowledged.
    pub changed: AtomicU64,
    /// Puts that were refused.
    pub refused: AtomicU64,
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
        let shared = Arc::new(Shared {
            clock: Clock::start(),
            is_over: AtomicBool::new(false),
            jobs: AtomicI64::new(0),
            accepted: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            buried: Mutex::new(Vec::new()),
        });
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
    pub fn end(self) -> Vec<Event> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().expect("no client panics")).collect()
    }
}

struct Client {
    number: u16,
    /// Counts its connections.
    connection: u32,
    /// Counts its puts.
    tokens: u32,
    stream: Option<BufReader<TcpStream>>,
    events: Vec<Event>,
    plan: Plan,
    shared: Arc<Shared>,
    random: Random,
}

impl Client {
    fn run(mut self) -> Vec<Event> {
        let pinned = self.plan.servers.len();
        let number = self.number as usize;
        let mut held = Vec::new();
        while !self.is_over() {
            if self.stream.is_none() && !self.connect() {
                continue;
            }
            if number < pinned {
                self.put();
                thread::sleep(Duration::from_millis(4));
            } else if number < pinned + self.plan.producers {
                if self.shared.jobs.load(Ordering::Relaxed) > self.plan.jobs_max {
                    thread::sleep(Duration::from_millis(5));
                } else {
                    self.put();
                }
            } else {
                self.work(&mut held);
            }
        }
        if self.stream.is_some() {
            let now = self.shared.clock.now();
            self.note(Asked::Leave, Reply::GaveUp, now);
            self.stream = None;
        }
        self.events
    }

    fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::Relaxed)
    }

    /// The first clients each have a server of their own. The others choose one each time.
    fn connect(&mut self) -> bool {
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
        self.connection += 1;
        self.stream = Some(BufReader::new(stream));
        true
    }

    fn put(&mut self) -> Reply {
        let ttr_s = self.random.pick(&TTRS_S);
        self.tokens += 1;
        let token = Token::new(self.number, self.tokens, ttr_s);
        let (pri, delay) = (self.random.below(4), u8::from(self.random.one_in(50)));
        let max = if self.random.one_in(20) { self.plan.body_bytes_max } else { 100 };
        let bytes = 16 + self.random.below(max);
        let text =
            format!("put {pri} {delay} {ttr_s} {bytes}\r\n{:0<bytes$}\r\n", format!("{:016x}", token.0));
        let reply = self.ask(Asked::Put(token), &text);
        if matches!(reply, Reply::Inserted(_)) {
            self.shared.jobs.fetch_add(1, Ordering::Relaxed);
        }
        if reply == Reply::Refused {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(10));
        }
        reply
    }

    /// Reserves a job and does something with it. `held` are jobs of connections that were lost.
    fn work(&mut self, held: &mut Vec<u64>) {
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
        let reply = self.ask(Asked::Reserve, &format!("reserve-with-timeout {RESERVE_S}\r\n"));
        if let Reply::Reserved(id, _) = reply {
            self.finish(id, held);
        }
    }

    fn finish(&mut self, id: u64, held: &mut Vec<u64>) {
        let begun = self.connection;
        match self.random.below(100) {
            0..60 => {
                if self.ask(Asked::Delete(id), &format!("delete {id}\r\n")) == Reply::Deleted {
                    self.shared.jobs.fetch_sub(1, Ordering::Relaxed);
                }
            }
            60..75 => {
                let delay = u8::from(self.random.one_in(10));
                self.ask(Asked::Release(id), &format!("release {id} 1 {delay}\r\n"));
            }
            75..85 => {
                if self.ask(Asked::Bury(id), &format!("bury {id} 1\r\n")) == Reply::Buried
                    && self.random.chance(60)
                {
                    self.bury_again(id);
                }
            }
            85..93 => {
                self.ask(Asked::Touch(id), &format!("touch {id}\r\n"));
                held.push(id);
            }
            // Work that takes a while.
            _ => {
                thread::sleep(Duration::from_millis(self.random.below(400) as u64));
                held.push(id);
            }
        }
        if self.stream.is_none() && self.connection == begun && self.random.chance(50) {
            held.push(id);
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
        let asked_at = self.shared.clock.now();
        let stream = self.stream.as_mut().expect("it is connected");
        let result = stream.get_mut().write_all(text.as_bytes()).and_then(|()| read(stream));
        let reply = result.unwrap_or_else(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Reply::GaveUp,
            _ => Reply::Closed,
        });
        self.note(asked, reply, asked_at);
        // After the time was noted: the server may pass on the jobs of this client at once.
        if matches!(reply, Reply::GaveUp | Reply::Closed) {
            self.stream = None;
        }
        reply
    }

    fn note(&mut self, asked: Asked, reply: Reply, asked_at: u64) {
        let replied_at = self.shared.clock.now();
        let (client, connection) = (self.number, self.connection);
        self.events.push(Event { client, connection, asked, reply, asked_at, replied_at });
        let newest = |last: &AtomicU64| last.fetch_max(asked_at, Ordering::Relaxed);
        match reply {
            Reply::Inserted(_) => {
                newest(&self.shared.accepted);
                newest(&self.shared.changed);
            }
            Reply::Deleted | Reply::Released | Reply::Buried | Reply::Reserved(..) => {
                newest(&self.shared.changed);
            }
            _ => return,
        }
        self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads a reply.
fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n") else { return Err(ErrorKind::UnexpectedEof.into()) };
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    Ok(match (words[0], number(1)) {
        ("INSERTED", Some(id)) => Reply::Inserted(id),
        ("RESERVED", Some(id)) => {
            let mut body = vec![0; number(2).expect("a size") as usize + 2];
            stream.read_exact(&mut body)?;
            let token = String::from_utf8_lossy(&body[..16]).into_owned();
            Reply::Reserved(id, Token(u64::from_str_radix(&token, 16).expect("a body of this suite")))
        }
        ("OUT_OF_MEMORY" | "DRAINING", _) => Reply::Refused,
        ("TIMED_OUT" | "DEADLINE_SOON", _) => Reply::Nothing,
        ("DELETED", _) => Reply::Deleted,
        ("RELEASED", _) => Reply::Released,
        ("BURIED", None) => Reply::Buried,
        ("KICKED", _) => Reply::Kicked,
        ("TOUCHED", _) => Reply::Touched,
        ("NOT_FOUND", _) => Reply::NotFound,
        // Nothing is known about the command then.
        ("INTERNAL_ERROR", _) => return Err(ErrorKind::Other.into()),
        _ => panic!("an unexpected reply: {line}"),
    })
}
