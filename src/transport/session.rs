//! One TLS connection: ciphertext in, plaintext out, and back.

use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CertificateError, Error, HandshakeKind, InvalidMessage, PeerIncompatible};

use super::chain::TOO_LONG;
use super::identity::{Identity, names_of};
use super::keys::{Checks, KeyKind, agreement};
use super::outgoing::{Buffer, Outgoing};
use super::shares::Key;
use crate::server::{HandshakeFailure, SendProgress};
use crate::time::Time;
use crate::values::account::Account;
use crate::values::budget::{Budget, Cost, Limit};
use crate::values::ids::ConnId;
use crate::values::limits::ALLOCATION_BYTES;
use crate::values::peer_wait::PeerWait;

/// What a record adds to its plaintext: 5 bytes of header, the content type and the tag of the cipher (RFC 8446, 5.2).
pub(super) const RECORD_OVERHEAD: usize = 5 + 1 + 16;

/// The longest plaintext of a record (RFC 8446, 5.1).
pub(super) const RECORD_BYTES_MAX: usize = 1 << 14;

/// The longest record, encrypted (RFC 8446, 5.2).
const ENCRYPTED_RECORD_BYTES_MAX: usize = 5 + RECORD_BYTES_MAX + 256;

/// The longest handshake message that rustls puts together, with its header.
const HANDSHAKE_MESSAGE_BYTES_MAX: usize = 4 + 0xffff;

/// Input that waits for more: an incomplete record, and the records of one handshake message of the largest size. rustls needs all
/// of them in place. Clients that pad their messages, or cut them into pieces of less than 1 KiB, may need more: they fail. So does a
/// client with more than a record while such input takes its part of the memory limit.
pub(super) const INCOMING_BYTES_MAX: usize = ENCRYPTED_RECORD_BYTES_MAX
    + HANDSHAKE_MESSAGE_BYTES_MAX
    + HANDSHAKE_MESSAGE_BYTES_MAX.div_ceil(1024) * RECORD_OVERHEAD;

/// Room for the messages that the protocol itself may put before plaintext, such as a key update.
const MESSAGE_BYTES: usize = 128;

/// Memory of an open connection beside its buffers, in bytes: the record of this module and what rustls allocates. Measured as RSS
/// per idle connection.
pub(super) const SESSION_BYTES: usize = 4 * 1024;

/// How far a connection is.
///
/// ```text
///   Handshake ----> Open -----> Closing
///       |                          ^
///       +---------> Failed --------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Handshake,
    Open,
    /// The handshake has failed, and the server closes the connection.
    Failed,
    /// The connection closes when its output is sent.
    Closing,
}

/// A connection over TLS.
pub(super) struct Session {
    pub conn: ConnId,
    /// None after an error: rustls remembers places in input that is gone then, and must not be called.
    tls: Option<UnbufferedServerConnection>,
    /// The kind of the server's key, until it has signed.
    unused_key: Option<KeyKind>,
    /// The signatures of clients that were checked.
    checks: Arc<Checks>,
    pub phase: Phase,
    /// Its place among the unfinished handshakes.
    pub handshake: Option<Key>,
    /// Input that waits for more, up to [`INCOMING_BYTES_MAX`], or that waits for its turn.
    pub incoming: Vec<u8>,
    /// How much of it rustls has seen, and remembers places in it.
    seen: usize,
    /// The record or handshake message that has begun, and when it must have ended.
    pub unfinished: Option<(PeerWait, Time)>,
    /// The certificates of the client, which rustls keeps.
    chain_bytes: usize,
    pub outgoing: Outgoing,
    pub flags: Flags,
    /// When the output began, or the last of its bytes was sent.
    pub sent_at: Time,
    /// What it has sent, while it must.
    pub progress: SendProgress,
    /// It is counted as one with a response that is not sent.
    pub is_responding: bool,
    /// What the account has of it.
    pub counted: Option<Memory>,
}

/// What applies to a connection at the moment.
#[derive(Clone, Copy, Default)]
pub(super) struct Flags {
    /// The input has whole records that wait for a turn of the connection.
    pub is_unread: bool,
    /// The driver was asked to send, and has not sent everything since.
    pub is_sending: bool,
    /// The server has asked to send, and has had output to show at every look since.
    pub has_output: bool,
    /// The transport wants no input: the handshake waits for its turn, or the connection closes.
    pub is_paused: bool,
    /// The server wants no input.
    pub is_paused_by_server: bool,
    /// The driver has got the effect for either of them.
    pub has_told_pause: bool,
    /// The handshake waits for its turn.
    pub is_waiting: bool,
    pub input_has_ended: bool,
    /// The input has ended, and the server does not know yet: what came before the end is handled first.
    pub end_is_waiting: bool,
    /// The connection must end after an error, and the server does not know yet.
    pub is_failing: bool,
    /// The connection is in the queue of [`Transport::ready`](super::Transport).
    pub is_ready: bool,
    /// The driver has got the effect that closes the connection.
    pub has_told_close: bool,
    /// Nothing can be sent.
    pub is_broken: bool,
}

/// The buffers of a connection, and the certificates of its client, in bytes. What rustls has beside them is [`SESSION_BYTES`].
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Memory {
    pub input: usize,
    pub output: usize,
    pub chain: usize,
    /// The part of the input that waits for the rest of a record or handshake message.
    pub unfinished: usize,
}

/// What input has led to.
#[derive(Default, Debug)]
pub(super) struct Progress {
    /// Bytes of the input that are used up.
    pub used: usize,
    /// The client sends no more.
    pub has_ended: bool,
    /// What ends the connection, after the plaintext before it.
    pub error: Option<Error>,
    /// What the handshake was, if this input has finished it.
    pub finished: Option<Finished>,
    /// A handshake message waits for its next record.
    pub has_partial_message: bool,
    /// Whole records are left, and the limit is reached.
    pub is_unpaid: bool,
    /// The price of the keys that the handshake has used with this input.
    pub keys: Cost,
    /// Records that had plaintext.
    filled_records: usize,
    /// The other records: each may change the keys.
    pub empty_records: usize,
}

/// Records that rustls may see.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paid {
    records: usize,
    /// Where the first one begins, and the last one ends.
    begin: usize,
    end: usize,
    /// What follows is no record.
    is_wrong: bool,
    /// What follows is not paid for.
    is_unpaid: bool,
}

impl Paid {
    /// The bytes of the records.
    pub const fn bytes(&self) -> usize {
        self.end - self.begin
    }
}

/// What input begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Record {
    /// A record of this size.
    Whole(usize),
    Incomplete,
    /// No record, or one that is too long.
    Wrong,
}

impl Record {
    fn at(input: &[u8]) -> Self {
        let [kind, _, _, high, low, ..] = *input else { return Self::Incomplete };
        let bytes = 5 + usize::from(u16::from_be_bytes([high, low]));
        // The types of TLS (RFC 8446, B.1).
        if !(20..=24).contains(&kind) || bytes > ENCRYPTED_RECORD_BYTES_MAX {
            Self::Wrong
        } else if bytes <= input.len() {
            Self::Whole(bytes)
        } else {
            Self::Incomplete
        }
    }
}

impl Progress {
    /// Whether no more input counts.
    pub const fn is_last(&self) -> bool {
        self.has_ended || self.error.is_some()
    }
}

/// What a finished handshake was.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Finished {
    pub is_resumed: bool,
    /// The names in the certificate of the client. Empty without one.
    pub names: Vec<String>,
}

impl Session {
    pub fn new(conn: ConnId, identity: &Identity) -> Result<Self, Error> {
        Ok(Self {
            conn,
            tls: Some(UnbufferedServerConnection::new(identity.config.clone())?),
            unused_key: Some(identity.own.key),
            checks: Arc::clone(&identity.checks),
            phase: Phase::Handshake,
            handshake: None,
            incoming: Vec::new(),
            seen: 0,
            unfinished: None,
            chain_bytes: 0,
            outgoing: Outgoing::default(),
            flags: Flags::default(),
            sent_at: Time::ZERO,
            progress: SendProgress::default(),
            is_responding: false,
            counted: None,
        })
    }

    /// The memory of this connection. A field that grows belongs to it: none is left out here.
    pub const fn memory(&self) -> Memory {
        let Self {
            incoming,
            outgoing,
            seen: _,
            conn: _,
            tls: _,
            unused_key: _,
            checks: _,
            phase: _,
            handshake: _,
            unfinished,
            chain_bytes,
            flags: _,
            sent_at: _,
            progress: _,
            is_responding: _,
            counted: _,
        } = self;
        let input = incoming.capacity();
        let unfinished = if unfinished.is_some() { input } else { 0 };
        Memory { input, output: outgoing.capacity(), chain: *chain_bytes, unfinished }
    }

    /// What the transport waits for. What an open connection waits for besides is the server's.
    pub const fn awaits(&self) -> Option<PeerWait> {
        match self.phase {
            Phase::Handshake => Some(PeerWait::Handshake),
            Phase::Open if self.conn.is_http() && self.outgoing.len() > 0 => Some(PeerWait::Response),
            Phase::Open => match self.unfinished {
                Some((what, _)) => Some(what),
                None => None,
            },
            // The server closes a connection that has failed.
            Phase::Failed => None,
            Phase::Closing => Some(PeerWait::LastReplies),
        }
    }

    /// Whether no more input counts: the client has ended it, or an error has.
    pub const fn has_last_input(&self) -> bool {
        self.flags.input_has_ended || self.flags.end_is_waiting || self.tls.is_none()
    }

    /// Whether plaintext can be encrypted.
    pub const fn can_encrypt(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.tls.is_some() && !self.flags.is_broken
    }

    /// Processes the records of the input that are paid for, and delivers their plaintext one by one. Input that is not used up must come
    /// again, with more after it, unless the progress is the last. After an error the output ends with an alert, and nothing can be
    /// processed or encrypted.
    ///
    /// rustls sees only records that are paid for: with a whole one in its input it would read instead of writing.
    pub fn process(
        &mut self,
        input: &mut [u8],
        paid: &Paid,
        deliver: &mut impl FnMut(&[u8]),
        account: &Account,
    ) -> Progress {
        let &Paid { records, end, is_wrong, is_unpaid, .. } = paid;
        let mut progress = Progress { is_unpaid, ..Progress::default() };
        let incomplete = if progress.is_unpaid { 0 } else { input.len() - end };
        let input = &mut input[..end];
        let tls = self.tls.as_mut().expect("no input is processed after an error");
        let outgoing = self.outgoing.gathered();
        // Bounded by RECEIVE_BYTES_MAX: the records of one receive.
        let result = loop {
            match step(tls, outgoing, input, deliver, &mut progress) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        progress.empty_records = records.saturating_sub(progress.filled_records);
        // An error may follow the end of the handshake.
        if self.phase == Phase::Handshake {
            progress.keys = self.checks.take().plus(used_keys(tls, &mut self.unused_key));
            progress.finished = finished(tls);
            self.chain_bytes = chain_bytes(tls);
        }
        let rest = &mut input[progress.used..];
        if let Err(error) = result {
            write_alert(tls, outgoing, rest);
            progress.error = Some(error);
        } else if !progress.has_ended {
            progress.has_partial_message = !rest.is_empty();
            let short = account.is_tls_input_short();
            let waiting_bytes_max = if short { ENCRYPTED_RECORD_BYTES_MAX } else { INCOMING_BYTES_MAX };
            progress.error = match rest.len() + incomplete > waiting_bytes_max {
                true => Some(Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge)),
                false => is_wrong.then_some(Error::PeerSentOversizedRecord),
            };
        }
        self.seen = if progress.is_last() { 0 } else { rest.len() };
        if progress.error.is_some() {
            self.tls = None;
        }
        progress
    }

    /// Frees the input that waits for more. Nothing is processed or encrypted after this.
    pub fn forget_input(&mut self) {
        (self.tls, self.incoming, self.seen) = (None, Vec::new(), 0);
    }

    /// Pays for whole records up to the limit.
    pub fn pay(&self, input: &[u8], budget: &mut Budget, limit: Limit) -> Paid {
        let mut paid =
            Paid { records: 0, begin: self.seen, end: self.seen, is_wrong: false, is_unpaid: false };
        loop {
            match Record::at(&input[paid.end..]) {
                Record::Incomplete => return paid,
                Record::Wrong => return Paid { end: input.len(), is_wrong: true, ..paid },
                Record::Whole(bytes) => {
                    // mutant tls-records-without-a-price: Cost::record(bytes) => Cost::NOTHING
                    if !budget.spend(Cost::record(bytes), limit) {
                        return Paid { is_unpaid: true, ..paid };
                    }
                    paid = Paid { records: paid.records + 1, end: paid.end + bytes, ..paid };
                }
            }
        }
    }

    /// Encrypts plaintext behind the output. The handshake has finished.
    pub fn encrypt(&mut self, plaintext: &[u8]) -> Result<(), Error> {
        let room = plaintext.len() + RECORD_OVERHEAD * (1 + plaintext.len() / RECORD_BYTES_MAX);
        self.write(room, |traffic, buffer| traffic.encrypt(plaintext, buffer))
    }

    /// Ends the output: the client learns that nothing was cut off.
    pub fn close_notify(&mut self) -> Result<(), Error> {
        self.write(MESSAGE_BYTES, |traffic, buffer| traffic.queue_close_notify(buffer))
    }

    fn write(
        &mut self,
        room: usize,
        mut write: impl FnMut(&mut WriteTraffic<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), Error> {
        let tls = self.tls.as_mut().ok_or(Error::EncryptError)?;
        let outgoing = self.outgoing.gathered();
        let seen = &mut self.incoming[..self.seen];
        let result = write_traffic(tls, outgoing, seen, |traffic, outgoing| {
            outgoing.append(room, |buffer| match write(traffic, buffer) {
                Err(EncryptError::InsufficientSize(size)) => Err(Some(size)),
                Err(EncryptError::EncryptExhausted) => Err(None),
                Ok(bytes) => Ok(bytes),
            })
        });
        if result.is_err() {
            self.tls = None;
        }
        result
    }
}

/// Calls `write` once rustls has nothing else to write.
fn write_traffic(
    tls: &mut UnbufferedServerConnection,
    outgoing: &mut Buffer,
    incoming: &mut [u8],
    write: impl FnOnce(&mut WriteTraffic<'_>, &mut Buffer) -> Result<(), Error>,
) -> Result<(), Error> {
    // Bounded by TURN_STEPS: the messages that the records of one turn ask for.
    loop {
        let UnbufferedStatus { discard, state } = tls.process_tls_records(incoming);
        debug_assert_eq!(discard, 0, "all input is processed when it comes");
        match state? {
            ConnectionState::WriteTraffic(mut traffic) => return write(&mut traffic, outgoing),
            state => {
                if advance(state, outgoing)? {
                    return Err(Error::HandshakeNotComplete);
                }
            }
        }
    }
}

/// Processes input until rustls has something else to do. Returns whether there may be more to process. rustls must always see the
/// input that it has not discarded, even to write: it remembers places in it.
fn step(
    tls: &mut UnbufferedServerConnection,
    outgoing: &mut Buffer,
    input: &mut [u8],
    deliver: &mut impl FnMut(&[u8]),
    progress: &mut Progress,
) -> Result<bool, Error> {
    let UnbufferedStatus { discard, state } = tls.process_tls_records(&mut input[progress.used..]);
    let result = match state {
        // Bounded by RECEIVE_BYTES_MAX: the records of one receive.
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    progress.filled_records += 1;
                    deliver(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(true),
            }
        },
        Ok(ConnectionState::PeerClosed) => {
            progress.has_ended = true;
            Ok(false)
        }
        Ok(state) => advance(state, outgoing).map(|is_over| !is_over),
        Err(error) => Err(error),
    };
    progress.used += discard;
    result
}

/// Appends the alert that rustls may have for an error. It must not be called for more: it would process the same input again.
fn write_alert(tls: &mut UnbufferedServerConnection, outgoing: &mut Buffer, input: &mut [u8]) {
    if let Ok(state @ ConnectionState::EncodeTlsData(_)) = tls.process_tls_records(input).state {
        // It fails only if rustls encodes a message twice.
        let _ = advance(state, outgoing);
    }
}

/// Carries out a state that has no input. Returns whether none is left but to wait for input.
fn advance<D>(state: ConnectionState<'_, '_, D>, outgoing: &mut Buffer) -> Result<bool, Error> {
    match state {
        ConnectionState::EncodeTlsData(mut message) => {
            let encode = |buffer: &mut [u8]| match message.encode(buffer) {
                Err(EncodeError::InsufficientSize(size)) => Err(Some(size)),
                Err(EncodeError::AlreadyEncoded) => Err(None),
                Ok(bytes) => Ok(bytes),
            };
            outgoing.append(MESSAGE_BYTES, encode)?;
            Ok(false)
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Ok(false)
        }
        _ => Ok(true),
    }
}

/// The memory of the certificates of the client.
fn chain_bytes(tls: &UnbufferedServerConnection) -> usize {
    let chain = tls.peer_certificates().unwrap_or_default();
    // Bounded by CHAIN_MAX: the certificates that the verifier accepts.
    chain.iter().map(|certificate| certificate.len() + ALLOCATION_BYTES).sum()
}

/// The price of the agreement on keys, and of the signature of the server, once they are made.
fn used_keys(tls: &UnbufferedServerConnection, unused_key: &mut Option<KeyKind>) -> Cost {
    let (Some(kind), Some(group)) = (tls.handshake_kind(), tls.negotiated_key_exchange_group()) else {
        return Cost::NOTHING;
    };
    // mutant tls-keys-without-a-price: unused_key.take() => None::<KeyKind>
    let Some(key) = unused_key.take() else { return Cost::NOTHING };
    let signature = if kind == HandshakeKind::Resumed { Cost::NOTHING } else { key.signature() };
    agreement(group.name()).plus(signature)
}

/// What the handshake was, once it has finished.
fn finished(tls: &UnbufferedServerConnection) -> Option<Finished> {
    if tls.is_handshaking() {
        return None;
    }
    let is_resumed = tls.handshake_kind() == Some(HandshakeKind::Resumed);
    let names = tls.peer_certificates().and_then(<[_]>::first).map(names_of).unwrap_or_default();
    Some(Finished { is_resumed, names })
}

type WriteTraffic<'a> = rustls::unbuffered::WriteTraffic<'a, rustls::server::ServerConnectionData>;

/// Why an error ends a handshake.
pub(super) fn failure_of(error: &Error) -> HandshakeFailure {
    match error {
        Error::AlertReceived(_) => HandshakeFailure::Alert,
        Error::NoCertificatesPresented | Error::InvalidCertificate(_) => HandshakeFailure::Certificate,
        _ => HandshakeFailure::Protocol,
    }
}

/// The problem with the certificate of a client, or with what it offers, as far as an operator can act on it.
pub(super) const fn reason_of(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::NoCertificatesPresented => "the client has sent no certificate",
        Error::InvalidCertificate(error) => match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate of the client has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate of the client is not valid yet"
            }
            CertificateError::UnknownIssuer => {
                "the certificate of the client is not from an authority of --tls-client-ca"
            }
            CertificateError::ApplicationVerificationFailure => TOO_LONG,
            _ => return None,
        },
        Error::PeerIncompatible(
            PeerIncompatible::IncorrectCertificateTypeExtension
            | PeerIncompatible::UnsolicitedCertificateTypeExtension,
        ) => "the client wants a certificate, and the port is for standbys",
        Error::PeerIncompatible(
            PeerIncompatible::NoCipherSuitesInCommon
            | PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::NoSignatureSchemesInCommon,
        ) => "the client and the server have no algorithm in common",
        _ => return None,
    })
}

/// The error in words for an operator.
pub(super) fn text_of(error: &Error) -> String {
    if let Some(reason) = reason_of(error) {
        return reason.to_owned();
    }
    match error {
        Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => {
            "the client sends a handshake message that is too long".to_owned()
        }
        Error::InvalidMessage(_) => "the client does not speak TLS".to_owned(),
        Error::PeerIncompatible(_) => "the client does not offer TLS 1.3".to_owned(),
        Error::AlertReceived(alert) => format!("the client has refused with the alert {alert:?}"),
        error => error.to_string(),
    }
}
