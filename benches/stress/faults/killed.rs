//! Processes of clients that are killed at any moment.

use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::Fault;
use crate::bounds::MemoryItem;
use crate::client::Client;
use crate::client_process;
use crate::context::Context;
use crate::failure::Failure;
use crate::options::Options;
use beanring_testkit::bench::logs::Log;
use beanring_testkit::bench::process::Guarded;

/// Processes at once.
const PROCESSES: usize = 6;

const PAUSE: Duration = Duration::from_millis(120);

/// Jobs beyond this number are deleted.
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
            "the same, with a job log that every reply waits for (-b, -f 0)"
        } else {
            "processes of 16 clients that are killed at any moment"
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

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut janitor = context.client()?;
        let failed = |error| Failure::Client("clear up", error);
        for command in ["use killed\r\n", "watch killed\r\n", "ignore default\r\n"] {
            janitor.request(command.as_bytes()).map_err(failed)?;
        }
        let mut processes: Vec<Guarded> = Vec::new();
        let (mut killed, mut jobs_max) = (0, 0);
        while context.is_running()? {
            if processes.iter_mut().any(|process| matches!(process.0.try_wait(), Ok(Some(_)))) {
                let ended = std::io::Error::other("its process ended before it was killed");
                return Err(Failure::Client("live until it is killed", ended));
            }
            if processes.len() == PROCESSES {
                // Dropping the process kills it.
                processes.swap_remove(context.random.below(PROCESSES));
                killed += 1;
            }
            processes.push(Guarded(spawn(context)?));
            sleep(PAUSE.mul_f64(context.random.below(200) as f64 / 100.0));
            jobs_max = jobs_max.max(clear_up(&mut janitor).map_err(failed)?);
        }
        processes.clear();
        let connections = (PROCESSES * client_process::CONNECTIONS) as u64;
        context.memory_items.extend([
            MemoryItem::connections(2 * connections),
            MemoryItem::inboxes(2 * connections),
            MemoryItem::outputs(2 * connections, client_process::BODY_BYTES_MAX as u64),
            MemoryItem::bodies(2 * connections, client_process::BODY_BYTES_MAX as u64),
            MemoryItem::jobs(2 * jobs_max, client_process::BODY_BYTES_MAX as u64),
        ]);
        context
            .notes
            .push(format!("{killed} processes of {} clients were killed", client_process::CONNECTIONS));
        Ok(())
    }
}

fn spawn(context: &mut Context<'_>) -> Result<Child, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::Start("a client".to_owned(), error))?;
    let mut command = context.servers.machine.command(&program.to_string_lossy(), |(_, load)| load);
    command.args(["--client-process", &context.server.addr.to_string()]);
    command.args(["--seed", &context.random.next().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().map_err(|error| Failure::Start("a client".to_owned(), error))
}

/// Deletes most of the jobs that the clients have left. Returns how many there were.
fn clear_up(janitor: &mut Client) -> std::io::Result<u64> {
    janitor.request(b"kick 1000\r\n")?;
    let stats = janitor.request(b"stats-tube killed\r\n")?;
    let count = |state| stats.field(&format!("current-jobs-{state}")).unwrap_or(0.0) as u64;
    let ready = count("ready");
    for _ in JOBS_KEPT..ready {
        let job = janitor.request(b"reserve-with-timeout 0\r\n")?;
        let Some(id) = job.number(1).filter(|_| job.line.starts_with("RESERVED ")) else { break };
        janitor.request(format!("delete {id}\r\n").as_bytes())?;
    }
    Ok(ready + count("reserved") + count("delayed") + count("buried"))
}
