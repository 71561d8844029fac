//! Compares the replies that each client gets with those of the model.

mod bulk;
mod commands;
mod put_batch;
mod reserves;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use beanring::protocol::announced::Follows;
use beanring::protocol::command::{Command, PutArgs};
use beanring::protocol::parse::{ParseError, parse, parse_decimals};
use beanring::protocol::reply::Reply;
use beanring::queue::{Engine, JobEnd, JobState, LoggedState, Repeated, RuleCounts};
use beanring::time::{Seconds, Time};
use beanring::values::ids::{ClientKey, ConnId, JobId};
use beanring::values::limits::{LINE_BYTES_LONG_MAX, LINE_BYTES_MAX};
use beanring::values::notes::NOTE_BYTES_MAX;

use self::bulk::Bulks;
use self::reserves::Draw;
use super::history::{DurableJob, DurableState, Fact, History, Key, Promise, notes_of};
use super::names::name_of;
use super::observed::{Step, StepKind};
use super::report::{self, Report, Totals};
use beanring_testkit::naive::{
    Conn, Job, Kept, Model, Place, RECOVERED, Stored, Tags, Told, Tube, number_of_tube,
};

/// The reply to a put for which the server is short of memory.
const REFUSAL: &[u8] = b"OUT_OF_MEMORY\r\n";

/// The model of the server, and the replies that follow from it.
pub struct Checker {
    pub model: Model,
    pub totals: Totals,
    pub clients: Vec<Client>,
    bodies: BTreeMap<u64, Rc<[u8]>>,
    history: History,
    bulks: Bulks,
    /// With a job log: how much the records of one put, or of a batch, come to at most.
    record_bytes_max: Option<usize>,
    pub has_memory_limit: bool,
    /// A job may be refused for lack of space.
    pub may_be_short: bool,
    /// A job may have been refused for lack of space. Then the number of ids taken is unknown.
    pub has_been_short: bool,
    /// The number of puts that lack of space may have refused since the start, or the rules of their tubes.
    unclear_refusals: u64,
    /// The disk has failed. Clients that wait for a commit get an error.
    pub has_failed: bool,
    /// A write may wait for space. Then the refusal of a job for lack of space does not wait for the changes before it.
    pub may_stall: bool,
}

/// One connection, as its client sees it.
#[derive(Default)]
pub struct Client {
    slot: u32,
    /// Everything that it has sent.
    sent: Vec<u8>,
    /// How much of `sent` the server has served.
    served: usize,
    /// How much of `sent` has arrived.
    pub arrived: usize,
    /// The job whose body is arriving.
    putting: Option<Putting>,
    put_batch: Option<put_batch::Batch>,
    /// The replies that it must get, in order, each with the number of steps that it reveals.
    expected: VecDeque<(usize, Expected)>,
    /// Received bytes that are not compared yet.
    received: Vec<u8>,
    input_ending: bool,
    has_left: bool,
    has_quit: bool,
    /// It has sent `quit`, so that the jobs that it holds have not failed.
    says_quit: bool,
    /// The number of jobs that its waiting reserve-batch takes.
    batch: Option<u32>,
    /// The job that this got first.
    first_of_batch: Option<u64>,
    /// The server draws jobs for its reserve.
    draw: Option<Draw>,
}

struct Putting {
    /// Of a `job-note`: its job.
    id: u64,
    args: PutArgs,
    tags: Tags,
    /// It may be refused for lack of space.
    may_be_short: bool,
}

enum Expected {
    Line(Vec<u8>),
    Data(Report),
    /// The reply to a `put` whose body is arriving.
    OfPut,
}

impl Checker {
    /// With a memory limit any job may be refused.
    pub fn new(max_job_bytes: u32, has_memory_limit: bool, record_bytes_max: Option<usize>) -> Self {
        Self {
            model: Model::new(),
            totals: Totals::new(max_job_bytes),
            clients: Vec::new(),
            bodies: BTreeMap::new(),
            history: History::default(),
            bulks: Bulks::default(),
            record_bytes_max,
            has_memory_limit,
            may_be_short: has_memory_limit,
            has_been_short: has_memory_limit,
            unclear_refusals: 0,
            has_failed: false,
            may_stall: false,
        }
    }

    // Inputs.

    /// A client connects.
    pub fn connected(&mut self, slot: u32, key: ClientKey) {
        self.model.connect(self.clients.len() as Conn, key);
        self.clients.push(Client { slot, ..Client::default() });
        self.totals.connections += 1;
        self.totals.total_connections += 1;
    }

    pub fn sent(&mut self, client: usize, bytes: &[u8]) {
        self.clients[client].sent.extend_from_slice(bytes);
    }

    /// The driver reports the end of the input to the server.
    pub fn input_ending(&mut self, client: usize) {
        let record = &mut self.clients[client];
        record.input_ending = true;
        if !record.has_left && self.model.get(client as Conn).is_blocked() {
            self.end_wait(client);
        }
        self.add_step();
    }

    /// The server has handled everything that was due.
    pub fn pass(&mut self, now: Time) {
        self.model.pass(now);
        self.take_notices();
        self.add_step();
    }

    /// The server ends. If its job log was behind, it may have returned jobs of recovered reservations in the middle of an iteration.
    pub fn ends(&mut self) {
        self.model.return_recovered();
        self.take_notices();
        self.add_step();
    }

    /// Runs in the model what the server did.
    pub fn observed(&mut self, step: Step) {
        let step = match step {
            Step::Of(step) => step,
            Step::Changes(unfinished) => {
                if self.changed(&unfinished) {
                    self.add_step();
                }
                return;
            }
        };
        let known = self.clients.iter().rposition(|client| client.slot == step.slot && !client.has_left);
        let client = known.unwrap_or_else(|| panic!("{step:?}: no client has this slot"));
        match step.kind {
            StepKind::Line(line) => self.line(client, Ok(&line)),
            StepKind::LineTooLong(follows) => self.line(client, Err(follows)),
            StepKind::Put { id, is_out_of_memory } => self.job(client, id, is_out_of_memory),
            StepKind::Note { is_out_of_memory, is_too_big } => {
                self.note(client, is_out_of_memory, is_too_big);
            }
            StepKind::PutBatch { first, is_out_of_memory } => {
                self.end_batch(client, first, is_out_of_memory);
            }
            StepKind::Batch(room) => self.take_batch(client, room),
            StepKind::Drawn(ids) => self.drawn(client, &ids),
            StepKind::Canceled => {
                let record = &self.clients[client];
                let next = &record.sent[record.served..record.arrived];
                assert!(next.starts_with(b"cancel-reserve\r\n"), "client {client} cancels nothing");
                assert!(self.model.get(client as Conn).is_blocked(), "client {client} does not wait");
                self.end_wait(client);
            }
            StepKind::Left => {
                self.clients[client].has_left = true;
                self.model.disconnect(client as Conn, self.clients[client].says_quit);
                self.totals.connections -= 1;
                self.take_notices();
            }
        }
        self.add_step();
    }

    // Outputs.

    /// Compares the next bytes for the client. The server has shown them to the driver, so it considers them committed.
    pub fn received(&mut self, client: usize, bytes: &[u8]) {
        let Self { model, clients, history, may_be_short, has_failed, may_stall, .. } = self;
        let record = &mut clients[client];
        record.received.extend_from_slice(bytes);
        while !record.received.is_empty() {
            let received = &record.received[..];
            if *has_failed && received == b"INTERNAL_ERROR\r\n" {
                record.received.clear();
                return;
            }
            let Some((steps, answer)) = record.expected.front() else {
                panic!(
                    "client {client} gets {:?}, but expects no reply",
                    received.escape_ascii().to_string()
                );
            };
            let is_refusal = received.starts_with(REFUSAL) || REFUSAL.starts_with(received);
            if !*may_stall || !is_refusal {
                history.reveal(*steps, model.now);
            }
            let length = match answer {
                Expected::Line(line) => {
                    let there = line.len().min(received.len());
                    let (is, should_be) = (received[..there].escape_ascii(), line[..there].escape_ascii());
                    assert!(
                        received[..there] == line[..there],
                        "client {client} gets {is} instead of {should_be}"
                    );
                    (there == line.len()).then_some(there)
                }
                Expected::Data(report) => report::reply_bytes(received)
                    .inspect(|&length| report::compare(&received[..length], report)),
                Expected::OfPut => {
                    let may_be_short =
                        *may_be_short || record.putting.as_ref().is_some_and(|put| put.may_be_short);
                    assert!(is_refusal && may_be_short, "client {client}: {}", received.escape_ascii());
                    let is_whole = received.len() >= REFUSAL.len();
                    is_whole.then(|| {
                        record.putting = None;
                        REFUSAL.len()
                    })
                }
            };
            let Some(length) = length else { return };
            record.received.drain(..length);
            record.expected.pop_front();
        }
    }

    /// Asserts that the client has every reply.
    ///
    /// # Panics
    /// If a reply is missing.
    pub fn assert_all_received(&self, client: usize, must_wait: bool) {
        let Client { expected, served, arrived, putting, .. } = &self.clients[client];
        let is_unfinished = served > arrived || must_wait && putting.is_some();
        let missing = expected.len() - usize::from(is_unfinished && !expected.is_empty());
        if missing > 0 {
            match &expected[0].1 {
                Expected::Line(line) => panic!("client {client} misses {}", line.escape_ascii()),
                Expected::Data(_) => panic!("client {client} misses a report"),
                Expected::OfPut => panic!("client {client} misses the reply to a put"),
            }
        }
    }

    /// Whether the server has served every complete line of the client that it can.
    pub fn all_served(&self, client: usize) -> bool {
        let Client { sent, served, arrived, has_left, has_quit, .. } = &self.clients[client];
        let is_served =
            *served >= *arrived || !sent[*served..*arrived].windows(2).any(|pair| pair == b"\r\n");
        is_served || *has_left || *has_quit || self.is_waiting(client)
    }

    /// A new server has recovered the queue of the last one.
    pub fn restarted(&mut self, engine: &Engine, promise: Promise, keeps_reservations: bool, now: Time) {
        let state = self.history.find(engine, promise, now);
        self.model = Model::new();
        self.model.now = now;
        self.model.keeps_reservations = keeps_reservations;
        self.model.last_id = engine.upcoming_id().0 - 1;
        restore(&mut self.model, &state, engine);
        self.totals = Totals::new(self.totals.max_job_bytes);
        self.clients.clear();
        self.bulks = Bulks::default();
        self.bodies.retain(|&id, _| state.contains_key(&Key::Job(id)));
        (self.may_be_short, self.has_been_short) = (self.has_memory_limit, self.has_memory_limit);
        (self.has_failed, self.unclear_refusals) = (false, 0);
        self.history = History::from(state, self.model.last_id);
        self.compare(engine);
    }

    /// Compares the observable state of the queue with the model.
    pub fn compare(&mut self, engine: &Engine) {
        // Jobs whose reservation was recovered have a client of the engine's own.
        let is_ours = |conn: ConnId| engine.has_recovered() && conn.slot == u32::MAX;
        let clients = || engine.clients().iter().filter(|(_, client)| !is_ours(client.conn));
        for (key, client) in clients() {
            let known = self.clients.iter().rposition(|known| known.slot == client.conn.slot);
            let conn = known.expect("the client has connected") as Conn;
            assert_eq!(client.is_waiting(), self.model.get(conn).wait.is_some(), "client {conn} waits");
            assert_eq!(key, self.model.get(conn).key);
        }
        assert_eq!(clients().count(), self.model.clients.len());
        self.model.compare(engine, name_of);
        assert_eq!(engine.unfinished_changes().count(), 0, "nothing is left unfinished");
        for job in &self.model.jobs {
            let key = engine.jobs().find(JobId(job.id)).expect("the job is there");
            assert!(engine.body(key) == &*self.bodies[&job.id], "job {} has its body", job.id);
        }
        let (counts, known) = (engine.rule_totals(), self.model.rule_totals);
        assert_eq!(RuleCounts { refusals: known.refusals, ..counts }, known, "what rules have led to");
        let refusals = known.refusals..=known.refusals + self.unclear_refusals;
        assert!(
            refusals.contains(&counts.refusals),
            "{} refusals by rules, not {refusals:?}",
            counts.refusals
        );
    }

    /// Whether the client waits, and its next line does not cancel that.
    fn is_waiting(&self, client: usize) -> bool {
        if self.is_changing(client) {
            return true;
        }
        let Client { sent, served, arrived, .. } = &self.clients[client];
        let is_canceling = sent[*served..*arrived].starts_with(b"cancel-reserve\r\n");
        self.model.get(client as Conn).is_blocked() && !is_canceling
    }

    /// Copies the tube keys of the engine, which decide the order of events at the same instant.
    pub fn learn_keys(&mut self, engine: &Engine) {
        for (key, tube) in engine.tubes().iter() {
            let name = number_of_tube(tube.name());
            if let Some(tube) = self.model.tubes.iter_mut().find(|tube| tube.name == name) {
                tube.key = key;
            }
        }
    }

    // Commands.

    /// Serves the next line that the client has sent: `served`, or one that is too long, with what follows it.
    fn line(&mut self, client: usize, served: Result<&[u8], Follows>) {
        let record = &mut self.clients[client];
        let rest = &record.sent[record.served..record.arrived];
        let length = rest.windows(2).position(|pair| pair == b"\r\n").expect("a whole line has arrived");
        let text = rest[..length].to_vec();
        let is_long = [
            "put ",
            "delete-batch ",
            "list-jobs ",
            "move-job ",
            "move-jobs ",
            "tube-config ",
            "schedule-put ",
        ]
        .iter()
        .any(|word| text.starts_with(word.as_bytes()));
        let bytes_max = if is_long { LINE_BYTES_LONG_MAX } else { LINE_BYTES_MAX };
        let is_too_long = length + 2 > bytes_max;
        let expected = if is_too_long { Err(Follows::line(&text)) } else { Ok(&text[..]) };
        assert!(
            served == expected,
            "client {client} sent {} next, but the server serves {}",
            text.escape_ascii(),
            served.unwrap_or(b"a line that is too long, or another one").escape_ascii()
        );
        record.served += length + 2;
        if let Some(put) = record.putting.take() {
            // The next line is read: there will be no job.
            assert!(
                self.may_be_short || put.may_be_short,
                "a job of client {client} is refused without reason"
            );
            let (_, answer) = record.expected.back_mut().expect("the put expects a reply");
            *answer = Expected::Line(REFUSAL.to_vec());
        }
        let is_waiting = self.model.get(client as Conn).is_blocked() || self.is_changing(client);
        assert!(!is_waiting, "client {client} is served while it waits");
        assert!(self.clients[client].draw.is_none(), "client {client} gets no job though there is one");
        if self.clients[client].put_batch.is_some() {
            return self.batch_line(client, &text, is_too_long);
        }
        match self.parse(&text) {
            _ if is_too_long => self.refuse_line(client, &text),
            Ok(command) => {
                self.totals.commands[command.kind() as usize] += 1;
                self.command(client, command);
            }
            Err(ParseError::BadFormat) => self.refuse_line(client, &text),
            Err(error) => self.answer(client, error.into()),
        }
        self.take_notices();
    }

    /// Parses a line as the server does with its flags.
    fn parse<'a>(&self, line: &'a [u8]) -> Result<Command<'a>, ParseError> {
        match parse(line) {
            Err(ParseError::BadFormat) if self.totals.sub_second => parse_decimals(line),
            parsed => parsed,
        }
    }

    /// Refuses a line outside of a batch, with the body that it announces.
    fn refuse_line(&mut self, client: usize, line: &[u8]) {
        match Follows::line(line) {
            Follows::Unknown => return self.lose_batch(client),
            Follows::Body(bytes) => self.clients[client].skip(bytes),
            Follows::Commands => {}
        }
        self.answer(client, Reply::BadFormat);
    }

    fn put(&mut self, client: usize, args: PutArgs, tags: Option<Tags>) {
        let record = &mut self.clients[client];
        record.skip(args.bytes);
        if args.bytes > self.totals.max_job_bytes {
            return self.answer(client, Reply::JobTooBig);
        }
        let Some(tags) = tags else { return self.answer(client, Reply::BadFormat) };
        let id = self.model.take_id(client as Conn);
        let may_be_short = self.may_be_short;
        self.clients[client].putting = Some(Putting { id, args, tags, may_be_short });
        self.push(client, Expected::OfPut);
    }

    /// Begins a note.
    fn begin_note(&mut self, client: usize, id: u64, bytes: u32) {
        self.clients[client].skip(bytes);
        if bytes > NOTE_BYTES_MAX {
            return self.answer(client, Reply::JobTooBig);
        }
        let args = PutArgs { pri: 0, delay: Seconds::ZERO, ttr: Seconds::ZERO, bytes };
        let (tags, may_be_short) = (Tags::default(), self.may_be_short);
        self.clients[client].putting = Some(Putting { id, args, tags, may_be_short });
        self.push(client, Expected::OfPut);
    }

    /// Keeps a note whose text is complete. Only the server knows whether a record has room for it.
    fn note(&mut self, client: usize, is_out_of_memory: bool, is_too_big: bool) {
        let record = &mut self.clients[client];
        let Putting { id, args, may_be_short, .. } = record.putting.take().expect("a note was announced");
        let text = record.sent[record.served - args.bytes as usize - 2..record.served].to_vec();
        let conn = client as Conn;
        let may_be_too_big = self.bodies.get(&id).is_some_and(|body| body.len() > 50_000);
        let reply = match text.strip_suffix(b"\r\n") {
            None => Reply::ExpectedCrlf,
            Some(_) if is_out_of_memory && (may_be_short || self.may_be_short) => Reply::OutOfMemory,
            Some(_) if is_too_big && may_be_too_big && self.model.holds(conn, id) => Reply::JobTooBig,
            Some(text) if self.model.note(conn, id, text) => Reply::Noted,
            Some(_) => Reply::NotFound,
        };
        let mut line = Vec::new();
        reply.render(&mut line);
        let (_, answer) = self.clients[client].expected.back_mut().expect("the note expects a reply");
        *answer = Expected::Line(line);
    }

    /// Puts a job whose body is complete.
    fn job(&mut self, client: usize, id: u64, is_out_of_memory: bool) {
        let record = &mut self.clients[client];
        let Putting { id: announced, args, tags, may_be_short } =
            record.putting.take().expect("a job was announced");
        let may_be_short = may_be_short || self.may_be_short;
        assert!(record.served <= record.arrived, "the body of job {id} has not arrived");
        let body: Rc<[u8]> = record.sent[record.served - args.bytes as usize - 2..record.served].into();
        // A job that was refused for lack of space may or may not have taken an id.
        let may_differ = self.has_been_short && id < announced && !self.bodies.contains_key(&id);
        assert!(id == announced || may_differ, "job {id} should be {announced}");
        let reply = if !body.ends_with(b"\r\n") {
            Reply::ExpectedCrlf
        } else if self.totals.draining {
            Reply::Draining
        } else if may_be_short && is_out_of_memory {
            self.unclear_refusals += 1;
            Reply::OutOfMemory
        } else {
            self.store(client, id, args, tags, body)
        };
        let mut line = Vec::new();
        reply.render(&mut line);
        let (_, answer) = self.clients[client].expected.back_mut().expect("the put expects a reply");
        *answer = Expected::Line(line);
        self.take_notices();
    }

    /// Stores a job with a new id, unless it repeats another or its tube is full.
    fn store(&mut self, client: usize, id: u64, args: PutArgs, tags: Tags, body: Rc<[u8]>) -> Reply<'static> {
        let PutArgs { pri, delay, ttr, bytes } = args;
        match self.model.store(client as Conn, id, pri, [delay, ttr], tags, bytes.into()) {
            Stored::Repeated(Repeated { id, state, pri }) => {
                Reply::Repeated { id, state: state.map_or("deleted", JobState::word), pri }
            }
            Stored::Refused => Reply::OutOfMemory,
            Stored::Job => {
                let before = self.bodies.insert(id, body);
                assert!(before.is_none(), "job {id} is new");
                Reply::Inserted(JobId(id))
            }
        }
    }

    fn job_or_not(&mut self, client: usize, id: Option<u64>, word: &str) {
        let Some(id) = id else { return self.answer(client, Reply::NotFound) };
        let body = &self.bodies[&id];
        let line = format!("{word} {id} {}\r\n", body.len() - 2);
        let answer = Expected::Line([line.as_bytes(), body].concat());
        self.push(client, answer);
    }

    fn answer(&mut self, client: usize, reply: Reply<'_>) {
        let mut line = Vec::new();
        reply.render(&mut line);
        self.push(client, Expected::Line(line));
    }

    fn push(&mut self, client: usize, answer: Expected) {
        self.clients[client].expected.push_back((usize::MAX, answer));
    }

    /// Adds the replies that the model makes to waiting clients.
    fn take_notices(&mut self) {
        for (conn, told) in std::mem::take(&mut self.model.told) {
            let client = conn as usize;
            match told {
                // The server takes the other jobs later.
                Told::Reserved(id) if self.clients[client].batch.is_some() => {
                    self.clients[client].first_of_batch = Some(id);
                    continue;
                }
                Told::Reserved(id) => self.job_or_not(client, Some(id), "RESERVED"),
                Told::TimedOut => self.answer(client, Reply::TimedOut),
                Told::DeadlineSoon => self.answer(client, Reply::DeadlineSoon),
                Told::JobEnded(JobEnd::Deleted) => self.answer(client, Reply::Deleted),
                Told::JobEnded(JobEnd::Buried) => self.answer(client, Reply::Buried),
            }
            self.clients[client].batch = None;
        }
    }

    /// Adds a step to the history. New replies reveal all steps so far.
    fn add_step(&mut self) {
        let steps = self.history.add_step(&self.model);
        for client in &mut self.clients {
            for (after, _) in client.expected.iter_mut().rev().take_while(|(after, _)| *after == usize::MAX) {
                *after = steps;
            }
        }
    }
}

/// Fills the model with the state of a server that has just started.
fn restore(model: &mut Model, state: &DurableState, engine: &Engine) {
    for (key, tube) in engine.tubes().iter() {
        let name = number_of_tube(tube.name());
        if name != 0 {
            model.tubes.push(Tube::new(name, key));
        }
    }
    for tube in &mut model.tubes {
        if let Some(&Fact::Pause(until, length)) = state.get(&Key::Pause(tube.name)) {
            tube.pause = Some((until, length));
        }
    }
    for (&key, &fact) in state {
        let (Key::Job(id), Fact::Job(durable)) = (key, fact) else { continue };
        let DurableJob { tube, tags, pri, delay, ttr, created, counts, state, .. } = durable;
        let key = engine.jobs().find(JobId(id)).expect("the job is there");
        let is_held = engine.jobs().get(key).state == JobState::Held;
        let place = match state {
            // Of a group that is done, the log has released a job, and the server will.
            LoggedState::Held(until) | LoggedState::Delayed(until) if is_held => {
                Place::Held { until, turn: id, is_free: false }
            }
            LoggedState::Delayed(until) => Place::Delayed { until },
            LoggedState::Buried(turn) => Place::Buried { turn },
            LoggedState::Reserved(until) => Place::Reserved { by: RECOVERED, until, turn: 0 },
            LoggedState::Ready | LoggedState::Held(_) => Place::Ready,
        };
        if let Place::Buried { turn } | Place::Held { turn, .. } = place {
            model.turns = model.turns.max(turn);
        }
        // The log does not always record when a job became ready. tests/log/restored.rs tests what recovery makes of it.
        let lifecycle = engine.jobs().lifecycle(key);
        let (since, is_fresh) = (lifecycle.map_or(created, |lifecycle| lifecycle.since), lifecycle.is_none());
        // The number of a burial is its time.
        let since =
            if let Place::Buried { turn } = place { Time::from_nanos(turn).min(model.now) } else { since };
        let bytes = engine.body(key).len() as u64 - 2;
        let entered = 0;
        model.jobs.push(Job {
            id,
            tube,
            pri,
            ttr,
            created,
            delay,
            place,
            since,
            counts,
            tags,
            bytes,
            entered,
            is_fresh,
            notes: notes_of(engine, key),
        });
    }
    for (&key, &fact) in state {
        if let (Key::Rule(tube, key), Fact::Rule(value)) = (key, fact) {
            model.set_rule(tube, key, Some(value));
        }
    }
    number_arrivals(model);
    model.kept = Kept::all_of(engine);
    model.note_done_groups();
}

/// Numbers restored jobs in the order in which they came to their places: as far as the log has it, and else by their ids.
fn number_arrivals(model: &mut Model) {
    model.jobs.sort_by_key(|job| match job.place {
        Place::Ready => (job.since.as_nanos(), job.id),
        Place::Delayed { until } => (until.as_nanos(), job.id),
        Place::Buried { turn } => (turn, job.id),
        Place::Reserved { .. } => (job.since.as_nanos(), job.id),
        Place::Held { .. } => (0, job.id),
    });
    for (job, number) in model.jobs.iter_mut().zip(1..) {
        job.entered = number;
        if let Place::Reserved { turn, .. } = &mut job.place {
            *turn = number;
        }
    }
    model.turns = model.turns.max(model.jobs.len() as u64);
    model.jobs.sort_by_key(|job| job.id);
}

impl Client {
    /// Takes a body and its CR LF from what the client sends next.
    const fn skip(&mut self, body_bytes: u32) {
        self.served += body_bytes as usize + 2;
    }

    /// Whether the server still serves it.
    pub const fn is_active(&self) -> bool {
        !self.has_left && !self.has_quit
    }
}
