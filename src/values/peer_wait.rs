//! The states in which the server waits for a peer, each with its limit of time, or with the reason why it may last.

use crate::time::Span;

/// What the server waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerWait {
    /// The next command of a client, or the rest of its line; also `auth`, of a client that has not authenticated.
    Line,
    /// The rest of a body, or of a `put-batch`.
    Body,
    /// The client to read its replies.
    Replies,
    /// The client to read the body of a job that has ended.
    EndedBody,
    /// The client to read the last replies before the connection closes.
    LastReplies,
    /// The next HTTP request of a connection without any input.
    NextRequest,
    /// The rest of an HTTP request, or of its body.
    Request,
    /// An HTTP client to read its response.
    Response,
    /// The rest of a TLS handshake.
    Handshake,
    /// The rest of a handshake message after the handshake.
    HandshakeMessage,
    /// The rest of a TLS record.
    Record,
    /// The rest of a header of the PROXY protocol.
    Header,
}

/// How long a state may last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The whole must arrive within this time.
    Within(Span),
    /// Something must move between two looks that are so far apart: within this time to twice of it.
    Progress(Span),
    /// For as long as the peer likes, for this reason.
    Lasts(&'static str),
}

impl PeerWait {
    /// How long it may last.
    pub const fn limit(self) -> Limit {
        match self {
            Self::Line => Limit::Lasts("workers stay connected, and a line has at most 2 KiB"),
            Self::Body => {
                Limit::Lasts("what has arrived counts as memory, which a producer may fill with jobs too")
            }
            Self::Replies => Limit::Lasts(
                "a client that is stopped for a while loses nothing; all replies have a quarter of the memory limit",
            ),
            Self::NextRequest => Limit::Lasts("the next connection beyond 64 takes the place of an idle one"),
            Self::EndedBody | Self::LastReplies | Self::Request | Self::Response => Limit::Progress(PROGRESS),
            Self::Handshake | Self::HandshakeMessage | Self::Header => Limit::Within(HANDSHAKE),
            Self::Record => Limit::Within(RECORD),
        }
    }

    /// The time within which the whole must arrive.
    ///
    /// # Panics
    /// If the state has another limit: at compile time, where it is used for a constant.
    pub const fn within(self) -> Span {
        match self.limit() {
            Limit::Within(span) => span,
            Limit::Progress(_) | Limit::Lasts(_) => panic!("the state has no such limit"),
        }
    }

    /// Whether something must move.
    pub const fn needs_progress(self) -> bool {
        matches!(self.limit(), Limit::Progress(_))
    }
}

/// The time in which something must move.
pub const PROGRESS: Span = Span::from_secs(30);

/// The time that a handshake may take, a handshake message after it, and a header before it.
const HANDSHAKE: Span = Span::from_secs(5);

/// The time that a TLS record may take, from its first bytes on: it has at most 16 KiB.
const RECORD: Span = Span::from_secs(30);
