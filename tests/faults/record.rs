//! What clients have asked, and what was replied.

use std::time::Instant;

/// The clock of a record, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

/// What a body begins with. It tells which put it is of, and the job's time to run.
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
    /// The client sends nothing: it closes its connection, or has found it closed.
    Leave,
}

/// A reply, or why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    Inserted(u64),
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

impl Clock {
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn now(self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}

impl Token {
    pub const fn new(client: u16, number: u32, ttr_s: u8) -> Self {
        Self((client as u64) << 40 | (number as u64) << 8 | ttr_s as u64)
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
            Self::Delete(id) | Self::Release(id) | Self::Bury(id) | Self::Kick(id) | Self::Touch(id) => {
                Some(id)
            }
            Self::Put(_) | Self::Reserve | Self::Leave => None,
        }
    }
}

impl Event {
    /// The job that the event is about, if that is known.
    pub const fn id(&self) -> Option<u64> {
        match self.reply {
            Reply::Inserted(id) | Reply::Reserved(id, _) => Some(id),
            _ => self.asked.id(),
        }
    }

    /// Whether the command may have been executed without a reply.
    pub const fn is_lost(&self) -> bool {
        matches!(self.reply, Reply::Closed | Reply::GaveUp)
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
