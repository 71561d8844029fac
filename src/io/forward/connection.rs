//! One forwarded client: two sockets, and the bytes in between. Those to and from the leader are encrypted.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc::linger;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{
    MsgFlags, Shutdown, SockaddrStorage, getpeername, getsockname, recv, send, setsockopt, shutdown, sockopt,
};

use super::hop::{Hop, OVERHEAD_BYTES, RECORD_BYTES_MAX};
use super::{Arrival, BUFFER_BYTES, RECEIVE_BYTES_MIN, RECEIVE_PART};
use crate::io::lost_peers::{SilentSince, is_loss};
use crate::time::Time;
use crate::transport::forwarded::{ClientAddress, Inbound};
use crate::values::budget::{Budget, Cost};

/// Buffers that are kept for the next connection that is blocked.
const SPARE_MAX: usize = 16;

/// The most that is received at once of each side, so that all of it fits into a buffer behind TLS.
const RECEIVE_BYTES_MAX: [usize; 2] = [BUFFER_BYTES - OVERHEAD_BYTES, BUFFER_BYTES - RECORD_BYTES_MAX];

/// How far a client is.
///
/// ```text
///   Waiting <---> Connecting ---> Open
///
///   From each of them: closed.
/// ```
pub enum Phase {
    /// Its bytes stay in the kernel.
    Waiting,
    /// A connection to the leader is being made. The numbers are those of the address in use and of the addresses tried.
    Connecting { hop: Hop, index: usize, tried: usize },
    /// Bytes are passed on.
    Open { hop: Hop },
}

/// One of the two sockets. A flow of bytes has the name of its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Client,
    Leader,
}

/// What a connection needs after an event, from the weakest need to the strongest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Next {
    /// Another event.
    Wait,
    /// Another turn, without an event.
    Again,
    /// An end.
    Close,
}

pub struct Connection {
    pub client: OwnedFd,
    pub generation: u32,
    /// The listener that it came to.
    pub listener: usize,
    pub inbound: Inbound,
    pub phase: Phase,
    /// When it is closed if it has not reached the leader.
    pub waits_until: Time,
    /// The leader has ended its side, and the client knows.
    pub leader_has_ended: bool,
    /// When it is closed after that.
    pub lingers_until: Option<Time>,
    /// It is queued for another turn.
    pub is_queued: bool,
    /// Whether the client owes an answer.
    pub silent_since: SilentSince,
    flows: [Flow; 2],
}

/// The bytes of one direction.
#[derive(Default)]
struct Flow {
    /// The kernel may have more than was received.
    is_unread: bool,
    /// The kernel has announced the end, or an error: only a receive tells which.
    is_ending: bool,
    /// A receive may end before the input does: at urgent data, and on a UNIX socket at a message that carries descriptors.
    stops_short: bool,
    /// All is received.
    has_ended: bool,
    /// What the other side did not take. Nothing is received before it does.
    pending: Option<Pending>,
    /// The kernel has announced that the other side takes more.
    may_flush: bool,
}

struct Pending {
    bytes: Vec<u8>,
    sent: usize,
}

/// What all connections share for passing bytes on.
pub struct Pipe {
    buffer: Box<[u8]>,
    /// The bytes of the buffer in the form that the other side gets.
    translated: Vec<u8>,
    spare: Vec<Vec<u8>>,
    /// Bytes passed on since the counts were updated, by [`Side`].
    pub passed: [u64; 2],
    /// The memory of what is pending and of spare buffers.
    pub memory: usize,
    /// What it should not pass.
    memory_max: usize,
    /// Clients whose machines are gone, since the counts were updated.
    pub lost_clients: u64,
    /// The work of the thread. Each part of it is charged where it is done.
    pub budget: Budget,
}

impl Pipe {
    pub fn new(memory_max: usize) -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            translated: Vec::new(),
            spare: Vec::new(),
            passed: [0; 2],
            memory: 0,
            memory_max,
            lost_clients: 0,
            budget: Budget::default(),
        }
    }

    /// The most that one receive takes: less, the more is pending.
    fn room(&self) -> usize {
        let left = self.memory_max.saturating_sub(self.memory);
        (left / RECEIVE_PART).clamp(RECEIVE_BYTES_MIN, BUFFER_BYTES)
    }

    /// Sends what was translated. Returns what the other side does not take.
    fn send(&mut self, sink: RawFd) -> nix::Result<Option<Pending>> {
        let sent = send_all(sink, &self.translated)?;
        if sent == self.translated.len() {
            return Ok(None);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        let before = bytes.capacity();
        bytes.extend_from_slice(&self.translated[sent..]);
        self.memory += bytes.capacity() - before;
        Ok(Some(Pending { bytes, sent: 0 }))
    }

    fn take_back(&mut self, mut pending: Pending) {
        if self.spare.len() < SPARE_MAX {
            pending.bytes.clear();
            self.spare.push(pending.bytes);
        } else {
            self.memory -= pending.bytes.capacity();
        }
    }
}

impl Connection {
    pub fn new(client: OwnedFd, generation: u32, arrival: Arrival, waits_until: Time) -> Self {
        let Arrival { listener, inbound } = arrival;
        Self {
            client,
            generation,
            listener,
            inbound,
            phase: Phase::Waiting,
            waits_until,
            leader_has_ended: false,
            lingers_until: None,
            is_queued: false,
            silent_since: SilentSince::default(),
            flows: [Flow::default(), Flow::default()],
        }
    }

    /// Begins to pass bytes on, after a header. The header fits into the empty buffer of the socket.
    pub fn open(&mut self, mut hop: Hop, header: &[u8]) -> nix::Result<()> {
        let is_unix = matches!(client_address(&self.client), Some(ClientAddress::Unix));
        self.flows[Side::Client as usize].stops_short = is_unix;
        // The handshake may have read no further than it needed.
        self.flows[Side::Leader as usize].is_unread = true;
        let sent = hop.send(header);
        self.phase = Phase::Open { hop };
        sent
    }

    /// Notes an event of one of its sockets, for the next turn.
    pub fn note(&mut self, side: Side, events: EpollFlags) {
        let is_broken = events.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP);
        let flow = &mut self.flows[side as usize];
        flow.is_ending |= is_broken || events.contains(EpollFlags::EPOLLRDHUP);
        flow.stops_short |= events.contains(EpollFlags::EPOLLPRI);
        flow.is_unread |= flow.is_ending || events.contains(EpollFlags::EPOLLIN);
        self.flows[side.other() as usize].may_flush |= is_broken || events.contains(EpollFlags::EPOLLOUT);
    }

    /// Gives it a turn: in each direction it sends what is pending, or receives once.
    pub fn pump_both(&mut self, pipe: &mut Pipe) -> Next {
        match self.pump_one(Side::Client, pipe) {
            Next::Close => Next::Close,
            next => next.max(self.pump_one(Side::Leader, pipe)),
        }
    }

    fn pump_one(&mut self, from: Side, pipe: &mut Pipe) -> Next {
        let flow = &mut self.flows[from as usize];
        let may_flush = std::mem::take(&mut flow.may_flush);
        match &flow.pending {
            Some(_) if may_flush => self.flush(from, pipe),
            Some(_) => Next::Wait,
            None => self.pump(from, pipe),
        }
    }

    /// Receives once from a side, and sends that to the other.
    fn pump(&mut self, from: Side, pipe: &mut Pipe) -> Next {
        let Some((source, sink)) = self.sockets(from) else { return Next::Wait };
        let flow = &mut self.flows[from as usize];
        if !flow.is_unread || flow.has_ended || flow.pending.is_some() {
            return Next::Wait;
        }
        let bytes_max = RECEIVE_BYTES_MAX[from as usize].min(pipe.room());
        match recv(source, &mut pipe.buffer[..bytes_max], MsgFlags::MSG_DONTWAIT) {
            Ok(0) => self.end_of(from, pipe),
            Ok(bytes) => {
                flow.is_unread = bytes == bytes_max || flow.is_ending || flow.stops_short;
                let passed_on = Cost::record(bytes).plus(Cost::sent(bytes));
                // mutant forwarded-bytes-without-a-price: Cost::received(bytes).plus(passed_on) => Cost::NOTHING
                pipe.budget.charge(Cost::received(bytes).plus(passed_on));
                let Ok(has_ended) = self.translate(from, bytes, pipe) else { return Next::Close };
                let flow = &mut self.flows[from as usize];
                match pipe.send(sink) {
                    Ok(pending) => flow.pending = pending,
                    Err(_) => return Next::Close,
                }
                match (&flow.pending, has_ended) {
                    (Some(_), _) => Next::Wait,
                    (None, true) => self.end_of(from, pipe),
                    (None, false) if flow.is_unread => Next::Again,
                    (None, false) => Next::Wait,
                }
            }
            Err(Errno::EAGAIN) => {
                flow.is_unread = false;
                Next::Wait
            }
            Err(Errno::EINTR) => Next::Again,
            Err(errno) => {
                pipe.lost_clients += u64::from(from == Side::Client && is_loss(errno));
                Next::Close
            }
        }
    }

    /// Sends what is pending of a flow. After that it may receive again.
    fn flush(&mut self, from: Side, pipe: &mut Pipe) -> Next {
        let Some((_, sink)) = self.sockets(from) else { return Next::Wait };
        let flow = &mut self.flows[from as usize];
        let Some(pending) = &mut flow.pending else { return Next::Wait };
        pipe.budget.charge(Cost::sent(pending.bytes.len() - pending.sent));
        match send_all(sink, &pending.bytes[pending.sent..]) {
            Ok(sent) => pending.sent += sent,
            Err(_) => return Next::Close,
        }
        if pending.sent < pending.bytes.len() {
            return Next::Wait;
        }
        flow.pending.take().into_iter().for_each(|pending| pipe.take_back(pending));
        if flow.has_ended {
            return self.pass_end(from);
        }
        let Phase::Open { hop } = &self.phase else { return Next::Wait };
        if from == Side::Leader && hop.has_ended { self.end_of(from, pipe) } else { self.pump(from, pipe) }
    }

    /// Encrypts or decrypts what was received. Returns whether the leader has ended its output.
    fn translate(&mut self, from: Side, bytes: usize, pipe: &mut Pipe) -> Result<bool, ()> {
        let Phase::Open { hop } = &mut self.phase else { return Err(()) };
        let Pipe { buffer, translated, passed, .. } = pipe;
        translated.clear();
        match from {
            Side::Client => {
                passed[from as usize] += bytes as u64;
                hop.encrypt(&buffer[..bytes], translated).map_err(|_| ())?;
                Ok(false)
            }
            Side::Leader => {
                hop.decrypt(&buffer[..bytes], translated).map_err(|_| ())?;
                passed[from as usize] += translated.len() as u64;
                Ok(hop.has_ended)
            }
        }
    }

    /// The source of a flow has ended, and everything before is sent. An end that the leader has not announced is one of the network.
    fn end_of(&mut self, from: Side, pipe: &mut Pipe) -> Next {
        let (Some((_, sink)), Phase::Open { hop }) = (self.sockets(from), &mut self.phase) else {
            return Next::Close;
        };
        if from == Side::Leader && !hop.has_ended {
            return Next::Close;
        }
        let flow = &mut self.flows[from as usize];
        flow.has_ended = true;
        if from == Side::Client {
            pipe.translated.clear();
            match hop
                .encrypt_end(&mut pipe.translated)
                .map_err(|_| Errno::EPROTO)
                .and_then(|()| pipe.send(sink))
            {
                Ok(None) => {}
                Ok(pending) => {
                    flow.pending = pending;
                    return Next::Wait;
                }
                Err(_) => return Next::Close,
            }
        }
        self.pass_end(from)
    }

    /// Passes the end of a flow on.
    fn pass_end(&mut self, from: Side) -> Next {
        let Some((_, sink)) = self.sockets(from) else { return Next::Close };
        if self.flows.iter().all(|flow| flow.has_ended && flow.pending.is_none()) {
            return Next::Close;
        }
        self.leader_has_ended |= from == Side::Leader;
        if shutdown(sink, Shutdown::Write).is_ok() { Next::Wait } else { Next::Close }
    }

    /// The source and the sink of a flow, once bytes are passed on.
    fn sockets(&self, from: Side) -> Option<(RawFd, RawFd)> {
        let Phase::Open { hop } = &self.phase else { return None };
        let (client, leader) = (self.client.as_raw_fd(), hop.socket().as_raw_fd());
        Some(if from == Side::Client { (client, leader) } else { (leader, client) })
    }

    /// Has its end drop what the leader has not received. The kernel would go on sending that after the close, and a leader that was
    /// only cut off would carry it out much later.
    pub fn abort(&self) {
        if let Phase::Open { hop } = &self.phase {
            let at_once = linger { l_onoff: 1, l_linger: 0 };
            // It fails for no open socket.
            let _ = setsockopt(hop.socket(), sockopt::Linger, &at_once);
        }
    }

    /// Gives its memory back, before it is closed.
    pub fn clear(&mut self, pipe: &mut Pipe) {
        for flow in &mut self.flows {
            flow.pending.take().into_iter().for_each(|pending| pipe.take_back(pending));
        }
    }
}

impl Side {
    pub const fn other(self) -> Self {
        match self {
            Self::Client => Self::Leader,
            Self::Leader => Self::Client,
        }
    }
}

/// Sends as much as the kernel takes, and returns how much that is.
fn send_all(sink: RawFd, bytes: &[u8]) -> nix::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(sink, &bytes[sent..], MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT) {
            Ok(count) => sent += count,
            Err(Errno::EAGAIN) => break,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(sent)
}

/// The addresses of a client for the leader. None if it has gone.
pub fn client_address(client: &impl AsRawFd) -> Option<ClientAddress> {
    let peer: SockaddrStorage = getpeername(client.as_raw_fd()).ok()?;
    let own: SockaddrStorage = getsockname(client.as_raw_fd()).ok()?;
    match (socket_address(&peer), socket_address(&own)) {
        (Some(peer), Some(own)) => Some(ClientAddress::Tcp(peer, own)),
        _ => peer.as_unix_addr().map(|_| ClientAddress::Unix),
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(four), _) => Some((four.ip(), four.port()).into()),
        // A dual-stack listener has IPv4 peers too.
        (None, Some(six)) => Some((IpAddr::V6(six.ip()).to_canonical(), six.port()).into()),
        (None, None) => None,
    }
}
