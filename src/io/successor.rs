//! A restart without a moment in which nobody listens: the program is checked in its present version, and then
//! takes this process over, with the listening sockets. Clients who come meanwhile wait in the kernel's queue.
//!
//! The process stays the same, so that it can be the first of a container or the main one of a service.

use std::convert::Infallible;
use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::signal::{SigHandler, Signal, signal};
use tracing::{info, warn};

use super::confine::directory_of;
use super::signal::ALIVE;
use super::socket::{FIRST_INHERITED, Listener};

/// The running program itself, if its file is gone.
const SELF: &str = "/proc/self/exe";

/// The program that is to take over: the one that this process was started as, as it is then.
#[derive(Clone, Debug)]
pub struct Successor {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// A successor that is being asked whether it could start.
#[derive(Debug)]
pub struct Checks {
    successor: Successor,
    check: Option<Child>,
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

    /// Where the program is, and where a link to it leads.
    pub fn places(&self) -> Vec<PathBuf> {
        let aim = self.program.canonicalize().ok();
        [Some(self.program.clone()), aim].into_iter().flatten().map(|file| directory_of(&file)).collect()
    }

    /// Becomes this program, with these sockets as it was handed any by a service manager. Returns only if that
    /// cannot be.
    pub fn take_over(self, listeners: Vec<Listener>) -> io::Result<Infallible> {
        let names: Vec<&str> = listeners.iter().map(Listener::name_to_hand_over).collect();
        for ignored in [Signal::SIGUSR1, Signal::SIGUSR2, ALIVE] {
            // SAFETY: nothing is installed that could run at a bad moment. What comes before the next program
            // asks for signals must not end it.
            #[allow(unsafe_code)]
            unsafe {
                signal(ignored, SigHandler::SigIgn)?;
            }
        }
        place(&listeners)?;
        let mut error = None;
        for program in [&*self.program, Path::new(SELF)] {
            let mut next = Command::new(program);
            next.args(&self.arguments)
                .env("LISTEN_PID", process::id().to_string())
                .env("LISTEN_FDS", listeners.len().to_string())
                .env("LISTEN_FDNAMES", names.join(":"));
            let refused = next.exec();
            warn!("{}: cannot be started: {refused}", program.display());
            error.get_or_insert(refused);
        }
        // Their files are of use to nobody now.
        drop(listeners);
        Err(error.expect("it was tried"))
    }
}

/// The file of a program, as the shell finds it.
fn find(name: &Path) -> Option<PathBuf> {
    if name.components().count() > 1 {
        return env::current_dir().ok().map(|here| here.join(name));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// Gives the sockets the numbers that a service manager would, and lets the next program have them.
fn place(listeners: &[Listener]) -> io::Result<()> {
    let first_free = FIRST_INHERITED + listeners.len() as i32;
    // Out of the way first: one may have a number that another is to have.
    let mut copies = Vec::new();
    for listener in listeners {
        copies.push(fcntl(listener.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(first_free))?);
    }
    for (to, from) in (FIRST_INHERITED..).zip(copies) {
        // SAFETY: whatever has the number is closed a moment earlier than it would be, as the next program
        // begins; nothing uses it any more.
        #[allow(unsafe_code)]
        let placed = unsafe { libc::dup2(from, to) };
        if placed < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

impl Checks {
    /// Nothing is asked yet.
    pub const fn new(successor: Successor) -> Self {
        Self { successor, check: None }
    }

    /// Asks the program whether it could start with this configuration.
    pub fn begin(&mut self) {
        if self.check.is_some() {
            return;
        }
        let Successor { program, arguments } = &self.successor;
        info!("asking {} whether it could take over", program.display());
        let mut command = Command::new(program);
        command.args(arguments).arg("--check-config");
        for variable in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(variable);
        }
        match command.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => self.check = Some(child),
            Err(error) => warn!("no restart: {} cannot be started: {error}", program.display()),
        }
    }

    /// Whether the program has answered, and could start. To be asked when a child has ended.
    pub fn has_agreed(&mut self) -> bool {
        let Some(child) = &mut self.check else { return false };
        let answer = match child.try_wait() {
            Ok(None) => return false,
            Ok(Some(status)) if status.success() => true,
            Ok(Some(status)) => {
                warn!("no restart: {} would not start ({status})", self.successor.program.display());
                false
            }
            Err(error) => {
                warn!("no restart: {error}");
                false
            }
        };
        self.check = None;
        answer
    }
}
