//! How the load reaches a server.

use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{self, Command};
use std::time::Duration;

use beanring_testkit::bench::process::address;
use beanring_testkit::bench::stats::Stats;

/// No other process has a port in the network namespace. Each server has one of its own, since an io_uring and its
/// sockets may outlive their process for a moment.
const FIRST_PORT: u16 = 21_300;

/// A row's transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// TCP over the loopback interface.
    Loopback,
    Unix,
    /// TCP over a pair of virtual Ethernet devices. The server is in a network namespace of its own.
    Veth,
}

/// Where a server listens. The path of a UNIX socket is removed when the value is dropped.
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Endpoint {
    /// Returns the `nth` endpoint of this process.
    pub fn new(transport: Transport, nth: u32) -> Endpoint {
        match transport {
            Transport::Loopback => Endpoint::Tcp(address(nth)),
            // A path in cargo's target directory might be too long for a socket.
            Transport::Unix => Endpoint::Unix(
                std::env::temp_dir().join(format!("beanring-bench-{}-{nth}.socket", process::id())),
            ),
            Transport::Veth => {
                let port = FIRST_PORT + u16::try_from(nth).expect("no run starts ten thousands");
                Endpoint::Tcp((Cable::SERVER, port).into())
            }
        }
    }

    /// Returns the flags of beanring and beanstalkd that make them listen here.
    pub fn flags(&self) -> Vec<String> {
        match self {
            Endpoint::Tcp(addr) => {
                ["-l", &addr.ip().to_string(), "-p", &addr.port().to_string()].map(str::to_owned).to_vec()
            }
            Endpoint::Unix(_) => vec!["-l".to_owned(), self.to_string()],
        }
    }

    /// Returns whether the server accepts a connection within `patience`.
    pub fn accepts(&self, patience: Duration) -> bool {
        match self {
            Endpoint::Tcp(addr) => TcpStream::connect_timeout(addr, patience).is_ok(),
            Endpoint::Unix(path) => UnixStream::connect(path).is_ok(),
        }
    }

    /// Requests the statistics of the server.
    pub fn stats(&self) -> io::Result<Stats> {
        match self {
            Endpoint::Tcp(addr) => Stats::request(*addr),
            Endpoint::Unix(path) => Stats::exchange(UnixStream::connect(path)?),
        }
    }
}

/// As `--addr` of `beanring-bench` takes it.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(addr) => addr.fmt(f),
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Endpoint::Unix(path) = self {
            // This fails if the server has removed it.
            let _ = fs::remove_file(path);
        }
    }
}

/// A pair of virtual Ethernet devices, one end of it in a network namespace for servers. Both are gone with this value.
pub struct Cable {
    namespace: String,
}

impl Cable {
    /// The two addresses are from the block for benchmarks of networks, 198.18.0.0/15 (RFC 2544).
    const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 1);
    const LOAD: Ipv4Addr = Ipv4Addr::new(198, 18, 77, 2);

    /// Lays the cable, or says why that cannot be done.
    pub fn lay() -> Result<Cable, String> {
        let id = process::id();
        let (namespace, near) = (format!("beanring-bench-{id}"), format!("bring{id}"));
        // From here on, an error removes what was created before it.
        let cable = Cable { namespace };
        let namespace = cable.namespace.as_str();
        ip(&["netns", "add", namespace])?;
        ip(&["link", "add", &near, "type", "veth", "peer", "cable", "netns", namespace])?;
        ip(&["-n", namespace, "address", "add", &format!("{}/30", Cable::SERVER), "dev", "cable"])?;
        ip(&["-n", namespace, "link", "set", "cable", "up"])?;
        ip(&["address", "add", &format!("{}/30", Cable::LOAD), "dev", &near])?;
        ip(&["link", "set", &near, "up"])?;
        Ok(cable)
    }

    /// Returns the words before a command that run it on the servers' side. `ip` becomes that command.
    pub fn prefix(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.namespace]
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // The devices end with the namespace. This fails if it could not be created.
        let _ = ip(&["netns", "delete", &self.namespace]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).output();
    let output = output.map_err(|error| format!("`ip` (iproute2) cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {}`: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
