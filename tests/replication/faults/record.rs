//! What clients have asked, and what was replied.

use std::time::Instant;

/// The clock of a record, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

/// The tubes of a run. Workers watch all of them.
pub const TUBES: [&str; 4] = ["default", "bulk", "mail", "dead"];

/// The job has an idempotency key, and is in the tube `bulk`.
pub const KEYED: u8 = 1 << 6;

/// The job is in the tube `mail`, which has rules: after [`ATTEMPTS_MAX`] releases and time-outs it moves to `dead`.
pub const RULED: u8 = 2 << 6;

pub const ATTEMPTS_MAX: usize = 2;

/// Concurrency keys are numbered from 1 to this. A kind above it is of a job that waits for the members of a group.
pub const CONCURRENCY_KEYS: u8 = 31;

/// What a body begins with. It tells which put it is of, the kind of the job, and its time to run:
///
/// ```text
/// kind (8 bits): tube (2), concurrency key or 32 + number of members (6)
/// client (16), number of its put (32), time to run in seconds (8)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Token(pub u64);

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    Put(Token),
    Reserve,
    Delete(u64),
    Release(u64),
    Bury(u64),
    Kick(u64),
    Touch(u64),
    /// `wait-job`.
    Wait(u64),
    /// Gives the tube `mail` a rule with this value.
    Rule(u64),
    /// The client sends nothing: it closes its connection, or has found it closed.
    Leave,
}

/// A reply, or why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    Inserted(u64),
    /// The put has repeated a key. Its job is there, or was deleted.
    Repeated(u64),
    Finished(u64),
    /// The put was refused: there is no such job.
    Refused,
    Reserved(u64, Token),
    /// A reserve without a job.
    Nothing,
    Deleted,
    Released,
    Buried,
    Kicked,
    Touched,
    NotFound,
    /// A batch has deleted some of its jobs, maybe this one.
    MaybeDeleted,
    /// The end of a wait: the job was deleted, or is buried.
    Gone,
    SeenBuried,
    Configured,
    /// The server has closed the connection.
    Closed,
    /// The client has waited too long and closed it.
    GaveUp,
}

/// A command with its reply.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub client: u16,
    /// Counts the connections of the client.
    pub connection: u32,
    pub asked: Asked,
    pub reply: Reply,
    pub asked_at: u64,
    pub replied_at: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock {
    pub fn now(self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}

impl Token {
    pub const fn new(client: u16, number: u32, ttr_s: u8) -> Self {
        Self((client as u64) << 40 | (number as u64) << 8 | ttr_s as u64)
    }

    /// The same of a job of this kind.
    pub const fn of_kind(self, kind: u8) -> Self {
        Self(self.0 & (u64::MAX >> 8) | (kind as u64) << 56)
    }

    const fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    pub const fn is_keyed(self) -> bool {
        self.kind() & KEYED != 0
    }

    pub const fn tube(self) -> &'static str {
        TUBES[(self.kind() >> 6) as usize]
    }

    /// The concurrency key, and its limit.
    pub const fn concurrency(self) -> Option<(u8, usize)> {
        match self.kind() & 63 {
            key @ 1..=CONCURRENCY_KEYS => Some((key, 1 + key as usize % 2)),
            _ => None,
        }
    }

    /// The jobs that this one waits for: those that the client has put just before it.
    pub fn members(self) -> impl Iterator<Item = Self> {
        let count = u64::from((self.kind() & 63).saturating_sub(1 + CONCURRENCY_KEYS));
        (1..=count).map(move |at| Self(self.of_kind(KEYED).0 - (at << 8)))
    }

    pub const fn ttr_s(self) -> u64 {
        self.0 & 0xff
    }

    pub const fn ttr(self) -> u64 {
        self.ttr_s() * 1_000_000
    }
}

impl Asked {
    /// The job that the command names.
    pub const fn id(self) -> Option<u64> {
        match self {
            Self::Delete(id)
            | Self::Release(id)
            | Self::Bury(id)
            | Self::Kick(id)
            | Self::Touch(id)
            | Self::Wait(id) => Some(id),
            Self::Put(_) | Self::Reserve | Self::Rule(_) | Self::Leave => None,
        }
    }
}

impl Event {
    /// The job that the event is about, if that is known.
    pub const fn id(&self) -> Option<u64> {
        match self.reply {
            Reply::Inserted(id) | Reply::Repeated(id) | Reply::Finished(id) | Reply::Reserved(id, _) => {
                Some(id)
            }
            _ => self.asked.id(),
        }
    }

    /// Whether the command may have been executed without a reply.
    pub const fn is_lost(&self) -> bool {
        matches!(self.reply, Reply::Closed | Reply::GaveUp)
    }

    /// The job and its token, if the event tells both.
    pub const fn identity(&self) -> Option<(u64, Token)> {
        match (self.asked, self.reply) {
            (Asked::Put(token), Reply::Inserted(id) | Reply::Repeated(id) | Reply::Finished(id))
            | (_, Reply::Reserved(id, token)) => Some((id, token)),
            _ => None,
        }
    }

    /// Whether the reply shows that the job is there.
    pub const fn shows_there(&self) -> bool {
        matches!(
            self.reply,
            Reply::Inserted(_)
                | Reply::Repeated(_)
                | Reply::Reserved(..)
                | Reply::Released
                | Reply::Buried
                | Reply::SeenBuried
                | Reply::Kicked
                | Reply::Touched
        )
    }

    /// Whether the reply shows that the job was deleted.
    pub const fn shows_gone(&self) -> bool {
        matches!(self.reply, Reply::Deleted | Reply::Finished(_) | Reply::Gone)
    }

    /// Whether a command may have been executed: its effect must be reckoned with from `asked_at` on.
    const fn may_have(&self) -> bool {
        !matches!(self.reply, Reply::NotFound | Reply::Refused | Reply::Nothing)
    }

    /// Whether it may have ended the reservation of its job.
    pub const fn may_end(&self) -> bool {
        matches!(self.asked, Asked::Delete(_) | Asked::Release(_) | Asked::Bury(_)) && self.may_have()
    }

    pub const fn may_delete(&self) -> bool {
        matches!(self.asked, Asked::Delete(_)) && self.may_have()
    }

    pub const fn may_kick(&self) -> bool {
        matches!(self.asked, Asked::Kick(_)) && self.may_have()
    }
}
