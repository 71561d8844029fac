//! In-place restart: the process checks the program as it is installed now, and executes it with the listeners and the lock of
//! the job log. New connections wait in the listen backlog, and those on which nothing has come yet are handed over with their
//! listener.
//!
//! The process stays the same, so it can be the first of a container or the main process of a service.

use std::collections::HashMap;
use std::convert::Infallible;
use std::env;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{self, Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::str::FromStr;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use nix::unistd::execve;
use tracing::{info, warn};

use super::log_writer;
use super::socket::{FIRST_INHERITED, Listener, text_of};

/// The running program, even if its file is gone.
const SELF: &str = "/proc/self/exe";

/// The program that this process was started as. A restart executes the file that has its path then.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

/// What the new program must know of the running server to tell whether it can replace it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningServer {
    /// Device and inode of the directory of the job log, or [`NO_DIRECTORY`](Self::NO_DIRECTORY).
    pub wal_dir: (u64, u64),
    /// The size of a file of the job log, in bytes. A job may take a whole one.
    pub segment_bytes: u64,
    /// It has a listener for HTTP.
    pub speaks_http: bool,
    /// The process that is to execute the new program.
    pub pid: u32,
    /// The address that `-l` and `-p` gave it. None if its sockets come from socket activation, which replaces these flags.
    pub listen: Option<String>,
    /// The address that `--tls-listen` gave it, or [`ACTIVATED`]. None if no client connects over TLS.
    pub tls_listen: Option<String>,
    /// The address that `--http` gave it. None without this flag, or if the socket comes from socket activation.
    pub http: Option<String>,
}

/// The preflight check: the program, run with `--check-config`.
#[derive(Debug)]
pub(super) struct Preflight {
    program: Program,
    server: RunningServer,
    running: Option<Check>,
    /// A check has passed, so no other is started.
    has_passed: bool,
    /// The program that has passed takes over connections.
    takes_connections: bool,
}

/// A check that is running.
#[derive(Debug)]
struct Check {
    child: Child,
    stdout: PipeReader,
    stderr: PipeReader,
}

/// Begins the line that a check prints when it has passed. Another program prints none.
pub const CHECK_PASSED: &str = "I/O driver: ";

/// The line that a check prints for the server that has started it, since its program takes over connections.
pub const TAKES_CONNECTIONS: &str = "takes over connections";

/// The most connections that are handed over. They are named in one environment variable.
pub const HANDED_OVER_MAX: usize = 4096;

/// Stands for the address of a socket from socket activation.
pub const ACTIVATED: &str = "activated";

/// The environment variable that describes the running server to a preflight check.
const RUNNING_SERVER: &str = "BEANRING_RESTART_OF";

/// The environment variable that passes the lock of the job log to the new program: its process and the descriptor.
const LOCK: &str = "BEANRING_WAL_LOCK";

/// The environment variable that passes on how often another server has ended the term of this process: its process and the number.
const FENCES: &str = "BEANRING_FENCES";

/// What the program that ran in this process before has known of a job log in a database.
const KNOWN: &str = "BEANRING_KNOWN";

/// The environment variable that passes on connections on which nothing has come: the process, the first descriptor, and the number
/// of the listener of each.
const CONNECTIONS: &str = "BEANRING_CONNECTIONS";

/// The environment variable that passes on how many log lines were lost at the restart: the process and the number.
const LOST_LINES: &str = "BEANRING_LOST_LOG_LINES";

/// The variables of this module, which are no settings.
pub const VARIABLES: [&str; 6] = [RUNNING_SERVER, LOCK, FENCES, KNOWN, CONNECTIONS, LOST_LINES];

/// The most that is read of the output of a check, and logged of its stderr.
const OUTPUT_BYTES_MAX: u64 = 4096;

impl RunningServer {
    /// The job log is in a database.
    pub const NO_DIRECTORY: (u64, u64) = (0, 0);

    /// The server that runs this process as its preflight check, if one does.
    pub fn from_environment() -> Option<Self> {
        let words = env::var(RUNNING_SERVER).ok()?;
        let mut words = words.splitn(6, ':');
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok());
        let (wal_dir, segment_bytes) = ((next()?, next()?), next()?);
        let (speaks_http, pid) = (next()? == 1, next()?.try_into().ok()?);
        // Versions before this one do not pass on addresses.
        let mut addresses = words.next().unwrap_or_default().split('\n').map(str::to_owned);
        let mut next = || addresses.next().filter(|address| !address.is_empty());
        let (listen, http, tls_listen) = (next(), next(), next());
        Some(Self { wal_dir, segment_bytes, speaks_http, pid, listen, tls_listen, http })
    }

    fn to_words(&self) -> String {
        let Self { wal_dir: (device, inode), segment_bytes, speaks_http, pid, listen, tls_listen, http } =
            self;
        let addresses = [listen, http, tls_listen].map(|address| address.as_deref().unwrap_or_default());
        let addresses = addresses.join("\n");
        format!("{device}:{inode}:{segment_bytes}:{}:{pid}:{addresses}", u8::from(*speaks_http))
    }
}

impl Program {
    /// The program and the arguments of this process. Must be called at its start, before relative paths lose their meaning.
    pub fn of_this_process() -> Self {
        let mut words = env::args_os();
        let name = words.next().map(PathBuf::from).unwrap_or_default();
        // A symbolic link is not followed: it may have another target at the restart.
        let path = find(&name).or_else(|| env::current_exe().ok()).unwrap_or_else(|| SELF.into());
        Self { path, arguments: words.collect() }
    }

    /// The path of the program, for messages.
    pub fn name(&self) -> path::Display<'_> {
        self.path.display()
    }

    /// The path of the program, and the file that it leads to if it is a symbolic link.
    pub fn files(&self) -> Vec<PathBuf> {
        let target = self.path.canonicalize().ok();
        [Some(self.path.clone()), target].into_iter().flatten().collect()
    }

    /// Executes this program in place of the running one. It finds the listeners as if by socket activation, their [connections
    /// that were handed over](inherit_connections), the lock of the job log, [how often it was fenced](inherited_fences), and
    /// [what was known](inherited_known) of a job log in a database. Signals stay blocked, so none is lost.
    ///
    /// # Errors
    /// Returns only if neither the program nor the running one can be executed.
    pub fn restart(
        self,
        listeners: Vec<Listener>,
        lock: Option<File>,
        fences: u64,
        known: Option<String>,
    ) -> io::Result<Infallible> {
        let names: Vec<String> = listeners.iter().map(Listener::activation_name).collect();
        let sockets = listeners.iter().map(|listener| listener.as_fd().as_raw_fd());
        let mut passed: Vec<RawFd> = sockets.chain(lock.as_ref().map(AsRawFd::as_raw_fd)).collect();
        let [lock_number, first] =
            [listeners.len(), passed.len()].map(|count| FIRST_INHERITED + count as RawFd);
        let connections: Vec<(usize, OwnedFd)> = listeners.iter().enumerate().flat_map(handed_over).collect();
        passed.extend(connections.iter().map(|(_, fd)| fd.as_raw_fd()));
        place(&passed)?;
        let pid = process::id();
        let accepted_by: Vec<String> = connections.iter().map(|(number, _)| number.to_string()).collect();
        let mut variables = vec![
            ("LISTEN_PID", pid.to_string()),
            ("LISTEN_FDS", listeners.len().to_string()),
            ("LISTEN_FDNAMES", names.join(":")),
            // Set in any case: the process may have inherited one.
            (CONNECTIONS, format!("{pid}:{first}:{}", accepted_by.join(","))),
        ];
        if lock.is_some() {
            variables.push((LOCK, format!("{pid}:{lock_number}")));
        }
        if fences > 0 {
            variables.push((FENCES, format!("{pid}:{fences}")));
        }
        if let Some(known) = known {
            variables.push((KNOWN, format!("{pid}:{known}")));
        }
        let refused = self.execute(&self.path, &variables);
        warn!(
            "cannot execute {}: {}; the program that was running is executed again",
            self.path.display(),
            text_of(&refused)
        );
        self.execute(Path::new(SELF), &variables);
        // This removes the files of UNIX sockets, which have no listener now.
        drop(listeners);
        Err(refused)
    }

    /// Executes a file, without a shell: one would try to interpret any file. Returns why it cannot.
    fn execute(&self, file: &Path, variables: &[(&str, String)]) -> io::Error {
        let lost_lines = (LOST_LINES, format!("{}:{}", process::id(), log_writer::flush_for_next()));
        let variables: Vec<_> = variables.iter().chain([&lost_lines]).collect();
        let kept = env::vars_os().filter(|(name, _)| !variables.iter().any(|(other, _)| name == other));
        let set = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let words = kept.chain(set).map(|(mut word, value)| {
            word.push("=");
            word.push(value);
            word
        });
        let to_c = |word: OsString| CString::new(word.into_vec());
        let environment: Result<Vec<CString>, _> = words.map(to_c).collect();
        let name = self.path.clone().into_os_string();
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

/// The connections that a listener hands over, with its number.
fn handed_over((number, listener): (usize, &Listener)) -> impl Iterator<Item = (usize, OwnedFd)> {
    listener.take_handed_over().into_iter().map(move |fd| (number, fd))
}

/// How often another server has ended the term of this process, before restarts in place.
pub fn inherited_fences() -> u64 {
    inherited(FENCES).unwrap_or(0)
}

/// What the program that ran in this process before has known of a job log in a database.
pub fn inherited_known() -> Option<String> {
    inherited(KNOWN)
}

/// How many log lines the program that ran in this process before has lost at its end. None if there was no such program.
pub fn inherited_lost_lines() -> Option<u64> {
    inherited(LOST_LINES)
}

/// A number that the program that ran in this process before has passed on.
fn inherited<T: FromStr>(variable: &str) -> Option<T> {
    let words = env::var(variable).ok()?;
    let (pid, number) = words.split_once(':')?;
    if pid.parse() == Ok(process::id()) { number.parse().ok() } else { None }
}

/// The lock of the job log, if the program that ran in this process before has passed it. Must be called once, before anything
/// in the process opens descriptors.
pub fn inherit_lock() -> Option<File> {
    own(inherited(LOCK)?).map(File::from)
}

/// Gives listeners the connections that the program that ran in this process before has handed over with them. Must be called once,
/// before anything in the process opens descriptors.
pub fn inherit_connections(listeners: &[Listener]) {
    let Some(passed) = inherited::<String>(CONNECTIONS) else { return };
    let Some((first, numbers)) = passed.split_once(':') else { return };
    let Ok(first) = first.parse::<RawFd>() else { return };
    for (fd, number) in (first..).zip(numbers.split(',')) {
        let Some((fd, number)) = number.parse::<usize>().ok().and_then(|number| Some((own(fd)?, number)))
        else {
            return;
        };
        if let Some(listener) = listeners.get(number) {
            listener.hand_over(fd);
        }
    }
}

/// Takes ownership of a descriptor that an environment variable has passed to this process. None if it is not open.
fn own(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: the call changes a flag of the descriptor with this number, and fails if there is none.
    #[allow(unsafe_code)]
    let changed = unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: the descriptor is open. The variable says that it was passed to this process, and nothing else could have
    // opened it.
    #[allow(unsafe_code)]
    (changed == 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Finds the file of a program as a shell does.
fn find(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return path::absolute(name).ok();
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Gives descriptors the numbers of socket activation, and lets the next program inherit them. Needs one number more.
fn place(now: &[RawFd]) -> io::Result<()> {
    let first_free = FIRST_INHERITED + now.len() as RawFd;
    let mut places: HashMap<RawFd, usize> = now.iter().zip(0..).map(|(&fd, index)| (fd, index)).collect();
    let mut now = now.to_vec();
    let spare = (first_free..).find(|number| !places.contains_key(number)).expect("there are more numbers");
    for (index, to) in (FIRST_INHERITED..first_free).enumerate() {
        let from = now[index];
        if from == to {
            clear_flags(to)?;
            continue;
        }
        // One that has the number gets that of the descriptor which takes it.
        let other = places.remove(&to);
        if other.is_some() {
            duplicate(to, spare, libc::O_CLOEXEC)?;
        }
        duplicate(from, to, 0)?;
        if let Some(other) = other {
            duplicate(spare, from, libc::O_CLOEXEC)?;
            now[other] = from;
            places.insert(from, other);
        } else {
            places.remove(&from);
        }
    }
    Ok(())
}

/// Lets the next program inherit a descriptor.
fn clear_flags(fd: RawFd) -> io::Result<()> {
    // SAFETY: the call changes a flag of the descriptor with this number, and fails if there is none.
    #[allow(unsafe_code)]
    let done = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn duplicate(from: RawFd, to: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: this closes the descriptor that has the number, which the exec would close anyway. Nothing uses it any more,
    // since no thread that opens descriptors runs (`Shell::exit`).
    #[allow(unsafe_code)]
    let done = unsafe { libc::dup3(from, to, flags) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl Preflight {
    pub const fn new(program: Program, server: RunningServer) -> Self {
        Self { program, server, running: None, has_passed: false, takes_connections: false }
    }

    /// Starts a check, in place of one that is running.
    pub fn start(&mut self) {
        if self.has_passed {
            return;
        }
        if self.running.is_some() {
            warn!("the preflight check is still running: it is ended and started again");
            self.kill();
        }
        let Program { path, arguments } = &self.program;
        info!("preflight check of {} and its configuration", path.display());
        let mut command = Command::new(path);
        command.args(arguments).arg("--check-config").env(RUNNING_SERVER, self.server.to_words());
        for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", LOCK, CONNECTIONS, "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        match spawn(command.stdin(Stdio::null())) {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                let hint = match error.kind() {
                    ErrorKind::PermissionDenied if !is_executable(path) => ": run chmod +x on the file",
                    ErrorKind::PermissionDenied => {
                        ": the sandbox permits a program in the directory of the running one, or below /usr or /opt; in a \
                         shared directory such as / or /tmp only the same file"
                    }
                    _ => "",
                };
                warn!("no restart: cannot execute {}: {}{hint}", path.display(), text_of(&error));
            }
        }
    }

    /// Takes the result of a check that has ended. Must be called after each SIGCHLD. Returns whether a check has passed.
    pub fn poll(&mut self) -> bool {
        let Some(Check { child, stdout, stderr }) = &mut self.running else { return false };
        let program = self.program.path.display();
        match child.try_wait() {
            Ok(None) => return false,
            Ok(Some(status)) if status.success() => {
                let said = output(stdout);
                self.has_passed = has_line(&said, CHECK_PASSED);
                self.takes_connections = has_line(&said, TAKES_CONNECTIONS);
                if self.has_passed {
                    info!("the preflight check has passed: the server stops and restarts in place");
                } else {
                    warn!(
                        "no restart: {program} is no beanring: it has not printed the result of the preflight check; install \
                         beanring there"
                    );
                }
            }
            Ok(Some(status)) => match reason(&output(stderr)) {
                reason if reason.is_empty() => {
                    warn!("no restart: the preflight check of {program} has failed ({status})")
                }
                reason => warn!("no restart: the preflight check of {program} has failed: {reason}"),
            },
            Err(error) => {
                warn!("no restart: cannot wait for the preflight check: {}", text_of(&error));
            }
        }
        self.running = None;
        self.has_passed
    }

    /// Whether the program that has passed takes over connections.
    pub const fn takes_connections(&self) -> bool {
        self.takes_connections
    }

    /// Kills the check that is running, if one is.
    fn kill(&mut self) {
        if let Some(Check { mut child, .. }) = self.running.take() {
            // A killed child ends at once.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

impl Drop for Preflight {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a program. Nothing reads its output while it runs.
fn spawn(command: &mut Command) -> io::Result<Check> {
    let ((stdout, to_stdout), (stderr, to_stderr)) = (pipe()?, pipe()?);
    let child = command.stdout(to_stdout).stderr(to_stderr).spawn()?;
    Ok(Check { child, stdout, stderr })
}

/// Returns a pipe. A write to it fails if it is full.
fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((reader, writer))
}

/// The output of a program that has ended. A child of the program may still write, so this does not wait for the end of the
/// pipe.
fn output(pipe: &mut PipeReader) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the mode of a file lets any user execute it.
fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.permissions().mode() & 0o111 != 0)
}

fn has_line(stdout: &str, begin: &str) -> bool {
    stdout.lines().any(|line| line.starts_with(begin))
}

/// The errors of a failed check, as one line.
fn reason(stderr: &str) -> String {
    let lines = stderr.lines().map(|line| line.strip_prefix("beanring: ").unwrap_or(line).trim());
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn a_relative_path_is_shown_without_its_dot() {
        let here = env::current_dir().expect("the directory exists");
        let found = find(Path::new("./beanring")).map(|path| path.display().to_string());
        assert_eq!(found, Some(format!("{}/beanring", here.display())));
    }

    #[test]
    fn a_file_without_a_program_format_is_not_run_by_a_shell() {
        let file = env::temp_dir().join(format!("beanring-program-{}", process::id()));
        fs::write(&file, "exit 0\n").expect("a file is written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the owner sets its mode");
        let program = Program { path: file.clone(), arguments: Vec::new() };
        let refused = program.execute(&file, &[]);
        assert_eq!(refused.raw_os_error(), Some(Errno::ENOEXEC as i32));
        fs::remove_file(&file).expect("the file is removed");
    }
}
