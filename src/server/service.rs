//! The interface between a driver and a server.

use std::io::IoSlice;
use std::rc::Rc;

use super::{DriverCounts, Effect, Event, Origin, Peer, ServerRole, Users};
use crate::bodies::Bodies;
use crate::time::Time;
use crate::values::account::Account;
use crate::values::budget::Budget;
use crate::values::ids::ConnId;
use crate::values::link_secret::LinkSecret;
use crate::wal::LogRequest;

/// The protocol of a listener and its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// The beanstalk protocol, for clients of the queue.
    Beanstalk,
    /// HTTP, for metrics and health probes.
    Http,
}

/// A file of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CertificatePart {
    /// The certificate of the server, then those between it and its authority.
    Chain,
    /// Its private key.
    Key,
    /// The authorities of clients.
    ClientCa,
}

/// The contents of the files of a certificate, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificatePem {
    /// The certificate of the server, then those between it and its authority.
    pub chain: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The authorities whose certificates clients must show, if they must.
    pub client_ca: Option<Vec<u8>>,
}

/// An event whose price is paid. Only [`handle`] makes one.
pub struct Priced<'a>(Event<'a>);

impl<'a> Priced<'a> {
    /// The event.
    #[inline]
    pub const fn event(&self) -> &Event<'a> {
        &self.0
    }

    /// The event, to be used up.
    #[inline]
    pub fn into_event(self) -> Event<'a> {
        self.0
    }
}

/// Handles an event, at its price.
///
/// # Panics
/// If the event names a closed connection: a bug of the driver.
// No method of the trait, so that no service can leave out the price.
#[inline(always)]
pub fn handle<S: Service + ?Sized>(service: &mut S, now: Time, event: Event<'_>) {
    service.budget().charge_arrival(event.cost());
    service.take(now, Priced(event));
}

/// A server as a driver sees it: [`Server`](super::Server), or the no-op baseline, which shows what a driver costs by itself.
///
/// Inputs: [`accept`](Self::accept), [`handle`] and [`turn`](Self::turn). After each of
/// them the driver carries out [`next_effect`](Self::next_effect) until there is none.
///
/// Outputs: [`direct`](Self::direct) is the place for the next receive, [`outgoing`](Self::outgoing) the output to send, and
/// [`log_request`](Self::log_request) what to ask the place of the job log next. The driver calls `turn` once per batch of events, and no later than
/// [`next_deadline`](Self::next_deadline).
pub trait Service {
    /// A certificate with its key that was read and can be used.
    type Identity: Send + 'static
    where
        Self: Sized;

    /// Reads a certificate from its files. A thread beside the event loop calls it, since it may take long.
    ///
    /// # Errors
    /// The file that is wrong, and why.
    fn read_identity(_files: &CertificatePem) -> Result<Self::Identity, (Option<CertificatePart>, String)>
    where
        Self: Sized,
    {
        unreachable!("a service without TLS has no certificate")
    }

    /// A connection was accepted at a listener of this protocol. Returns the id that events and effects name it by.
    fn accept(&mut self, protocol: Protocol) -> ConnId;

    /// The peer of an accepted connection. A driver reports it for HTTP, before any event of the connection. The server may close
    /// another connection for it.
    fn set_peer(&mut self, _now: Time, _conn: ConnId, _peer: Peer) {}

    /// An accepted connection begins with a header of the PROXY protocol, and then perhaps with a TLS handshake. A driver reports
    /// it before any event of the connection, and for HTTP instead of [`set_peer`](Self::set_peer).
    fn begin_proxied(&mut self, _now: Time, _conn: ConnId, _has_tls: bool, _balancer: Peer) {
        unreachable!("a service without the PROXY protocol has no listener for it")
    }

    /// An accepted connection is from a standby, which forwards a client: over TLS with the key of the link, it begins with a header of
    /// the PROXY protocol that shows the [secret](Self::set_link_secret). A driver reports it before any event of the connection.
    fn begin_forwarded(&mut self, _now: Time, _conn: ConnId, _standby: Origin) {
        unreachable!("a service without the PROXY protocol has no listener for standbys")
    }

    /// Sets the secret of the link to standbys from now on. None: this server is no leader, and refuses connections from standbys.
    fn set_link_secret(&mut self, _secret: Option<LinkSecret>) {}

    /// The token of the claim with which this server leads, if it leads a replicated queue.
    fn leader_token(&self) -> Option<u64> {
        None
    }

    /// The peer of a connection for log lines, if a load balancer or a standby has told it.
    fn peer_name(&self, _conn: ConnId) -> Option<&str> {
        None
    }

    /// The user of an open connection for log lines, if the client has authenticated.
    fn user_name(&self, _conn: ConnId) -> Option<&str> {
        None
    }

    /// An accepted connection begins with a TLS handshake. A driver reports it before any event of the connection.
    fn begin_tls(&mut self, _now: Time, _conn: ConnId, _origin: Origin) {
        unreachable!("a service without TLS has no listener with TLS")
    }

    /// The peer of an accepted connection has proved, by its certificate, that it has these names. Reported before any input of
    /// the connection.
    fn certified(&mut self, _conn: ConnId, _names: &[String]) {}

    /// The file of users has changed. Connections of users that are gone are closed, a bounded number per turn. Returns the users
    /// of before, which take long to free.
    fn replace_users(&mut self, _users: Users) -> Option<Users> {
        None
    }

    /// The file of users has changed and was refused: the users are the ones before.
    fn users_refused(&mut self) {}

    /// The files of the certificate have changed, or cannot be used for this reason.
    fn replace_certificate(&mut self, _now: Time, _identity: Result<Self::Identity, String>)
    where
        Self: Sized,
    {
    }

    /// Shows the service what the driver counts, at its start.
    fn show_counts(&mut self, _counts: Rc<dyn DriverCounts>) {}

    /// The account of the memory that is kept for peers, for a driver and for a service around this one. By default it has no limit, and
    /// nothing looks at it.
    fn account(&self) -> Rc<Account> {
        Rc::default()
    }

    /// The number of an open connection in log lines. Connections are counted from 1, so no number is used twice, unlike the
    /// slot of a [`ConnId`].
    fn number(&self, conn: ConnId) -> u64;

    /// The counter of the work of the service, which is that of the innermost server.
    fn budget(&mut self) -> &mut Budget;

    /// Does what an event leads to. Drivers call [`handle`].
    fn take(&mut self, now: Time, event: Priced<'_>);

    /// Does a bounded amount of the work that is due or left over.
    fn turn(&mut self, now: Time);

    /// The next effect to carry out.
    fn next_effect(&mut self) -> Option<Effect>;

    /// When [`turn`](Self::turn) must be called next if nothing else happens: at once while work is left. Valid after the effects
    /// are carried out, since a send may make work.
    fn next_deadline(&self) -> Option<Time>;

    /// The place of the next bytes of this connection, if they are part of a large body. A driver may receive them there, reports
    /// [`Event::ReceivedDirect`], and treats bytes beyond the place as ordinary input.
    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]>;

    /// Appends the output to send to this connection next. It stays in place until [`Event::Sent`] or [`Event::Closed`].
    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>);

    /// The next request to the place of the job log, to be begun now. [`Event::Log`] reports how it ended.
    fn log_request(&mut self, _now: Time) -> Option<LogRequest> {
        None
    }

    /// Whether the server is in drain mode.
    fn is_draining(&self) -> bool {
        false
    }

    /// Whether the server serves clients, or why it does not.
    fn role(&self) -> ServerRole {
        ServerRole::Serving
    }

    /// Whether everything that must be on disk at the end is there.
    fn is_settled(&self) -> bool {
        true
    }

    /// Why the server cannot continue, if it cannot. The end of a leader's term is no failure: [`role`](Self::role) tells it.
    fn failure(&self) -> Option<String> {
        None
    }

    /// The memory of bodies, for a driver that registers the chunks of large ones with the kernel; `None` if there is none. The
    /// driver [holds](Bodies::hold_chunk) a chunk before it registers it.
    fn body_memory(&mut self) -> Option<&mut Bodies>;
}

/// Gathers the output of a connection without allocating.
#[derive(Default)]
pub struct IoVecs {
    /// Empty between sends; kept for its allocation.
    spare: Vec<IoSlice<'static>>,
}

impl IoVecs {
    /// Calls `send` with the output of a connection. It is empty if there is none.
    pub fn with_outgoing<T>(
        &mut self,
        server: &mut impl Service,
        conn: ConnId,
        send: impl FnOnce(&mut [IoSlice<'_>]) -> T,
    ) -> T {
        let mut slices = recycle(std::mem::take(&mut self.spare));
        server.outgoing(conn, &mut slices);
        let result = send(&mut slices);
        self.spare = recycle(slices);
        result
    }
}

/// Empties the vector and frees it from the lifetime of its slices. It keeps its allocation: the standard library collects
/// in place where the layouts agree.
fn recycle<'a>(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'a>> {
    slices.clear();
    slices.into_iter().map(|_| unreachable!("it is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_vector_keeps_its_allocation() {
        let text = String::from("text");
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(64);
        slices.push(IoSlice::new(text.as_bytes()));
        let allocation = slices.as_ptr().addr();
        let recycled: Vec<IoSlice<'static>> = recycle(slices);
        assert_eq!((recycled.as_ptr().addr(), recycled.capacity()), (allocation, 64));
    }
}
