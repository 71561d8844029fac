//! The command of one job: a process group of its own, with the body on stdin.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use beanring::values::ids::JobId;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{AccessFlags, Pid, access};

use super::super::{ClientError, ServerTarget, Stats};
use super::control::Event;
use super::stderr::LastLine;
use crate::cli::verbs::Work;

/// A command that runs, or has ended and not been reaped. Until it is reaped no other process gets its id.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    group: Pid,
    stderr: LastLine,
}

impl Running {
    /// Starts the command. Its end is reported to `mailbox`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(super) fn start(
        verb: &Work,
        target: &ServerTarget,
        (id, body): (JobId, &[u8]),
        stats: &Stats,
        mailbox: Sender<Event>,
    ) -> io::Result<Self> {
        let (program, arguments) = verb.command.split_first().expect("clap requires a command");
        let number = |key| stats.number(key).to_string();
        let mut child = Command::new(program)
            .args(arguments)
            .envs(target.variables())
            .env("BEANRING_JOB_ID", id.to_string())
            .env("BEANRING_TUBE", OsStr::from_bytes(stats.text("tube").bytes()))
            .env("BEANRING_JOB_PRI", number("pri"))
            .env("BEANRING_JOB_TTR", number("ttr"))
            .env("BEANRING_JOB_AGE", number("age"))
            .env("BEANRING_JOB_RELEASES", number("releases"))
            .env("BEANRING_JOB_TIMEOUTS", number("timeouts"))
            .stdin(Stdio::from(in_memory(body)?))
            // A signal of the terminal reaches this program alone, which then waits for its commands.
            .process_group(0)
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = LastLine::watch(child.stderr.take().expect("it is a pipe"));
        let group = Pid::from_raw(child.id().try_into().expect("a process id"));
        thread::spawn(move || {
            while waitid(Id::Pid(group), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
            // The slot waits for this.
            let _ = mailbox.send(Event::Exited);
        });
        Ok(Self { child, group, stderr })
    }

    /// Sends a signal to the command and to what it has started.
    pub(super) fn signal(&self, signal: Signal) {
        // The group exists until it is reaped, and its processes may have another user.
        let _ = killpg(self.group, signal);
    }

    /// Returns how it ended, and the last line of its standard error.
    ///
    /// # Errors
    /// If the process is not a child of this one.
    pub(super) fn reap(mut self) -> io::Result<(ExitStatus, Vec<u8>)> {
        let status = self.child.wait()?;
        // A command that has succeeded needs no note.
        let line = if status.success() { Vec::new() } else { self.stderr.take() };
        Ok((status, line))
    }
}

/// Finds out before the first job is reserved whether there is such a program.
///
/// # Errors
/// If there is none, or it may not be run.
pub(super) fn find(verb: &Work) -> Result<(), ClientError> {
    let program = verb.command.first().expect("clap requires a command");
    let has_slash = program.as_bytes().contains(&b'/');
    let path = env::var_os("PATH").filter(|_| !has_slash);
    let candidates: Vec<PathBuf> = match &path {
        Some(path) => env::split_paths(path).map(|directory| directory.join(program)).collect(),
        None if has_slash => vec![program.into()],
        // The system has a path of its own for this case.
        None => return Ok(()),
    };
    let mut failure = Errno::ENOENT;
    for candidate in candidates {
        match access(&candidate, AccessFlags::X_OK) {
            Ok(()) if candidate.is_file() => return Ok(()),
            Ok(()) | Err(Errno::EACCES) => failure = Errno::EACCES,
            Err(_) => {}
        }
    }
    Err(ClientError::Command { program: program.to_string_lossy().into_owned(), error: failure.into() })
}

/// Whether another attempt to start the command fails as well.
pub(super) fn is_permanent(error: &io::Error) -> bool {
    let kinds = [
        ErrorKind::NotFound,
        ErrorKind::PermissionDenied,
        ErrorKind::NotADirectory,
        ErrorKind::IsADirectory,
        ErrorKind::InvalidInput,
        ErrorKind::ArgumentListTooLong,
    ];
    kinds.contains(&error.kind()) || error.raw_os_error() == Some(Errno::ENOEXEC as i32)
}

/// Whether nothing reads standard output any more, which commands inherit. Most of them die then by SIGPIPE.
pub(super) fn is_output_closed() -> bool {
    let stdout = io::stdout();
    let mut fds = [PollFd::new(stdout.as_fd(), PollFlags::empty())];
    let is_polled = poll(&mut fds, PollTimeout::ZERO).is_ok();
    is_polled
        && fds[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}

/// Why a command has failed, or none if it succeeded.
pub(super) fn failure(status: ExitStatus) -> Option<String> {
    if status.success() {
        return None;
    }
    Some(match (status.code(), status.signal().map(Signal::try_from)) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(Ok(signal))) => format!("killed by {signal}"),
        _ => status.to_string(),
    })
}

/// A file in memory that contains a body: the command may read it late, in part or never, and nothing waits for that.
fn in_memory(body: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("job", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(body)?;
    file.rewind()?;
    Ok(file)
}
