//! A session with the database, and its repair.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch::{Receiver, channel};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSqlOwned, ToSql};
use tokio_postgres::{AsyncMessage, Client, Row, Statement};
use tracing::{debug, error, info, warn};

use super::Settings;
use super::extent::{Extent, Older};
use crate::wal::replica::Failure;

/// An attempt to connect ends after this time, with all hosts and the handshake.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// The pause after the first attempt that fails. Each further one is twice as long, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What each session needs, whatever the role or the database says. A setting that a version does not have is left out.
/// A process that is stopped within a transaction must not keep the row of the epoch locked: see `idle_in_transaction_session_timeout`.
/// `client_min_messages` lets the warning pass that a commit is not replicated. The keep-alives let the database notice that this
/// machine is gone, and free its lock. The planner would choose to scan the table while it is small, and a session keeps its plans.
const SETTINGS: &str = "
    select set_config(name, setting, false)
    from (values
        ('synchronous_commit',
         case current_setting('synchronous_commit') when 'remote_apply' then 'remote_apply' else 'on' end),
        ('client_min_messages', 'warning'),
        ('default_transaction_isolation', 'read committed'),
        ('statement_timeout', '0'),
        ('lock_timeout', '0'),
        ('idle_in_transaction_session_timeout', '2000'),
        ('idle_session_timeout', '0'),
        ('transaction_timeout', '0'),
        ('enable_seqscan', 'off'),
        ('enable_bitmapscan', 'off'),
        ('jit', 'off'),
        ('tcp_keepalives_idle', '2'),
        ('tcp_keepalives_interval', '1'),
        ('tcp_keepalives_count', '3'),
        ('tcp_user_timeout', '5000')) as wanted(name, setting)
    where current_setting(name, true) is not null";

/// How many hosts are tried at once, in any order, after an older database.
const HOSTS_TRIED: usize = 8;

/// The time without an older database after which it counts as gone.
const OLDER_FOR: Duration = Duration::from_secs(5);

/// An open session.
pub(super) struct Session {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    notices: Arc<AtomicU64>,
    /// Its sender lives as long as the session.
    ended: Receiver<()>,
}

/// Why a statement or an attempt to connect has failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("{}", text_of(.0))]
    Database(#[from] tokio_postgres::Error),
    /// The database did not answer the attempt in time.
    #[error("no answer within {} seconds", ATTEMPT_MAX.as_secs())]
    Timeout,
    /// A notice came: the commit may not be replicated.
    #[error("the commit may not be replicated")]
    Notice,
    /// The database lacks something that was acknowledged.
    #[error("{0}")]
    Older(Box<Older>),
    /// The database cannot carry out the request.
    #[error("the request is refused")]
    Refused(Failure),
}

/// What all links know about the database, so that each change is logged once.
#[derive(Clone, Default, Debug)]
pub(super) struct SharedState(Arc<Mutex<State>>);

#[derive(Default, Debug)]
struct State {
    is_lost: bool,
    /// What was acknowledged or is proven by what was read.
    seen: Extent,
    /// When a database last had less than that.
    older_at: Option<Instant>,
}

/// A session that is opened when it is needed, and again after it is lost.
pub(super) struct Link {
    settings: Arc<Settings>,
    shared: SharedState,
    session: Option<Session>,
    pause: Duration,
    retry_at: Instant,
}

impl Session {
    /// Connects, and sets what a session needs.
    pub async fn open(settings: &Settings) -> Result<Self, SessionError> {
        timeout(ATTEMPT_MAX, Self::connect(settings)).await.unwrap_or(Err(SessionError::Timeout))
    }

    async fn connect(settings: &Settings) -> Result<Self, SessionError> {
        let (client, mut connection) = settings.config.connect(settings.connector.clone()).await?;
        let notices = Arc::new(AtomicU64::new(0));
        let seen = notices.clone();
        let (is_open, ended) = channel(());
        // A notice is counted before the reply behind it is passed on.
        tokio::spawn(async move {
            let _is_open = is_open;
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) => {
                        seen.fetch_add(1, Ordering::Relaxed);
                        debug!("the database says: {} (SQLSTATE {})", notice.message(), notice.code().code());
                    }
                    Ok(_) => {}
                    Err(error) => {
                        debug!("a session with the database has ended: {}", text_of(&error));
                        return;
                    }
                }
            }
        });
        client.simple_query(SETTINGS).await?;
        Ok(Self { client, statements: HashMap::new(), notices, ended })
    }

    /// Prepares a statement, once in the session.
    async fn prepared(&mut self, sql: &'static str) -> Result<Statement, SessionError> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }

    /// Executes a statement. Returns how many rows it has changed. Outside of a transaction its commit is part of it.
    pub async fn execute(
        &mut self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, SessionError> {
        let statement = self.prepared(sql).await?;
        let notices = self.notices();
        let rows = self.client.execute(&statement, parameters).await?;
        self.refuse_notice(notices)?;
        Ok(rows)
    }

    /// Executes a statement, and returns its rows.
    pub async fn query(
        &mut self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, SessionError> {
        let statement = self.prepared(sql).await?;
        let notices = self.notices();
        let rows = self.client.query(&statement, parameters).await?;
        self.refuse_notice(notices)?;
        Ok(rows)
    }

    /// Executes a statement, and returns its first row.
    pub async fn row(
        &mut self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, SessionError> {
        Ok(self.query(sql, parameters).await?.into_iter().next())
    }

    /// Executes a statement, and returns the first column of its first row.
    pub async fn value<T: FromSqlOwned>(
        &mut self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<T>, SessionError> {
        Ok(self.row(sql, parameters).await?.map(|row| row.get(0)))
    }

    /// Executes a statement, and returns whether it has a row that begins with `true`.
    pub async fn is_true(
        &mut self,
        sql: &'static str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<bool, SessionError> {
        Ok(self.value(sql, parameters).await? == Some(true))
    }

    /// Executes a command without parameters: `begin`, `commit` or `rollback`.
    pub async fn command(&self, sql: &str) -> Result<(), SessionError> {
        let notices = self.notices();
        self.client.batch_execute(sql).await?;
        self.refuse_notice(notices)
    }

    /// Ends a transaction: commits it if all went well. The result is known to be replicated then.
    pub async fn end<T>(&self, attempt: Result<T, SessionError>) -> Result<T, SessionError> {
        if attempt.is_ok() {
            self.command("commit").await?;
        } else {
            // It fails only if the session is lost, and then nothing was committed either.
            let _ = self.command("rollback").await;
        }
        attempt
    }

    fn notices(&self) -> u64 {
        self.notices.load(Ordering::Relaxed)
    }

    /// A commit whose wait was cancelled looks like one that succeeded, but for a notice. It comes before the reply is complete.
    fn refuse_notice(&self, before: u64) -> Result<(), SessionError> {
        if self.notices() == before { Ok(()) } else { Err(SessionError::Notice) }
    }
}

impl SessionError {
    /// The SQLSTATE, if the database has sent one.
    pub fn code(&self) -> Option<&SqlState> {
        match self {
            Self::Database(error) => error.code(),
            Self::Timeout | Self::Notice | Self::Older(_) | Self::Refused(_) => None,
        }
    }

    pub fn is(&self, code: &SqlState) -> bool {
        self.code() == Some(code)
    }

    /// What to answer to a request that ended so.
    pub fn failure(&self) -> Failure {
        if let Self::Refused(failure) = self {
            return *failure;
        }
        match self.code() {
            Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => Failure::Unknown,
            // Class 53: the disk is full, or another resource is used up. 58030: the disk fails.
            Some(code) if code.code().starts_with("53") || *code == SqlState::IO_ERROR => Failure::Full,
            _ => Failure::Unknown,
        }
    }

    /// Whether the session can be used on.
    fn leaves_session_usable(&self) -> bool {
        match self {
            Self::Notice | Self::Refused(_) => true,
            Self::Timeout | Self::Older(_) => false,
            Self::Database(_) => self.code().is_some_and(|code| {
                ["23", "40", "53"].iter().any(|class| code.code().starts_with(class))
                    || *code == SqlState::QUERY_CANCELED
                    || *code == SqlState::IO_ERROR
            }),
        }
    }
}

impl From<Failure> for SessionError {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

/// What an error says: the message of the database, or the cause of the client's.
fn text_of(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return format!("{} (SQLSTATE {})", error.message(), error.code().code());
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let further = error.to_string();
        if !text.contains(&further) {
            text = format!("{text}: {further}");
        }
        cause = error.source();
    }
    text
}

impl SharedState {
    /// A program that ran in this process before has seen this.
    pub fn knowing(seen: Extent) -> Self {
        Self(Arc::new(Mutex::new(State { seen, ..State::default() })))
    }

    /// What was acknowledged or is proven by what was read.
    pub fn seen(&self) -> Extent {
        self.state().seen
    }

    /// Takes the outcome of an attempt, and logs it if it differs from the last one.
    fn note(&self, settings: &Settings, outcome: Result<(), &SessionError>) {
        let mut state = self.state();
        match outcome {
            Err(error @ SessionError::Older(_)) => {
                if state.older_at.replace(Instant::now()).is_none() {
                    error!(
                        "{error}; this server keeps its jobs and waits: stop an old primary, or promote a standby that \
                         has everything; to go on without the missing changes, restart this server"
                    );
                }
                return;
            }
            Err(error) if !state.is_lost => warn!("cannot use the database {settings}: {error}; retrying"),
            Ok(()) if state.is_lost => info!("the database {settings} is back"),
            _ => {}
        }
        state.is_lost = outcome.is_err();
    }

    /// A database that is not older has answered: this is known now.
    fn note_seen(&self, settings: &Settings, seen: Extent) {
        let mut state = self.state();
        state.seen.extend(seen);
        // Other sessions may still find the other database.
        if state.older_at.take_if(|at| at.elapsed() > OLDER_FOR).is_some() {
            info!("the database {settings} is the right one again");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no code panics while it holds the lock")
    }
}

impl Link {
    pub fn new(settings: Arc<Settings>, shared: SharedState) -> Self {
        Self { settings, shared, session: None, pause: Duration::ZERO, retry_at: Instant::now() }
    }

    /// Returns the session, or opens one. After an attempt that failed it first waits.
    pub async fn session(&mut self) -> Result<&mut Session, SessionError> {
        if !self.is_open() {
            self.session = None;
            sleep_until(self.retry_at).await;
            let opened = self.open().await;
            self.shared.note(&self.settings, opened.as_ref().map(|_| ()));
            match opened {
                Ok(session) => {
                    self.pause = Duration::ZERO;
                    self.session = Some(session);
                }
                Err(error) => {
                    self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
                    self.retry_at = Instant::now() + self.pause;
                    return Err(error);
                }
            }
        }
        Ok(self.session.as_mut().expect("it was opened"))
    }

    /// Opens a session with a database that has what is known. The first host of the URL may be an old primary.
    async fn open(&self) -> Result<Session, SessionError> {
        let mut opened = Err(SessionError::Timeout);
        for _ in 0..HOSTS_TRIED {
            opened = self.open_any().await;
            let Err(SessionError::Older(_)) = opened else { break };
            self.shared.note(&self.settings, opened.as_ref().map(|_| ()));
        }
        opened
    }

    async fn open_any(&self) -> Result<Session, SessionError> {
        let (seen, is_older) = {
            let state = self.shared.state();
            (state.seen, state.older_at.is_some())
        };
        let mut session = match is_older {
            true => Session::open(&self.settings.shuffled()).await?,
            false => Session::open(&self.settings).await?,
        };
        if seen != Extent::default() {
            let checked = timeout(ATTEMPT_MAX, session.refuse_older(seen)).await;
            checked.unwrap_or(Err(SessionError::Timeout))?;
        }
        Ok(session)
    }

    /// Returns the result of a request for the reply. A session that may be in a transaction, or worse, is closed.
    pub fn end<T>(&mut self, result: Result<T, SessionError>) -> Result<T, Failure> {
        result.map_err(|error| {
            if !error.leaves_session_usable() {
                let is_of_database = error.code().is_some() || matches!(error, SessionError::Older(_));
                if self.session.take().is_some() && is_of_database {
                    self.shared.note(&self.settings, Err(&error));
                }
                // Keeps a request that fails each time from being repeated without a pause.
                self.pause = self.pause.max(PAUSE_MIN);
                self.retry_at = Instant::now() + self.pause;
            }
            error.failure()
        })
    }

    /// The database has acknowledged or shown this.
    pub fn note_seen(&self, seen: Extent) {
        self.shared.note_seen(&self.settings, seen);
    }

    /// Returns when the session is lost. Without one, it does not return.
    pub async fn lost(&mut self) {
        match &mut self.session {
            // The sender sends nothing, so this ends only with it.
            Some(session) => while session.ended.changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    }

    /// Ends the session until it is needed again.
    pub fn close(&mut self) {
        self.session = None;
    }

    /// Whether a session is open.
    pub fn is_open(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.client.is_closed())
    }
}
