//! `--io-threads` and `--io-cpus`.

use super::error::{ConfigError, Problem};
use super::number;
use super::settings::{Setting, Settings};
use crate::io::IoThreads;
use crate::io::driver::Choice;
use crate::values::limits::IO_THREADS_MAX;

/// The largest number of a CPU: that of the largest kernels.
const CPU_MAX: usize = 8191;

pub(super) fn io_threads(given: &mut Settings, io: Choice) -> Result<IoThreads, ConfigError> {
    let (threads, cpus) = (given.take("io-threads"), given.take("io-cpus"));
    let cpus = cpus.filter(|cpus| cpus.value != "any");
    let Some(threads) = threads else {
        return match cpus {
            Some(cpus) => Err(cpus.error(Problem::CpusWithoutThreads)),
            None => Ok(IoThreads::default()),
        };
    };
    let count = number(threads.clone(), IO_THREADS_MAX.into())? as usize;
    if let (1.., Choice::Epoll | Choice::TokioUring) = (count, io) {
        return Err(threads.error(Problem::ThreadsWithoutUring));
    }
    let cpus = match cpus {
        Some(cpus) if count > 0 => cpu_list(&cpus, count + 1)?,
        Some(cpus) => return Err(cpus.error(Problem::CpusWithoutThreads)),
        None => Vec::new(),
    };
    Ok(IoThreads { count, cpus })
}

/// Reads a list of `count` CPUs, such as `0,2-4`.
fn cpu_list(given: &Setting, count: usize) -> Result<Vec<usize>, ConfigError> {
    let malformed = || given.error(Problem::CpuList);
    let cpu = |text: &str| {
        let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let cpu = text.parse().ok().filter(|&cpu: &usize| is_plain && cpu <= CPU_MAX);
        cpu.ok_or_else(malformed)
    };
    let mut cpus = Vec::new();
    for part in given.text()?.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = cpu(first)?..=cpu(last)?;
        if range.is_empty() {
            return Err(malformed());
        }
        cpus.extend(range);
    }
    if cpus.len() == count { Ok(cpus) } else { Err(given.error(Problem::CpuCount { count })) }
}
