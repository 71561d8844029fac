//! In-place restarts of servers with TLS, and listeners of other kinds.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;

use beanring::io::driver::Driver;
use beanring_testkit::certificates::Certificates;
use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::{Scratch, await_text};
use beanring_testkit::statistics::field;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{TlsStream, client, client_config};
use beanring_testkit::wait;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use rustls::ClientConfig;

use super::place::{Place, expect_service};

/// Returns the id of the server, which is another one after a restart, or nothing if a restart interrupts the connection. The
/// connection itself is never refused.
fn id(at: SocketAddr, config: &Arc<ClientConfig>) -> Option<String> {
    let tcp = TcpStream::connect(at).expect("the server always accepts connections");
    let mut client = Client::new(Stream::Tls(TlsStream::over(tcp, config).ok()?));
    client.send("stats\r\n");
    let (_, stats) = client.reply()?;
    Some(field(&stats, "id").to_owned())
}

fn restart(server: &ServerProcess, at: SocketAddr, config: &Arc<ClientConfig>) {
    let before = id(at, config).expect("the server runs");
    let pid = server.pid();
    server.signal(Signal::SIGUSR2);
    wait::until("the new program runs", || id(at, config).is_some_and(|now| now != before));
    assert_eq!(pid, server.pid());
}

#[test]
fn a_restart_keeps_both_listeners() {
    let wal = Scratch::new("restart-tls");
    let place = Place::new(&["-b", wal.0.to_str().expect("UTF-8")]);
    restart(&place.server, place.at, &place.trusting);
    expect_service(&mut Client::new(place.server.connect()));
}

#[test]
fn a_connection_before_its_handshake_is_handed_over() {
    // The receives of tokio-uring cannot be cancelled without a loss.
    let hands_over = |io: &Driver| io.name() != "tokio-uring";
    for io in driver::allowed("a connection before its handshake, at a restart").filter(hands_over) {
        let wal = Scratch::new("restart-tls");
        let mut place = Place::new(&["--io", io.name(), "-b", wal.0.to_str().expect("UTF-8")]);
        let tcp = place.tcp();
        place.await_stat("current-tls-handshakes", 1);
        restart(&place.server, place.at, &place.trusting);
        expect_service(&mut Client::new(Stream::Tls(place.over(tcp))));
    }
}

#[test]
fn a_restart_without_plaintext_keeps_the_listener() {
    let wal = Scratch::new("restart-tls");
    let flags = ["-b", wal.0.to_str().expect("UTF-8")];
    let address = Address::fresh(Transport::Tls);
    let Address::Tls(tls) = &address else { unreachable!("it is one for TLS") };
    let (at, config) = (tls.at, client_config(&tls.certificates.ca, None));
    let (server, _first) = ServerProcess::launch(Command::new(program()), address, &flags);
    restart(&server, at, &config);
}

#[test]
fn a_unix_socket_may_have_tls() {
    let dir = Scratch::new("unix-tls");
    let path = dir.join("socket");
    let listen = format!("unix:{}", path.display());
    // The last address counts.
    let place = Place::new(&["--tls-listen", &listen]);
    let mut unix = UnixStream::connect(&path).expect("the server listens");
    unix.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
    let mut tls = client(&place.trusting);
    let mut stream = rustls::Stream::new(&mut tls, &mut unix);
    std::io::Write::write_all(&mut stream, b"list-tube-used\r\n").expect("the server receives");
    let mut reply = [0; 15];
    std::io::Read::read_exact(&mut stream, &mut reply).expect("the server replies");
    assert_eq!(&reply, b"USING default\r\n");
}

/// The listener of TLS cannot change in a restart, as that of plaintext cannot.
#[test]
fn a_restart_with_another_address_is_refused() {
    let dir = Scratch::new("restart-refused-tls");
    let (wal, file) = (dir.dir("wal"), dir.join("config.toml"));
    std::fs::write(&file, "").expect("there is space");
    let flags = ["-b", wal.to_str().expect("UTF-8"), "--config", file.to_str().expect("UTF-8")];
    let place = Place::from_file(&flags, &file);
    expect_service(&mut place.connect());
    let settings = std::fs::read_to_string(&file).expect("it is readable");
    let other = settings.replace(&place.at.to_string(), "127.0.0.1:1");
    assert_ne!(settings, other);
    std::fs::write(&file, other).expect("there is space");
    place.server.signal(Signal::SIGUSR2);
    await_text(&place.dir.join("stderr"), "no restart", 1);
    let log = place.log();
    assert!(log.contains("the address for clients over TLS is"), "{log}");
    expect_service(&mut place.connect());
}

#[test]
fn socket_activation_passes_a_listener_for_tls() {
    let plain = TcpListener::bind(Address::fresh_tcp()).expect("the address is free");
    let tls = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    // Their numbers are inherited. Those of the script are none that the tests beside this one may have.
    let [three, four] = [&plain, &tls].map(|listener| {
        fcntl(listener, FcntlArg::F_SETFD(FdFlag::empty())).expect("the descriptor is open");
        listener.as_raw_fd()
    });
    let script = format!(
        "exec 1008<&{three} 1009<&{four}; exec 3<&1008 4<&1009; \
         LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=unit:tls exec {} \"$@\"",
        program()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash"]);
    let dir = Scratch::new("activated");
    let certificates = Certificates::new(&dir.0);
    let mut flags = certificates.server.flags().to_vec();
    flags.push("--tls-listen=127.0.0.1:1".to_owned());
    let address = Address::Tcp(plain.local_addr().expect("it is bound"));
    let (server, stream) = ServerProcess::launch(command, address, &flags);
    expect_service(&mut Client::new(stream));
    let config = client_config(&certificates.ca, None);
    let at = tls.local_addr().expect("it is bound");
    assert!(id(at, &config).is_some());
    drop(server);
}
