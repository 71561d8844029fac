//! The connection that watches the machine of the leader.

use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{MsgFlags, recv};
use tracing::warn;

use super::Worker;
use super::token::{EVERYTHING, Token};
use crate::io::forward::connection::client_address;
use crate::io::forward::hop::{Hop, failure};
use crate::io::forward::leader::{Watch, watch_machine};
use crate::time::Span;
use crate::transport::forwarded::{ClientAddress, Inbound, header};

/// The pause before another connection watches the leader.
const WATCH_PAUSE: Span = Span::from_secs(1);

impl Worker {
    /// Sees to it that a connection watches the machine of the leader.
    pub(super) fn watch_leader(&mut self) {
        let Some(leader) = &self.leader else { return };
        match &self.watch {
            Watch::Pause(until) if *until <= self.now => {}
            Watch::Connecting(hop) if hop.until <= self.now => return self.handle_watch(EpollFlags::empty()),
            _ => return,
        }
        let Some(address) = leader.address(leader.preferred) else { return };
        let begun = Hop::connect(address, &leader.tls, self.now, self.settings.connect).and_then(|hop| {
            watch_machine(hop.socket(), self.settings.gone_after).map_err(failure)?;
            self.epoll.add(hop.socket(), Token::Watch.event(EVERYTHING)).map_err(failure)?;
            Ok(hop)
        });
        match begun {
            Ok(hop) => self.watch = Watch::Connecting(Box::new(hop)),
            Err((errno, _)) => self.watch_failed(errno),
        }
    }

    pub(super) fn handle_watch(&mut self, events: EpollFlags) {
        let outcome = match &mut self.watch {
            Watch::Pause(_) => return,
            Watch::Connecting(hop) => match hop.advance(self.now) {
                Ok(true) => self.begin_watch(),
                Ok(false) => Ok(()),
                // After a handshake that takes too long this is no silence: the machine has answered, and the leader may be busy.
                Err((errno, _)) => Err(errno),
            },
            Watch::Open(fd) => {
                if !events.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
                    return;
                }
                match recv(fd.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT) {
                    // The leader has closed it.
                    Ok(0) => Err(Errno::ECONNRESET),
                    Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
                    Err(errno) => Err(errno),
                }
            }
        };
        if let Err(errno) = outcome {
            self.watch_failed(errno);
        }
    }

    /// Sends the header of a connection that watches. Nothing else is sent on it.
    fn begin_watch(&mut self) -> nix::Result<()> {
        let watch = std::mem::replace(&mut self.watch, Watch::Pause(self.now + WATCH_PAUSE));
        let (Watch::Connecting(mut hop), Some(leader)) = (watch, &self.leader) else { return Ok(()) };
        let own = client_address(hop.socket()).ok_or(Errno::ENOTCONN)?;
        let address = match own {
            // From the standby to the leader, and not the other way.
            ClientAddress::Tcp(peer, own) => ClientAddress::Tcp(own, peer),
            ClientAddress::Unix => own,
        };
        let inbound = Inbound { is_watch: true, ..Inbound::default() };
        hop.send(&header(address, inbound, leader.target.secret.shown))?;
        self.silent_since = None;
        self.watch = Watch::Open(hop.into_socket());
        Ok(())
    }

    /// The connection that watches has ended. If that is because the machine of the leader is silent, the others end too.
    fn watch_failed(&mut self, errno: Errno) {
        let was_open = matches!(self.watch, Watch::Open(_));
        self.watch = Watch::Pause(self.now + WATCH_PAUSE);
        let is_silent = matches!(errno, Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH);
        if !is_silent {
            self.silent_since = None;
            return;
        }
        let since = *self.silent_since.get_or_insert(self.now);
        if was_open || self.now.since(since) >= self.settings.gone_after {
            let closed = self.close_forwarded();
            self.counts.closed_by_silence.add(closed);
            if closed > 0 {
                warn!("closed {closed} forwarded connections: the machine of the leader does not answer");
            }
        }
    }
}
