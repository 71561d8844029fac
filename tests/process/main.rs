//! The server as a process: its configuration, signals, restarts, log lines, rights and drivers.

mod config_show;
#[cfg(feature = "uring")]
mod fallback;
mod files;
mod healthcheck;
mod kernels;
mod logging;
mod mistakes;
mod notify;
mod restart;
mod restart_refused;
mod rights;
#[cfg(target_arch = "x86_64")]
mod seccomp;
mod server;
