//! What the slots share: whether they must stop, how each of them is woken, and which tubes delay jobs that have failed.

use std::collections::HashMap;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use beanring::values::tube_rules::RuleKey;

use super::super::connection::Socket;
use super::super::{ClientError, Connection, tube_config};
use super::report::Report;

/// What wakes a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// Its command has ended.
    Exited,
    /// No further job is reserved.
    Stop,
    /// The command is killed.
    Kill,
}

/// ```text
/// Running ── signal, or a failure ──> Stopping ── second signal ──> Killing
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Running,
    Stopping,
    Killing,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The mailbox of each slot.
    mailboxes: Vec<Sender<Event>>,
    /// The connection of each slot that waits for a job.
    reserving: Vec<Option<Socket>>,
    /// Slots that have not ended.
    slots: usize,
    /// Slots with a command.
    commands: usize,
    failure: Option<ClientError>,
}

/// The state that all slots share.
#[derive(Debug)]
pub(super) struct Control(Mutex<State>);

impl Control {
    pub(super) fn new(mailboxes: Vec<Sender<Event>>) -> Self {
        let slots = mailboxes.len();
        let reserving = vec![None; slots];
        let state = State { phase: Phase::Running, mailboxes, reserving, slots, commands: 0, failure: None };
        Self(Mutex::new(state))
    }

    /// A slot begins to wait for a job on this connection. Returns false if it must stop instead.
    pub(super) fn begin_reserve(&self, place: usize, socket: Socket) -> bool {
        let mut state = self.state();
        state.reserving[place] = Some(socket);
        state.phase == Phase::Running
    }

    /// A slot has waited for a job. Returns false if it must stop: then the connection is closed, and a job that has come
    /// on it is ready again.
    pub(super) fn end_reserve(&self, place: usize) -> bool {
        let mut state = self.state();
        state.reserving[place] = None;
        state.phase == Phase::Running
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.state().phase > Phase::Running
    }

    /// Returns how a command tells the slot that it has ended, unless all commands are to be killed.
    pub(super) fn begin_command(&self, place: usize) -> Option<Sender<Event>> {
        let mut state = self.state();
        if state.phase == Phase::Killing {
            return None;
        }
        state.commands += 1;
        Some(state.mailboxes[place].clone())
    }

    pub(super) fn end_command(&self) {
        self.state().commands -= 1;
    }

    /// Handles a signal: the first one stops, the second one kills.
    pub(super) fn signaled(&self, report: &Report) {
        let mut state = self.state();
        if state.phase == Phase::Running {
            if state.commands > 0 {
                report.stopping(state.commands);
            }
            state.stop();
        } else {
            state.phase = Phase::Killing;
            state.send(Event::Kill);
        }
    }

    /// Stops because of an error.
    pub(super) fn fail(&self, error: ClientError) {
        let mut state = self.state();
        state.failure.get_or_insert(error);
        if state.phase == Phase::Running {
            state.stop();
        }
    }

    /// A slot has ended. Returns whether it was the last one.
    pub(super) fn ended(&self) -> bool {
        let mut state = self.state();
        state.slots -= 1;
        state.slots == 0
    }

    pub(super) fn into_failure(self) -> Option<ClientError> {
        self.0.into_inner().expect("no slot panics").failure
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no slot panics")
    }
}

impl State {
    fn stop(&mut self) {
        self.phase = Phase::Stopping;
        self.reserving.iter().flatten().for_each(Socket::close);
        self.send(Event::Stop);
    }

    fn send(&self, event: Event) {
        // A slot that has ended has no mailbox any more.
        for mailbox in &self.mailboxes {
            let _ = mailbox.send(event);
        }
    }
}

/// How long an answer is kept. A rule that changes in between applies after this time.
const KEPT: Duration = Duration::from_secs(10);

/// Whether the rules of tubes delay jobs that have failed, as the server has answered.
#[derive(Debug, Default)]
pub(super) struct Retries(Mutex<HashMap<String, (Instant, bool)>>);

impl Retries {
    /// Whether the tube has the rule `retry-delay`. A server without rules has none, and so has a tube whose rules the user of
    /// the client may not see.
    ///
    /// # Errors
    /// If the connection broke.
    pub(super) fn are_delayed(&self, connection: &mut Connection, tube: &str) -> Result<bool, ClientError> {
        let known = self.0.lock().expect("no slot panics").get(tube).copied();
        if let Some((asked, answer)) = known
            && asked.elapsed() < KEPT
        {
            return Ok(answer);
        }
        let answer = match tube_config::rules(connection, tube) {
            Ok(rules) => rules.get(RuleKey::RetryDelay.word()).is_some(),
            Err(ClientError::Refused(_)) => false,
            Err(error) => return Err(error),
        };
        self.0.lock().expect("no slot panics").insert(tube.to_owned(), (Instant::now(), answer));
        Ok(answer)
    }
}
