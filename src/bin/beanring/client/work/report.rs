//! What `beanring work` prints on stderr, and the counts of its last line.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use beanring::time;
use serde::Serialize;
use serde_json::json;

use super::super::{ClientError, Fields, Untrusted, json, say, units};

/// What became of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Fate {
    /// Its command succeeded.
    Deleted,
    /// Its command failed.
    Buried,
    /// Its command failed, or was killed by the second signal, or nothing reads standard output.
    Released,
    /// The reservation had ended before the command did. The job may run again.
    Lost,
}

/// Counts, and whether the server is away.
#[derive(Debug, Default)]
struct State {
    /// By [`Fate`].
    jobs: [u64; 4],
    is_down: bool,
    /// When it was last found away, or back.
    last_change: Option<Instant>,
}

/// Output of all slots.
#[derive(Debug)]
pub(super) struct Report {
    is_json: bool,
    is_verbose: bool,
    state: Mutex<State>,
}

/// A job at its end.
#[derive(Serialize, Debug)]
pub(super) struct Ended<'a> {
    pub(super) id: u64,
    pub(super) tube: &'a Untrusted,
    /// Why the command failed, or why the job is lost.
    pub(super) reason: Option<String>,
    pub(super) fate: Fate,
    /// The back-off of a released job. None if the server decides it.
    #[serde(rename = "delay_seconds", skip_serializing_if = "Option::is_none")]
    pub(super) delay: Option<time::Seconds>,
    #[serde(rename = "elapsed_seconds", serialize_with = "seconds")]
    pub(super) elapsed: Duration,
}

impl Report {
    pub(super) fn new(is_json: bool, is_verbose: bool) -> Self {
        Self { is_json, is_verbose, state: Mutex::default() }
    }

    /// Counts a job, and prints it unless it is an ordinary success.
    pub(super) fn ended(&self, ended: &Ended<'_>) {
        let Ended { id, tube, reason, fate, delay, elapsed } = ended;
        self.state.lock().expect("no slot panics").jobs[*fate as usize] += 1;
        if self.is_json {
            return print_json(ended);
        }
        let seconds = elapsed.as_secs_f64();
        let reason = reason.as_deref().unwrap_or("done");
        let fate = match (fate, delay) {
            (Fate::Deleted, _) if !self.is_verbose => return,
            (Fate::Deleted, _) => "deleted".to_owned(),
            (Fate::Buried, _) => "buried".to_owned(),
            (Fate::Released, Some(delay)) => format!("released, ready in {}", units::time(*delay)),
            (Fate::Released, None) => "released".to_owned(),
            (Fate::Lost, _) => "the job may run again".to_owned(),
        };
        say(format_args!("beanring: job {id} of {tube}: {reason} after {seconds:.1} s; {fate}"));
    }

    /// The server cannot be reached, or a connection that was opened or tried then has broken. Only the first slot that notices
    /// says so. Others may notice after the server has come back.
    pub(super) fn down(&self, error: &ClientError, tried: Instant) {
        let mut state = self.state.lock().expect("no slot panics");
        if !state.is_down && state.last_change.is_none_or(|last| tried > last) {
            state.is_down = true;
            state.last_change = Some(Instant::now());
            self.note(&format!("{}; connecting again until it succeeds", error.event()));
        }
    }

    /// The server can be reached again.
    pub(super) fn up(&self) {
        let mut state = self.state.lock().expect("no slot panics");
        if std::mem::take(&mut state.is_down) {
            state.last_change = Some(Instant::now());
            self.note("connected again");
        }
    }

    pub(super) fn stopping(&self, commands: usize) {
        let commands = units::counted(commands as u64, "running command");
        let second = "a second signal kills them, and hands their jobs back without a failed attempt";
        self.note(&format!("stopping after {commands}; {second}"));
    }

    pub(super) fn note(&self, text: &str) {
        if self.is_json {
            print_json(&json!({ "note": text }));
        } else {
            say(format_args!("beanring: {text}"));
        }
    }

    pub(super) fn summary(&self) {
        let [deleted, buried, released, lost] = self.state.lock().expect("no slot panics").jobs;
        if self.is_json {
            let counts = [("deleted", deleted), ("buried", buried), ("released", released), ("lost", lost)];
            print_json(&Fields(counts.map(|(fate, count)| (fate, json!(count))).to_vec()));
        } else {
            let all = units::counted(deleted + buried + released + lost, "run");
            say(format_args!(
                "beanring: {all}: {deleted} deleted, {buried} buried, {released} released, {lost} lost"
            ));
        }
    }
}

fn print_json(value: &impl Serialize) {
    say(json(value).expect("it is plain"));
}

fn seconds<S: serde::Serializer>(elapsed: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(elapsed.as_secs_f64())
}
