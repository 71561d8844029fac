//! What a random run seldom meets: logs with gaps, with batches of several chunks, trimmed logs, and the end of a leader.

use beanring::queue::Engine;
use beanring::server::{Effect, Entry, Event, Protocol, Server, ServerRole, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::{ConnId, JobId};
use beanring::wal::replica::{
    ChunkHeader, Claim, Damage, DatabaseReply, Epoch, Failure, Fault, Follower, Kind, Member,
    PAYLOAD_BYTES_MAX, Page, Position, Progress, ReplicaConfig, Request, Standby, Term,
};
use beanring::wal::{Destination, Durability, LogReply, LogRequest, WalConfig};
use beanring_testkit::config::config;
use beanring_testkit::connection::send_all;
use bytes::Bytes;

use super::database::{Node, reply_to};

const BODY_BYTES_MAX: u32 = 2 * 1024 * 1024;
const LEASE: Span = Span::from_secs(3);

/// A leader, its database, and a client.
struct Rig {
    server: Server,
    node: Node,
    now: Time,
    conn: ConnId,
    /// Appends are not carried out.
    is_held: bool,
    held: Vec<Request>,
    renewals: usize,
}

pub fn replica_config(segment_bytes: u64, token: u64) -> ReplicaConfig {
    let wal = WalConfig {
        durability: Durability::Always,
        segment_bytes,
        keep_reservations: true,
        destination: Destination::Network { writes_in_flight_max: 4 },
    };
    ReplicaConfig { me: Member { token, lease: LEASE, ..Member::default() }, wal, forwards: true }
}

impl Rig {
    fn new(segment_bytes: u64) -> Self {
        Self::with_lease(segment_bytes, LEASE)
    }

    fn with_lease(segment_bytes: u64, lease: Span) -> Self {
        let now = Time::from_nanos(1_000_000_000_000);
        let mut replica = replica_config(segment_bytes, 1);
        replica.me.lease = lease;
        let server = Server::with_replica(config(BODY_BYTES_MAX), replica, now);
        let conn = ConnId { slot: 0, generation: 0 };
        let mut rig =
            Self { server, node: Node::new(false), now, conn, is_held: false, held: Vec::new(), renewals: 0 };
        rig.run();
        assert_eq!(rig.server.status().role, ServerRole::Serving);
        rig.conn = rig.server.accept(now, Protocol::Beanstalk, Entry::Plain(None));
        rig
    }

    fn run(&mut self) {
        for _ in 0..20 {
            self.server.turn(self.now);
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.server.poll_effect() {
            match effect {
                Effect::Log => {
                    while let Some(LogRequest::Database(request)) = self.server.poll_log_request(self.now) {
                        self.begin(*request);
                    }
                }
                Effect::Close(conn) => self.server.handle(self.now, Event::Closed { conn }),
                _ => {}
            }
        }
    }

    fn begin(&mut self, request: Request) {
        match request {
            Request::Watch(_) => {}
            Request::Append { .. } if self.is_held => self.held.push(request),
            _ => {
                self.renewals += usize::from(matches!(request, Request::Renew(_)));
                let answer = self.node.execute((0, 0), &request);
                while self.node.unreplicated() > 0 {
                    self.node.replicate_one();
                }
                self.server.handle(self.now, Event::Log(LogReply::Database(Box::new(answer.reply))));
            }
        }
    }

    fn say(&mut self, line: &str) -> String {
        let conn = self.conn;
        self.server.handle(self.now, Event::Received { conn, bytes: line.as_bytes() });
        self.run();
        let sent = send_all(&mut self.server, conn, self.now);
        self.run();
        String::from_utf8(sent).expect("replies are text")
    }

    fn put(&mut self, bytes: usize) {
        let reply = self.say(&format!("put 0 0 9 {bytes}\r\n{}\r\n", "x".repeat(bytes)));
        assert!(reply.starts_with("INSERTED") || self.is_held, "{reply}");
    }

    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
        self.run();
    }

    fn page(&self) -> Page {
        self.node.visible.page(Position::FIRST, usize::MAX)
    }
}

fn header(chunk: &(Position, Bytes)) -> ChunkHeader {
    ChunkHeader::decode(&chunk.1).expect("it is a chunk").0
}

/// The index of the first part of a batch that has three.
fn first_of_three(page: &Page) -> usize {
    page.chunks.iter().position(|chunk| header(chunk).parts == 3).expect("a batch has three parts")
}

fn follow(page: &Page) -> (Result<bool, Fault>, Follower, Engine) {
    let mut engine = Engine::new(0);
    let mut follower = Follower::new(page, None);
    (follower.apply(page, &mut engine), follower, engine)
}

#[test]
fn a_batch_counts_with_its_last_part() {
    let mut rig = Rig::new(8 * 1024 * 1024);
    rig.put(2 * PAYLOAD_BYTES_MAX + 1);
    let page = rig.page();
    let first = first_of_three(&page);
    for last in first..first + 3 {
        let part = Page { chunks: page.chunks[..=last].to_vec(), ..page.clone() };
        let (applied, follower, mut engine) = follow(&part);
        assert_eq!(applied, Ok(true));
        assert_eq!(follower.next(), page.chunks[last].0.next());
        let _ = follower.finish(&mut engine, rig.now);
        assert_eq!(engine.jobs().len(), usize::from(last == first + 2), "after {} parts", last - first + 1);
    }
}

#[test]
fn parts_before_an_epoch_are_void() {
    let mut rig = Rig::new(8 * 1024 * 1024);
    rig.put(1);
    rig.put(2 * PAYLOAD_BYTES_MAX + 1);
    let mut page = rig.page();
    let first = first_of_three(&page);
    let begun = header(&page.chunks[first]);
    page.chunks.truncate(first + 2);
    let position = page.chunks[first + 1].0.next();
    let epoch = ChunkHeader { kind: Kind::Epoch, epoch: Epoch(2), position, part: 0, parts: 0, ..begun };
    page.chunks.push((position, epoch.encode(&[])));
    let (applied, follower, mut engine) = follow(&page);
    assert_eq!(applied, Ok(true));
    assert_eq!((follower.end(), follower.epoch()), (begun.lsn, Epoch(2)));
    let _ = follower.finish(&mut engine, rig.now);
    assert_eq!(engine.jobs().len(), 1);
    // The parts must not continue behind the epoch.
    let part = ChunkHeader { epoch: Epoch(2), position: position.next(), part: 2, parts: 3, ..begun };
    page.chunks.push((position.next(), part.encode(b"rest")));
    assert_eq!(follow(&page).0, Err(Fault::Damaged(Damage::Chunk(position.next()))));
}

#[test]
fn a_chunk_is_missing_if_one_that_came_later_is_there() {
    let mut rig = Rig::new(64 * 1024);
    (0..8).for_each(|_| rig.put(10));
    let page = rig.page();
    let (from, last) = (3, page.chunks.len());
    for behind in 1..=4 {
        let mut gap = page.clone();
        gap.chunks.truncate(from + 1 + behind);
        let missing = gap.chunks.remove(from).0;
        // Each put was acknowledged before the next one, and the record of the next one says that.
        assert_eq!(
            follow(&gap).0,
            Err(Fault::Damaged(Damage::Missing(missing))),
            "{behind} chunks behind it"
        );
    }
    let mut far = page.clone();
    let missing = far.chunks[from].0;
    far.chunks.drain(from..last - 1);
    assert_eq!(follow(&far).0, Err(Fault::Damaged(Damage::Missing(missing))));
}

#[test]
fn a_chunk_may_be_missing_while_its_append_is_in_flight() {
    let mut rig = Rig::new(64 * 1024);
    rig.put(10);
    let before = rig.page().chunks.len();
    rig.is_held = true;
    // With one append in flight, a batch waits until it is as large as that one.
    rig.put(10);
    rig.put(2000);
    rig.put(9000);
    assert!(rig.held.len() > 1, "{} appends are in flight", rig.held.len());
    for request in std::mem::take(&mut rig.held).into_iter().skip(1) {
        rig.node.execute((0, 0), &request);
    }
    let (applied, follower, _) = follow(&rig.page());
    assert_eq!(applied, Ok(true));
    assert_eq!(follower.next().0, before as u64 + 1);
}

#[test]
fn an_acknowledged_chunk_that_is_gone_is_missed_by_a_standby_that_reads_again() {
    let mut rig = Rig::new(64 * 1024);
    (0..4).for_each(|_| rig.put(10));
    let mut page = rig.page();
    let (_, follower, _) = follow(&page);
    let witness = follower.witness().expect("all but the last batch are proven");
    let again = |page: &Page| {
        let mut follower = Follower::new(page, Some(witness));
        follower.apply(page, &mut Engine::new(0))
    };
    assert_eq!(again(&page), Ok(true));
    let last = page.chunks.pop().expect("there are chunks").0;
    page.end = last.previous();
    assert_eq!(again(&page), Ok(true), "the last batch is not proven");
    page.chunks.pop();
    page.end = page.end.previous();
    assert_eq!(again(&page), Err(Fault::Damaged(Damage::Missing(last.previous()))));
    page.end = last;
    assert_eq!(again(&page), Ok(true), "it may be on the next page");
}

#[test]
fn the_beginning_of_a_segment_without_records_is_not_proven_by_those_that_follow() {
    let mut rig = Rig::new(64 * 1024);
    rig.put(10);
    let page = rig.page();
    assert_eq!(page.chunks.len(), 3, "the epoch, a segment without records, and one record");
    let (_, follower, _) = follow(&page);
    assert_eq!(
        follower.witness(),
        None,
        "a log without records is acknowledged to its end from the beginning"
    );
    rig.put(10);
    let (_, follower, _) = follow(&rig.page());
    assert!(follower.witness().is_some());
}

#[test]
fn a_trimmed_log_begins_with_a_segment() {
    let mut rig = Rig::new(64 * 1024);
    let before = rig.page();
    let (_, mut follower, mut engine) = follow(&before);
    for id in 1..200 {
        rig.put(3000);
        assert_eq!(rig.say(&format!("delete {id}\r\n")), "DELETED\r\n");
    }
    let page = rig.page();
    assert!(page.begin > Position::FIRST, "the log is trimmed");
    assert_eq!((header(&page.chunks[0]).kind, header(&page.chunks[0]).part), (Kind::Data, 0));
    let (applied, again, _) = follow(&page);
    assert_eq!(applied, Ok(true));
    assert!(again.is_complete());
    // A standby that was slower reads from the beginning.
    assert_eq!(follower.apply(&page, &mut engine), Err(Fault::Diverged));
    let mut shorter = page.clone();
    shorter.begin = shorter.begin.next();
    shorter.chunks.remove(0);
    assert!(follow(&shorter).0.is_err(), "a log cannot begin within a segment");
}

/// A busy leader makes no requests to prove its replies but its appends.
#[test]
fn replies_that_wait_beside_appends_are_proven_by_the_next_one() {
    let mut rig = Rig::new(64 * 1024);
    rig.put(10);
    rig.is_held = true;
    let before = rig.renewals;
    // Smaller ones gather until that is acknowledged.
    rig.put(1000);
    (0..3).for_each(|_| rig.put(10));
    rig.say("peek 1\r\n");
    assert_eq!((rig.held.len(), rig.renewals), (1, before));
    // The end of this append is unknown: until it is repeated, only a renewal can prove something.
    let reply = reply_to(&rig.held.remove(0), Err(Failure::Unknown));
    rig.server.handle(rig.now, Event::Log(LogReply::Database(Box::new(reply))));
    rig.run();
    assert_eq!(rig.renewals, before + 1);
    rig.pass(Span::from_millis(20));
    rig.is_held = false;
    while let Some(append) = rig.held.pop() {
        rig.begin(append);
        rig.run();
    }
    assert_eq!(rig.renewals, before + 1);
    // Beside an append, nothing gathers: a renewal is the next request.
    rig.is_held = true;
    rig.put(10);
    rig.say("peek 1\r\n");
    assert_eq!((rig.held.len(), rig.renewals), (1, before + 2));
}

#[test]
fn nothing_follows_a_farewell() {
    let mut rig = Rig::new(64 * 1024);
    rig.put(10);
    assert!(rig.say("reserve\r\n").starts_with("RESERVED 1 "));
    rig.pass(Span::from_secs(2));
    rig.is_held = true;
    rig.server.handle(rig.now, Event::Stop);
    rig.run();
    let [Request::Append { chunk, .. }] = &rig.held[..] else { panic!("{:?}", rig.held) };
    assert_eq!(ChunkHeader::decode(chunk).expect("it is a chunk").0.kind, Kind::Farewell);
    assert!(!rig.server.status().is_settled, "the farewell is not acknowledged");
    // The job of the client becomes ready, which is a record.
    rig.server.handle(rig.now, Event::HungUp { conn: rig.conn });
    rig.run();
    assert_eq!(rig.held.len(), 1);
    let farewell = rig.held.pop().expect("there is one");
    rig.is_held = false;
    rig.begin(farewell);
    rig.run();
    assert!(rig.server.status().is_settled);
    let (applied, follower, mut engine) = follow(&rig.page());
    assert_eq!(applied, Ok(true));
    assert!(follower.has_left());
    let _ = follower.finish(&mut engine, rig.now);
    assert!(engine.jobs().find(JobId(1)).is_some());
}

/// A standby that is driven by hand, and its database.
struct Watcher {
    standby: Standby,
    engine: Engine,
    node: Node,
    now: Time,
}

impl Watcher {
    /// A standby of a leader that is silent after its first job.
    fn new() -> Self {
        Self::of(Rig::new(64 * 1024))
    }

    fn of(mut rig: Rig) -> Self {
        rig.put(10);
        let now = Time::from_nanos(5_000_000_000_000);
        let standby = Standby::new(replica_config(64 * 1024, 2), now);
        Self { standby, engine: Engine::new(0), node: rig.node, now }
    }

    /// Lets time pass until it asks for something else than a page or a lock.
    fn next_request(&mut self, within: Span) -> Option<Request> {
        let until = self.now + within;
        loop {
            match self.standby.next_request(self.now) {
                Some(request @ Request::Read { .. }) => {
                    let reply = self.node.execute((1, 0), &request).reply;
                    assert_eq!(self.complete(reply), Progress::Following);
                }
                Some(Request::Watch(_)) => {}
                Some(other) => return Some(other),
                None if self.now >= until => return None,
                None => self.now = self.now + Span::from_millis(5),
            }
        }
    }

    /// Lets time pass until it claims.
    fn claim(&mut self, within: Span) -> Claim {
        match self.next_request(within) {
            Some(Request::Claim(claim)) => claim,
            other => panic!("{other:?} instead of a claim"),
        }
    }

    /// Asserts that it follows after this result of its claim.
    fn follow_after(&mut self, result: Result<(), Failure>) {
        assert_eq!(self.complete(DatabaseReply::Claimed(result)), Progress::Following);
    }

    /// Asserts that it proves a claim by a renewal, and what becomes of it after this result.
    fn prove(&mut self, result: Result<(), Failure>, progress: Progress) {
        let renewal = self.next_request(LEASE).expect("it proves the claim");
        assert_eq!(renewal, Request::Renew(Term { epoch: Epoch(2), token: 2 }));
        assert_eq!(self.complete(reply_to(&renewal, result)), progress);
    }

    fn complete(&mut self, reply: DatabaseReply) -> Progress {
        self.standby.complete(reply, &mut self.engine, self.now)
    }

    /// The database receives a claim of a process.
    fn receive(&mut self, host: usize, claim: &Claim) -> DatabaseReply {
        self.node.execute((host, 0), &Request::Claim(claim.clone())).reply
    }

    /// The last chunk of the log.
    fn last(&self) -> (u64, Bytes) {
        let (&position, chunk) = self.node.visible.chunks.last_key_value().expect("it has chunks");
        (position, chunk.clone())
    }
}

const LONG: Span = Span::from_secs(9);

#[test]
fn a_standby_claims_after_one_and_a_quarter_leases() {
    let mut watcher = Watcher::new();
    let begun = watcher.now;
    watcher.claim(LONG);
    let waited = watcher.now.since(begun);
    assert!((Span::from_millis(3750)..Span::from_millis(3850)).contains(&waited), "{waited:?}");
}

#[test]
fn a_standby_waits_for_the_lease_of_the_leader_if_its_own_is_shorter() {
    let lease = Span::from_secs(20);
    let mut watcher = Watcher::of(Rig::with_lease(64 * 1024, lease));
    assert_eq!(watcher.next_request(lease), None);
    assert!(!watcher.standby.is_leader_gone(watcher.now));
    watcher.claim(Span::from_secs(6));
}

#[test]
fn a_claim_is_refused_if_a_chunk_before_it_is_not_the_one_that_was_read() {
    let mut watcher = Watcher::new();
    let claim = watcher.claim(LONG);
    let last = claim.position.previous();
    let other = watcher.node.visible.chunks[&last.0].clone();
    watcher.node.damage(last.previous().0, Some(&other));
    assert_eq!(watcher.receive(1, &claim), DatabaseReply::Claimed(Err(Failure::Taken)));
}

#[test]
fn a_claim_that_is_visible_must_be_proven() {
    let mut watcher = Watcher::new();
    let claim = watcher.claim(LONG);
    watcher.receive(1, &claim);
    watcher.follow_after(Err(Failure::Unknown));
    watcher.prove(Err(Failure::Unknown), Progress::Following);
    watcher.prove(Ok(()), Progress::Leads);
}

#[test]
fn a_claim_of_which_nothing_is_seen_is_begun_again() {
    let mut watcher = Watcher::new();
    let claim = watcher.claim(LONG);
    watcher.follow_after(Err(Failure::Unknown));
    assert_eq!(watcher.next_request(Span::from_secs(2)), None, "the claim may still be carried out");
    let again = watcher.claim(Span::from_secs(2));
    assert_eq!((again.seen, again.position), (claim.seen, claim.position));
    assert_ne!(again.leader.token, claim.leader.token, "each has a token of its own");
}

#[test]
fn a_claim_that_is_carried_out_late_is_led_by_its_process() {
    let mut watcher = Watcher::new();
    let claim = watcher.claim(LONG);
    watcher.follow_after(Err(Failure::Unknown));
    watcher.claim(LONG);
    watcher.receive(1, &claim);
    watcher.follow_after(Err(Failure::Fenced));
    watcher.prove(Ok(()), Progress::Leads);
}

#[test]
fn a_claim_of_the_same_epoch_by_another_process_is_not_its_own() {
    let mut watcher = Watcher::new();
    let mut other = watcher.claim(LONG);
    watcher.follow_after(Err(Failure::Unknown));
    other.leader.token = 1003;
    watcher.receive(2, &other);
    assert_eq!(watcher.next_request(Span::from_secs(3)), None);
    assert_eq!(watcher.standby.leader().map(|leader| leader.token), Some(1003));
    let fenced = watcher.node.execute((1, 0), &Request::Renew(Term { epoch: Epoch(2), token: 2 })).reply;
    assert_eq!(fenced, DatabaseReply::Renewed(Err(Failure::Fenced)));
}

#[test]
fn a_claim_does_not_ask_for_trimmed_chunks() {
    let mut watcher = Watcher::new();
    assert_eq!(watcher.next_request(Span::from_secs(1)), None);
    let before = Position(watcher.last().0);
    watcher.node.execute((0, 0), &Request::Trim { term: Term { epoch: Epoch(1), token: 1 }, before });
    watcher.node.show_all();
    let claim = watcher.claim(LONG);
    assert_eq!(watcher.receive(1, &claim), DatabaseReply::Claimed(Ok(())));
}

#[test]
fn a_chunk_that_comes_before_one_that_was_read_is_news() {
    let mut watcher = Watcher::new();
    let (last, chunk) = watcher.last();
    let (next, last) = (last + 1, ChunkHeader::decode(&chunk).expect("it is whole").0);
    let append = |watcher: &mut Watcher, position: u64| {
        let (position, term) = (Position(position), Term { epoch: Epoch(1), token: 1 });
        let chunk = ChunkHeader { position, part: 0, parts: 1, ..last }.encode(b"x");
        watcher.node.execute((0, 0), &Request::Append { term, position, chunk, is_repeated: false });
        watcher.node.show_all();
    };
    append(&mut watcher, next + 3);
    assert_eq!(watcher.next_request(Span::from_secs(3)), None);
    append(&mut watcher, next + 1);
    assert_eq!(watcher.next_request(Span::from_secs(3)), None, "the leader was there");
    let claim = watcher.claim(Span::from_secs(1));
    // The leader fills the gap further, and no read shows it.
    assert_eq!((claim.position, claim.behind), (Position(next), 2));
    append(&mut watcher, next + 2);
    assert_eq!(watcher.receive(1, &claim), DatabaseReply::Claimed(Err(Failure::Taken)));
}

/// After a fail-over of the database, the same process may lead an epoch of the same number once more.
#[test]
fn a_process_that_claims_again_is_another_leader() {
    let mut watcher = Watcher::new();
    let first = watcher.claim(LONG);
    watcher.follow_after(Err(Failure::Fenced));
    let second = watcher.claim(LONG);
    assert_eq!(first.seen, second.seen);
    assert_ne!(first.leader.token, second.leader.token);
    assert_ne!(first.chunk, second.chunk);
}

/// After a fail-over of the database, another process may lead the epoch whose leader was watched.
#[test]
fn the_lock_of_another_leader_of_the_same_epoch_does_not_count() {
    let mut watcher = Watcher::new();
    let mut other = watcher.claim(LONG);
    watcher.follow_after(Err(Failure::Fenced));
    let before = watcher.node.clone();
    for token in [1003, 1004] {
        watcher.node = before.clone();
        other.leader.token = token;
        watcher.receive(2, &other);
        assert_eq!(watcher.next_request(Span::from_millis(100)), None);
    }
    let ended = DatabaseReply::Watched { term: Term { epoch: Epoch(2), token: 1003 }, result: Ok(()) };
    assert_eq!(watcher.complete(ended), Progress::Following);
    assert_eq!(watcher.next_request(Span::from_secs(3)), None, "the second one may still answer");
    watcher.claim(Span::from_secs(1));
}

#[test]
fn a_standby_that_cannot_follow_still_knows_who_leads() {
    let mut rig = Rig::new(64 * 1024);
    rig.put(10);
    let (page, mut now) = (rig.page(), rig.now);
    let mut damaged = page.clone();
    let (_, last) = damaged.chunks.last_mut().expect("there is one");
    *last = flipped(last, 70);
    let mut standby = Standby::new(replica_config(64 * 1024, 2), now);
    let mut engine = Engine::new(0);
    let mut complete = |standby: &mut Standby, page: Page, restarts: bool| {
        now = now + Span::from_secs(10);
        assert!(matches!(standby.next_request(now), Some(Request::Read { .. })));
        let progress = standby.complete(DatabaseReply::Read(Ok(page)), &mut engine, now);
        assert_eq!(matches!(progress, Progress::Restarted(Fault::Damaged(_))), restarts, "{progress:?}");
        (standby.leader().map(|leader| leader.token), standby.damage().is_some())
    };
    assert_eq!(complete(&mut standby, damaged.clone(), true), (Some(1), true));
    // The damage may be behind the first page of several.
    let mut first = page.clone();
    first.chunks.truncate(1);
    assert_eq!(complete(&mut standby, first, false), (Some(1), true));
    assert_eq!(complete(&mut standby, damaged, true), (Some(1), true));
    assert_eq!(complete(&mut standby, page, false), (Some(1), false));
}

fn flipped(chunk: &Bytes, at: usize) -> Bytes {
    let mut bytes = chunk.to_vec();
    bytes[at] ^= 1;
    bytes.into()
}
