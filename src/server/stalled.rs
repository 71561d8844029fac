//! Replies while a write to the job log waits for space: statistics and `peek` show what goes on.

use super::Core;
use crate::ids::{ClientKey, JobKey};
use crate::protocol::command::Command;
use crate::wal::Log;

impl Core {
    /// Whether a write to the log waits for space on the disk.
    pub(super) fn is_stalled(&self) -> bool {
        self.log.as_ref().is_some_and(Log::is_stalled)
    }

    /// Whether the reply to a command may reveal a change of a job that is not on disk yet. Statistics count such changes
    /// and name no job.
    pub(super) fn may_tell_pending(&self, client: ClientKey, command: &Command<'_>) -> bool {
        let is_pending = |id| self.log.as_ref().is_some_and(|log| log.is_pending(id));
        let of = |job: Option<JobKey>| job.is_none_or(|job| is_pending(self.engine.jobs().get(job).id));
        match command {
            Command::Stats
            | Command::StatsTube(_)
            | Command::ListTubes
            | Command::ListTubesWatched
            | Command::ListTubeUsed
            | Command::Use(_)
            | Command::Watch(_)
            | Command::Ignore(_)
            | Command::Undrain
            | Command::Quit => false,
            Command::Peek(id) | Command::StatsJob(id) => is_pending(*id),
            Command::PeekReady => of(self.engine.peek_ready(client)),
            Command::PeekDelayed => of(self.engine.peek_delayed(client)),
            Command::PeekBuried => of(self.engine.peek_buried(client)),
            _ => true,
        }
    }
}
