//! Restricts a running server to what it needs, so that an attacker who takes it over gains little. It cannot gain privileges by
//! executing a program (`no_new_privs`). It reaches only its own files, no new ports, and no other processes (Landlock).

use std::env;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, RestrictSelfError, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use nix::errno::Errno;
use nix::sys::prctl::set_no_new_privs;
use tracing::{info, warn};

use super::socket::text_without_number;

/// The newest Landlock ABI that this module knows. An older kernel enforces what it has.
const INTERFACE: ABI = ABI::V6;

/// The directories of what a program needs to start: libraries, and name services.
const SYSTEM: [&str; 9] =
    ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store", "/etc"];

/// Directories of many programs and users.
const SHARED: [&str; 22] = [
    "/",
    "/boot",
    "/dev",
    "/dev/shm",
    "/etc",
    "/home",
    "/media",
    "/mnt",
    "/proc",
    "/root",
    "/run",
    "/run/user",
    "/srv",
    "/sys",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/opt",
    "/var/spool",
    "/var/tmp",
];

/// The files that the server needs.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// The directory of the job log.
    pub log_dir: Option<PathBuf>,
    /// Directories from which files of sockets are removed at the end.
    pub socket_dirs: Vec<PathBuf>,
    /// Files that are read again when they change: of certificates, and of users.
    pub watched: Vec<PathBuf>,
    /// The server connects to others: to the database of its job log.
    pub connects: bool,
    /// The files that an in-place restart reads. `None` if there is none.
    pub restart: Option<Files>,
}

/// Files that may have been replaced by the time they are needed.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// The paths of the program.
    pub program: Vec<PathBuf>,
    /// The configuration file, and the file of the token.
    pub settings: Vec<PathBuf>,
}

/// Restricts this thread, and those that it will start, to the needed files permanently. Logs what the kernel cannot enforce.
pub fn enter(needs: &Needs) {
    if let Err(errno) = set_no_new_privs() {
        warn!(
            "cannot set no_new_privs, so programs that the server executes could gain privileges: {}",
            errno.desc()
        );
    }
    match restrict(needs) {
        Ok(RestrictionStatus { ruleset: RulesetStatus::FullyEnforced, landlock, .. }) => {
            info!(
                "sandbox: the server can access only the files that it needs; Landlock is enforced in full (ABI {})",
                version(landlock)
            );
        }
        Ok(RestrictionStatus { ruleset: RulesetStatus::PartiallyEnforced, landlock, .. }) => {
            let abi = version(landlock);
            let unlimited = unlimited(abi).join(", ");
            info!(
                "sandbox: the server can access only the files that it needs; Landlock is enforced in part: this kernel has \
                 ABI {abi}, which does not limit {unlimited}"
            );
        }
        Ok(_) => info!("sandbox: this kernel has no Landlock, so file access is not restricted"),
        // The kernel stacks at most sixteen rulesets. Those of the programs before an in-place restart stay in force.
        Err(RulesetError::RestrictSelf(RestrictSelfError::RestrictSelfCall { source, .. }))
            if source.raw_os_error() == Some(Errno::E2BIG as i32) =>
        {
            info!("sandbox: the Landlock rules of earlier restarts stay in force");
        }
        Err(error) => {
            warn!("cannot restrict file access by Landlock: {}", text_without_number(&error));
        }
    }
}

fn restrict(needs: &Needs) -> Result<RestrictionStatus, RulesetError> {
    let all = AccessFs::from_all(INTERFACE);
    let in_log: BitFlags<AccessFs> = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::RemoveFile;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let socket_dirs = needs.socket_dirs.iter().filter(|dir| !is_root(dir));
    let mut ruleset = Ruleset::default()
        .handle_access(all)?
        .handle_access(if needs.connects {
            AccessNet::BindTcp.into()
        } else {
            AccessNet::from_all(INTERFACE)
        })?
        .scope(Scope::Signal)?
        .create()?
        // The spare descriptors are of this file.
        .add_rules(path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(&needs.log_dir, in_log))?
        .add_rules(path_beneath_rules(socket_dirs, AccessFs::RemoveFile))?
        .add_rules(path_beneath_rules(reach_all(&needs.watched), AccessFs::ReadFile))?;
    if let Some(Files { program, settings }) = &needs.restart {
        let program: Vec<PathBuf> = program.iter().map(|file| reach(file)).collect();
        ruleset = ruleset
            .add_rules(path_beneath_rules(SYSTEM, read | AccessFs::Execute))?
            .add_rules(path_beneath_rules(["/proc", "/dev/urandom"], read))?
            .add_rules(path_beneath_rules(&program, AccessFs::ReadFile | AccessFs::Execute))?
            .add_rules(path_beneath_rules(reach_all(settings), AccessFs::ReadFile))?;
    }
    ruleset.restrict_self()
}

/// The Landlock ABI of the kernel, as far as this module knows it.
const fn version(landlock: LandlockStatus) -> u32 {
    match landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
        _ => 0,
    }
}

/// What an ABI cannot restrict.
fn unlimited(abi: u32) -> Vec<&'static str> {
    let limits = [
        (3, "truncation of files"),
        (4, "TCP ports"),
        (5, "ioctl on devices"),
        (6, "signals to other processes"),
    ];
    limits.into_iter().filter(|(since, _)| abi < *since).map(|(_, what)| what).collect()
}

/// The path that must be allowed so that a file can be read again. It is the directory, since a rule for a file does not hold
/// for its replacement. In a directory that others share it is the file alone.
fn reach(file: &Path) -> PathBuf {
    let directory = directory_of(file);
    match directory.canonicalize() {
        Ok(real) if !is_shared(&real) => directory,
        _ => file.to_owned(),
    }
}

/// The paths that must be allowed so that files, and those that they are links to, can be read again.
fn reach_all(files: &[PathBuf]) -> Vec<PathBuf> {
    let named = files.iter().map(|file| reach(file));
    let targets = files.iter().filter_map(|file| file.canonicalize().ok());
    named.chain(targets.map(|target| reach(&target))).collect()
}

/// The directory that programs share in which a file is, or the one that a link leads to: a file that replaces it cannot be read.
pub fn shared_directory(file: &Path) -> Option<PathBuf> {
    let real = file.canonicalize().ok();
    let directories = [Some(file), real.as_deref()].into_iter().flatten().map(directory_of);
    directories.filter_map(|directory| directory.canonicalize().ok()).find(|directory| is_shared(directory))
}

/// Whether programs share a directory, whose path contains no links.
pub fn is_shared(directory: &Path) -> bool {
    let is_home = env::var_os("HOME").is_some_and(|home| directory == Path::new(&home))
        || directory.parent() == Some(Path::new("/home"));
    is_home || SHARED.iter().any(|shared| directory == Path::new(shared))
}

fn is_root(directory: &Path) -> bool {
    directory.canonicalize().is_ok_and(|real| real == Path::new("/"))
}

/// The directory of a file.
pub fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process};

    use super::*;

    #[test]
    fn in_a_shared_directory_only_the_file_is_allowed() {
        for (file, expected) in [
            ("/usr/bin/env", "/usr/bin"),
            ("/no-such-program", "/no-such-program"),
            ("/tmp/../no-such-program", "/tmp/../no-such-program"),
            ("/tmp/no-such-program", "/tmp/no-such-program"),
            ("/no such directory/program", "/no such directory/program"),
        ] {
            assert_eq!(reach(Path::new(file)), Path::new(expected), "{file}");
        }
        let own = env::temp_dir().join(format!("beanring-own-{}", process::id()));
        fs::create_dir(&own).expect("the directory is created");
        assert_eq!(reach(&own.join("config.toml")), own);
        fs::remove_dir(&own).expect("the directory is removed");
        assert!(is_shared(Path::new("/home/user")) && !is_shared(Path::new("/home/user/bin")));
        assert!(is_root(Path::new("/tmp/..")) && !is_root(Path::new("/tmp")));
    }

    #[test]
    fn an_old_abi_lists_what_it_does_not_restrict() {
        for (abi, expected) in [
            (1, "truncation of files, TCP ports, ioctl on devices, signals to other processes"),
            (2, "truncation of files, TCP ports, ioctl on devices, signals to other processes"),
            (3, "TCP ports, ioctl on devices, signals to other processes"),
            (4, "ioctl on devices, signals to other processes"),
            (5, "signals to other processes"),
            (INTERFACE as u32, ""),
        ] {
            assert_eq!(unlimited(abi).join(", "), expected, "ABI {abi}");
        }
    }
}
