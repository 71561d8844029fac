use std::os::unix::net::{UnixDatagram, UnixListener};
use std::thread;

use nix::sys::socket::getsockopt;

use super::*;

/// A directory of one test, which is removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("beanring-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

fn refusal(address: &Address) -> String {
    Listener::open(address).unwrap_err().to_string()
}

fn local_address(listener: &Listener) -> SocketAddr {
    listener.local_name().parse().unwrap()
}

#[test]
fn connections_inherit_the_options() {
    for host in ["127.0.0.1", "::1"] {
        let listener = Listener::open(&tcp(host, 0)).unwrap();
        listener.set_keepalive(Keepalive::after(60)).unwrap();
        assert_eq!(listener.accept().unwrap_err(), AcceptError::Empty);
        let client = std::net::TcpStream::connect(local_address(&listener)).unwrap();
        let fd = listener.accept().unwrap();
        assert!(getsockopt(&fd, sockopt::TcpNoDelay).unwrap());
        assert!(getsockopt(&fd, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&fd, sockopt::TcpKeepIdle).unwrap(), 60);
        assert_eq!(getsockopt(&fd, sockopt::TcpKeepInterval).unwrap(), 10);
        let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL).unwrap());
        assert!(flags.contains(OFlag::O_NONBLOCK));
        let flags = FdFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFD).unwrap());
        assert!(flags.contains(FdFlag::FD_CLOEXEC));
        assert_eq!(peer_name(fd.as_raw_fd()), client.local_addr().unwrap().to_string());
    }
}

#[test]
fn a_socket_file_has_its_mode() {
    for mode in [0o600, 0o666, 0o711] {
        let scratch = Scratch::new("mode");
        let address = Address::Unix(scratch.path());
        let access = SocketAccess { mode: Some(mode), group: None };
        let _listener = Listener::bind(&address, &access, None).unwrap();
        assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o7777, mode);
    }
}

#[test]
fn another_file_at_the_path_keeps_its_owner() {
    let scratch = Scratch::new("other");
    let address = Address::Unix(scratch.path());
    let listener = Listener::open(&address).unwrap();
    let identity = listener.file.as_ref().unwrap().identity;
    let owner =
        SocketAccess { mode: None, group: Some(nix::unistd::getegid().to_string()) }.owner(None).unwrap();
    assert_eq!(owner.take(&scratch.path(), identity), Ok(()));
    let (aside, target) = (scratch.0.join("aside"), scratch.0.join("target"));
    fs::rename(scratch.path(), &aside).unwrap();
    fs::write(&target, "").unwrap();
    let others: [&dyn Fn(); 3] = [
        &|| std::os::unix::fs::symlink(&aside, scratch.path()).unwrap(),
        &|| fs::hard_link(&target, scratch.path()).unwrap(),
        &|| drop(UnixListener::bind(scratch.path()).unwrap()),
    ];
    for make in others {
        make();
        assert!(owner.take(&scratch.path(), identity).is_err());
        fs::remove_file(scratch.path()).unwrap();
    }
}

#[test]
fn the_sockets_of_other_programs_are_kept() {
    let scratch = Scratch::new("stays");
    let path = scratch.path();
    let address = Address::Unix(path.clone());
    let expected =
        format!("cannot listen on {address}: another server listens there; stop it, or choose another path");
    let bound = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(bound.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(LISTENS_WITHIN / 3);
            nix::sys::socket::listen(&bound, nix::sys::socket::Backlog::MAXALLOWABLE).unwrap();
        });
        assert_eq!(refusal(&address), expected);
    });
    drop(bound);
    fs::remove_file(&path).unwrap();

    let _datagram = UnixDatagram::bind(&path).unwrap();
    assert_eq!(refusal(&address), expected);
}

#[test]
fn a_path_that_is_too_long_is_refused() {
    let path = PathBuf::from("/tmp").join("x".repeat(200));
    assert!(refusal(&Address::Unix(path)).ends_with("File name too long"));
}

#[test]
fn texts_of_errors_have_no_numbers() {
    let error = io::Error::from_raw_os_error(Errno::EPERM as i32);
    assert_eq!(text_of(&error), "Operation not permitted");
    assert_eq!(
        text_without_number(&format!("capset failure: {error}!")),
        "capset failure: Operation not permitted!"
    );
    assert_eq!(text_without_number(&"overlarge index"), "overlarge index");
}

#[test]
fn peers_are_told_apart() {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    for (address, kind) in
        [("127.0.0.1", PeerKind::Loopback), ("::1", PeerKind::Loopback), ("::", PeerKind::Loopback)]
    {
        let Ok(listener) = Listener::open(&Address::Tcp { host: address.to_owned(), port: 0 }) else {
            continue;
        };
        let local: SockaddrStorage = getsockname(listener.fd.as_raw_fd()).unwrap();
        let port =
            local.as_sockaddr_in6().map(|six| six.port()).or(local.as_sockaddr_in().map(|four| four.port()));
        // A dual-stack listener has peers with IPv4 addresses.
        let host = if address == "::1" { "::1" } else { "127.0.0.1" };
        let client = TcpStream::connect((host, port.unwrap())).unwrap();
        let fd = accepted(&listener);
        let peer = peer(fd.as_raw_fd());
        assert_eq!(peer.kind, kind, "{address}");
        assert!(peer.origin.is_local, "{peer:?}");
        assert!(peer.name.ends_with(&format!(":{}", client.local_addr().unwrap().port())), "{peer:?}");
    }
    let (one, _other) = UnixStream::pair().unwrap();
    assert_eq!(peer(one.as_raw_fd()), Peer::new(PeerKind::Unix, "unix"));
    let scratch = Scratch::new("peers");
    let listener = Listener::open(&Address::Unix(scratch.path())).unwrap();
    let client = socket(AddressFamily::Unix, SockType::Stream, FLAGS, None).unwrap();
    let forged = scratch.0.join("a\n2026 INFO forged");
    bind(client.as_raw_fd(), &UnixAddr::new(&forged).unwrap()).unwrap();
    connect(client.as_raw_fd(), &UnixAddr::new(&scratch.path()).unwrap()).unwrap();
    let name = peer(accepted(&listener).as_raw_fd()).name;
    assert!(name.ends_with("/a?2026 INFO forged"), "{name:?}");
    let unconnected = socket(AddressFamily::Inet, SockType::Stream, FLAGS, None).unwrap();
    let unknown = peer(unconnected.as_raw_fd());
    assert_eq!((unknown.kind, unknown.origin.is_local), (PeerKind::Network, false));
}

#[test]
fn a_peer_with_the_own_address_is_on_this_machine() {
    use std::net::{TcpStream, UdpSocket};

    // The address by which others reach this machine, if it has one. Nothing is sent.
    let probe = UdpSocket::bind("0.0.0.0:0").unwrap();
    let own = probe.connect("192.0.2.1:9").and_then(|()| probe.local_addr());
    let Ok(IpAddr::V4(own)) = own.map(|address| address.ip()) else { return };
    let listener = Listener::open(&Address::Tcp { host: own.to_string(), port: 0 }).unwrap();
    let local: SockaddrStorage = getsockname(listener.fd.as_raw_fd()).unwrap();
    let _client = TcpStream::connect((own, local.as_sockaddr_in().unwrap().port())).unwrap();
    let peer = peer(accepted(&listener).as_raw_fd());
    assert!(peer.origin.is_local, "{peer:?}");
    // It still needs a token.
    assert_eq!(peer.kind == PeerKind::Loopback, own.is_loopback(), "{peer:?}");
}

#[test]
fn a_network_of_ipv6_counts_as_one_peer() {
    let of = |text: &str| network(text.parse().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
}

/// Accepts the connection that a client has made.
fn accepted(listener: &Listener) -> OwnedFd {
    loop {
        match listener.accept() {
            Ok(fd) => return fd,
            Err(AcceptError::Empty) => std::thread::yield_now(),
            Err(error) => panic!("{error:?}"),
        }
    }
}
