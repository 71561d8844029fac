//! Why there is no io_uring, and what to do about it.

use std::fmt;

use nix::errno::Errno;

use super::host::kernel_release;

/// The kernel grants a driver no ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What `--io` calls the driver.
    pub driver: &'static str,
    /// The oldest Linux with all that it needs.
    pub oldest: &'static str,
    /// What the kernel answered.
    pub errno: Errno,
}

impl Refusal {
    fn explain(&self, running: &str) -> String {
        let Self { driver, oldest, errno } = self;
        let answer = errno.desc();
        match errno {
            Errno::ENOMEM => "there is too little memory for an io_uring: raise the limit of locked memory \
                 (ulimit -l), or the memory of the container; --io epoll works without"
                .to_owned(),
            Errno::EPERM | Errno::EACCES | Errno::ENOSYS => format!(
                "the kernel refuses io_uring ({answer}): a seccomp filter, as containers have, or the sysctl \
                 kernel.io_uring_disabled may forbid it; --io epoll works without"
            ),
            // What a kernel answers that knows io_uring, but not all that it is asked for.
            Errno::EINVAL | Errno::EOPNOTSUPP => format!(
                "the driver {driver} needs Linux {oldest} or newer, and this is Linux {running} ({answer}); \
                 --io epoll works on any"
            ),
            _ => format!("cannot set up an io_uring: {answer}; --io epoll works without"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.explain(&kernel_release()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [&str; 3] = ["the driver uring needs Linux 6.0 or newer", "this is Linux 5.15.0-91", "epoll"];
    const FORBIDDEN: [&str; 3] = ["seccomp", "kernel.io_uring_disabled", "epoll"];

    #[test]
    fn what_the_kernel_answers_says_what_to_do() {
        for (errno, said, not_said) in [
            (Errno::EINVAL, OLD, FORBIDDEN[0]),
            (Errno::EOPNOTSUPP, OLD, FORBIDDEN[0]),
            (Errno::EPERM, FORBIDDEN, "newer"),
            (Errno::EACCES, FORBIDDEN, "newer"),
            (Errno::ENOSYS, FORBIDDEN, "newer"),
            (Errno::ENOMEM, ["ulimit -l", "container", "epoll"], "seccomp"),
            (Errno::EMFILE, ["cannot set up an io_uring", "open files", "epoll"], "seccomp"),
        ] {
            let refusal = Refusal { driver: "uring", oldest: "6.0", errno };
            let text = refusal.explain("5.15.0-91");
            for part in said {
                assert!(text.contains(part), "{errno}: {text}");
            }
            assert!(!text.contains(not_said), "{errno}: {text}");
        }
    }

    #[test]
    fn the_running_kernel_is_named() {
        let refusal = Refusal { driver: "tokio-uring", oldest: "5.10", errno: Errno::EINVAL };
        let text = refusal.to_string();
        let parts = ["the driver tokio-uring needs Linux 5.10", &kernel_release()];
        assert!(parts.into_iter().all(|part| text.contains(part)), "{text}");
    }
}
