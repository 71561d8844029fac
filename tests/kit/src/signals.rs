//! Signal masks of a process.

use std::fs;

use nix::sys::signal::Signal;

/// Returns whether a mask in /proc/PID/status has this signal.
pub fn mask_has(pid: u32, mask: &str, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let hex = status.lines().find_map(|line| line.strip_prefix(mask)).expect("all masks are there");
    // Signals count from 1, bits from 0.
    u64::from_str_radix(hex.trim(), 16).expect("a mask") >> (signal as i32 - 1) & 1 == 1
}
