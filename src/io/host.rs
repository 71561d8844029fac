//! The machine and the process: what `stats` shows of them, and settings that are made once at start.

use std::cell::{RefCell, RefMut};
use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use nix::sys::utsname::uname;
use nix::unistd::{SysconfVar, sysconf};

use super::log_writer;
use crate::server::{CpuUsage, DriverCounts, DriverStats, HostFacts, ProcessUsage};

/// Collects what `stats` shows of the host.
///
/// # Errors
/// Those of uname(2) and getrandom(2).
pub fn facts(driver: &'static str) -> nix::Result<HostFacts> {
    let names = uname()?;
    Ok(HostFacts {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        id: format!("{:016x}", random_word()?),
        hostname: names.nodename().to_string_lossy().into_owned(),
        os: names.version().to_string_lossy().into_owned(),
        platform: names.machine().to_string_lossy().into_owned(),
        driver,
        memory_bytes: resident_bytes() as u64,
    })
}

/// The release of the running kernel.
pub fn kernel_release() -> String {
    uname()
        .map_or_else(|errno| errno.desc().to_owned(), |names| names.release().to_string_lossy().into_owned())
}

/// Returns the CPU time that this process has used.
pub fn cpu_usage() -> CpuUsage {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("getrusage of the own process does not fail");
    CpuUsage { user_us: microseconds(usage.user_time()), system_us: microseconds(usage.system_time()) }
}

/// The resident memory of this process, in bytes. 0 if /proc is not there.
pub fn resident_bytes() -> usize {
    ProcessFiles::open().memory_bytes().map_or(0, |[_, resident]| resident as usize)
}

/// Files in which the kernel shows what this process uses. They are opened before the server gives up its access to /proc,
/// by its user or by Landlock.
#[derive(Default, Debug)]
pub struct ProcessFiles {
    memory: Option<File>,
    descriptors: Option<File>,
}

impl ProcessFiles {
    /// Opens the files, as far as they are there.
    pub fn open() -> Self {
        let open = |path| File::open(path).ok();
        Self { memory: open("/proc/self/statm"), descriptors: open("/proc/self/fd") }
    }

    /// Returns what the process uses now. Takes a few system calls.
    pub fn usage(&self) -> ProcessUsage {
        let memory = self.memory_bytes();
        // The size of the directory is the number of descriptors since Linux 6.2, and 0 before. To list them would take
        // long when there are many.
        let descriptors = self.descriptors.as_ref().and_then(|directory| directory.metadata().ok());
        ProcessUsage {
            virtual_bytes: memory.map(|[virtual_bytes, _]| virtual_bytes),
            resident_bytes: memory.map(|[_, resident_bytes]| resident_bytes),
            open_descriptors: descriptors.map(|directory| directory.len()).filter(|&count| count > 0),
            descriptors_max: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(soft, _)| soft),
        }
    }

    /// Virtual and resident memory.
    fn memory_bytes(&self) -> Option<[u64; 2]> {
        let mut text = [0; 128];
        let length = self.memory.as_ref()?.read_at(&mut text, 0).ok()?;
        let mut pages = str::from_utf8(&text[..length]).ok()?.split(' ').map(str::parse::<u64>);
        let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok()?? as u64;
        let mut bytes = || Some(pages.next()?.ok()? * page_bytes);
        Some([bytes()?, bytes()?])
    }
}

/// Makes glibc return large blocks to the kernel when they are freed. By default it raises its threshold to the largest block
/// that was ever freed, so the memory of a burst would stay with the process.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    {
        use nix::libc::{M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, mallopt};

        // Input that waits for its turn takes 32 KiB per connection. Such blocks return to the kernel too.
        const MMAP_THRESHOLD_BYTES: i32 = 31 * 1024;
        const TRIM_THRESHOLD_BYTES: i32 = 128 * 1024;
        // SAFETY: mallopt takes two integers, and locks the state of the allocator.
        #[allow(unsafe_code)]
        unsafe {
            mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
            mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES);
        }
    }
}

fn microseconds(time: TimeVal) -> u64 {
    time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64
}

/// Returns an unpredictable word.
///
/// # Errors
/// Those of getrandom(2).
pub fn random_word() -> nix::Result<u64> {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes at most `bytes.len()` bytes to `bytes`, before the call returns.
    #[allow(unsafe_code)]
    let result = unsafe { nix::libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    nix::errno::Errno::result(result)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The counts of a driver, which its server reads. Both run on one thread.
#[derive(Default)]
pub struct Counts {
    /// Without what [`read`](DriverCounts::read) asks the kernel for.
    kept: RefCell<DriverStats>,
    process: ProcessFiles,
}

impl Counts {
    /// Begins with zeros.
    pub fn new(process: ProcessFiles) -> Self {
        Self { process, ..Self::default() }
    }

    /// The counts, to be changed.
    ///
    /// # Panics
    /// If an earlier result is still in use.
    #[inline]
    pub fn kept(&self) -> RefMut<'_, DriverStats> {
        self.kept.borrow_mut()
    }
}

impl DriverCounts for Counts {
    fn read(&self) -> DriverStats {
        DriverStats {
            cpu: cpu_usage(),
            process: self.process.usage(),
            lost_log_lines: log_writer::lost(),
            ..*self.kept.borrow()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_this_process_is_plausible() {
        let usage = ProcessFiles::open().usage();
        assert!(
            usage.virtual_bytes > usage.resident_bytes
                && usage.resident_bytes.is_some_and(|bytes| (100_000..10_000_000_000).contains(&bytes)),
            "{usage:?}"
        );
        assert!(usage.descriptors_max > Some(2), "{usage:?}");
        // None before Linux 6.2.
        assert!(usage.open_descriptors.is_none_or(|open| (3..10_000).contains(&open)), "{usage:?}");
    }

    #[test]
    fn facts_of_this_process() {
        let facts = facts("epoll").unwrap();
        assert_eq!(facts.pid, std::process::id());
        assert_eq!(facts.id.len(), 16);
        assert!(facts.id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(facts.id, super::facts("epoll").unwrap().id);
        assert!(!facts.hostname.is_empty());
    }
}
