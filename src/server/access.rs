//! Who a client is, and whether it may do what it asks for.

use std::collections::VecDeque;
use std::sync::Arc;

use tracing::{debug, info};

use super::beanstalk::Session;
use super::client_state::{ProtocolState, SessionState};
use super::commit_gate::Replies;
use super::connections::Connection;
use super::outcome::Refusal;
use super::rights::{Lacking, Missing, Need, On, shared_names};
use super::users::{Rights, User, Users};
use super::{ClientAct, Core, Effect, Server};
use crate::protocol::reply::Reply;
use crate::time::{Span, Time};
use crate::values::account::Held;
use crate::values::budget::{Cost, RUN_STEPS};
use crate::values::ids::{ClientKey, ConnId, JobId};
use crate::values::tags::Tags;
use crate::values::tube_name::TubeName;

/// How long the reply to a wrong token takes.
const REFUSAL_DELAY: Span = Span::from_secs(1);

/// Connections that wait for such a reply, at most: with more, the oldest gets its reply early. So tokens are tried at most this
/// often per second, or the server answers at once those that it would have to remember.
const REFUSALS_MAX: usize = 64;

/// Slots of connections that one event-loop iteration looks at after the users have changed. Most need 50 ns, and one that is
/// closed some 2 us.
const SWEEP_SLOTS: usize = 128;

/// Watches that are checked in one turn of a session.
const WATCHES_PER_TURN: usize = 64;

/// A client with more watches has them checked in its turns after a change of the users.
const WATCHES_AT_ONCE: usize = 4;

/// What a session knows of its user.
pub(super) struct SessionAccess {
    pub user: Arc<User>,
    /// The rights on the used tube.
    pub used: Rights,
    /// The [`Access::generation`] in which the user was one.
    generation: u64,
    /// Watches still to be checked, after a change of the user or its rights.
    unchecked: Option<usize>,
}

/// Shows that a client may do what it asks for. Only [`Core::authorize`] and [`Permit::for_page`] make one, and what executes takes
/// it.
#[derive(Debug)]
#[must_use]
pub(super) struct Permit(());

impl Permit {
    /// Permits a page over HTTP, which shows the user only what it may inspect.
    pub fn for_page(user: Option<&User>) -> Result<Self, Refusal> {
        let rights = Rights::INSPECT;
        let may = user.is_none_or(|user| user.grants.somewhere().has_any(rights));
        let missing = Missing { rights, on: Lacking::AnyTube, may_reveal: false };
        if may { Ok(Self(())) } else { Err(Refusal::Forbidden(missing)) }
    }
}

/// Why an authentication failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AuthFailure {
    /// `auth` had a token of no user.
    Token,
    /// A request over HTTP had a token of no user.
    Http,
    /// A certificate had no name of a user.
    Certificate,
}

impl AuthFailure {
    pub const ALL: [Self; 3] = [Self::Token, Self::Http, Self::Certificate];

    /// The value of the label `reason`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Http => "http",
            Self::Certificate => "certificate",
        }
    }
}

/// The users, and what is under way because of them.
pub(super) struct Access {
    /// None without `--auth`.
    users: Option<Users>,
    users_bytes: usize,
    /// How often the users have changed.
    generation: u64,
    /// The next slot of connections whose users may have changed.
    sweep: Option<usize>,
    /// Connections that wait for the reply to a wrong token, and when it is due, in this order.
    refused: VecDeque<(Time, ConnId)>,
    failures: [u64; AuthFailure::ALL.len()],
    /// Files of users that were refused.
    pub reload_failures: u64,
}

impl Access {
    pub fn new(users: Option<Users>) -> Self {
        let users_bytes = users.as_ref().map_or(0, Users::memory_bytes);
        Self {
            users,
            users_bytes,
            generation: 0,
            sweep: None,
            refused: VecDeque::new(),
            failures: [0; AuthFailure::ALL.len()],
            reload_failures: 0,
        }
    }

    pub const fn users(&self) -> Option<&Users> {
        self.users.as_ref()
    }

    /// This user as it is now, if there still is one of its name.
    fn again(&self, user: &User) -> Option<&Arc<User>> {
        self.users()?.again(user)
    }

    /// How often the users have changed.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    pub const fn failures(&self, reason: AuthFailure) -> u64 {
        self.failures[reason as usize]
    }

    pub const fn count_failure(&mut self, reason: AuthFailure) {
        self.failures[reason as usize] += 1;
    }

    /// Has [`Server::step_access`] reply to a wrong token later.
    pub fn delay_refusal(&mut self, conn: ConnId, now: Time) {
        // mutant auth-wrong-token-refused-at-once: now + REFUSAL_DELAY => now
        self.refused.push_back((now + REFUSAL_DELAY, conn));
    }

    /// The memory of the users and of waiting refusals, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.users_bytes + self.refused.capacity() * size_of::<(Time, ConnId)>()
    }

    /// Whether there is nothing to do for them, now or later.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        self.sweep.is_none() && self.refused.is_empty()
    }

    /// When an iteration must run because of them.
    pub fn deadline(&self) -> Option<Time> {
        match self.sweep {
            Some(_) => Some(Time::ZERO),
            None => self.refused.front().map(|&(due, _)| due),
        }
    }
}

impl User {
    /// Whether the user may name the concurrency key and the groups of a job.
    fn may_name(&self, tags: Tags<'_>) -> bool {
        tags.is_empty()
            || shared_names(tags).into_iter().flatten().all(|name| self.may(Rights::NAME_KEY, name))
    }
}

impl SessionAccess {
    fn new(user: Arc<User>, used: TubeName<'_>, generation: u64) -> Self {
        let used = user.grants.on(used);
        Self { user, used, generation, unchecked: None }
    }

    /// Whether watches are to be checked before the next command.
    pub const fn has_stale_watches(&self) -> bool {
        self.unchecked.is_some()
    }
}

/// The token of an `auth` line.
fn token_of(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(b"auth")?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b" ") }
}

impl Core {
    /// Serves a line that is `auth` or no command. Returns false if it is none.
    #[cold]
    pub(super) fn serve_auth(
        &mut self,
        protocol: &mut ProtocolState,
        replies: &mut Replies,
        line: &[u8],
        now: Time,
    ) -> bool {
        let Some(users) = self.access.users() else { return false };
        let Some(token) = token_of(line) else { return false };
        self.engine.budget().charge(Cost::AUTH);
        match users.by_token(token).map(Arc::clone) {
            Some(user) => {
                self.engine.budget().charge(user.grants.cost());
                debug!(conn = replies.number(), "authenticated as user {user}");
                self.become_user(protocol, user);
                replies.set_harmless(true);
                replies.reply(Reply::Authenticated, &mut self.buffers);
                replies.set_harmless(false);
            }
            None => self.refuse_token(protocol, now),
        }
        true
    }

    fn refuse_token(&mut self, protocol: &mut ProtocolState, now: Time) {
        self.access.count_failure(AuthFailure::Token);
        let conn = self.engine.clients().get(protocol.client).conn;
        self.effects.push_back(Effect::LogClient(conn, ClientAct::WrongToken));
        protocol.state = SessionState::Refused;
        self.access.delay_refusal(conn, now);
        self.count_users();
    }

    /// Counts the current size of the users and of refused clients.
    pub(super) fn count_users(&self) {
        self.memory.account().set(Held::Users, self.access.memory_bytes());
    }

    /// Makes a client this user. It must not wait.
    pub(super) fn become_user(&mut self, protocol: &mut ProtocolState, user: Arc<User>) {
        let used = self.engine.used(protocol.client).name();
        let watches = self.engine.clients().get(protocol.client).watch_count();
        let access = SessionAccess::new(user, used, self.access.generation);
        protocol.access = Some(SessionAccess { unchecked: Some(watches), ..access });
        self.check_watches(protocol);
    }

    /// Ends watches of tubes on which the user may not consume. With many watches it needs several turns, and serves no command
    /// before. A client whose last watch ends this way watches the default tube, as a new one does, if it may.
    fn check_watches(&mut self, protocol: &mut ProtocolState) {
        let (client, state) = (protocol.client, &mut protocol.state);
        let Some(access) = &mut protocol.access else { return };
        let Some(end) = access.unchecked else { return };
        let user = &access.user;
        if !user.grants.everywhere().has_any(Rights::CONSUME) {
            let keep = |tube: TubeName<'_>| user.may(Rights::CONSUME, tube);
            let left = self.engine.keep_watches(client, end, WATCHES_PER_TURN, keep);
            let each = Cost::WATCH_CHECK.plus(user.cost_of(Rights::CONSUME));
            self.engine.budget().charge(each.times(end - left));
            if left > 0 {
                access.unchecked = Some(left);
                *state = SessionState::Unwatching;
                return;
            }
        }
        access.unchecked = None;
        *state = SessionState::Serving;
        let watches_none = self.engine.clients().get(client).watch_count() == 0;
        if watches_none && user.may(Rights::CONSUME, TubeName::DEFAULT) {
            self.engine.watch(client, TubeName::DEFAULT);
        }
    }

    /// Checks further watches of a session, in its turn.
    pub(super) fn continue_unwatching(&mut self, session: &mut Session, now: Time) {
        self.check_watches(&mut session.protocol);
        self.charge(Cost::COMMAND);
        self.after_serving(session, now);
    }

    /// Permits what a client needs, or says what its user lacks. Without `--auth` everything is permitted.
    #[inline(always)]
    pub(super) fn authorize<'a>(
        &mut self,
        protocol: &ProtocolState,
        need: impl Into<Need<'a>>,
    ) -> Result<Permit, Refusal> {
        if protocol.access.is_none() { Ok(Permit(())) } else { self.authorize_user(protocol, need.into()) }
    }

    #[inline(never)]
    fn authorize_user(&mut self, protocol: &ProtocolState, need: Need<'_>) -> Result<Permit, Refusal> {
        let Some(access) = &protocol.access else { return Ok(Permit(())) };
        // The users may have changed since the session was last brought in line with them, or since the line of a body.
        // mutant auth-text-of-before-a-reload: access.generation == self.access.generation => true
        let is_known = access.generation == self.access.generation;
        let again = if is_known { Some(&access.user) } else { self.access.again(&access.user) };
        let user = again.map(|user| (&**user, is_known.then_some(access.used)));
        let checked = access.user.grants.cost().times(need.names() + usize::from(!is_known));
        let lacks = |(on, rights): &(On<'_>, Rights)| {
            user.is_none_or(|(user, used)| !self.meets(protocol.client, user, used, *on, *rights))
        };
        let lacking = need.0.into_iter().find(lacks);
        let lacking = lacking.map(|(on, rights)| self.missing(need, on, rights));
        self.engine.budget().charge(checked);
        lacking.map_or(Ok(Permit(())), |missing| Err(Refusal::Forbidden(missing)))
    }

    /// Whether a user has one of these rights on something. Those on the used tube may be known.
    fn meets(
        &self,
        client: ClientKey,
        user: &User,
        used: Option<Rights>,
        on: On<'_>,
        rights: Rights,
    ) -> bool {
        match on {
            On::Nothing => true,
            On::Used => {
                let used = used.unwrap_or_else(|| user.grants.on(self.engine.used(client).name()));
                used.has_any(rights)
            }
            On::Tube(tube) | On::Target(tube) => user.may(rights, tube),
            On::Job(id) => self.may_on_job(user, id, rights),
            On::Jobs(ids) => {
                // Bounded by LINE_BYTES_LONG_MAX: the ids of one line, some 500.
                user.grants.everywhere().has_any(rights)
                    || ids.iter().all(|id| self.may_on_job(user, id, rights))
            }
            On::Schedule(name) => {
                self.engine.schedule(name).is_none_or(|schedule| user.may(rights, schedule.tube()))
            }
            // mutant auth-keys-of-others: user.may_name(tags) => true
            On::Names(tags) => user.may_name(tags),
            On::StoredNames(tags_key) => user.may_name(self.engine.stored_tags(tags_key)),
            On::Watched => self.engine.clients().get(client).watch_count() > 0,
            On::AnyTube => user.grants.somewhere().has_any(rights),
            On::AllTubes => user.grants.everywhere().has_any(rights),
        }
    }

    /// What a user lacks for a command: these rights on this.
    // Bounded by LINE_BYTES_LONG_MAX: the ids of one line, some 500.
    #[cold]
    fn missing(&self, need: Need<'_>, on: On<'_>, rights: Rights) -> Missing {
        let is_pending = |id: JobId| self.log.is_pending(id);
        let may_reveal = need.0.iter().any(|(on, _)| match *on {
            On::Job(id) => is_pending(id),
            On::Jobs(ids) => ids.iter().any(is_pending),
            _ => false,
        });
        Missing { rights, on: on.lacking(), may_reveal }
    }

    fn may_on_job(&self, user: &User, id: JobId, rights: Rights) -> bool {
        user.grants.everywhere().has_any(rights)
            || self.engine.jobs().find(id).is_none_or(|job| user.may(rights, self.engine.tube_of(job)))
    }

    /// Replies to a wrong token, and closes the connection.
    fn end_refused(&mut self, session: &mut Session, now: Time) {
        if session.protocol.state != SessionState::Refused {
            return;
        }
        session.protocol.state = SessionState::Closing;
        self.with_replies(&mut session.output, |core, replies| {
            replies.refuse(Reply::Unauthorized, &mut core.buffers);
        });
        self.after_serving(session, now);
    }

    /// Begins the access of a call over HTTP, as the user that its request had. If there is no such user any more, the client has
    /// not authenticated.
    pub(super) fn begin_call_access(&self, protocol: &mut ProtocolState, user: &User) {
        let Some(users) = self.access.users() else { return };
        let user = Arc::clone(users.again(user).unwrap_or(users.anonymous()));
        let used = self.engine.used(protocol.client).name();
        protocol.access = Some(SessionAccess::new(user, used, self.access.generation));
    }

    /// Whether the file of users no longer has this one.
    pub(super) fn is_gone(&self, user: &User) -> bool {
        self.access.again(user).is_none()
    }

    /// Closes the connection of a user that is gone, before it has its turn in the sweep.
    #[inline]
    pub(super) fn end_if_removed(&mut self, session: &mut Session, now: Time) {
        if let Some(access) = &session.protocol.access
            && access.generation != self.access.generation
            && self.is_gone(&access.user)
        {
            self.renew_user(session, now);
        }
    }

    /// Brings a session in line with users that have changed, before it has its turn in the sweep. Its next line has its new
    /// rights.
    #[inline]
    pub(super) fn follow_users(&mut self, session: &mut Session, now: Time) {
        // mutant auth-reserve-of-before-a-reload: removed
        if session.protocol.access.as_ref().is_some_and(|access| access.generation != self.access.generation)
        {
            self.renew_user(session, now);
        }
    }

    /// Brings a session in line with the present users.
    fn renew_user(&mut self, session: &mut Session, now: Time) {
        let (Some(users), Some(access)) = (self.access.users(), &mut session.protocol.access) else { return };
        let Some(user) = users.again(&access.user).map(Arc::clone) else {
            info!(
                conn = session.output.number(),
                "closed a connection of user {}: the file of users has no such user any more", access.user
            );
            // What an operator removes has not failed.
            self.engine.quit(session.protocol.client);
            return self.hung_up(session, now);
        };
        let is_same = user.grants == access.user.grants;
        access.user = user;
        access.generation = self.access.generation;
        if is_same {
            return;
        }
        if session.protocol.state == SessionState::Waiting {
            self.end_wait(session);
        }
        let protocol = &mut session.protocol;
        let watches = self.engine.clients().get(protocol.client).watch_count();
        if let Some(access) = &mut protocol.access {
            // mutant auth-rights-of-before-a-reload: removed
            access.used = access.user.grants.on(self.engine.used(protocol.client).name());
            access.unchecked = Some(watches);
        }
        // In any other state a command is being carried out. Its end comes first: a list of watches must not change, for example.
        if matches!(protocol.state, SessionState::Serving | SessionState::Unwatching) {
            if watches <= WATCHES_AT_ONCE {
                self.check_watches(protocol);
            } else {
                protocol.state = SessionState::Unwatching;
            }
            self.after_serving(session, now);
        }
    }
}

impl Server {
    /// The client of a new connection has not authenticated.
    pub(super) fn begin_access(&mut self, conn: ConnId) {
        let Self { core, connections } = self;
        if let Some(users) = core.access.users() {
            let anonymous = Arc::clone(users.anonymous());
            core.become_user(&mut connections.client(conn).protocol, anonymous);
        }
    }

    /// A client has proved by a certificate to have these names.
    pub(super) fn access_by_certificate(&mut self, conn: ConnId, names: &[String]) {
        let Self { core, connections } = self;
        let Some(users) = core.access.users() else { return };
        match users.by_certificate(names).map(Arc::clone) {
            Some(user) if conn.is_http() => connections.http(conn).user = Some(user),
            Some(user) => core.become_user(&mut connections.client(conn).protocol, user),
            None => core.access.count_failure(AuthFailure::Certificate),
        }
    }

    /// Takes other users, and returns those of before. Their connections follow within the next iterations.
    pub(super) fn take_users(&mut self, users: Users) -> Option<Users> {
        let access = &mut self.core.access;
        // A server without users has sessions without them.
        let earlier = access.users.take()?;
        access.users_bytes = users.memory_bytes();
        access.users = Some(users);
        access.generation += 1;
        access.sweep = Some(0);
        self.core.count_users();
        self.core.memory.invalidate();
        Some(earlier)
    }

    /// Does a bounded piece of what the users have set off: replies to wrong tokens, and sessions of users that have changed.
    pub(super) fn step_access(&mut self, now: Time) {
        // Bounded by REFUSALS_MAX: the refused connections that wait for their reply.
        while let Some(&(due, conn)) = self.core.access.refused.front()
            && (due <= now || self.core.access.refused.len() > REFUSALS_MAX)
        {
            self.core.access.refused.pop_front();
            if conn.is_http() {
                self.end_refused_http(conn, now);
            } else if let Some(session) = self.connections.find(conn) {
                self.core.end_refused(session, now);
                self.deliver_notices(now);
            }
        }
        let Some(from) = self.core.access.sweep else { return };
        self.deliver_notices(now);
        let end = from + SWEEP_SLOTS;
        let limit = self.core.engine.budget().within(RUN_STEPS);
        let mut next = from;
        while next < end && !self.core.engine.budget().is_reached(limit) {
            let slot = next;
            next += 1;
            if let Some(Connection::Client(session)) = self.connections.at(slot)
                && session.is_open()
            {
                self.core.renew_user(session, now);
                self.deliver_notices(now);
            }
        }
        self.core.access.sweep = (next < self.connections.capacity()).then_some(next);
    }
}
