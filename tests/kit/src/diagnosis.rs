//! What is known about a server process when a test fails: the state of the process, its io_uring and its sockets, and
//! whether it serves a new connection.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::peer::Received;
use super::process::Address;
use super::stream::Stream;

const PATIENCE: Duration = Duration::from_secs(2);

/// Further lines of a section are left out.
const LINES_MAX: usize = 150;

/// Returns a report of several lines. It never fails: where something cannot be read, the report has the error.
pub fn of(pid: u32, address: &Address, connection: Option<Stream>) -> String {
    let mut report = format!("server process {pid} at {address:?}\n");
    let proc = Path::new("/proc").join(pid.to_string());
    for name in ["cmdline", "status", "wchan", "stack"] {
        let text = fs::read(proc.join(name)).map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "));
        add(&mut report, name, &text.unwrap_or_else(|error| error.to_string()));
    }
    add(&mut report, "threads (name, state, what the kernel waits for)", &threads(&proc));
    for (fd, info) in rings(&proc) {
        add(&mut report, &format!("io_uring, descriptor {fd}"), &info);
    }
    add(&mut report, "sockets", &sockets(pid));
    add(&mut report, "stats over a new connection", &connection.map_or_else(no_connection, stats));
    report
}

fn add(report: &mut String, title: &str, text: &str) {
    let _ = writeln!(report, "-- {title}");
    let lines = text.lines().count();
    for line in text.lines().take(LINES_MAX) {
        let _ = writeln!(report, "   {line}");
    }
    if lines > LINES_MAX {
        let _ = writeln!(report, "   and {} lines more", lines - LINES_MAX);
    }
}

/// Returns a line for each thread.
fn threads(proc: &Path) -> String {
    let threads = fs::read_dir(proc.join("task")).into_iter().flatten().flatten();
    let lines = threads.map(|thread| {
        let read =
            |name| fs::read_to_string(thread.path().join(name)).unwrap_or_else(|error| error.to_string());
        let status = read("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or_default();
        format!("{} {} {}", read("comm").trim(), state.trim(), read("wchan"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the descriptors of io_uring instances, with their /proc/PID/fdinfo.
fn rings(proc: &Path) -> Vec<(String, String)> {
    let is_ring =
        |path: &Path| fs::read_link(path).is_ok_and(|name| name.to_string_lossy().contains("io_uring"));
    let descriptors = fs::read_dir(proc.join("fd")).into_iter().flatten().flatten();
    let names = descriptors.filter(|entry| is_ring(&entry.path())).map(|entry| entry.file_name());
    names
        .map(|name| {
            let info = fs::read_to_string(proc.join("fdinfo").join(&name));
            (name.to_string_lossy().into_owned(), info.unwrap_or_else(|error| error.to_string()))
        })
        .collect()
}

/// Lists the sockets of the process, those with queued bytes first.
fn sockets(pid: u32) -> String {
    let output = match Command::new("ss").args(["-a", "-n", "-p", "-t", "-x", "-O"]).output() {
        Ok(output) => output,
        Err(error) => return format!("ss: {error}"),
    };
    let owner = format!("pid={pid},");
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<&str> = all.lines().filter(|line| line.contains(&owner)).collect();
    let has_queue = |line: &&str| line.split_whitespace().skip(2).take(2).any(|queued| queued != "0");
    lines.sort_by_key(|line| !has_queue(line));
    format!("{} sockets (state, receive queue, send queue)\n{}", lines.len(), lines.join("\n"))
}

fn no_connection() -> String {
    "it does not accept".to_owned()
}

fn stats(mut connection: Stream) -> String {
    connection.send(b"stats\r\n");
    match connection.receive(PATIENCE) {
        Received::Bytes(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        other => format!("{other:?}"),
    }
}
