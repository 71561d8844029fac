//! Gives up what a running server does not need, so that whoever breaks into it gains little: rights that a
//! program could bring (`no_new_privs`), and all files but its own, new ports, and other processes (Landlock).

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, RestrictSelfError, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use nix::errno::Errno;
use tracing::{debug, warn};

/// The newest interface whose rights are understood here. Older kernels are asked for what they have.
const INTERFACE: ABI = ABI::V6;

/// Where systems keep what a program needs to start: libraries, and what names mean.
const SYSTEM: [&str; 9] =
    ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store", "/etc"];

/// What is needed besides open sockets.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// The directory of the log.
    pub log_dir: Option<PathBuf>,
    /// Directories from which files of sockets are removed at the end.
    pub socket_dirs: Vec<PathBuf>,
    /// Files and directories that the program which takes over is read from: none if none does.
    pub successor: Option<Vec<PathBuf>>,
}

/// Gives up everything else for good, for this thread and those that it will start, as far as the kernel knows how.
pub fn confine(needs: &Needs) {
    match restrict(needs) {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => {}
        Ok(RulesetStatus::NotEnforced) => debug!("this kernel has no Landlock: all files stay in reach"),
        // The kernel keeps sixteen of these: those of the programs that this one has replaced hold.
        Err(RulesetError::RestrictSelf(RestrictSelfError::RestrictSelfCall { source, .. }))
            if source.raw_os_error() == Some(Errno::E2BIG as i32) => {}
        Err(error) => warn!("files stay in reach that are not needed: {error}"),
    }
}

fn restrict(needs: &Needs) -> Result<RulesetStatus, RulesetError> {
    let all = AccessFs::from_all(INTERFACE);
    let in_log: BitFlags<AccessFs> = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::RemoveFile;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let mut ruleset = Ruleset::default()
        .handle_access(all)?
        .handle_access(AccessNet::from_all(INTERFACE))?
        .scope(Scope::Signal)?
        .create()?
        // Held open in place of descriptors that the log may want.
        .add_rules(path_beneath_rules(["/dev/null"], AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(&needs.log_dir, in_log))?
        .add_rules(path_beneath_rules(&needs.socket_dirs, AccessFs::RemoveFile))?;
    if let Some(successor) = &needs.successor {
        ruleset = ruleset
            .add_rules(path_beneath_rules(SYSTEM, read | AccessFs::Execute))?
            .add_rules(path_beneath_rules(["/proc", "/dev/urandom"], read))?
            .add_rules(path_beneath_rules(successor, read | AccessFs::Execute))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}

/// The directory that a file is in.
pub fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
