//! A restart without a moment in which nobody listens: the program is checked in its present version, and then
//! takes this process over, with the listening sockets and the lock of the log. Clients who come meanwhile wait in
//! the kernel's queue.
//!
//! The process stays the same, so that it can be the first of a container or the main one of a service.

use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::unistd::execve;
use tracing::{info, warn};

use super::socket::{FIRST_INHERITED, Listener};

/// The running program itself, if its file is gone.
const SELF: &str = "/proc/self/exe";

/// The program that is to take over: the one that this process was started as, as it is then.
#[derive(Clone, Debug)]
pub struct Successor {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// What a server has that its successor could not come by, or would lose the jobs without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Present {
    /// Device and inode of the directory of the log.
    pub log_dir: (u64, u64),
    /// The size of its files; a job may take a whole one.
    pub segment_bytes: u64,
    /// HTTP is spoken somewhere.
    pub speaks_http: bool,
    /// The process whose program is to change.
    pub pid: u32,
}

/// A successor that is being asked whether it could start.
#[derive(Debug)]
pub struct Checks {
    successor: Successor,
    present: Present,
    /// And what it says.
    check: Option<(Child, PipeReader)>,
    /// It could: there is nothing more to ask.
    has_agreed: bool,
}

/// In the environment of a program that is asked whether it could take over: who asks.
const PRESENT: &str = "BEANRING_SUCCEEDS";

/// In the environment of a program that has taken over: its process, and the descriptor of the log's lock.
const LOCK: &str = "BEANRING_LOG_LOCK";

/// Of what such a program says, this much is told.
const REASON_BYTES_MAX: u64 = 4096;

impl Present {
    /// Of the server that asks this process whether it could take over, if one does.
    pub fn from_environment() -> Option<Self> {
        let words = env::var(PRESENT).ok()?;
        let mut numbers = words.split(':').map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        Some(Self {
            log_dir: (next()?, next()?),
            segment_bytes: next()?,
            speaks_http: next()? == 1,
            pid: next()?.try_into().ok()?,
        })
    }

    fn to_words(self) -> String {
        let Self { log_dir: (device, inode), segment_bytes, speaks_http, pid } = self;
        format!("{device}:{inode}:{segment_bytes}:{}:{pid}", u8::from(speaks_http))
    }
}

impl Successor {
    /// With the arguments of this process. To be called at its start, before paths lose their meaning.
    pub fn of_this_process() -> Self {
        let mut words = env::args_os();
        let name = words.next().map(PathBuf::from).unwrap_or_default();
        // A link to the program may have another aim next time, so it is not followed now.
        let program = find(&name).or_else(|| env::current_exe().ok()).unwrap_or_else(|| SELF.into());
        Self { program, arguments: words.collect() }
    }

    /// The program's file, and the one that a link leads to.
    pub fn files(&self) -> Vec<PathBuf> {
        let aim = self.program.canonicalize().ok();
        [Some(self.program.clone()), aim].into_iter().flatten().collect()
    }

    /// Becomes this program, with these sockets as it was handed any by a service manager, and with the lock of the
    /// log. Signals stay blocked meanwhile, so none is lost. Returns only if that cannot be.
    pub fn take_over(self, listeners: Vec<Listener>, lock: File) -> io::Result<Infallible> {
        let names: Vec<String> = listeners.iter().map(Listener::name_to_hand_over).collect();
        let sockets = listeners.iter().map(|listener| listener.as_fd().as_raw_fd());
        place(&sockets.chain([lock.as_raw_fd()]).collect::<Vec<_>>())?;
        let pid = process::id();
        let lock_number = FIRST_INHERITED + listeners.len() as RawFd;
        let variables = [
            ("LISTEN_PID", pid.to_string()),
            ("LISTEN_FDS", listeners.len().to_string()),
            ("LISTEN_FDNAMES", names.join(":")),
            (LOCK, format!("{pid}:{lock_number}")),
        ];
        let refused = self.execute(&self.program, &variables);
        warn!("{}: cannot be started: {refused}", self.program.display());
        self.execute(Path::new(SELF), &variables);
        // Their files are of use to nobody now.
        drop(listeners);
        Err(refused)
    }

    /// Becomes the program in this file, if it is one: a shell would try to read anything. Returns why not.
    fn execute(&self, file: &Path, variables: &[(&str, String)]) -> io::Error {
        let kept = env::vars_os().filter(|(name, _)| !variables.iter().any(|(other, _)| name == other));
        let set = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let words = kept.chain(set).map(|(mut word, value)| {
            word.push("=");
            word.push(value);
            word
        });
        let to_c = |word: OsString| CString::new(word.into_vec());
        let environment: Result<Vec<CString>, _> = words.map(to_c).collect();
        let name = self.program.clone().into_os_string();
        let arguments: Result<Vec<CString>, _> =
            [name].into_iter().chain(self.arguments.iter().cloned()).map(to_c).collect();
        match (to_c(file.into()), arguments, environment) {
            (Ok(file), Ok(arguments), Ok(environment)) => match execve(&file, &arguments, &environment) {
                Err(errno) => errno.into(),
            },
            _ => ErrorKind::InvalidInput.into(),
        }
    }
}

/// The lock of the log, if the program that ran in this process before has left it. To be called once, before anything
/// else in the process opens descriptors.
pub fn inherit_lock() -> Option<File> {
    let words = env::var(LOCK).ok()?;
    let (pid, fd) = words.split_once(':')?;
    if pid.parse() != Ok(process::id()) {
        return None;
    }
    let fd: RawFd = fd.parse().ok()?;
    // SAFETY: the call changes a flag of whatever has this number; it fails if nothing has.
    #[allow(unsafe_code)]
    let changed = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: it is open, the variable says that it was passed to this process to own, and nothing else could
    // have opened it.
    #[allow(unsafe_code)]
    (changed == 0).then(|| unsafe { File::from_raw_fd(fd) })
}

/// The file of a program, as the shell finds it.
fn find(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return env::current_dir().ok().map(|here| here.join(name));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Gives descriptors the numbers that a service manager would, and lets the next program have them.
fn place(now: &[RawFd]) -> io::Result<()> {
    let first_free = FIRST_INHERITED + now.len() as i32;
    // Out of the way first: one may have a number that another is to have. No number has to be free for that.
    let aside = || (first_free..).filter(|number| !now.contains(number));
    for (&from, to) in now.iter().zip(aside()) {
        duplicate(from, to, libc::O_CLOEXEC)?;
    }
    for (from, to) in aside().zip(FIRST_INHERITED..first_free) {
        duplicate(from, to, 0)?;
    }
    Ok(())
}

fn duplicate(from: RawFd, to: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: whatever has the number is closed a moment earlier than it would be, as the next program
    // begins; nothing uses it any more, since this is the only thread by now (`Ending::of`).
    #[allow(unsafe_code)]
    let done = unsafe { libc::dup3(from, to, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Checks {
    /// Nothing is asked yet.
    pub const fn new(successor: Successor, present: Present) -> Self {
        Self { successor, present, check: None, has_agreed: false }
    }

    /// Asks the program whether it could start with this configuration, and take over what there is.
    pub fn begin(&mut self) {
        if self.has_agreed {
            return;
        }
        if self.check.is_some() {
            warn!("the program has not said yet whether it could take over, and is asked anew");
            self.end();
        }
        let Successor { program, arguments } = &self.successor;
        info!("asking {} whether it could take over", program.display());
        let mut command = Command::new(program);
        command.args(arguments).arg("--check-config").env(PRESENT, self.present.to_words());
        for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", LOCK, "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        match said_by(command.stdin(Stdio::null()).stdout(Stdio::null())) {
            Ok(check) => self.check = Some(check),
            Err(error) => {
                let hint = match error.kind() {
                    ErrorKind::PermissionDenied => {
                        ": it has to be where the first one was, or below /usr or /opt; in a directory such as / or \
                         /tmp it has to be the same file"
                    }
                    _ => "",
                };
                warn!("no restart: {} cannot be started: {error}{hint}", program.display());
            }
        }
    }

    /// Whether the program has answered, and could start. To be asked when a child has ended.
    pub fn has_agreed(&mut self) -> bool {
        let Some((child, said)) = &mut self.check else { return false };
        let program = self.successor.program.display();
        match child.try_wait() {
            Ok(None) => return false,
            Ok(Some(status)) if status.success() => self.has_agreed = true,
            Ok(Some(status)) => match reason(said) {
                reason if reason.is_empty() => warn!("no restart: {program} would not start ({status})"),
                reason => warn!("no restart: {program} would not start: {reason}"),
            },
            Err(error) => warn!("no restart: {error}"),
        }
        self.check = None;
        self.has_agreed
    }

    /// A check that is under way is not waited for any longer.
    fn end(&mut self) {
        if let Some((mut child, _)) = self.check.take() {
            // What is killed ends at once.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts a program, and what it will say. Nobody listens yet: a program that says more than a pipe holds is not kept
/// waiting.
fn said_by(command: &mut Command) -> io::Result<(Child, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((command.stderr(writer).spawn()?, reader))
}

/// What a program has said before it ended, as one line. One that it has left behind may be saying more.
fn reason(said: &mut PipeReader) -> String {
    let mut bytes = Vec::new();
    let _ = said.take(REASON_BYTES_MAX).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(|line| line.strip_prefix("beanring: ").unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use nix::errno::Errno;

    use super::*;

    #[test]
    fn what_is_no_program_is_not_given_to_a_shell() {
        let file = env::temp_dir().join(format!("beanring-program-{}", process::id()));
        fs::write(&file, "exit 0\n").expect("there is room");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it is ours");
        let successor = Successor { program: file.clone(), arguments: Vec::new() };
        let refused = successor.execute(&file, &[]);
        assert_eq!(refused.raw_os_error(), Some(Errno::ENOEXEC as i32));
        fs::remove_file(&file).expect("it is there");
    }
}
