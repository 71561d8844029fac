//! `--check-config`: what a start would do, as far as it can be tried without taking anything from anybody. A server that
//! is to be replaced asks its successor so, and what it says good to has to be good.

use std::error::Error;
use std::fmt;

use nix::unistd::getppid;

use crate::config::Config;
use crate::io::binlog_import;
use crate::io::driver::Ready;
use crate::io::privileges::User;
use crate::io::reexec::Present;
use crate::io::rights;
use crate::io::socket::Listener;
use crate::io::wal_files::Directory;
use crate::server::Protocol;

/// Why a program does not take over from the one that runs. Stopping that one, and starting this one, is not the same:
/// its rights are gone, and so is what it does not know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Without a log, or with another one, all jobs would be lost.
    LogDir,
    /// A job in the log may be larger than that.
    LogFileSize {
        /// What it is now, in bytes.
        present: u64,
    },
    /// There is no room on the disk for files of that size.
    Space,
    /// A process that has given up its rights opens no ports.
    Http,
    /// The program that was started is another, which has started this one and would wait for it.
    Parent,
}

/// A log of other files begins with a new one, and makes the next one ready.
const FILES_AT_START: u64 = 2;

/// Whether a server of this configuration could start, and the driver that it would have. Becomes the user that it is to
/// run as.
pub fn rehearse(config: &Config) -> Result<String, Box<dyn Error>> {
    let present = Present::from_environment();
    match present {
        Some(present) if getppid().as_raw() as u32 != present.pid => return Err(Refusal::Parent.into()),
        // Its sockets stay where they are.
        Some(present) if config.http.is_some() && !present.speaks_http => return Err(Refusal::Http.into()),
        Some(_) => {}
        None => {
            // What a service manager hands over takes the place of addresses.
            let inherited = Listener::inherit()?;
            let is_there = |protocol| inherited.iter().any(|listener| listener.protocol() == protocol);
            let default = Default::default();
            if !is_there(Protocol::Beanstalk) {
                Listener::check(config.listen.as_ref().unwrap_or(&default))?;
            }
            if let Some(http) = config.http.as_ref().filter(|_| !is_there(Protocol::Http)) {
                Listener::check(http)?;
            }
        }
    }
    let user = config.user.as_deref().map(User::find).transpose()?;
    rights::give_up(user.as_ref())?;
    // A running server does not reach another directory, so this comes before that fails.
    let is_other =
        |present: Present, path| Directory::identity_at(path).is_ok_and(|own| own != present.log_dir);
    if present.zip(config.log_dir.as_deref()).is_some_and(|(present, path)| is_other(present, path)) {
        return Err(Refusal::LogDir.into());
    }
    let log_dir = config.log_dir.as_deref().map(Directory::check).transpose()?;
    config.log_dir.as_deref().map_or(Ok(()), binlog_import::check)?;
    if let Some(present) = present {
        if log_dir != Some(present.log_dir) {
            return Err(Refusal::LogDir.into());
        }
        if config.log.segment_bytes < present.segment_bytes {
            return Err(Refusal::LogFileSize { present: present.segment_bytes }.into());
        }
        let is_larger = config.log.segment_bytes > present.segment_bytes;
        if let Some(path) = config.log_dir.as_deref().filter(|_| is_larger)
            && Directory::free_bytes(path)? < FILES_AT_START * config.log.segment_bytes
        {
            return Err(Refusal::Space.into());
        }
    }
    Ok(Ready::foresee(config.io)?)
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogDir => write!(
                f,
                "-b is not the directory whose jobs the server has, which would be lost: stop it and start it anew"
            ),
            Self::LogFileSize { present } => {
                write!(f, "-s is less than the {present} bytes of now: stop the server and start it anew")
            }
            Self::Space => write!(f, "-s: there is no space for a file of that size"),
            Self::Parent => write!(
                f,
                "a script has to become the program (exec), and not only to start it: the process is to stay the same"
            ),
            Self::Http => write!(f, "--http was not there at the start: stop the server and start it anew"),
        }
    }
}

impl Error for Refusal {}
