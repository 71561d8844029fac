//! The thread with the connection: it does one request after the other, and the screen never waits for the server.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use beanring::time::Seconds;
use beanring::values::job_state::JobState;

use super::super::tube_actions::pause_tube;
use super::super::tubes::names;
use super::super::{ClientError, Connection, Follows, Kind, ServerTarget, Stats, Untrusted, inspect, units};
use super::Event;
use super::details::{Details, Peeked};

/// The longest time for a reply. A server that needs longer is shown as gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `NOT_FOUND` means for a tube that was on the screen.
const NO_TUBE: &str = "there is no such tube any more";

/// What the worker is asked for. Names of tubes are those that the protocol allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    /// The statistics of the server, and the names of the tubes unless their number is this one.
    Poll { known: Option<u64> },
    /// The statistics of some tubes.
    Tubes(Vec<String>),
    /// A pause of this number of seconds.
    Pause { tube: String, time: Seconds },
    /// Buried jobs, or else delayed ones, are made ready.
    Kick { tube: String, count: u32 },
    /// Statistics and next jobs of a tube.
    Details(String),
}

impl Request {
    /// What it changes, for a message; none if it only reads.
    pub(super) fn action(&self) -> Option<String> {
        match self {
            Self::Pause { tube, .. } => Some(format!("pause of {tube}")),
            Self::Kick { tube, .. } => Some(format!("kick of {tube}")),
            Self::Poll { .. } | Self::Tubes(_) | Self::Details(_) => None,
        }
    }
}

/// What became of a request.
#[derive(Debug)]
pub(super) enum Report {
    Server {
        stats: Box<Stats>,
        names: Option<Vec<Untrusted>>,
    },
    Tubes(Vec<(String, Option<Stats>)>),
    Details(Box<Details>),
    /// An action is done.
    Done(String),
    /// The server has refused something.
    Refused(String),
    /// There is no connection.
    Gone(String),
}

/// A connection that is opened when it is needed.
pub(super) struct Worker {
    target: ServerTarget,
    connection: Option<Connection>,
}

impl Worker {
    /// Connects to a server.
    ///
    /// # Errors
    /// If it cannot be reached.
    pub(super) fn connect(target: ServerTarget) -> Result<Self, ClientError> {
        let mut worker = Self { target, connection: None };
        worker.connection()?;
        Ok(worker)
    }

    /// Serves requests until the other side is gone.
    pub(super) fn run(mut self, requests: &Receiver<Request>, events: &Sender<Event>) {
        for request in requests {
            let report = match self.serve(request) {
                Ok(report) => report,
                Err(error) if error.is_connection() => {
                    self.connection = None;
                    Report::Gone(error.event())
                }
                Err(error) => Report::Refused(error.to_string()),
            };
            if events.send(Event::Report { at: Instant::now(), report }).is_err() {
                return;
            }
        }
    }

    fn serve(&mut self, request: Request) -> Result<Report, ClientError> {
        let connection = self.connection()?;
        match request {
            Request::Poll { known } => {
                let stats = inspect::of_server(connection)?;
                let is_known = known == Some(stats.number("current-tubes"));
                let names = if is_known { None } else { Some(names(connection)?) };
                Ok(Report::Server { stats: Box::new(stats), names })
            }
            Request::Tubes(names) => tubes(connection, names).map(Report::Tubes),
            Request::Pause { tube, time } => pause_tube(connection, &tube, time).map(Report::Done),
            Request::Kick { tube, count } => {
                let reply = using(connection, &tube, |connection| connection.ask(format!("kick {count}")))?;
                let kicked = reply.expect("KICKED", &format!("tube {tube}"))?.count()?;
                Ok(Report::Done(format!("kicked {} of {tube}", units::jobs(kicked))))
            }
            Request::Details(tube) => details(connection, tube).map(|all| Report::Details(Box::new(all))),
        }
    }

    fn connection(&mut self) -> Result<&mut Connection, ClientError> {
        if self.connection.is_none() {
            let mut connection = self.target.connect()?;
            connection.set_patience(Some(PATIENCE));
            self.connection = Some(connection);
        }
        Ok(self.connection.as_mut().expect("it is open"))
    }
}

/// Returns the statistics of tubes; none for those that are gone.
fn tubes(
    connection: &mut Connection,
    names: Vec<String>,
) -> Result<Vec<(String, Option<Stats>)>, ClientError> {
    let mut tubes = Vec::with_capacity(names.len());
    connection.ask_all(
        Follows::Statistics,
        &names,
        |name| format!("stats-tube {name}"),
        |name, reply| {
            let data = reply.data().filter(|_| reply.word() == "OK");
            tubes.push((name.clone(), data.map(|data| Stats::parse(Kind::Tube, data)).transpose()?));
            Ok(())
        },
    )?;
    Ok(tubes)
}

fn details(connection: &mut Connection, tube: String) -> Result<Details, ClientError> {
    let stats = inspect::of_tube(connection, &tube, NO_TUBE)?;
    let mut jobs = Vec::new();
    using(connection, &tube, |connection| {
        for state in [JobState::Ready, JobState::Delayed, JobState::Buried] {
            let reply = connection.ask_for(Follows::Job, format!("peek-{}", state.word()))?;
            let (id, body) = match reply.word() {
                "NOT_FOUND" => {
                    jobs.push((state, None));
                    continue;
                }
                _ => reply.into_job(&format!("tube {tube}"))?,
            };
            let stats = connection.ask_for(Follows::Statistics, format!("stats-job {id}"))?;
            let stats = stats.data().map(|data| Stats::parse(Kind::Job, data)).transpose()?;
            jobs.push((state, Some(Peeked::new(id, stats, &body))));
        }
        Ok(())
    })?;
    Ok(Details { tube, stats, jobs })
}

/// Asks something while the connection uses a tube. It uses another one afterwards: a tube stays while it is used.
fn using<T>(
    connection: &mut Connection,
    tube: &str,
    ask: impl FnOnce(&mut Connection) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    connection.use_tube(tube)?;
    let result = ask(connection);
    connection.ask("use default")?;
    result
}
