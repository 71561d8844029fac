//! The account of the memory that is kept for peers.
//!
//! Every part of the server that keeps bytes for a peer counts them here, as they grow and shrink, under a kind of [`Held`]. So a limit
//! sees all of them at any time, whichever layer has them.

use std::cell::Cell;

use super::limits::INBOX_BYTES_PAUSE;

/// The part of the memory limit that unsent replies may take: a quarter. Beyond it, a connection is served again once all of its
/// replies are sent, so it holds one of them.
const REPLIES_SHARE: u64 = 4;

/// The part of the memory limit that ciphertext may take before it is sent. The server keeps the plaintext behind it.
const CIPHERTEXT_SHARE: u64 = 16;

/// The part of the memory limit that input may take which is not served yet. Beyond it, a connection is paused with any input.
const INPUT_SHARE: u64 = 16;

/// The part of the memory limit that ciphertext may take before it is read. Beyond it, a connection keeps one record.
const TLS_INPUT_SHARE: u64 = 8;

/// A kind of memory that is kept for peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Sessions of clients, and the tables and queues of all connections.
    Sessions,
    /// Input of clients that is not served yet.
    Inboxes,
    /// Lines of commands that are longer than usual and not complete.
    Lines,
    /// Lists of tubes that are rendered in pieces.
    Lists,
    /// Jobs of a `put-batch` that is not complete, without their bodies.
    Batches,
    /// Replies and responses that are not sent, and spare buffers for them.
    Replies,
    /// HTTP: requests and bodies that are not read yet.
    HttpInput,
    /// HTTP: what connections need to make a response.
    HttpWork,
    /// Users, and clients that wait for the reply to a wrong token.
    Users,
    /// TLS: the records of connections, their tables, and spare buffers.
    TlsConnections,
    /// TLS: received ciphertext that waits for more, and handshakes that wait for their turn.
    TlsInput,
    /// TLS: ciphertext that is not sent.
    TlsOutput,
    /// Headers of the PROXY protocol, and the names in them.
    ProxyHeaders,
    /// A standby: bytes on their way between its clients and the leader.
    Forwarded,
}

impl Held {
    /// Every kind.
    pub const ALL: [Self; 14] = [
        Self::Sessions,
        Self::Inboxes,
        Self::Lines,
        Self::Lists,
        Self::Batches,
        Self::Replies,
        Self::HttpInput,
        Self::HttpWork,
        Self::Users,
        Self::TlsConnections,
        Self::TlsInput,
        Self::TlsOutput,
        Self::ProxyHeaders,
        Self::Forwarded,
    ];
}

const _: () = assert!(Held::ALL[Held::ALL.len() - 1] as usize + 1 == Held::ALL.len());

/// The account. All parts of the server share it, on one thread.
#[derive(Default, Debug)]
pub struct Account {
    limit: Option<u64>,
    total: Cell<usize>,
    by_kind: [Cell<usize>; Held::ALL.len()],
}

impl Account {
    /// For a server with this memory limit.
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The memory limit.
    #[inline]
    pub const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Counts that something has changed its size.
    #[inline]
    pub fn change(&self, kind: Held, before: usize, after: usize) {
        let of_kind = &self.by_kind[kind as usize];
        of_kind.set(of_kind.get() + after - before);
        self.total.set(self.total.get() + after - before);
    }

    /// Sets all that is held of a kind.
    pub fn set(&self, kind: Held, bytes: usize) {
        self.change(kind, self.of(kind), bytes);
    }

    /// The bytes of a kind.
    pub const fn of(&self, kind: Held) -> usize {
        self.by_kind[kind as usize].get()
    }

    /// The bytes of all kinds.
    #[inline]
    pub const fn total(&self) -> usize {
        self.total.get()
    }

    /// What unsent output may still take.
    pub fn output_room(&self) -> u64 {
        let output = self.of(Held::Replies) + self.of(Held::TlsOutput);
        self.limit.map_or(u64::MAX, |limit| (limit / REPLIES_SHARE).saturating_sub(output as u64))
    }

    /// The input of a client that is not served with which its connection is paused.
    pub fn inbox_bytes_pause(&self) -> usize {
        if self.is_input_short() { 1 } else { INBOX_BYTES_PAUSE }
    }

    /// Whether input that is not served takes more than its part.
    pub fn is_input_short(&self) -> bool {
        self.limit.is_some_and(|limit| self.of(Held::Inboxes) as u64 > limit / INPUT_SHARE)
    }

    /// Whether ciphertext that waits for more takes more than its part.
    pub fn is_tls_input_short(&self) -> bool {
        self.limit.is_some_and(|limit| self.of(Held::TlsInput) as u64 > limit / TLS_INPUT_SHARE)
    }

    /// Whether unfinished records and messages of this size take so much of it that connections must end.
    pub fn is_too_much_unfinished(&self, bytes: usize) -> bool {
        self.limit.is_some_and(|limit| bytes as u64 > 2 * (limit / TLS_INPUT_SHARE))
    }

    /// What ciphertext that is not sent may still take.
    pub fn ciphertext_room(&self) -> u64 {
        let ciphertext = self.of(Held::TlsOutput) as u64;
        self.limit.map_or(u64::MAX, |limit| (limit / CIPHERTEXT_SHARE).saturating_sub(ciphertext))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_output_may_take_shrinks() {
        let account = Account::new(Some(64 << 20));
        assert_eq!((account.output_room(), account.ciphertext_room()), (16 << 20, 4 << 20));
        account.change(Held::TlsOutput, 0, 3 << 20);
        account.change(Held::Replies, 0, 5 << 20);
        assert_eq!((account.output_room(), account.ciphertext_room()), (8 << 20, 1 << 20));
        account.change(Held::TlsOutput, 3 << 20, 64 << 20);
        assert_eq!((account.output_room(), account.ciphertext_room()), (0, 0));
        account.set(Held::TlsOutput, 1);
        assert_eq!((account.total(), account.of(Held::TlsOutput)), ((5 << 20) + 1, 1));
        assert_eq!(Account::new(None).output_room(), u64::MAX);
    }
}
