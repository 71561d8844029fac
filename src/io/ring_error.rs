//! Explains why the kernel grants no io_uring, and what to do about it.

use std::fmt;

use nix::errno::Errno;

use super::host::kernel_release;

/// The kernel grants no ring to a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingError {
    /// The name of the driver, as `--io` takes it.
    pub driver: &'static str,
    /// The oldest version of Linux that has everything it needs.
    pub oldest: &'static str,
    /// The answer of the kernel.
    pub errno: Errno,
}

impl RingError {
    // docs/RUNBOOK.md lists these messages.
    fn explain(&self, running: &str) -> String {
        let Self { driver, oldest, errno } = self;
        let answer = errno.desc();
        match errno {
            Errno::ENOMEM => "too little memory for an io_uring; raise the limit of locked memory (ulimit -l) or the memory \
                 of the container"
                .to_owned(),
            Errno::EPERM | Errno::EACCES | Errno::ENOSYS => format!(
                "the kernel refuses io_uring ({answer}): a seccomp filter, as containers have, or the sysctl \
                 kernel.io_uring_disabled may forbid it"
            ),
            // The answer of a kernel that knows io_uring, but not everything that the driver needs.
            Errno::EINVAL | Errno::EOPNOTSUPP => format!(
                "the driver {driver} needs Linux {oldest} or newer, and this is Linux {running} ({answer})"
            ),
            _ => format!("cannot set up an io_uring: {answer}"),
        }
    }
}

// docs/RUNBOOK.md lists these messages.
impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain(&kernel_release()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [&str; 2] = ["the driver uring needs Linux 6.0 or newer", "this is Linux 5.15.0-91"];
    const FORBIDDEN: [&str; 2] = ["seccomp", "kernel.io_uring_disabled"];

    #[test]
    fn each_errno_gets_its_own_advice() {
        for (errno, expected, unexpected) in [
            (Errno::EINVAL, OLD, FORBIDDEN[0]),
            (Errno::EOPNOTSUPP, OLD, FORBIDDEN[0]),
            (Errno::EPERM, FORBIDDEN, "newer"),
            (Errno::EACCES, FORBIDDEN, "newer"),
            (Errno::ENOSYS, FORBIDDEN, "newer"),
            (Errno::ENOMEM, ["ulimit -l", "container"], "seccomp"),
            (Errno::EMFILE, ["cannot set up an io_uring", "open files"], "seccomp"),
        ] {
            let error = RingError { driver: "uring", oldest: "6.0", errno };
            let text = error.explain("5.15.0-91");
            for part in expected {
                assert!(text.contains(part), "{errno}: {text}");
            }
            assert!(!text.contains(unexpected), "{errno}: {text}");
        }
    }

    #[test]
    fn the_running_kernel_is_named() {
        let error = RingError { driver: "tokio-uring", oldest: "5.10", errno: Errno::EINVAL };
        let text = error.to_string();
        let parts = ["the driver tokio-uring needs Linux 5.10", &kernel_release()];
        assert!(parts.into_iter().all(|part| text.contains(part)), "{text}");
    }
}
