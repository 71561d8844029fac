//! Finds peers whose machines are gone, for `--tcp-keepalive`.
//!
//! While nothing is in flight to a peer, keepalive probes of the kernel find that out. They stop while the peer owes an
//! acknowledgement: then the kernel repeats what it has sent, for a quarter of an hour. `TCP_USER_TIMEOUT` would end that, but it
//! also ends connections of peers that are alive and leave a full window unread for as long. So connections are looked at
//! in rounds: a peer is lost that has owed an answer in several rounds in a row and given none.
//!
//! The kernel repeats what is not answered at intervals that double, up to two minutes, and one repetition may be lost. A kernel from
//! 6.15 on is told to repeat at least once per round. On an older one, a lost peer must leave several repetitions unanswered.

use std::mem::{size_of, zeroed};
use std::num::NonZeroU32;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use nix::errno::Errno;
use nix::libc::{self, socklen_t, tcp_info};
use nix::sys::socket::{setsockopt, sockopt};

use crate::time::{Span, Time};

/// Probes that a peer may leave unanswered.
const PROBES: u32 = 3;

/// Probes, and rounds of looks, in the time after which an idle peer is probed first.
const PER_IDLE_TIME: u32 = 6;

/// Rounds after the first one in which a lost peer owes an answer.
const ROUNDS: u32 = PER_IDLE_TIME + PROBES - 1;

/// Repetitions that a lost peer has left unanswered, if the kernel makes longer pauses than a round.
const REPEATS_MIN: u8 = 3;

/// TCP_RTO_MAX_MS of linux/tcp.h, and the range of its value.
const RTO_MAX_MS: libc::c_int = 44;
const RTO_MS: RangeInclusive<u32> = 1_000..=120_000;

/// Connections that are looked at in one event-loop iteration.
const LOOKS_MAX: usize = 64;

/// When the kernel probes peers of TCP connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    idle_s: u32,
}

/// The rounds of looks at the connections of an event loop.
#[derive(Debug)]
pub struct LostPeers {
    period: Span,
    /// The number of the present round, or of the last one.
    round: u32,
    next_round: Time,
    /// The slot at which the present round goes on; 0 between rounds.
    slot: usize,
}

/// The round in which a peer that owes an answer was first found to do so.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SilentSince(Option<NonZeroU32>);

impl Keepalive {
    /// The longest time that the kernel takes, in seconds.
    pub const S_MAX: u32 = 32_767;

    /// Probes a peer after `idle_s` seconds of silence, and gives it up half that time later. None for 0: no probes.
    pub const fn after(idle_s: u32) -> Option<Self> {
        if idle_s == 0 { None } else { Some(Self { idle_s }) }
    }

    /// The time between two rounds.
    fn period_ms(self) -> u32 {
        (self.idle_s * 1000 / PER_IDLE_TIME).max(*RTO_MS.start())
    }

    /// Sets the options of connections on a TCP listener, from which they inherit them.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set(this: Option<Self>, listener: &impl AsFd) -> nix::Result<()> {
        setsockopt(listener, sockopt::KeepAlive, &this.is_some())?;
        let Some(keepalive) = this else { return Ok(()) };
        setsockopt(listener, sockopt::TcpKeepIdle, &keepalive.idle_s)?;
        setsockopt(listener, sockopt::TcpKeepInterval, &(keepalive.idle_s / PER_IDLE_TIME).max(1))?;
        setsockopt(listener, sockopt::TcpKeepCount, &PROBES)?;
        // Older kernels do not know it.
        let _ = limit_pauses(listener, keepalive.period_ms());
        Ok(())
    }
}

impl LostPeers {
    /// Begins with a round of all connections.
    pub fn new(keepalive: Keepalive) -> Self {
        let period = Span::from_millis(keepalive.period_ms());
        Self { period, round: 0, next_round: Time::ZERO, slot: 0 }
    }

    /// When to look next, if there are connections.
    pub const fn deadline(&self) -> Time {
        if self.slot > 0 { Time::ZERO } else { self.next_round }
    }

    /// Returns which of the `count` slots to look at now.
    pub fn slots(&mut self, now: Time, count: usize) -> Range<usize> {
        if self.slot == 0 {
            if now < self.next_round {
                return 0..0;
            }
            self.round = self.round.saturating_add(1);
            self.next_round = now + self.period;
        }
        let slots = self.slot..count.min(self.slot + LOOKS_MAX);
        self.slot = if slots.end == count { 0 } else { slots.end };
        slots
    }

    /// Whether the peer of a connection is lost.
    pub fn is_lost(&self, fd: RawFd, since: &mut SilentSince) -> bool {
        let Some(peer) = Unanswered::of(fd) else {
            *since = SilentSince::default();
            return false;
        };
        self.is_silent(peer.silence, since) && (peer.repeats >= REPEATS_MIN || peer.is_repeated_often)
    }

    /// Whether a peer that owes an answer, and from which nothing has come for this time, has owed it in enough rounds.
    fn is_silent(&self, silence: Span, SilentSince(since): &mut SilentSince) -> bool {
        let rounds = since.map_or(0, |first| self.round - first.get());
        if since.is_none() || silence.as_nanos() < self.period.as_nanos() * u64::from(rounds) {
            *since = NonZeroU32::new(self.round);
            return false;
        }
        // mutant lost-peer-is-kept: rounds >= ROUNDS => false
        rounds >= ROUNDS
    }
}

/// Whether the kernel has ended a connection because nothing came from its peer.
pub const fn is_loss(errno: Errno) -> bool {
    // A router or the link may have reported the last two.
    matches!(errno, Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH)
}

/// What a peer has left unanswered, data or probe.
struct Unanswered {
    /// How long nothing has come.
    silence: Span,
    /// How often it was repeated.
    repeats: u8,
    /// The kernel repeats it at least once per round.
    is_repeated_often: bool,
}

impl Unanswered {
    /// Asks the kernel about a connection.
    fn of(fd: RawFd) -> Option<Self> {
        // SAFETY: a C structure of numbers, of which zero is a value.
        #[allow(unsafe_code)]
        let mut info: tcp_info = unsafe { zeroed() };
        // It fails for a UNIX socket.
        get_option(fd, libc::TCP_INFO, &mut info).ok()?;
        // What was in flight while the window closed stays there, and each repetition is answered. The kernel
        // counts no probe that is answered.
        let is_answered = info.tcpi_last_ack_recv <= info.tcpi_last_data_sent;
        if !(info.tcpi_probes > 0 || info.tcpi_unacked > 0 && !is_answered) {
            return None;
        }
        let mut pause_ms = 0;
        let is_repeated_often = get_option(fd, RTO_MAX_MS, &mut pause_ms).is_ok() && pause_ms < *RTO_MS.end();
        Some(Self {
            silence: Span::from_millis(info.tcpi_last_ack_recv),
            repeats: info.tcpi_probes.max(info.tcpi_retransmits),
            is_repeated_often,
        })
    }
}

/// Reads an option of TCP, whose value is a C structure of numbers or a number.
fn get_option<T: Copy>(fd: RawFd, option: libc::c_int, value: &mut T) -> nix::Result<()> {
    let mut length = size_of::<T>() as socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to the value, during the call.
    #[allow(unsafe_code)]
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, option, (value as *mut T).cast(), &raw mut length) };
    Errno::result(result).map(drop)
}

/// Has the kernel repeat what a peer leaves unanswered after at most so long.
fn limit_pauses(listener: &impl AsFd, ms: u32) -> nix::Result<()> {
    let ms = ms.clamp(*RTO_MS.start(), *RTO_MS.end());
    // SAFETY: the kernel reads the number during the call only.
    #[allow(unsafe_code)]
    let result = unsafe {
        let fd = listener.as_fd().as_raw_fd();
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            RTO_MAX_MS,
            (&raw const ms).cast(),
            size_of::<u32>() as socklen_t,
        )
    };
    Errno::result(result).map(drop)
}

/// Resets a TCP connection, and drops what its peer has not acknowledged. Whatever waits at it learns that as an error.
///
/// # Errors
/// Those of connect(2).
pub fn reset(fd: RawFd) -> nix::Result<()> {
    let nowhere = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let length = size_of::<libc::sockaddr>() as socklen_t;
    // SAFETY: the kernel reads the address during the call only.
    #[allow(unsafe_code)]
    let result = unsafe { libc::connect(fd, &raw const nowhere, length) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_lost_that_owes_an_answer_in_each_round() {
        let mut peers = LostPeers::new(Keepalive::after(60).unwrap());
        let mut since = SilentSince::default();
        for silent_s in (0..80).step_by(10) {
            assert_eq!(peers.slots(Time::ZERO + Span::from_secs(silent_s), 1), 0..1);
            assert!(!peers.is_silent(Span::from_secs(500 + silent_s), &mut since), "{silent_s}");
        }
        assert_eq!(peers.slots(Time::ZERO + Span::from_secs(80), 1), 0..1);
        assert!(peers.is_silent(Span::from_secs(580), &mut since));
    }

    #[test]
    fn an_answer_begins_it_anew() {
        let mut peers = LostPeers::new(Keepalive::after(60).unwrap());
        let mut since = SilentSince::default();
        for round in 0..50 {
            peers.slots(Time::ZERO + Span::from_secs(10 * round), 1);
            // At each fifth look something has come a second before.
            let silence = Span::from_secs(if round % 5 == 0 { 1 } else { 100 });
            assert!(!peers.is_silent(silence, &mut since), "{round}");
        }
    }

    #[test]
    fn a_round_is_made_in_parts_and_ends_when_connections_have_gone() {
        let mut peers = LostPeers::new(Keepalive::after(6).unwrap());
        assert_eq!(peers.slots(Time::ZERO, 100), 0..64);
        assert_eq!(peers.deadline(), Time::ZERO);
        assert_eq!(peers.slots(Time::ZERO, 100), 64..100);
        assert_eq!(peers.deadline(), Time::ZERO + Span::from_secs(1));
        assert_eq!(peers.slots(Time::ZERO, 100), 0..0);
        let next = peers.deadline();
        assert_eq!(peers.slots(next, 100), 0..64);
        assert!(peers.slots(next, 3).is_empty());
        assert_eq!(peers.deadline(), next + Span::from_secs(1));
    }
}
