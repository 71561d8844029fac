//! Jobs that the client keeps reserved until a signal: `beanring touch` and `reserve --hold`.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use beanring::replies::units::{self, Seconds};
use beanring::values::ids::JobId;

use super::jobs::Results;
use super::{ClientError, Connection, Follows, Refusal, Stats, Value, inspect, interrupt, say};
use crate::cli::verbs;

/// The longest time between two touches, so that a broken connection is noticed.
const TOUCH_INTERVAL_MAX: Duration = Duration::from_secs(30);

/// A job that this client has reserved.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: JobId,
    /// Its statistics before the reservation, or during it if it was ready before.
    pub(super) stats: Stats,
}

pub(super) fn touch(verb: &verbs::Touch) -> Result<ExitCode, ClientError> {
    let mut connection = super::connect(&verb.common)?;
    let mut held = Vec::new();
    let mut results = Results::new(&verb.common);
    let ids: BTreeSet<JobId> = verb.ids.iter().copied().collect();
    for &id in &ids {
        match take(&mut connection, id, "touch") {
            Ok(stats) => held.push(Held { id, stats }),
            Err(ClientError::Refused(refusal)) => results.add(id, "TOUCHED", Err(refusal))?,
            Err(error) => return Err(error),
        }
    }
    let code = results.finish()?;
    if held.is_empty() {
        return Ok(code);
    }
    let kept: Vec<String> = held.iter().map(|job| job.id.to_string()).collect();
    let time = match verb.for_time {
        Some(time) => format!("for {}", units::time(time)),
        None => "until this command ends".to_owned(),
    };
    say(format_args!("beanring: reserved {time}: {}", kept.join(" ")));
    let time = verb.for_time.map(|time| Duration::from_nanos(time.span().as_nanos()));
    let result = until_signal(&mut connection, &held, time);
    // A job that was not ready becomes again what it was. If the connection has broken, the server has made all of them ready.
    for Held { id, stats } in held.iter().filter(|_| !matches!(&result, Err(error) if error.is_connection()))
    {
        let pri = stats.number("pri");
        let (command, done) = match stats.text("state").bytes() {
            b"buried" => (format!("bury {id} {pri}"), "BURIED"),
            b"delayed" => (format!("release {id} {pri} {}", stats.number("time-left")), "RELEASED"),
            _ => continue,
        };
        connection.ask(command)?.expect(done, &format!("job {id}"))?;
    }
    // Those that were ready have not failed.
    connection.quit();
    result?;
    Ok(code)
}

/// Touches jobs until a signal asks the process to end, or the time is over.
pub(super) fn until_signal(
    connection: &mut Connection,
    held: &[Held],
    time: Option<Duration>,
) -> Result<(), ClientError> {
    let mut signals = interrupt::signals()?;
    let (ended, end) = mpsc::channel();
    thread::spawn(move || signals.forever().next().map(|_| ended.send(())));
    let interval = held.iter().map(|job| touch_interval(job.stats.time("ttr"))).min();
    let interval = interval.unwrap_or(TOUCH_INTERVAL_MAX);
    let until = time.map(|time| Instant::now() + time);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        match end.recv_timeout(left.map_or(interval, |left| left.min(interval))) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        for Held { id, .. } in held {
            let reply = connection.ask(format!("touch {id}"))?;
            reply.expect("TOUCHED", &format!("job {id}")).map_err(|refusal| {
                refusal.meaning("NOT_FOUND", "the reservation has timed out, or the job is deleted")
            })?;
        }
    }
}

/// How long to wait between two touches of a job with this time to run.
pub(super) fn touch_interval(ttr: Duration) -> Duration {
    // A server may not tell the time to run. 1 s is the shortest one of most servers.
    let ttr = if ttr.is_zero() { Duration::from_secs(1) } else { ttr };
    // Twice per time to run, with a tenth of it for delays on the way.
    (ttr / 5 * 2).min(TOUCH_INTERVAL_MAX)
}

/// Explains that a reserved job belongs to its client, which alone can do what `verb` says.
pub(super) fn reserved(stats: &Stats, verb: &str) -> String {
    let left = Seconds(stats.number("time-left"));
    format!("another client has reserved it, and its TTR ends in {left}; only that client can {verb} it")
}

/// Reserves a job by its id. Returns its statistics before that.
pub(super) fn take(connection: &mut Connection, id: JobId, verb: &str) -> Result<Stats, ClientError> {
    let subject = format!("job {id}");
    let stats = inspect::of_job(connection, id)?;
    if *stats.text("state") == "reserved" {
        let meaning = reserved(&stats, verb);
        return Err(Refusal { subject, reply: "RESERVED".into(), meaning, hides_reply: true }.into());
    }
    if let Some(group) = inspect::group_ahead(&stats) {
        let meaning = format!("it waits for group {group}; beanring kick {id} makes it ready");
        return Err(Refusal { subject, reply: "HELD".into(), meaning, hides_reply: true }.into());
    }
    let reply = connection.ask_for(Follows::Job, format!("reserve-job {id}"))?;
    let taken = reply.into_job(&subject);
    let is_passed_over = stats.get("passed-over") == Some(&Value::Switch(true));
    let meaning = if is_passed_over {
        "other clients have reserved as many jobs of its concurrency key as may run at a time"
    } else {
        "another client has reserved or deleted it just now"
    };
    taken.map_err(|refusal| refusal.meaning("NOT_FOUND", meaning))?;
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_touched_twice_per_time_to_run() {
        for (ttr_ms, interval_ms) in [(0, 400), (1000, 400), (500, 200), (60_000, 24_000)] {
            let interval = touch_interval(Duration::from_millis(ttr_ms));
            assert_eq!(interval, Duration::from_millis(interval_ms).min(TOUCH_INTERVAL_MAX), "{ttr_ms}");
        }
    }
}
