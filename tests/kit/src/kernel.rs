//! What the kernel permits, determined without the code under test: a bug in that code must fail a test, not skip it.

use std::fmt::Write as _;
use std::{fs, thread};

use nix::errno::Errno;
use nix::libc;
use nix::sys::utsname::uname;

/// The drivers that need io_uring, each with the first Linux release that must support it.
const RINGS: [(&str, (u32, u32)); 2] = [("uring", (6, 0)), ("tokio-uring", (5, 10))];

/// Returns whether a driver must work in this thread and its children, or else what forbids it.
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
    // The kernel tears the ring down later and then interrupts the thread that made it. That thread must not be one
    // that waits for a reply.
    match thread::spawn(set_up_ring).join().expect("it does not panic") {
        // Only these errors are prohibitions. The server must cope with any other.
        Err(error @ (Errno::EPERM | Errno::EACCES | Errno::ENOSYS)) => {
            Err(format!("io_uring_setup fails with {error:?} ({})", prohibitions()))
        }
        _ => Ok(()),
    }
}

/// Returns the version of the kernel's Landlock interface, if it has one.
pub fn landlock() -> Option<u32> {
    const CREATE_RULESET_VERSION: libc::c_int = 1;
    // SAFETY: With this flag the call reads no memory and creates nothing.
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

/// Returns whether the kernel has Landlock. Prints "skipped: `what`" if not.
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
    // SAFETY: The call reads and writes the 120 bytes of the array, which outlives it.
    #[allow(unsafe_code)]
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
    let ring = Errno::result(ring)?;
    nix::unistd::close(ring as i32)
}

/// Returns the settings that can forbid io_uring.
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
