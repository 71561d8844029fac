//! Notifications to systemd, over a real socket and under each driver.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use beanring::io::driver::Driver;
use beanring_testkit::driver::is_allowed;
use beanring_testkit::process::program;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The time limit of everything that must happen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stands for systemd, and has the server that it has started.
struct Manager {
    scratch: PathBuf,
    socket: UnixDatagram,
    child: Option<Child>,
}

impl Manager {
    fn new(name: &str) -> Self {
        let scratch = std::env::temp_dir().join(format!("beanring-notify-{name}-{}", std::process::id()));
        fs::create_dir(&scratch).expect("the directory is created");
        let socket = UnixDatagram::bind(scratch.join("notify")).expect("the place is free");
        socket.set_read_timeout(Some(PATIENCE)).expect("the time-out is set");
        Self { scratch, socket, child: None }
    }

    fn start(&mut self, command: &mut Command) -> &mut Child {
        command.env("NOTIFY_SOCKET", self.scratch.join("notify"));
        self.child.insert(command.spawn().expect("the program starts"))
    }

    fn receive(&self) -> String {
        let mut message = [0; 4096];
        let received = loop {
            match self.socket.recv(&mut message) {
                // From a debugger: a receive with a time-out is not restarted.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                received => break received,
            }
        };
        let bytes = received.expect("a notification comes");
        String::from_utf8(message[..bytes].to_vec()).expect("UTF-8")
    }

    /// Receives READY. Returns the address of the server, and the rest of the status.
    fn receive_ready(&self) -> (String, String) {
        let message = self.receive();
        let status = message.strip_prefix("READY=1\nSTATUS=listening on ").expect(&message);
        let (address, rest) = status.trim_end().split_once(", ").expect(&message);
        (address.to_owned(), rest.to_owned())
    }

    fn stop(&mut self) {
        let child = self.child.as_mut().expect("the server was started");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("the process runs");
        assert!(child.wait().expect("the child ends").success());
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn server(driver: Driver) -> Command {
    let mut command = Command::new(program());
    command.args(["-l", "127.0.0.1", "-p", "0", "--io", driver.name()]).stdin(Stdio::null());
    for name in ["WATCHDOG_USEC", "WATCHDOG_PID", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    command
}

fn answer(stream: &mut TcpStream, command: &str, expected: &str) {
    stream.set_read_timeout(Some(PATIENCE)).expect("the time-out is set");
    stream.write_all(command.as_bytes()).expect("the command is sent");
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).expect("the reply comes");
    assert_eq!(String::from_utf8_lossy(&received), expected);
}

fn drivers() -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(|&driver| is_allowed(driver, "notify"))
}

#[test]
fn ready_then_alive_then_stopping() {
    for driver in drivers() {
        let mut manager = Manager::new(&format!("life-{}", driver.name()));
        manager.start(server(driver).env("WATCHDOG_USEC", "200000"));
        let (address, rest) = manager.receive_ready();
        assert_eq!(rest, format!("recovered 0 jobs, driver {}", driver.name()));
        let mut client = TcpStream::connect(address).expect("the server accepts connections");
        for _ in 0..3 {
            assert_eq!(manager.receive(), "WATCHDOG=1\n");
            answer(&mut client, "list-tube-used\r\n", "USING default\r\n");
        }
        manager.stop();
        let last = std::iter::repeat_with(|| manager.receive()).find(|message| message != "WATCHDOG=1\n");
        assert_eq!(last.as_deref(), Some("STOPPING=1\nSTATUS=stopping\n"));
    }
}

#[test]
fn without_a_watchdog_only_ready_and_stopping_are_sent() {
    for driver in drivers() {
        let mut manager = Manager::new(&format!("quiet-{}", driver.name()));
        // The watchdog of another process.
        manager.start(server(driver).env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1"));
        manager.receive_ready();
        manager.stop();
        assert_eq!(manager.receive(), "STOPPING=1\nSTATUS=stopping\n");
    }
}

#[test]
fn ready_is_sent_after_recovery() {
    for driver in drivers() {
        let mut manager = Manager::new(&format!("jobs-{}", driver.name()));
        let log = manager.scratch.join("log");
        fs::create_dir(&log).expect("the directory is created");
        for jobs in ["0 jobs", "1 job"] {
            manager.start(server(driver).arg("-b").arg(&log));
            let (address, rest) = manager.receive_ready();
            assert_eq!(rest, format!("recovered {jobs}, driver {}", driver.name()));
            if jobs == "0 jobs" {
                let mut client = TcpStream::connect(address).expect("the server accepts connections");
                answer(&mut client, "put 0 0 1 1\r\na\r\n", "INSERTED 1\r\n");
            }
            manager.stop();
            assert_eq!(manager.receive(), "STOPPING=1\nSTATUS=stopping\n");
        }
    }
}

/// Without notifications systemd would kill a server that has too many connections.
#[test]
fn the_watchdog_is_notified_without_free_descriptors() {
    for driver in drivers() {
        let mut manager = Manager::new(&format!("full-{}", driver.name()));
        let script = "ulimit -n 50; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, program(), "-l", "127.0.0.1", "-p", "0", "--io", driver.name()]);
        let child = manager.start(command.env("WATCHDOG_USEC", "200000").stderr(Stdio::piped()));
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines();
        let (address, _) = manager.receive_ready();
        let _clients: Vec<_> = (0..60)
            .map(|_| TcpStream::connect(&address).expect("the backlog takes the connection"))
            .collect();
        assert!(stderr.any(|line| line.expect("UTF-8").contains("accept is paused")));
        manager.socket.set_nonblocking(true).expect("the mode is set");
        while manager.socket.recv(&mut [0; 64]).is_ok() {}
        manager.socket.set_nonblocking(false).expect("the mode is set");
        assert_eq!(manager.receive(), "WATCHDOG=1\n");
    }
}

#[test]
fn a_full_notification_socket_does_not_block_the_server() {
    for driver in drivers() {
        let mut manager = Manager::new(&format!("deaf-{}", driver.name()));
        let child = manager.start(server(driver).env("WATCHDOG_USEC", "2000").stderr(Stdio::piped()));
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines();
        let (address, _) = manager.receive_ready();
        assert!(stderr.any(|line| line.expect("UTF-8").contains("cannot notify systemd")));
        // More lines follow, and nothing else reads them.
        thread::spawn(move || stderr.for_each(drop));
        let mut client = TcpStream::connect(address).expect("the server accepts connections");
        answer(&mut client, "list-tube-used\r\n", "USING default\r\n");
        manager.stop();
    }
}

#[test]
fn a_notification_socket_in_the_abstract_namespace() {
    let name = format!("beanring-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let mut manager = Manager::new("abstract");
    manager.socket = UnixDatagram::bind_addr(&address).expect("the name is free");
    manager.socket.set_read_timeout(Some(PATIENCE)).expect("the time-out is set");
    let mut command = server(Driver::Epoll);
    manager.child =
        Some(command.env("NOTIFY_SOCKET", format!("@{name}")).spawn().expect("the program starts"));
    manager.receive_ready();
}

#[test]
fn a_missing_notification_socket_is_only_a_warning() {
    let mut command = server(Driver::Epoll);
    command.arg("-V").env("NOTIFY_SOCKET", Path::new("/no/such/socket")).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut lines =
        BufReader::new(child.stderr.take().expect("stderr is a pipe")).lines().map_while(Result::ok);
    let warning = lines.next().expect("a line");
    assert!(warning.contains("NOTIFY_SOCKET /no/such/socket: cannot connect to systemd"), "{warning}");
    assert!(lines.any(|line| line.contains("listening on ")));
    child.kill().and_then(|()| child.wait()).expect("the child is killed");
}

#[test]
fn an_in_place_restart_sends_ready_again() {
    for driver in drivers() {
        let mut manager = Manager::new(&format!("again-{}", driver.name()));
        let log = manager.scratch.join("log");
        fs::create_dir(&log).expect("the directory is created");
        // With a watchdog period of 1 ms, one such signal is pending at any moment.
        let child = manager.start(server(driver).arg("-b").arg(&log).env("WATCHDOG_USEC", "2000"));
        let pid = Pid::from_raw(child.id() as i32);
        let (address, _) = manager.receive_ready();
        for jobs in 1..=5 {
            let mut client = TcpStream::connect(&address).expect("the server accepts connections");
            answer(&mut client, "put 0 0 60 1\r\na\r\n", &format!("INSERTED {jobs}\r\n"));
            kill(pid, Signal::SIGUSR2).expect("the process runs");
            let ready = loop {
                let message = manager.receive();
                if message != "WATCHDOG=1\n" {
                    break message;
                }
            };
            let plural = if jobs == 1 { "" } else { "s" };
            let expected = format!(
                "READY=1\nSTATUS=listening on {address}, recovered {jobs} job{plural}, driver {}\n",
                driver.name()
            );
            assert_eq!(ready, expected);
        }
        manager.stop();
    }
}
