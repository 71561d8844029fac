//! The interface between a driver and a server.

use std::convert::Infallible;
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

/// A certificate with its key that a service can use.
pub trait Certificate: Sized + Send + 'static {
    /// Reads a certificate from its files. A thread beside the event loop calls it, since it may take long.
    ///
    /// # Errors
    /// The file that is wrong, and why.
    fn from_pem(files: &CertificatePem) -> Result<Self, (Option<CertificatePart>, String)>;
}

/// The certificate of a service without TLS.
impl Certificate for Infallible {
    fn from_pem(_: &CertificatePem) -> Result<Self, (Option<CertificatePart>, String)> {
        Err((None, "this server is without TLS".to_owned()))
    }
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
    service.handle_event(now, Priced(event));
}

/// What an accepted connection begins with.
pub enum Entry {
    /// What its protocol says. The peer is shown for HTTP.
    Plain(Option<Peer>),
    /// A TLS handshake.
    Tls(Peer),
    /// A header of the PROXY protocol, and then perhaps a TLS handshake.
    Proxied {
        /// Whether there is a handshake.
        has_tls: bool,
        /// The load balancer.
        balancer: Peer,
    },
    /// TLS with the key of the link, and in it a header of the PROXY protocol that shows the [secret](Update::LinkSecret): this standby
    /// forwards a client.
    Forwarded(Origin),
}

/// What a service learns that is neither about a connection nor about the job log. `I` is its [`Service::Identity`].
pub enum Update<I> {
    /// The driver begins, and counts here.
    Counts(Rc<dyn DriverCounts>),
    /// The file of users has changed. Connections of users that are gone are closed, a bounded number per turn. None: it was
    /// refused, and the users are the ones before.
    Users(Option<Users>),
    /// The files of the certificate have changed, or cannot be used for this reason.
    Certificate(Result<I, String>),
    /// The link to standbys has this secret from now on. None: this server is no leader, and refuses connections from standbys.
    LinkSecret(Option<LinkSecret>),
}

/// What log lines call a connection.
#[derive(Clone, Copy, Default, Debug)]
pub struct ConnNames<'a> {
    /// Its number. Connections are counted from 1, so no number is used twice, unlike the slot of a [`ConnId`].
    pub number: u64,
    /// Its peer, if a load balancer or a standby has told it.
    pub peer: Option<&'a str>,
    /// Its user, if the client has authenticated.
    pub user: Option<&'a str>,
}

/// The state of a service that its driver acts on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Whether it serves clients, or why it does not.
    pub role: ServerRole,
    /// The token of the claim with which it leads, if it leads a replicated queue.
    pub leader_token: Option<u64>,
    /// Whether it is in drain mode.
    pub is_draining: bool,
    /// Whether everything that must be on disk at the end is there.
    pub is_settled: bool,
    /// Why it cannot continue, if it cannot. The end of a leader's term is no failure: the role tells it.
    pub failure: Option<String>,
}

impl Default for Status {
    /// The status of a service without a job log.
    fn default() -> Self {
        Self {
            role: ServerRole::Serving,
            leader_token: None,
            is_draining: false,
            is_settled: true,
            failure: None,
        }
    }
}

/// A server as a driver sees it: [`Server`](super::Server), or the no-op baseline, which shows what a driver costs by itself.
///
/// Inputs: [`accept`](Self::accept), [`handle`], [`update`](Self::update) and [`turn`](Self::turn). After each of
/// them the driver carries out [`poll_effect`](Self::poll_effect) until there is none.
///
/// Outputs: [`direct`](Self::direct) is the place for the next receive, [`outgoing`](Self::outgoing) the output to send, and
/// [`poll_log_request`](Self::poll_log_request) what to ask the place of the job log next. The driver calls `turn` once per batch of events, and no later than
/// [`next_deadline`](Self::next_deadline).
///
/// Getters: [`names`](Self::names) for log lines, and [`status`](Self::status).
pub trait Service {
    /// A certificate that [`update`](Self::update) takes.
    type Identity: Certificate
    where
        Self: Sized;

    /// A connection was accepted at a listener of this protocol. Returns the id that events and effects name it by. The service may
    /// close another connection for it.
    fn accept(&mut self, now: Time, protocol: Protocol, entry: Entry) -> ConnId;

    /// Does what an event leads to. Drivers call [`handle`].
    fn handle_event(&mut self, now: Time, event: Priced<'_>);

    /// Takes an update. Returns the users of before if there are others now: they take long to free.
    fn update(&mut self, _now: Time, _update: Update<Self::Identity>) -> Option<Users>
    where
        Self: Sized,
    {
        None
    }

    /// Does a bounded amount of the work that is due or left over.
    fn turn(&mut self, now: Time);

    /// The next effect to carry out.
    fn poll_effect(&mut self) -> Option<Effect>;

    /// When [`turn`](Self::turn) must be called next if nothing else happens: at once while work is left. Valid after the effects
    /// are carried out, since a send may make work.
    fn next_deadline(&self) -> Option<Time>;

    /// The place of the next bytes of this connection, if they are part of a large body. A driver may receive them there, reports
    /// [`Event::ReceivedDirect`], and treats bytes beyond the place as ordinary input.
    fn direct(&mut self, conn: ConnId) -> Option<&mut [u8]>;

    /// Appends the output to send to this connection next. It stays in place until [`Event::Sent`] or [`Event::Closed`].
    fn outgoing<'a>(&'a mut self, conn: ConnId, slices: &mut Vec<IoSlice<'a>>);

    /// The next request to the place of the job log, to be begun now. [`Event::Log`] reports how it ended.
    fn poll_log_request(&mut self, _now: Time) -> Option<LogRequest> {
        None
    }

    /// The names of an open connection.
    fn names(&self, conn: ConnId) -> ConnNames<'_>;

    /// The present status.
    fn status(&self) -> Status {
        Status::default()
    }

    /// The counter of the work of the service, which is that of the innermost server.
    fn budget(&mut self) -> &mut Budget;

    /// The account of the memory that is kept for peers, for a driver and for a service around this one. By default it has no limit, and
    /// nothing looks at it.
    fn account(&self) -> Rc<Account> {
        Rc::default()
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
