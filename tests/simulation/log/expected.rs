//! What clients know from replies, and so what recovery must find.

use std::collections::{BTreeMap, BTreeSet};

use beanring::queue::{LoggedState, PersistedState};
use beanring::time::Time;
use beanring::values::ids::JobId;

use beanring_testkit::random::Random;

/// A command of a client.
#[derive(Clone, Debug)]
pub enum Command {
    Put { pri: u32, delay: u32, body: Vec<u8> },
    ReserveJob(u64),
    Release { id: u64, pri: u32, delay: u32 },
    Bury { id: u64, pri: u32 },
    KickJob(u64),
    Delete(u64),
}

/// The state of a job after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Ready,
    Delayed,
    Buried,
    Gone,
}

/// The state of a job and its priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    place: Place,
    pri: u32,
}

#[derive(Clone, Debug)]
struct Job {
    body: Vec<u8>,
    /// Acknowledged states with their times. The last is the present one.
    acknowledged: Vec<(Time, Shape)>,
    /// States that it may have after the crash.
    maybe: Vec<Shape>,
    holder: Option<usize>,
    /// Whether a command on it has no reply yet. There is one at a time, so that their order is known.
    is_pending: bool,
}

#[derive(Default)]
pub struct Expected {
    jobs: BTreeMap<u64, Job>,
    /// Bodies of puts without a reply.
    unanswered: BTreeSet<Vec<u8>>,
    /// The largest id that was committed when the server ended last. No id up to this one may be given again.
    last_id: u64,
    bodies: u64,
}

impl Command {
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::Put { pri, delay, body } => {
                let line = format!("put {pri} {delay} 3600 {}\r\n", body.len());
                [line.as_bytes(), body, b"\r\n"].concat()
            }
            Self::ReserveJob(id) => format!("reserve-job {id}\r\n").into_bytes(),
            Self::Release { id, pri, delay } => format!("release {id} {pri} {delay}\r\n").into_bytes(),
            Self::Bury { id, pri } => format!("bury {id} {pri}\r\n").into_bytes(),
            Self::KickJob(id) => format!("kick-job {id}\r\n").into_bytes(),
            Self::Delete(id) => format!("delete {id}\r\n").into_bytes(),
        }
    }

    /// Returns the length of the reply at the beginning of `bytes`, if it is whole.
    pub fn reply_bytes(&self, bytes: &[u8]) -> Option<usize> {
        let line = bytes.iter().position(|&byte| byte == b'\n')? + 1;
        let words: Vec<&str> = std::str::from_utf8(&bytes[..line]).ok()?.split_ascii_whitespace().collect();
        let body = match words[..] {
            ["RESERVED", _, body] => body.parse::<usize>().ok()? + 2,
            _ => 0,
        };
        (bytes.len() >= line + body).then_some(line + body)
    }

    fn id(&self) -> Option<u64> {
        match *self {
            Self::Put { .. } => None,
            Self::ReserveJob(id)
            | Self::Release { id, .. }
            | Self::Bury { id, .. }
            | Self::KickJob(id)
            | Self::Delete(id) => Some(id),
        }
    }

    /// The state of a job after the command.
    fn shape(&self, before: Shape) -> Shape {
        let place = |delay: u32| if delay > 0 { Place::Delayed } else { Place::Ready };
        match *self {
            Self::Put { pri, delay, .. } | Self::Release { pri, delay, .. } => {
                Shape { place: place(delay), pri }
            }
            Self::Bury { pri, .. } => Shape { place: Place::Buried, pri },
            Self::KickJob(_) | Self::ReserveJob(_) => Shape { place: Place::Ready, ..before },
            Self::Delete(_) => Shape { place: Place::Gone, ..before },
        }
    }
}

impl Expected {
    pub fn next_command(&mut self, client: usize, random: &mut Random) -> Command {
        let pri = random.below(5) as u32;
        let delay = [0, 0, 100_000][random.below(3)];
        let count = self.jobs.len();
        let at = random.below(count.max(1));
        let other = self.jobs.iter().nth(at).filter(|(_, job)| !job.is_pending);
        let Some((&id, job)) = other.filter(|_| count > 5 && random.below(100) < 60) else {
            self.bodies += 1;
            let length = [20, 200, 3_000, 15_000][random.below(4)];
            let mut body = format!("body {} ", self.bodies).into_bytes();
            let fill = random.next();
            body.extend((0..length).map(|at| b'a' + ((fill >> (at % 50)) % 26) as u8));
            return Command::Put { pri, delay, body };
        };
        match random.below(8) {
            _ if job.holder.is_none() && random.below(3) > 0 => Command::ReserveJob(id),
            0..2 if job.holder == Some(client) => Command::Release { id, pri, delay },
            2..4 if job.holder == Some(client) => Command::Bury { id, pri },
            4 => Command::KickJob(id),
            _ => Command::Delete(id),
        }
    }

    pub fn sent(&mut self, command: &Command) {
        if let Command::Put { body, .. } = command {
            self.unanswered.insert(body.clone());
        }
        if let Some(job) = command.id().and_then(|id| self.jobs.get_mut(&id)) {
            job.is_pending = true;
        }
    }

    pub fn answered(&mut self, command: &Command, reply: &[u8], client: usize, now: Time) {
        let text = String::from_utf8_lossy(reply);
        if let Some(job) = command.id().and_then(|id| self.jobs.get_mut(&id)) {
            job.is_pending = false;
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        match (command, &words[..]) {
            (Command::Put { body, .. }, ["INSERTED", id]) => {
                let id: u64 = id.parse().expect("a number");
                let is_new = id > self.last_id && !self.jobs.contains_key(&id);
                assert!(is_new, "id {id} was given before");
                self.unanswered.remove(body);
                let shape = command.shape(Shape { place: Place::Ready, pri: 0 });
                let acknowledged = vec![(now, shape)];
                self.jobs.insert(
                    id,
                    Job {
                        body: body.clone(),
                        acknowledged,
                        maybe: Vec::new(),
                        holder: None,
                        is_pending: false,
                    },
                );
            }
            (Command::Put { body, .. }, ["OUT_OF_MEMORY"]) => {
                self.unanswered.remove(body);
            }
            (Command::ReserveJob(id), ["RESERVED", ..]) => {
                let job = self.jobs.get_mut(id).expect("it is known");
                assert!(reply.ends_with(&[&job.body[..], b"\r\n"].concat()), "the body of job {id}");
                job.holder = Some(client);
                self.settle(*id, command, now);
            }
            (_, ["RELEASED" | "BURIED" | "KICKED"]) => {
                let id = command.id().expect("the command names a job");
                self.jobs.get_mut(&id).expect("it is known").holder = None;
                self.settle(id, command, now);
            }
            (Command::Delete(id), ["DELETED"]) => self.settle(*id, command, now),
            (_, ["NOT_FOUND"]) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Takes an acknowledged change.
    fn settle(&mut self, id: u64, command: &Command, now: Time) {
        let job = self.jobs.get_mut(&id).expect("it is known");
        let before = job.acknowledged.last().expect("the job was put").1;
        job.acknowledged.push((now, command.shape(before)));
    }

    /// Takes the end of the server: a change that was acknowledged later than `committed_until`, or not at all, may have happened or
    /// not.
    pub fn forget_after(&mut self, committed_until: Time, unanswered: impl Iterator<Item = Command>) {
        for (&id, job) in &mut self.jobs {
            let safe = job.acknowledged.iter().rposition(|&(at, _)| at <= committed_until);
            job.maybe =
                job.acknowledged.split_off(safe.unwrap_or(0)).into_iter().map(|(_, shape)| shape).collect();
            if safe.is_some() {
                self.last_id = self.last_id.max(id);
            } else {
                job.maybe.push(Shape { place: Place::Gone, pri: 0 });
            }
            job.holder = None;
        }
        let unanswered: Vec<Command> = unanswered.collect();
        for command in &unanswered {
            let Some(job) = command.id().and_then(|id| self.jobs.get_mut(&id)) else { continue };
            let more: Vec<Shape> = job.maybe.iter().map(|&before| command.shape(before)).collect();
            job.maybe.extend(more);
        }
    }

    /// Compares with what recovery has found, and continues from that: it is on disk.
    pub fn compare(&mut self, found: BTreeMap<JobId, (Vec<u8>, PersistedState, String)>, upcoming: JobId) {
        assert!(upcoming.0 > self.last_id, "id {upcoming} was given before");
        let mut before = std::mem::take(&mut self.jobs);
        for (id, (body, kept, tube)) in found {
            assert_eq!(tube, "default");
            let body = body.strip_suffix(b"\r\n").expect("a body ends with CR LF").to_vec();
            let place = match kept.state {
                LoggedState::Ready => Place::Ready,
                LoggedState::Delayed(_) => Place::Delayed,
                LoggedState::Buried(_) => Place::Buried,
                LoggedState::Held(_) => panic!("no job of this test has tags"),
                LoggedState::Reserved(_) => panic!("reservations are not kept"),
            };
            let shape = Shape { place, pri: kept.pri };
            match before.remove(&id.0) {
                Some(job) => {
                    assert!(job.body == body, "job {id} has {:?}, not {:?}", start(&body), start(&job.body));
                    assert!(job.maybe.contains(&shape), "job {id} is {shape:?}, not one of {:?}", job.maybe);
                }
                None => assert!(self.unanswered.contains(&body), "job {id} was never put, or is deleted"),
            }
            self.last_id = self.last_id.max(id.0);
            let acknowledged = vec![(Time::ZERO, shape)];
            self.jobs
                .insert(id.0, Job { body, acknowledged, maybe: Vec::new(), holder: None, is_pending: false });
        }
        for (id, job) in before {
            let may_be_gone = job.maybe.iter().any(|shape| shape.place == Place::Gone);
            assert!(may_be_gone, "job {id} is lost: {:?}", job.maybe);
        }
        self.unanswered.clear();
    }
}

/// The beginning of a body, for messages.
fn start(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(20)]).into_owned()
}
