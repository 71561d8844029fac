//! The server's CPU time and memory out of /proc, and the generator's own CPU time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::{Pid, SysconfVar, sysconf};

use crate::failure::Failure;

/// CPU time of a process with all its threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cpu {
    /// User and system time, with the best available resolution. It need not be their exact sum.
    pub total: Duration,
    /// User mode.
    pub user: Duration,
    /// Kernel mode.
    pub system: Duration,
}

impl Cpu {
    /// Returns the CPU time since `before`.
    pub fn since(self, before: Cpu) -> Cpu {
        Cpu {
            total: self.total - before.total,
            user: self.user - before.user,
            system: self.system - before.system,
        }
    }
}

/// Returns the CPU time of this process.
pub fn own() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("every process has this clock").into()
}

/// The CPU time of each thread of a process, by its id.
pub type Threads = BTreeMap<u32, (String, Duration)>;

/// Memory of a process, in KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// RSS now.
    pub rss_kib: u64,
    pub peak_rss_kib: u64,
}

/// The process that `--pid` names.
#[derive(Clone, Copy)]
pub struct Process {
    pid: u32,
    ticks_per_s: u64,
    clock: ClockId,
}

impl Process {
    /// Fails if there is no such process.
    pub fn open(pid: u32) -> Result<Process, Failure> {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().expect("Linux has a clock tick");
        let unknown = |error: nix::Error| Failure::Process(pid, error.into());
        let raw = i32::try_from(pid).map_err(|_| unknown(nix::Error::ESRCH))?;
        let clock = clock_getcpuclockid(Pid::from_raw(raw)).map_err(unknown)?;
        let process = Process { pid, ticks_per_s: ticks as u64, clock };
        process.cpu()?;
        Ok(process)
    }

    /// Returns the CPU time so far. The total is in nanoseconds, of which the kernel splits user and system time only
    /// in ticks of 10 ms.
    pub fn cpu(self) -> Result<Cpu, Failure> {
        let total = clock_gettime(self.clock).map_err(|error| Failure::Process(self.pid, error.into()))?;
        let (user, system) = self.read("stat", |text| parse_stat(text, self.ticks_per_s))?;
        Ok(Cpu { total: total.into(), user, system })
    }

    /// Returns the CPU time of each thread so far. A thread that ends during the call is left out.
    pub fn threads(self) -> Threads {
        let read = |thread: &Path, file| fs::read_to_string(thread.join(file)).ok();
        let directory = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let threads = directory.filter_map(|entry| {
            let thread = entry.ok()?.path();
            let id = thread.file_name()?.to_str()?.parse().ok()?;
            let time = parse_schedstat(&read(&thread, "schedstat")?)?;
            Some((id, (read(&thread, "comm")?.trim_end().to_owned(), time)))
        });
        threads.collect()
    }

    pub fn memory(self) -> Result<Memory, Failure> {
        self.read("status", parse_status)
    }

    fn read<T>(self, file: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Failure> {
        let path = format!("/proc/{}/{file}", self.pid);
        fs::read_to_string(&path)
            .and_then(|text| {
                let unknown =
                    || io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not understood"));
                parse(&text).ok_or_else(unknown)
            })
            .map_err(|error| Failure::Process(self.pid, error))
    }
}

/// Returns the name and the CPU time since `before` of each thread that has used any, in the order of their ids.
pub fn threads_since(before: &Threads, after: &Threads) -> Vec<(String, Duration)> {
    let used = after.iter().map(|(id, (name, time))| {
        let began = before.get(id).map_or(Duration::ZERO, |(_, time)| *time);
        (name.clone(), time.saturating_sub(began))
    });
    used.filter(|(_, time)| !time.is_zero()).collect()
}

/// Returns user and system time, fields 14 and 15 of /proc/PID/stat. The second field, the name, may contain spaces and
/// brackets.
fn parse_stat(text: &str, ticks_per_s: u64) -> Option<(Duration, Duration)> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(14 - 3);
    let mut duration = || {
        let ticks: u64 = fields.next()?.parse().ok()?;
        Some(Duration::from_nanos(ticks * (1_000_000_000 / ticks_per_s)))
    };
    Some((duration()?, duration()?))
}

/// Returns the CPU time, the first field of /proc/PID/task/TID/schedstat, in nanoseconds.
fn parse_schedstat(text: &str) -> Option<Duration> {
    Some(Duration::from_nanos(text.split_ascii_whitespace().next()?.parse().ok()?))
}

fn parse_status(text: &str) -> Option<Memory> {
    let kib = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some(Memory { rss_kib: kib("VmRSS:")?, peak_rss_kib: kib("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_a_name_of_brackets_and_spaces() {
        let text = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 250 75 0 0 20 0 1 0 1 1 1\n";
        let times = parse_stat(text, 100).unwrap();
        assert_eq!(times, (Duration::from_millis(2500), Duration::from_millis(750)));
        assert_eq!(parse_stat("42 (a) S 1", 100), None);
        assert_eq!(parse_stat("", 100), None);
    }

    #[test]
    fn status() {
        let text = "Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t   5120 kB\nVmRSS:\t    4096 kB\n";
        assert_eq!(parse_status(text), Some(Memory { rss_kib: 4096, peak_rss_kib: 5120 }));
        assert_eq!(parse_status("Name:\tkthreadd\n"), None, "a kernel thread has no memory");
    }

    #[test]
    fn the_threads_of_this_process() {
        assert_eq!(parse_schedstat("1500 7 3\n"), Some(Duration::from_nanos(1500)));
        assert_eq!(parse_schedstat(""), None);
        let process = Process::open(std::process::id()).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("a worker".to_owned());
        let thread = thread.spawn(move || stopped.recv()).unwrap();
        while !process.threads().values().any(|(name, _)| name == "a worker") {}
        drop(stop);
        assert!(thread.join().unwrap().is_err());
        let total: Duration = process.threads().values().map(|(_, time)| *time).sum();
        assert!(total <= process.cpu().unwrap().total + Duration::from_millis(20));
    }

    #[test]
    fn this_process() {
        let process = Process::open(std::process::id()).unwrap();
        assert!(process.memory().unwrap().rss_kib > 0);
        assert!(process.cpu().unwrap().total <= own() + Duration::from_millis(20));
        assert!(Process::open(u32::MAX).is_err());
    }

    #[test]
    fn the_total_is_what_user_and_system_time_add_up_to() {
        let process = Process::open(std::process::id()).unwrap();
        let begin = process.cpu().unwrap();
        while process.cpu().unwrap().since(begin).total < Duration::from_millis(100) {}
        let (before, after) = (process.cpu().unwrap(), process.cpu().unwrap());
        // The parts of `before` were read between the two totals, and each lacks a tick at most.
        let parts = before.user + before.system;
        let ticks = Duration::from_millis(20);
        assert!(before.total <= parts + ticks && parts <= after.total + ticks, "{before:?} {after:?}");
    }
}
