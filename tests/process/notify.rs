//! Notifications to systemd, over a real socket and under each driver.

use std::io::ErrorKind;
use std::iter;
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Command, Stdio};

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put};
use beanring_testkit::driver::under_each;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{REPLY_PATIENCE, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;

const ALIVE: &str = "WATCHDOG=1\n";
const STOPPING: &str = "STOPPING=1\nSTATUS=stopping\n";

/// Stands for systemd.
struct Manager {
    scratch: Scratch,
    socket: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let scratch = Scratch::new("notify");
        let socket = UnixDatagram::bind(scratch.join("notify")).expect("the place is free");
        socket.set_read_timeout(Some(REPLY_PATIENCE)).expect("the time-out is set");
        Self { scratch, socket }
    }

    fn start(&self, mut command: Command) -> LoggedServer {
        command.env("NOTIFY_SOCKET", self.scratch.join("notify"));
        LoggedServer::spawn(command, Scratch::new("notified"))
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

    /// Receives the next message that is no sign of life.
    fn receive_news(&self) -> String {
        iter::repeat_with(|| self.receive()).find(|message| message != ALIVE).expect("there is no end")
    }

    /// Receives READY. Returns the address of the server, and the rest of the status.
    fn receive_ready(&self) -> (String, String) {
        let message = self.receive();
        let status = message.strip_prefix("READY=1\nSTATUS=listening on ").expect(&message);
        let (address, rest) = status.trim_end().split_once(", ").expect(&message);
        (address.to_owned(), rest.to_owned())
    }
}

fn server(driver: Driver, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program());
    command.args(["-l", "127.0.0.1", "-p", "0", "--io", driver.name()]).stdin(Stdio::null());
    for name in ["WATCHDOG_USEC", "WATCHDOG_PID", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command
}

fn connect(address: &str) -> Client {
    Client::new(Stream::Tcp(TcpStream::connect(address).expect("the server accepts connections")))
}

#[test]
fn ready_then_alive_then_stopping() {
    under_each("notify", |driver| {
        let manager = Manager::new();
        let mut process = manager.start(server(driver, &[("WATCHDOG_USEC", "200000")]));
        let (address, rest) = manager.receive_ready();
        assert_eq!(rest, format!("recovered 0 jobs, driver {}", driver.name()));
        let mut client = connect(&address);
        for _ in 0..3 {
            assert_eq!(manager.receive(), ALIVE);
            client.expect("list-tube-used\r\n", "USING default");
        }
        process.stop();
        assert_eq!(manager.receive_news(), STOPPING);
    });
}

#[test]
fn without_a_watchdog_only_ready_and_stopping_are_sent() {
    under_each("notify", |driver| {
        let manager = Manager::new();
        // The watchdog of another process.
        let other = [("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")];
        let mut process = manager.start(server(driver, &other));
        manager.receive_ready();
        process.stop();
        assert_eq!(manager.receive(), STOPPING);
    });
}

#[test]
fn ready_is_sent_after_recovery() {
    under_each("notify", |driver| {
        let manager = Manager::new();
        let log = manager.scratch.dir("log");
        for jobs in ["0 jobs", "1 job"] {
            let mut command = server(driver, &[]);
            command.arg("-b").arg(&log);
            let mut process = manager.start(command);
            let (address, rest) = manager.receive_ready();
            assert_eq!(rest, format!("recovered {jobs}, driver {}", driver.name()));
            if jobs == "0 jobs" {
                connect(&address).expect(&put(0, 0, "a"), "INSERTED 1");
            }
            process.stop();
            assert_eq!(manager.receive(), STOPPING);
        }
    });
}

/// Without notifications systemd would kill a server that has too many connections.
#[test]
fn the_watchdog_is_notified_without_free_descriptors() {
    under_each("notify", |driver| {
        let manager = Manager::new();
        let script = "ulimit -n 50; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, program(), "-l", "127.0.0.1", "-p", "0", "--io", driver.name()]);
        command.env("WATCHDOG_USEC", "200000");
        let process = manager.start(command);
        let (address, _) = manager.receive_ready();
        let _clients: Vec<Client> = (0..60).map(|_| connect(&address)).collect();
        process.logged("accept is paused");
        manager.socket.set_nonblocking(true).expect("the mode is set");
        while manager.socket.recv(&mut [0; 64]).is_ok() {}
        manager.socket.set_nonblocking(false).expect("the mode is set");
        assert_eq!(manager.receive(), ALIVE);
    });
}

#[test]
fn a_full_notification_socket_does_not_block_the_server() {
    under_each("notify", |driver| {
        let manager = Manager::new();
        let mut process = manager.start(server(driver, &[("WATCHDOG_USEC", "2000")]));
        let (address, _) = manager.receive_ready();
        process.logged("cannot notify systemd");
        connect(&address).expect("list-tube-used\r\n", "USING default");
        process.stop();
    });
}

#[test]
fn a_notification_socket_in_the_abstract_namespace() {
    let name = format!("beanring-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a short name");
    let mut manager = Manager::new();
    manager.socket = UnixDatagram::bind_addr(&address).expect("the name is free");
    manager.socket.set_read_timeout(Some(REPLY_PATIENCE)).expect("the time-out is set");
    let command = server(Driver::Epoll, &[("NOTIFY_SOCKET", &format!("@{name}"))]);
    let _process = LoggedServer::spawn(command, Scratch::new("notified"));
    manager.receive_ready();
}

#[test]
fn a_missing_notification_socket_is_only_a_warning() {
    let command = server(Driver::Epoll, &[("NOTIFY_SOCKET", "/no/such/socket")]);
    let process = LoggedServer::spawn(command, Scratch::new("notified"));
    process.logged("listening on ");
    let first = &process.lines()[0];
    assert!(first.contains("NOTIFY_SOCKET /no/such/socket: cannot connect to systemd"), "{first}");
}

#[test]
fn an_in_place_restart_sends_ready_again() {
    under_each("notify", |driver| {
        let manager = Manager::new();
        // With a watchdog period of 1 ms, one such signal is pending at any moment.
        let mut command = server(driver, &[("WATCHDOG_USEC", "2000")]);
        command.arg("-b").arg(manager.scratch.dir("log"));
        let mut process = manager.start(command);
        let (address, _) = manager.receive_ready();
        for jobs in 1..=5 {
            connect(&address).expect(&put(0, 0, "a"), &format!("INSERTED {jobs}"));
            process.signal(Signal::SIGUSR2);
            let plural = if jobs == 1 { "" } else { "s" };
            let expected = format!(
                "READY=1\nSTATUS=listening on {address}, recovered {jobs} job{plural}, driver {}\n",
                driver.name()
            );
            assert_eq!(manager.receive_news(), expected);
        }
        process.stop();
    });
}
