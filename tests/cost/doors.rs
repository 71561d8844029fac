//! The ways by which clients reach the server. Each adds something to the work for them.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use beanring::io::driver::Driver;
use beanring::io::socket::ListenerKind;
use beanring::io::users_file;
use beanring::io::watched_files::WatchedFiles;
use beanring::server::{Config, Protocol, Server, Service, TlsCounts, Update, Users};
use beanring::time::Time;
use beanring::transport::forwarded::{ClientAddress, Inbound, header};
use beanring::transport::link::{Link, standby_config};
use beanring::transport::{Identity, Transport};
use beanring::values::link_secret::LinkSecret;
use beanring_testkit::measured::MeasuredServer;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::TlsStream;
use beanring_testkit::tunnel::identity;
use rustls::ClientConfig;

use crate::talk::Talk;

/// What a standby knows of the leader.
const SECRET: LinkSecret = LinkSecret { token: 0x70ce_2970_ce29_70ce, shown: 0x5ec7_e7f0_0d5e_c7e7 };

/// The token of the user that clients are.
pub const TOKEN: &str = "the-token-of-the-user-that-clients-are";

/// Clients over TLS, who may resume sessions.
static TRUSTING: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| identity().1);

/// Standbys.
static PINNED: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| standby_config(SECRET));

/// Names of tubes for each right of a user.
const PATTERNS_MAX: usize = 64;

/// A way in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// No TLS, no users, no load balancer.
    Clear,
    /// With `--auth`, a full file of users, and a full list of patterns for each right.
    Users,
    /// Behind a load balancer, with a header of the PROXY protocol.
    Proxied,
    /// Over TLS.
    Tls,
    /// Forwarded by a standby.
    Forwarded,
}

/// How a client comes in by a door.
#[derive(Clone)]
pub struct Entrance {
    pub address: SocketAddr,
    /// What it sends before anything else, also before TLS.
    pub preamble: Vec<u8>,
    /// Its end of TLS, if there is any.
    pub tls: Option<Arc<ClientConfig>>,
    /// What follows before the first command, and has no reply.
    pub introduction: Vec<u8>,
}

impl Door {
    pub const ALL: [Self; 5] = [Self::Clear, Self::Users, Self::Proxied, Self::Tls, Self::Forwarded];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Users => "users",
            Self::Proxied => "proxied",
            Self::Tls => "tls",
            Self::Forwarded => "forwarded",
        }
    }

    /// Standbys forward no HTTP.
    pub fn carries(self, protocol: Protocol) -> bool {
        self != Self::Forwarded || protocol == Protocol::Beanstalk
    }

    /// The listener behind it.
    pub fn kind(self, protocol: Protocol) -> ListenerKind {
        let own = match protocol {
            Protocol::Beanstalk => ListenerKind::CLEAR,
            Protocol::Http => ListenerKind::HTTP,
        };
        match self {
            Self::Forwarded if protocol == Protocol::Beanstalk => ListenerKind::FORWARDED,
            Self::Clear | Self::Users | Self::Forwarded => own,
            Self::Proxied => ListenerKind { is_proxied: true, ..own },
            Self::Tls => ListenerKind { has_tls: true, ..own },
        }
    }

    /// Starts a server with this door. A server with TLS has the certificate, or any.
    pub fn serve(self, io: Driver, config: Config, certificate: Option<Identity>) -> MeasuredServer {
        let kinds = [Protocol::Beanstalk, Protocol::Http].map(|protocol| self.kind(protocol));
        let config = Config { users: (self == Self::Users).then(users), ..config };
        MeasuredServer::serving(io, &kinds, WatchedFiles::default(), move || {
            let counts = Rc::new(TlsCounts::default());
            let mut server = Server::new(config);
            server.show_tls(counts.clone());
            let certificate = certificate.unwrap_or_else(|| identity().0);
            let mut link = Link::new(Transport::new(server, Some(certificate), counts));
            link.update(Time::ZERO, Update::LinkSecret(Some(SECRET)));
            link
        })
    }

    /// What a client needs to know to come in.
    pub fn entrance(self, server: &MeasuredServer, protocol: Protocol) -> Entrance {
        let is_carried = self.carries(protocol);
        Entrance {
            address: server.address_of(self.kind(protocol)),
            preamble: if self == Self::Proxied { balancer_header(protocol) } else { Vec::new() },
            tls: match self {
                Self::Tls => Some(TRUSTING.clone()),
                Self::Forwarded if is_carried => Some(PINNED.clone()),
                _ => None,
            },
            introduction: if self == Self::Forwarded && is_carried { hop_header() } else { Vec::new() },
        }
    }

    /// Connects a client whose first command is next.
    pub fn enter(self, server: &MeasuredServer, protocol: Protocol) -> Stream {
        let entrance = self.entrance(server, protocol);
        entrance.enter().unwrap_or_else(|error| {
            panic!("the server lets a client in: {error}; another one: {:?}", entrance.enter().map(drop))
        })
    }

    /// Connects a client that may do everything.
    pub fn connect(self, server: &MeasuredServer) -> Talk {
        let mut client = Talk::new(self.enter(server, Protocol::Beanstalk));
        if let Some(command) = self.greeting() {
            client.expect(&command, "AUTHENTICATED");
        }
        client
    }

    /// The first command of a client, if it must say who it is.
    pub fn greeting(self) -> Option<String> {
        (self == Self::Users).then(|| format!("auth {TOKEN}\r\n"))
    }

    /// The field of a request that says the same.
    pub fn field(self) -> String {
        if self == Self::Users { format!("Authorization: Bearer {TOKEN}\r\n") } else { String::new() }
    }
}

impl Entrance {
    /// Connects, and sends nothing.
    pub fn reach(&self) -> io::Result<TcpStream> {
        let tcp = TcpStream::connect(self.address)?;
        tcp.set_nodelay(true)?;
        Ok(tcp)
    }

    /// Connects, so that the first command is next.
    pub fn enter(&self) -> io::Result<Stream> {
        let mut stream = self.enter_without_introduction()?;
        stream.send(&self.introduction);
        Ok(stream)
    }

    pub fn enter_without_introduction(&self) -> io::Result<Stream> {
        let mut tcp = self.reach()?;
        tcp.write_all(&self.preamble)?;
        Ok(match &self.tls {
            None => Stream::Tcp(tcp),
            Some(config) => Stream::Tls(TlsStream::over(tcp, config)?),
        })
    }
}

/// A header of a load balancer. Its client is elsewhere, or over HTTP, where only this machine may do everything, the balancer itself.
pub fn balancer_header(protocol: Protocol) -> Vec<u8> {
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    match protocol {
        Protocol::Http => [&signature[..], &[0x20, 0, 0, 0]].concat(),
        Protocol::Beanstalk => {
            let addresses = [192, 0, 2, 7, 10, 0, 0, 1, 0x15, 0xb3, 0x2c, 0x24];
            [&signature[..], &[0x21, 0x11, 0, 12], &addresses].concat()
        }
    }
}

/// The header of a standby.
pub fn hop_header() -> Vec<u8> {
    let addresses = ["192.0.2.7:5555", "10.0.0.1:11300"].map(|text| text.parse().expect("an address"));
    header(ClientAddress::Tcp(addresses[0], addresses[1]), Inbound::default(), SECRET.shown)
}

/// As many users as there may be. One of them may do everything, and its patterns match at the last letters.
fn users() -> Users {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let fillers = (0..PATTERNS_MAX - 26).map(|at| format!("\"Filler-{at}.*\""));
        let letters = ('a'..='z').map(|letter| format!("\"{letter}*\""));
        let patterns = fillers.chain(letters).collect::<Vec<_>>().join(", ");
        let mut text = String::new();
        for user in 1..Users::MAX {
            let _ = writeln!(text, "[users.u{user}]\ntoken = \"{user:0>200}\"\nproduce = [\"u{user}.*\"]");
        }
        let _ = writeln!(text, "[users.all]\ntoken = \"{TOKEN}\"");
        for right in ["produce", "consume", "inspect", "admin"] {
            let _ = writeln!(text, "{right} = [{patterns}]");
        }
        text
    });
    users_file::parse(&TEXT).unwrap_or_else(|error| panic!("{error}"))
}
