//! Which commands are answered while a write to the job log waits for space: those whose replies reveal no uncommitted change of a
//! job. Statistics and `peek` then show an operator why others are not.

use crate::protocol::command::Command;
use crate::queue::Engine;
use crate::server::log::Log;
use crate::values::ids::{ClientKey, JobKey};

/// Whether the reply to a command may reveal a change of a job that is not committed yet. Statistics count such
/// changes, but name no job.
pub(in crate::server) fn may_reveal_uncommitted(
    engine: &mut Engine,
    log: &Log,
    client: ClientKey,
    command: &Command<'_>,
) -> bool {
    let is_peek_ready = matches!(command, Command::PeekReady);
    let ready = if is_peek_ready { engine.peek_ready(client) } else { None };
    let is_uncommitted = |id| log.is_pending(id);
    // Without a job the reply tells that there is none: an uncommitted change may be the reason.
    let is_any = |job: Option<JobKey>| job.is_none_or(|job| is_uncommitted(engine.jobs().get(job).id));
    match command {
        Command::Stats
        | Command::StatsTube(_)
        | Command::StatsGroup(_)
        | Command::ListTubes
        | Command::ListTubesWatched
        | Command::ListTubeUsed
        | Command::Use(_)
        | Command::Watch(_)
        | Command::WatchWeighted { .. }
        | Command::ReserveMode(_)
        | Command::Ignore(_)
        | Command::CancelReserve
        | Command::Drain
        | Command::Undrain
        | Command::Quit => false,
        Command::Peek(id) | Command::StatsJob(id) | Command::WaitJob { id, .. } => is_uncommitted(*id),
        Command::PeekReady => is_any(ready),
        Command::PeekDelayed => is_any(engine.peek_delayed(client)),
        Command::PeekBuried => is_any(engine.peek_buried(client)),
        Command::PeekReserved => is_any(engine.peek_reserved(client)),
        Command::Put { .. }
        | Command::Reserve
        | Command::ReserveWithTimeout { .. }
        | Command::ReserveJob(_)
        | Command::Delete(_)
        | Command::Release { .. }
        | Command::Bury { .. }
        | Command::Kick { .. }
        | Command::KickJob(_)
        | Command::ListJobs { .. }
        | Command::MoveJob { .. }
        | Command::MoveJobs { .. }
        | Command::TubeConfig { .. }
        | Command::FlushTube(_)
        | Command::FlushKeys(_)
        | Command::PutBatch { .. }
        | Command::ReserveBatch { .. }
        | Command::DeleteBatch(_)
        | Command::Touch(_)
        | Command::JobNote { .. }
        | Command::SchedulePut(_)
        | Command::ScheduleDelete(_)
        | Command::ScheduleRun(_)
        | Command::ScheduleStats(_)
        | Command::ListSchedules { .. }
        | Command::PauseTube { .. } => true,
    }
}
