//! What the kernel allows, asked of the kernel itself. A test that asked the code under test would be skipped where
//! that code is broken.

use std::fmt::Write as _;
use std::{fs, thread};

use nix::errno::Errno;
use nix::libc;
use nix::sys::utsname::uname;

/// The drivers that need a ring, each with the first release of Linux on which it must run.
const RINGS: [(&str, (u32, u32)); 2] = [("uring", (6, 0)), ("tokio-uring", (5, 10))];

/// Whether a driver must run for this thread and what it starts; else what forbids it.
///
/// # Panics
/// If there is no such driver.
pub fn allows(driver: &str) -> Result<(), String> {
    if driver == "epoll" {
        return Ok(());
    }
    let from =
        RINGS.iter().find(|(name, _)| *name == driver).unwrap_or_else(|| panic!("no driver {driver}")).1;
    if release() < from {
        return Err(format!("Linux {} is older than {}.{}", release_name(), from.0, from.1));
    }
    // The kernel takes a ring down later, and interrupts the thread that made it: not one that is about to wait for
    // a reply.
    match thread::spawn(set_up_ring).join().expect("it does not panic") {
        // Only these are prohibitions. A server that meets another error must cope.
        Err(error @ (Errno::EPERM | Errno::EACCES | Errno::ENOSYS)) => {
            Err(format!("io_uring_setup fails with {error:?} ({})", prohibitions()))
        }
        _ => Ok(()),
    }
}

/// The version of the Landlock interface, if the kernel confines processes by it.
pub fn landlock() -> Option<u32> {
    const CREATE_RULESET_VERSION: libc::c_int = 1;
    // SAFETY: With this flag the call reads no memory and makes nothing.
    #[allow(unsafe_code)]
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok()
}

/// Returns whether the kernel confines processes by Landlock. Prints "skipped: `what`" if it does not.
pub fn has_landlock(what: &str) -> bool {
    let has_landlock = landlock().is_some();
    if !has_landlock {
        println!("skipped: {what}, because this kernel has no Landlock");
    }
    has_landlock
}

fn set_up_ring() -> nix::Result<()> {
    const ENTRIES: libc::c_uint = 4;
    // `struct io_uring_params`.
    let mut params = [0_u32; 30];
    // SAFETY: The call reads and writes the 120 bytes of the array, and returns before it goes.
    #[allow(unsafe_code)]
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
    let ring = Errno::result(ring)?;
    nix::unistd::close(ring as i32)
}

/// The settings that can forbid rings.
fn prohibitions() -> String {
    let mut facts = format!("Linux {}", release_name());
    let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    for (name, value) in [
        ("kernel.io_uring_disabled", sysctl.as_deref().unwrap_or("absent")),
        ("seccomp mode", seccomp.unwrap_or("unknown")),
    ] {
        write!(facts, ", {name} {}", value.trim()).expect("writing to a string");
    }
    facts
}

fn release() -> (u32, u32) {
    let name = release_name();
    let mut numbers = name.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn release_name() -> String {
    uname().expect("the kernel has a name").release().to_string_lossy().into_owned()
}
