//! Peak RSS of a server process against `--max-memory`, for each kind of memory that is no job, with clients that send and do not
//! read, without TLS and over it. The kernel counts it, not the server.
//!
//! `BEANRING_TEST_ONLY_SCENARIOS=part` runs the kinds whose names contain the part.

use std::cell::RefCell;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring::values::account::Held;
use beanring_testkit::client::{Client, serve_under};
use beanring_testkit::driver::{self, under_each};
use beanring_testkit::process::{Address, ServerProcess, Transport};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::wait;

use super::sender::{Door, Over, Sender, Tls};

const MIB: u64 = 1024 * 1024;

/// Peak RSS above the limit that is allowed: pieces that the allocator keeps.
const EXCESS_PERCENT: u64 = 10;

/// Connections that an operator would permit at such limits.
const CONNECTIONS: usize = 1000;

/// Connections of a crowd whose replies are not read.
const CROWD: usize = 4000;

/// HTTP connections that a server has at a time.
const HTTP_CONNECTIONS: usize = 64;

/// How long connections are tried again whose bytes a busy server does not take.
const PATIENCE: Duration = Duration::from_millis(300);

/// How long a server that does not rest may go on after the last byte.
const AFTERMATH_MAX: Duration = Duration::from_millis(400);

/// The file of users, among the flags of a kind.
const USERS: &str = "users.toml";

/// Attacks at the same time: each waits much of the time.
const AT_ONCE: usize = 4;

/// Bytes of commands that are sent before their replies are read.
const AHEAD_BYTES: usize = 64 * 1024;

struct Kind {
    name: &'static str,
    limit_mib: u64,
    excess_percent: u64,
    flags: &'static [&'static str],
    attack: fn(&Target),
}

const fn kind(name: &'static str, limit_mib: u64, attack: fn(&Target)) -> Kind {
    Kind { name, limit_mib, excess_percent: EXCESS_PERCENT, flags: &[], attack }
}

const KINDS: &[Kind] = &[
    kind("unread replies of reserve-batch", 64, |target| {
        let mut client = target.client();
        fill(&mut client, 20_000, |_| put(1000, "0.1", ""));
        let batches: Rc<[u8]> = b"reserve-batch 1000\r\n"[..].into();
        for _ in 0..CONNECTIONS / 20 {
            target.send_unread(&target.clients, vec![batches.clone(); 20]);
            // The jobs time out, and others get them.
            client.await_stat("current-jobs-reserved", |count| count == 0);
        }
    }),
    kind("unread replies of stats", 64, |target| target.clients(&"stats\r\n".repeat(4000))),
    kind("unread replies of stats-job", 64, |target| {
        fill(&mut target.client(), 1, |_| put(1, "60", ""));
        target.clients(&"stats-job 1\r\n".repeat(4000));
    }),
    kind("unread replies of peek", 64, |target| {
        fill(&mut target.client(), 1, |_| put(60_000, "60", ""));
        target.clients(&"peek 1\r\n".repeat(1000));
    }),
    kind("unread replies of list-jobs", 64, |target| {
        fill(&mut target.client(), 1000, |_| put(1, "60", ""));
        target.clients(&"list-jobs default ready 0 1000\r\n".repeat(100));
    }),
    kind("unread replies of list-tubes", 64, |target| {
        tubes(&mut target.client(), 10_000, 50);
        target.clients(&"list-tubes\r\n".repeat(100));
    }),
    kind("unread replies of list-tubes while tubes come and go", 64, |target| {
        tubes(&mut target.client(), 10_000, 150);
        target.clients(&"list-tubes\r\n".repeat(100));
        for _ in 0..3 {
            tubes(&mut target.client(), 10_000, 150);
        }
    }),
    kind("input of clients that wait", 64, |target| {
        target.clients(&("reserve\r\n".to_owned() + &put(60_000, "60", "").repeat(20)));
    }),
    Kind {
        // A known limit (docs/internals/ARCHITECTURE.md): what the kernel has received for connections comes on top of bodies at the limit.
        excess_percent: 25,
        ..kind("unfinished put-batches", 64, |target| {
            target.clients(&("put-batch 1000\r\n".to_owned() + &put(1000, "60", "").repeat(900)));
        })
    },
    Kind {
        flags: &["-z", "100000000"],
        ..kind("announced large bodies", 64, |target| {
            target.clients(&("put 0 0 60 90000000\r\n".to_owned() + &"b".repeat(500_000)));
        })
    },
    kind("schedules with large bodies", 64, |target| {
        let accepted = fill(&mut target.client(), 10_000, |at| schedule(at, 65_000));
        assert!(accepted > 400, "{accepted} schedules");
    }),
    Kind {
        // As many unfinished bodies of jobs take as much.
        excess_percent: 25,
        ..kind("unfinished bodies of schedules", 64, |target| {
            let text = schedule(1, 65_000);
            target.clients(&text[..text.len() - 100]);
        })
    },
    kind("unread replies of list-schedules", 64, |target| {
        fill(&mut target.client(), 10_000, |at| schedule(at, 1));
        target.clients(&"list-schedules 1000\r\n".repeat(20));
    }),
    kind("long lines without an end", 64, |target| {
        target.clients(&("delete-batch ".to_owned() + &"1 ".repeat(900)));
    }),
    kind("API lists from a far offset", 128, |target| {
        tubes(&mut target.client(), 100_000, 12);
        target.requests("GET /api/v1/tubes?offset=4294967294");
    }),
    kind("API lists from a far offset, sorted", 128, |target| {
        tubes(&mut target.client(), 100_000, 12);
        target.requests("GET /api/v1/tubes?sort=ready&offset=4294967294");
    }),
    kind("unread API lists", 128, |target| {
        tubes(&mut target.client(), 20_000, 150);
        target.requests("GET /api/v1/tubes?sort=ready&limit=500");
    }),
    kind("unread pages of metrics", 64, |target| {
        tubes(&mut target.client(), 10_000, 150);
        target.requests("GET /metrics");
    }),
    Kind {
        flags: &["-z", "4000000"],
        ..kind("unread bodies over HTTP", 64, |target| {
            fill(&mut target.client(), 1, |_| put(4_000_000, "60", ""));
            target.requests("GET /api/v1/jobs/1/body");
        })
    },
    Kind {
        flags: &["-z", "8000000"],
        ..kind("unread bodies of ended jobs over HTTP", 64, |target| {
            bodies_of_ended_jobs(target, |id| target.http_one(&format!("GET /api/v1/jobs/{id}/body")));
        })
    },
    Kind {
        flags: &["-z", "8000000"],
        ..kind("unread bodies of ended jobs", 64, |target| {
            bodies_of_ended_jobs(target, |id| target.client_one(&format!("peek {id}\r\n")));
        })
    },
    kind("unread API lists of jobs", 64, |target| {
        fill(&mut target.client(), 20_000, |_| put(1, "60", ""));
        target.requests("GET /api/v1/tubes/default/jobs?limit=500");
    }),
    kind("bodies that arrive over HTTP", 64, |target| {
        let head = "POST /api/v1/tubes/default/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                    Content-Type: application/octet-stream\r\nContent-Length: 65000\r\n\r\n";
        target.http(&(head.to_owned() + &"b".repeat(64_000)));
    }),
    kind("watches", 64, |target| {
        target.each_client(|at| {
            (0..2000).map(|tube| format!("watch t{}\r\n", (at * 37 + tube) % 50_000)).collect()
        });
    }),
    kind("tubes with long names", 64, |target| tubes(&mut target.client(), 100_000, 190)),
    kind("rules", 64, |target| {
        let mut client = target.client();
        let config = |at: usize| format!("tube-config {} max-jobs 5\r\n", long(at, 190));
        fill(&mut client, 1200, config);
    }),
    kind("groups with long names", 64, |target| {
        fill(&mut target.client(), 400_000, |at| put(1, "60", &format!(" grp:{}", long(at, 190))));
    }),
    kind("concurrency keys with long names", 64, |target| {
        fill(&mut target.client(), 400_000, |at| put(1, "60", &format!(" con:{}", long(at, 190))));
    }),
    kind("large bodies after tags and names", 64, |target| {
        fill(&mut target.client(), 400_000, |at| {
            let (group, key) = (long(at, 190), long(at, 190));
            put(1, "60", &format!(" grp:{group} con:{key}"))
        });
        flush_and_fill(target);
    }),
    kind("large bodies after idempotency keys", 64, |target| {
        fill(&mut target.client(), 400_000, |at| put(1, "60", &format!(" idp:{}", long(at, 190))));
        flush_and_fill(target);
    }),
    kind("large bodies after small ones", 64, |target| {
        fill(&mut target.client(), 800_000, |_| put(40, "60", ""));
        flush_and_fill(target);
    }),
    kind("large bodies after tubes with long names", 64, |target| {
        tubes(&mut target.client(), 100_000, 190);
        let mut client = target.client();
        fill(&mut client, 100_000, |at| format!("flush-tube {}\r\n", long(at, 190)));
        flush_and_fill(target);
    }),
    Kind {
        excess_percent: 25,
        ..kind("large bodies after unfinished put-batches", 64, |target| {
            let puts = put(1, "60", &format!(" grp:{} con:{}", long(1, 190), long(2, 190))).repeat(990);
            let text: Rc<[u8]> = format!("put-batch 1000\r\n{puts}").into_bytes().into();
            target.send_unread(&target.clients, vec![text; CONNECTIONS * 2 / 5]);
            target.open.borrow_mut().clear();
            target.await_rest();
            flush_and_fill(target);
        })
    },
    kind("records of TLS without an end", 64, |target| {
        #[cfg(not(feature = "tls"))]
        let _ = target;
        #[cfg(feature = "tls")]
        target.send_all(
            (0..CONNECTIONS).map(|_| Sender::cut(&target.clients, [b'x'; 16_384][..].into())).collect(),
        );
    }),
    Kind {
        flags: &["--proxy-protocol", "tls-listen"],
        ..kind("headers of load balancers without an end", 64, |target| {
            let header: Rc<[u8]> = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x10\0"[..], &[1; 4095]].concat().into();
            target.send_all((0..CONNECTIONS).map(|_| Sender::raw(&target.clients, header.clone())).collect());
        })
    },
    Kind {
        flags: &["--auth", USERS],
        ..kind("wrong tokens beside many users", 64, |target| {
            target.clients(&format!("auth {}\r\n", "x".repeat(200)));
        })
    },
    kind("waits for jobs", 64, |target| {
        fill(&mut target.client(), 400, |_| put(1, "60", ""));
        target.each_client(|at| format!("wait-job {} 1000\r\n", at + 1));
    }),
    kind("jobs without bodies", 64, |target| {
        fill(&mut target.client(), 800_000, |_| put(0, "60", ""));
    }),
    kind("idle connections", 64, |target| target.clients("")),
];

/// A server under attack, and connections that stay open. All are UNIX sockets: the kernel takes up to 4 MiB of unread replies
/// per TCP connection off the server, and only some 200 KiB here.
struct Target {
    server: ServerProcess,
    clients: Door,
    http: Door,
    open: RefCell<Vec<Sender>>,
    _files: (Option<Scratch>, Option<Tls>),
}

impl Drop for Target {
    fn drop(&mut self) {
        // The server that is killed leaves them.
        for door in [&self.clients, &self.http] {
            let _ = fs::remove_file(&door.path);
        }
    }
}

/// Writes a file of users, if the flags name one: as many as may be, who have as many rights as fit.
fn users_file(flags: &[&str]) -> Option<Scratch> {
    flags.contains(&USERS).then(|| {
        let dir = Scratch::new("limits-users");
        let everything = "produce = [\"*\"]\nconsume = [\"*\"]\ninspect = [\"*\"]\nadmin = [\"*\"]\n";
        let mut text = format!("[anonymous]\n{everything}");
        for user in 0..255 {
            let patterns: Vec<String> =
                (0..20).map(|at| format!("\"{}.*\"", long(user * 64 + at, 30))).collect();
            text += &format!(
                "[users.u{user}]\ntoken = \"{}\"\nproduce = [{}]\n",
                long(user, 100),
                patterns.join(", ")
            );
        }
        let path = dir.join(USERS);
        fs::write(&path, text).expect("there is space");
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is ours");
        dir
    })
}

/// Returns the path of a socket of this test's own.
fn fresh_path() -> PathBuf {
    match Address::fresh(Transport::Unix) {
        Address::Unix(path) => path,
        other => unreachable!("{other} is none of UNIX sockets"),
    }
}

impl Target {
    fn start(io: Driver, over: Over, limit_mib: u64, flags: &[&str]) -> Self {
        let http = fresh_path();
        let (limit, listen) = (format!("{limit_mib}m"), format!("unix:{}", http.display()));
        let own = ["--max-memory", &limit, "--http", &listen, "--http-allow-writes", "--sub-second"];
        let users = users_file(flags);
        let path = users.as_ref().map(|dir| dir.join(USERS).display().to_string());
        let flags =
            flags.iter().map(|&flag| if flag == USERS { path.as_deref().unwrap_or(flag) } else { flag });
        let mut all: Vec<&str> = own.into_iter().chain(flags).collect();
        let tls = over.prepare();
        all.extend(tls.iter().flat_map(|tls| tls.flags.iter().map(String::as_str)));
        let (server, mut client) = serve_under(io, Transport::Unix, &all);
        // A reply shows that the server listens for HTTP too.
        client.stats();
        let clear = match server.address() {
            Address::Unix(path) => path.clone(),
            other => unreachable!("{other} is none of UNIX sockets"),
        };
        let [clients, http] = match &tls {
            None => [Door::clear(clear), Door::clear(http)],
            Some(tls) => [tls.door(tls.path.clone()), tls.door(http)],
        };
        Self { server, clients, http, open: RefCell::default(), _files: (users, tls) }
    }

    fn client(&self) -> Client {
        self.server.client()
    }

    /// Connects many clients, each of which sends the text and reads nothing.
    fn clients(&self, text: &str) {
        self.send_unread(&self.clients, vec![text.as_bytes().into(); CONNECTIONS]);
    }

    /// [`Self::clients`] with a text for each.
    fn each_client(&self, text: impl Fn(usize) -> String) {
        self.send_unread(&self.clients, (0..CONNECTIONS).map(|at| text(at).into_bytes().into()).collect());
    }

    /// Sends a request many times on each of many connections, and reads nothing.
    fn requests(&self, head: &str) {
        self.http(&format!("{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").repeat(30));
    }

    fn http(&self, text: &str) {
        self.send_unread(&self.http, vec![text.as_bytes().into(); HTTP_CONNECTIONS]);
    }

    fn http_one(&self, head: &str) {
        self.send_unread(
            &self.http,
            vec![format!("{head} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").into_bytes().into()],
        );
    }

    fn client_one(&self, text: &str) {
        self.send_unread(&self.clients, vec![text.as_bytes().into()]);
    }

    /// Sends a text on each of new connections, as far as the server takes it.
    fn send_unread(&self, door: &Door, texts: Vec<Rc<[u8]>>) {
        let senders = texts.into_iter().map(|bytes| Sender::connect(door, bytes)).collect();
        self.send_all(senders);
    }

    fn send_all(&self, mut senders: Vec<Sender>) {
        let mut progress = Instant::now();
        while progress.elapsed() < PATIENCE && senders.iter().any(|sender| !sender.is_done()) {
            let begun = Instant::now();
            for sender in &mut senders {
                if sender.send_now() {
                    progress = Instant::now();
                }
            }
            if progress < begun && self.server.is_at_rest() {
                break;
            }
        }
        self.open.borrow_mut().extend(senders);
    }

    fn await_rest(&self) {
        let begun = Instant::now();
        while !self.server.is_at_rest() && begun.elapsed() < AFTERMATH_MAX {}
    }

    /// The largest RSS that the process has had, in bytes.
    fn peak_rss_bytes(&self) -> u64 {
        1024 * self.server.status("VmHWM").trim_end_matches(" kB").parse::<u64>().expect("a number")
    }
}

/// Returns a name of this length.
fn long(at: usize, bytes: usize) -> String {
    format!("n{at:0width$}", width = bytes - 1)
}

fn put(bytes: usize, ttr: &str, tags: &str) -> String {
    format!("put 0 0 {ttr} {bytes}{tags}\r\n{}\r\n", "b".repeat(bytes))
}

/// Sends commands, each with a reply of one line, and reads the replies. Returns how many replies say that a job or a schedule is there.
fn fill(client: &mut Client, count: usize, command: impl Fn(usize) -> String) -> usize {
    let (mut inserted, mut sent) = (0, 0);
    while sent < count {
        let (from, mut text) = (sent, String::new());
        while sent < count && text.len() < AHEAD_BYTES {
            text += &command(sent);
            sent += 1;
        }
        client.send(&text);
        let before = inserted;
        for _ in from..sent {
            let line = client.line().expect("the server runs");
            inserted += usize::from(line.starts_with("INSERTED") || line == "SCHEDULED");
        }
        if inserted == before && from > 0 && command(0).starts_with("put") {
            break;
        }
    }
    inserted
}

/// Puts large jobs, asks for their bodies with `ask`, deletes the jobs, and fills the memory again while the bodies are not read.
fn bodies_of_ended_jobs(target: &Target, ask: impl Fn(u64)) {
    let mut client = target.client();
    for id in 1..=7 {
        let reply = client.ask(&put(7_000_000, "60", "")).0;
        // The last one fits only if nothing else takes memory at this moment.
        if id == 7 && reply == "OUT_OF_MEMORY" {
            break;
        }
        assert_eq!(reply, format!("INSERTED {id}"));
        ask(id);
        target.await_rest();
        client.expect(&format!("delete {id}\r\n"), "DELETED");
    }
    wait::until("puts of large jobs are accepted", || {
        client.ask(&put(7_000_000, "60", "")).0.starts_with("INSERTED")
    });
    // The server gives up the clients one after the other.
    let mut accepted = 0;
    wait::until("the memory is free for bodies", || {
        accepted += fill(&mut client, 2000, |_| put(60_000, "60", ""));
        accepted > 200
    });
}

/// Deletes the jobs of the tube `default`, and fills the memory with large bodies.
fn flush_and_fill(target: &Target) {
    let mut client = target.client();
    assert!(client.ask("flush-tube default\r\n").0.starts_with("FLUSHED"), "the jobs go");
    let accepted = fill(&mut client, 2000, |_| put(60_000, "60", ""));
    assert!(accepted > 400, "the memory is free for bodies: {accepted} of them");
}

/// Adds a schedule with a long name.
fn schedule(at: usize, body_bytes: usize) -> String {
    format!(
        "schedule-put {} 0 0 60 {body_bytes} mail every:1d\r\n{}\r\n",
        long(at, 190),
        "s".repeat(body_bytes)
    )
}

/// Creates tubes with names of this length, each with a job, as far as the server permits.
fn tubes(client: &mut Client, count: usize, name_bytes: usize) {
    let commands = |at: usize| {
        if at.is_multiple_of(2) { format!("use {}\r\n", long(at / 2, name_bytes)) } else { put(1, "60", "") }
    };
    fill(client, 2 * count, commands);
}

/// The attacks that fill memory of a kind. A new kind does not compile without one.
const fn attacks_of(held: Held) -> &'static [&'static str] {
    match held {
        Held::Sessions | Held::TlsConnections => &["idle connections"],
        Held::Inboxes => &["input of clients that wait"],
        Held::Lines => &["long lines without an end"],
        Held::Lists => {
            &["unread replies of list-tubes", "unread replies of list-tubes while tubes come and go"]
        }
        Held::Batches => &["unfinished put-batches"],
        Held::Replies | Held::TlsOutput => &[
            "unread replies of reserve-batch",
            "unread replies of stats",
            "unread replies of peek",
            "unread replies of list-jobs",
            "unread pages of metrics",
            "unread bodies over HTTP",
            "unread API lists of jobs",
        ],
        Held::HttpInput => &["bodies that arrive over HTTP"],
        Held::HttpWork => &["API lists from a far offset", "API lists from a far offset, sorted"],
        Held::Users => &["wrong tokens beside many users"],
        Held::TlsInput => &["records of TLS without an end"],
        Held::ProxyHeaders => &["headers of load balancers without an end"],
        // tests/replication/forward plays the leader that this takes.
        Held::Forwarded => &[],
    }
}

#[test]
fn every_kind_of_memory_has_an_attack() {
    for held in Held::ALL {
        for &name in attacks_of(held) {
            assert!(KINDS.iter().any(|kind| kind.name == name), "{held:?}: no attack is called {name}");
        }
    }
}

fn is_wanted(name: &str) -> bool {
    env::var("BEANRING_TEST_ONLY_SCENARIOS").map_or(true, |part| name.contains(&part))
}

#[test]
fn peak_rss_keeps_the_memory_limit() {
    let drivers: Vec<Driver> = driver::allowed("peak RSS").collect();
    let wanted = KINDS.iter().filter(|kind| is_wanted(kind.name));
    let mut attacks = Vec::new();
    for kind in wanted {
        for &io in &drivers {
            // Over TLS all drivers carry the same bytes.
            let over = Over::ALL.iter().filter(|&&over| over == Over::Clear || io == drivers[0]);
            attacks.extend(over.map(|&over| (io, over, kind)));
        }
    }
    let attacks = Mutex::new(attacks.into_iter());
    let red = Mutex::new(Vec::new());
    let next = || attacks.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((io, over, kind)) = next() {
                    red.lock().expect("no thread panics with the lock").extend(attack(io, over, kind));
                }
            });
        }
    });
    let red: Vec<String> = red.into_inner().expect("no thread panics with the lock");
    assert!(red.is_empty(), "RSS passes the limit:\n{}", red.join("\n"));
}

/// Returns a line if the memory passes the limit.
fn attack(io: Driver, over: Over, kind: &Kind) -> Option<String> {
    let target = Target::start(io, over, kind.limit_mib, kind.flags);
    (kind.attack)(&target);
    target.await_rest();
    let (peak, limit) = (target.peak_rss_bytes(), kind.limit_mib * MIB);
    let is_good = peak * 100 <= limit * (100 + kind.excess_percent);
    let line = format!(
        "{:<12} {:<6} {:<55} limit {:>4} MiB, peak RSS {:>7.1} MiB",
        io.name(),
        over.name(),
        kind.name,
        kind.limit_mib,
        peak as f64 / MIB as f64
    );
    println!("{:<4} {line}", if is_good { "" } else { "RED" });
    (!is_good).then_some(line)
}

/// A large body is sent from its place, so without TLS such replies take nearly nothing.
#[test]
fn a_crowd_that_does_not_read_takes_little_more_over_tls() {
    let Some(io) = driver::allowed("a crowd that does not read").next() else { return };
    let grown = |over: Over| {
        let target = Target::start(io, over, 64, &[]);
        fill(&mut target.client(), 1, |_| put(60_000, "60", ""));
        let crowd: Vec<Sender> =
            (0..CROWD).map(|_| Sender::connect(&target.clients, b"peek 1\r\n".repeat(20).into())).collect();
        target.await_rest();
        let before = target.server.resident_bytes() as u64;
        target.send_all(crowd);
        target.await_rest();
        let peak = target.peak_rss_bytes();
        println!("{} {}: {} KiB, and {} KiB before", io.name(), over.name(), peak / 1024, before / 1024);
        assert!(peak * 100 <= 64 * MIB * (100 + EXCESS_PERCENT), "peak RSS {peak} bytes");
        peak - before
    };
    let grown = Over::ALL.iter().map(|&over| grown(over));
    println!("{:?}", grown.collect::<Vec<_>>());
}

/// The first batch begins the tables of keys and groups.
#[test]
fn an_empty_server_accepts_a_batch_with_tags() {
    under_each("batches with tags", |io| {
        for tags in ["con:k", "grp:g", "aft:g", "grp:g aft:h", "idp:k"] {
            let target = Target::start(io, Over::Clear, 64, &[]);
            let puts: String = (0..1000)
                .map(|at| put(1, "60", &format!(" {}{at}", tags.replace(' ', &format!("{at} ")))))
                .collect();
            let mut client = target.client();
            client.send(&format!("put-batch 1000\r\n{puts}"));
            assert_eq!(client.line().as_deref(), Some("INSERTED_BATCH 1000"), "{}: {tags}", io.name());
        }
    });
}

#[test]
fn puts_are_accepted_after_a_flood_of_kept_keys() {
    under_each("kept keys", |io| {
        let target = Target::start(io, Over::Clear, 48, &[]);
        let mut client = target.client();
        for from in (0..200_000).step_by(100) {
            let puts =
                (from..from + 100).map(|at| put(1, "60", &format!(" idp:{}:4294967295", long(at, 100))));
            client.send(&puts.collect::<String>());
            let replies: Vec<String> = (0..100).map(|_| client.line().expect("the server runs")).collect();
            let ids: Vec<&str> = replies.iter().filter_map(|line| line.strip_prefix("INSERTED ")).collect();
            if ids.is_empty() {
                break;
            }
            client.send(&ids.iter().map(|id| format!("delete {id}\r\n")).collect::<String>());
            (0..ids.len()).for_each(|_| drop(client.line()));
        }
        let accepted = fill(&mut target.client(), 1000, |_| put(100, "60", ""));
        let peak = target.peak_rss_bytes() / MIB;
        println!("{}: {accepted} of 1,000 puts are accepted, peak RSS {peak} MiB", io.name());
        assert_eq!(accepted, 1000, "{}: puts after a flood of kept keys", io.name());
        assert!(peak * 100 <= 48 * (100 + EXCESS_PERCENT), "{}: peak RSS {peak} MiB", io.name());
    });
}
