//! Servers that stand by for each other: which role this one has, and where its connections are served.

use std::os::fd::OwnedFd;

use tracing::info;

use super::{Connection, Shell};
use crate::io::socket::ListenerKind;
#[cfg(feature = "replicate")]
use crate::io::{
    Forwarding,
    bell::Bell,
    forward::{Arrival, GivenBack, LeaderTarget},
};
#[cfg(feature = "replicate")]
use crate::server::{Protocol, Update};
use crate::server::{ServerRole, Service};
#[cfg(feature = "replicate")]
use crate::transport::forwarded::Inbound;
#[cfg(feature = "replicate")]
use crate::values::account::Held;
#[cfg(feature = "replicate")]
use crate::values::link_secret::LinkSecret;

impl<S: Service, C: Connection> Shell<S, C> {
    /// Whether connections of this kind are forwarded to the leader.
    #[cfg(feature = "replicate")]
    pub(super) fn can_forward(&self, kind: ListenerKind) -> bool {
        !kind.is_forwarded
            && self.forwarding.as_ref().is_some_and(|forwarding| !forwarding.forwarder.is_full())
    }

    #[cfg(not(feature = "replicate"))]
    pub(super) const fn can_forward(&self, _: ListenerKind) -> bool {
        false
    }

    /// Forwards an accepted connection to the leader if this server is a standby. Returns a connection that it serves itself.
    #[cfg(feature = "replicate")]
    pub(super) fn forward(&self, listener: usize, fd: OwnedFd) -> Option<OwnedFd> {
        let ListenerKind { protocol, has_tls, is_proxied, .. } = self.listeners[listener].listener.kind();
        match &self.forwarding {
            Some(Forwarding { forwarder, .. })
                if self.role != ServerRole::Serving && protocol == Protocol::Beanstalk =>
            {
                let inbound = Inbound { has_tls, is_proxied, is_watch: false };
                forwarder.forward(fd, Arrival { listener, inbound });
                None
            }
            _ => Some(fd),
        }
    }

    #[cfg(not(feature = "replicate"))]
    pub(super) const fn forward(&self, _: usize, fd: OwnedFd) -> Option<OwnedFd> {
        Some(fd)
    }

    /// Learns the role of the server. Returns whether connections may be accepted that were not before.
    pub(super) fn note_role(&mut self) -> bool {
        if self.database.is_none() {
            return false;
        }
        let role = self.server.status().role;
        if role == self.role {
            return false;
        }
        log_role(&role);
        self.role = role;
        #[cfg(feature = "replicate")]
        self.show_role();
        self.role == ServerRole::Serving
    }

    /// Counts the memory and the clients of the thread that forwards.
    #[cfg(feature = "replicate")]
    pub(super) fn note_forwarded(&mut self) {
        let Some(Forwarding { forwarder, .. }) = &self.forwarding else { return };
        let counts = forwarder.counts();
        self.account.set(Held::Forwarded, counts.memory.get() as usize);
        let is_standby = self.role != ServerRole::Serving;
        let max = forwarder.connections_max();
        self.admission.forwarded(counts.open.get() as usize, is_standby.then_some(max), self.now);
        while let Some(GivenBack { client, listener }) = forwarder.given_back() {
            self.listeners[listener].listener.hand_over(client);
            self.has_handed_over = true;
        }
    }

    /// Tells the thread that forwards who leads, and standbys what they must show.
    #[cfg(feature = "replicate")]
    fn show_role(&mut self) {
        let Some(Forwarding { forwarder, own_secret }) = &self.forwarding else { return };
        let token = self.server.status().leader_token;
        let own = token.map(|token| LinkSecret { token, shown: *own_secret });
        self.server.update(self.now, Update::LinkSecret(own));
        match &self.role {
            // If there is no descriptor for the bell, the next iteration takes the clients.
            ServerRole::Serving => {
                forwarder.give_back(self.outcome_fd().and_then(|shared| Bell::share(shared).ok()))
            }
            role => forwarder.lead_to(target(role)),
        }
    }
}

fn log_role(role: &ServerRole) {
    match role {
        ServerRole::Serving => info!("this server leads"),
        ServerRole::StandbyOfOwnAddress(leader) => info!(
            "the last leader had the address of this server, {}: an earlier run of it, or a server with the same --advertise",
            leader.address
        ),
        ServerRole::Standby(Some(leader)) if leader.address.is_empty() => {
            info!("this server is a standby of a leader that accepts no forwarded connections");
        }
        ServerRole::Standby(Some(leader)) => info!("this server is a standby of {}", leader.address),
        ServerRole::Standby(None) | ServerRole::Ended(_) => {}
    }
}

/// Where clients are forwarded to that come to a server with this role.
#[cfg(feature = "replicate")]
fn target(role: &ServerRole) -> Option<LeaderTarget> {
    match role {
        ServerRole::Standby(Some(leader)) if !leader.address.is_empty() => {
            let secret = LinkSecret { token: leader.token, shown: leader.secret };
            Some(LeaderTarget { address: leader.address.to_string(), secret })
        }
        _ => None,
    }
}
