//! Connections to server processes: many at once, hostile ones, ones that vanish, and large bodies.

mod churn;
mod crowd;
mod hostile;
#[cfg(feature = "uring")]
mod io_threads;
#[cfg(feature = "uring")]
mod sockets;
mod wakeups;

/// Locks a file, so that only one server with a limit of locked memory runs at a time, in all processes: the memory of all of them
/// counts for each.
#[cfg(feature = "uring")]
fn turn_of_limited() -> std::fs::File {
    let name = format!("beanring-test-locked-memory-{}", nix::unistd::geteuid());
    let file = std::fs::File::create(std::env::temp_dir().join(name)).expect("the file is created");
    file.lock().expect("the file is locked");
    file
}
