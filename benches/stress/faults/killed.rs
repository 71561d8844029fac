//! Processes full of clients that are killed in the middle of everything.

use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::Fault;
use crate::bounds::Term;
use crate::client::Client;
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;
use crate::victim;
use beanring_testkit::bench::logs::Log;
use beanring_testkit::bench::process::Guarded;

/// Processes at once.
const VICTIMS: usize = 6;

const PAUSE: Duration = Duration::from_millis(120);

/// More jobs than that are deleted.
const JOBS_KEPT: u64 = 500;

pub struct Killed {
    pub log: Option<Log>,
}

impl Fault for Killed {
    fn name(&self) -> &'static str {
        if self.log.is_some() { "killed-log" } else { "killed" }
    }

    fn title(&self) -> &'static str {
        if self.log.is_some() {
            "the same, with a log that every answer waits for (-b, -f 0)"
        } else {
            "processes of 16 clients that are killed in the middle of everything"
        }
    }

    fn seconds(&self, options: &Options, is_first: bool) -> f64 {
        let full = match (&self.log, is_first) {
            (None, true) => 600.0,
            (None, false) => 120.0,
            (Some(_), _) => 30.0,
        };
        options.seconds(full, 4.0)
    }

    fn log(&self) -> Option<Log> {
        self.log
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let mut janitor = field.client()?;
        let asked = |error| Failure::Client("clear up", error);
        for command in ["use victims\r\n", "watch victims\r\n", "ignore default\r\n"] {
            janitor.ask(command.as_bytes()).map_err(asked)?;
        }
        let mut victims: Vec<Guarded> = Vec::new();
        let (mut killed, mut jobs_max) = (0, 0);
        while field.rages()? {
            if victims.iter_mut().any(|victim| matches!(victim.0.try_wait(), Ok(Some(_)))) {
                let ended = std::io::Error::other("its process ended by itself");
                return Err(Failure::Client("live until it is killed", ended));
            }
            if victims.len() == VICTIMS {
                // Dropped, it is killed.
                victims.swap_remove(field.random.below(VICTIMS));
                killed += 1;
            }
            victims.push(Guarded(spawn(field)?));
            sleep(PAUSE.mul_f64(field.random.below(200) as f64 / 100.0));
            jobs_max = jobs_max.max(clear_up(&mut janitor).map_err(asked)?);
        }
        victims.clear();
        let connections = (VICTIMS * victim::CONNECTIONS) as u64;
        field.terms.extend([
            Term::connections(2 * connections),
            Term::inboxes(2 * connections),
            Term::outputs(2 * connections, victim::BODY_BYTES_MAX as u64),
            Term::bodies(2 * connections, victim::BODY_BYTES_MAX as u64),
            Term::jobs(2 * jobs_max, victim::BODY_BYTES_MAX as u64),
        ]);
        field.notes.push(format!("{killed} processes of {} clients were killed", victim::CONNECTIONS));
        Ok(())
    }
}

fn spawn(field: &mut Field<'_>) -> Result<Child, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::Start("a client".to_owned(), error))?;
    let mut command = field.spare.machine.command(&program.to_string_lossy(), |(_, load)| load);
    command.args(["--victim", &field.server.addr.to_string()]);
    command.args(["--seed", &field.random.next().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map_err(|error| Failure::Start("a client".to_owned(), error))
}

/// Deletes what the clients have left, but for some. Returns how many jobs there were.
fn clear_up(janitor: &mut Client) -> std::io::Result<u64> {
    janitor.ask(b"kick 1000\r\n")?;
    let stats = janitor.ask(b"stats-tube victims\r\n")?;
    let count = |state| stats.field(&format!("current-jobs-{state}")).unwrap_or(0.0) as u64;
    let ready = count("ready");
    for _ in JOBS_KEPT..ready {
        let job = janitor.ask(b"reserve-with-timeout 0\r\n")?;
        let Some(id) = job.number(1).filter(|_| job.line.starts_with("RESERVED ")) else { break };
        janitor.ask(format!("delete {id}\r\n").as_bytes())?;
    }
    Ok(ready + count("reserved") + count("delayed") + count("buried"))
}
