//! The programs of PostgreSQL that are installed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{User, geteuid};

/// The programs of PostgreSQL, and the user that they run as: they refuse to run as root.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
    /// Where those programs are that the directory does not have: archives of servers come without clients.
    installed: PathBuf,
    user: Option<User>,
    /// The network namespace that they run in, if it is not that of the test.
    namespace: Option<String>,
}

impl Programs {
    /// Finds the newest version that is installed. `BEANRING_TEST_POSTGRES` names the directory of another one's programs.
    ///
    /// # Errors
    /// If there is none that can be used, with the reason.
    pub fn find() -> Result<Self, &'static str> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
        let numbered = versions.filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let directory = entry.path().join("bin");
            directory.join("initdb").is_file().then_some((number, directory))
        });
        let (_, installed) = numbered.max().ok_or("PostgreSQL is not installed")?;
        let directory =
            env::var_os("BEANRING_TEST_POSTGRES").map_or_else(|| installed.clone(), PathBuf::from);
        let user = if geteuid().is_root() {
            let named = |name| User::from_name(name).ok().flatten();
            let user = named("postgres").or_else(|| named("nobody"));
            Some(user.ok_or("there is no user to run PostgreSQL as")?)
        } else {
            None
        };
        Ok(Self { directory, installed, user, namespace: None })
    }

    /// Has the programs run in a network namespace. Only root can.
    #[must_use]
    pub fn inside(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// The user and the group that the programs run as, if these are not those of the test.
    pub(super) fn ids(&self) -> Option<(u32, u32)> {
        self.user.as_ref().map(|user| (user.uid.as_raw(), user.gid.as_raw()))
    }

    /// A program, to be run as the user.
    pub(super) fn command(&self, name: &str) -> Command {
        let own = self.directory.join(name);
        let program = if own.is_file() { own } else { self.installed.join(name) };
        self.user_command(&program)
    }

    pub(super) fn user_command(&self, program: &Path) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(OsString::from));
        }
        if let Some((user, group)) = self.ids() {
            let ids = [format!("--reuid={user}"), format!("--regid={group}")];
            words.push("setpriv".into());
            words.extend(ids.map(OsString::from));
            words.push("--clear-groups".into());
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        // The user may not read the directory of the tests.
        command.current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C");
        command
    }
}
