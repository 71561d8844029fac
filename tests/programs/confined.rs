//! A stand-in for the server in tests (`ci/confined`). It becomes the server as a container would run it: in an empty
//! root, as an unprivileged user, under a seccomp filter.
//!
//! `CONFINED_ROOT` is the new root directory, which contains `/beanring` and the `/tmp` of the tests.
//! `CONFINED_RING=1` permits io_uring. Without it the filter is that of a default container.

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::env;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use beanring_testkit::seccomp;
    use nix::sys::prctl::set_no_new_privs;
    use nix::unistd::{Gid, Uid, chdir, chroot, setgid, setgroups, setuid};

    const USER: u32 = 65532;
    let root = env::var_os("CONFINED_ROOT").ok_or("CONFINED_ROOT is not set")?;
    let mut profile = seccomp::profile();
    if env::var_os("CONFINED_RING").is_none() {
        profile.forbid(&["io_uring_setup", "io_uring_enter", "io_uring_register"]);
    }
    let filters = seccomp::filters(&profile);
    let arguments: Vec<String> = env::args().skip(1).collect();
    for argument in &arguments {
        own::give(argument, USER)?;
    }
    if let Ok(manager) = env::var("NOTIFY_SOCKET") {
        own::give(&manager, USER)?;
    }
    chroot(&*root)?;
    chdir("/")?;
    setgroups(&[])?;
    setgid(Gid::from_raw(USER))?;
    setuid(Uid::from_raw(USER))?;
    set_no_new_privs()?;
    for filter in &filters {
        seccompiler::apply_filter(filter)?;
    }
    Err(Command::new("/beanring").args(arguments).exec().into())
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("the filter is made for x86-64");
    std::process::exit(1);
}

#[cfg(target_arch = "x86_64")]
mod own {
    use std::fs;
    use std::io;
    use std::os::unix::fs::{FileTypeExt, lchown};
    use std::path::Path;

    /// Gives the server the ownership of files that tests have made for it: directories and files that they name, sockets, and
    /// the directories of these.
    pub fn give(argument: &str, user: u32) -> io::Result<()> {
        let path = Path::new(argument.strip_prefix("unix:").unwrap_or(argument));
        let temporary = std::env::temp_dir();
        if !path.starts_with(&temporary) || path == temporary {
            return Ok(());
        }
        if path.is_dir() {
            return all(path, user);
        }
        if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket() || file.is_file()) {
            lchown(path, Some(user), Some(user))?;
        }
        match path.parent() {
            Some(parent) if parent != temporary && parent.is_dir() => lchown(parent, Some(user), Some(user)),
            _ => Ok(()),
        }
    }

    fn all(path: &Path, user: u32) -> io::Result<()> {
        lchown(path, Some(user), Some(user))?;
        if fs::symlink_metadata(path)?.is_dir() {
            for entry in fs::read_dir(path)? {
                all(&entry?.path(), user)?;
            }
        }
        Ok(())
    }
}
