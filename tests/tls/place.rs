//! A server with a listener for TLS, and one without, which the test asks for its counts.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use beanring::io::driver::Driver;
use beanring_testkit::certificates::{Certificates, Pair};
use beanring_testkit::client::Client;
use beanring_testkit::driver;
use beanring_testkit::forge::{Flight, Forger, Sealer, config};
use beanring_testkit::peer::Received;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::number;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{TlsStream, certificate, client_config};
use beanring_testkit::wait;
use rustls::ClientConfig;
use rustls::ContentType::Handshake;

/// All reasons for which a handshake fails.
const REASONS: [&str; 6] = ["protocol", "certificate", "alert", "timeout", "surplus", "disconnected"];

/// A server with TLS.
pub struct Place {
    pub server: ServerProcess,
    /// A client without TLS.
    pub control: Client,
    pub at: SocketAddr,
    pub certificates: Certificates,
    /// A client that trusts the server.
    pub trusting: Arc<ClientConfig>,
    pub dir: Scratch,
}

impl Place {
    pub fn new(flags: &[&str]) -> Self {
        Self::with(flags, |_| Vec::new())
    }

    /// Starts a server under a driver.
    pub fn under(io: Driver, flags: &[&str]) -> Self {
        Self::new(&[&driver::flags(io)[..], flags].concat())
    }

    /// Starts a server that asks clients for a certificate.
    pub fn with_client_ca(flags: &[&str]) -> Self {
        Self::with(flags, |certificates| {
            vec!["--tls-client-ca".to_owned(), certificates.ca.display().to_string()]
        })
    }

    /// Starts a server with flags that depend on the certificates.
    pub fn with(flags: &[&str], more: impl FnOnce(&Certificates) -> Vec<String>) -> Self {
        Self::start(flags, |at, certificates| {
            let mut all = vec!["--tls-listen".to_owned(), at.to_string()];
            all.extend(certificates.server.flags());
            all.extend(more(certificates));
            all
        })
    }

    fn start(flags: &[&str], of_tls: impl FnOnce(SocketAddr, &Certificates) -> Vec<String>) -> Self {
        let dir = Scratch::new("tls");
        let certificates = Certificates::new(&dir.0);
        let at = Address::fresh_tcp();
        let mut all = of_tls(at, &certificates);
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        let mut command = Command::new(program());
        command.stderr(File::create(dir.join("stderr")).expect("there is space"));
        let (server, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &all);
        let trusting = client_config(&certificates.ca, None);
        let mut control = Client::new(stream);
        // The server listens for TLS after it listens for others. A reply shows that it does.
        control.ask("list-tube-used\r\n");
        Self { server, control, at, certificates, trusting, dir }
    }

    /// Starts a server whose settings of TLS are in a file.
    pub fn from_file(flags: &[&str], file: &Path) -> Self {
        Self::start(flags, |at, certificates| {
            let Pair { certificate, key } = &certificates.server;
            let settings = format!("tls-listen = \"{at}\"\ntls-cert = {certificate:?}\ntls-key = {key:?}\n");
            fs::write(file, settings).expect("there is space");
            Vec::new()
        })
    }

    /// Connects without a handshake.
    pub fn tcp(&self) -> TcpStream {
        let tcp = TcpStream::connect(self.at).expect("the server accepts connections");
        tcp.set_read_timeout(Some(REPLY_PATIENCE)).expect("a socket option");
        tcp
    }

    /// Shakes hands over a connection.
    pub fn over(&self, tcp: TcpStream) -> TlsStream {
        TlsStream::over(tcp, &self.trusting).expect("the server is trusted")
    }

    pub fn stream(&self) -> TlsStream {
        self.over(self.tcp())
    }

    /// Begins a handshake whose further records the test makes.
    pub fn flight(&self, tcp: &mut TcpStream) -> Flight {
        let mut forger = Forger::new(&config(certificate(&self.certificates.ca)));
        tcp.write_all(&forger.output()).expect("the server receives");
        forger.flight(tcp)
    }

    /// Opens a connection. Returns it, and what seals its records.
    pub fn forged(&self) -> (TcpStream, Sealer) {
        let mut tcp = self.tcp();
        let mut flight = self.flight(&mut tcp);
        tcp.write_all(&flight.handshake.record(Handshake, &flight.finished)).expect("the server receives");
        (tcp, flight.data)
    }

    pub fn connect(&self) -> Client {
        Client::new(Stream::Tls(self.stream()))
    }

    /// Returns the number of handshakes that have failed, by reason.
    pub fn failures(&mut self) -> [u64; 6] {
        let (_, stats) = self.control.ask("stats\r\n");
        REASONS.map(|reason| number(&stats, &format!("tls-handshake-failures-{reason}")))
    }

    /// Waits for the first failure, and asserts its reason and its line in the log.
    pub fn expect_failure(&mut self, reason: &str) {
        wait::until("a handshake fails", || self.failures().iter().sum::<u64>() > 0);
        let expected = REASONS.map(|each| u64::from(each == reason));
        assert_eq!(self.failures(), expected, "{REASONS:?}, for {reason}");
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("the TLS handshake with")).count();
        // A client that goes away is no concern of the operator.
        assert_eq!(lines, usize::from(reason != "disconnected"), "{log}");
        self.expect_service();
    }

    /// Asserts that other clients are served.
    pub fn expect_service(&mut self) {
        expect_service(&mut self.control);
    }

    /// Waits until a number of `stats` is this.
    pub fn await_stat(&mut self, key: &str, number: u64) {
        wait::until(&format!("{key} is {number}"), || self.control.stat(key) == number);
    }

    pub fn log(&self) -> String {
        self.server.await_log();
        fs::read_to_string(self.dir.join("stderr")).expect("the log is readable")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Asserts that a client is served.
pub fn expect_service(client: &mut Client) {
    client.expect("list-tube-used\r\n", "USING default");
}

/// Asserts that the server replies to a command with these bytes.
pub fn expect_reply(stream: &mut TlsStream, command: &[u8], reply: &str) {
    stream.send(command).expect("the connection is open");
    let received = stream.receive(REPLY_PATIENCE).expect("the connection is open");
    assert_eq!(received, Received::Bytes(reply.as_bytes().to_vec()));
}

/// Reads until the server ends the connection, in whatever way.
pub fn read_to_end(mut tcp: &TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    if let Err(error) = tcp.read_to_end(&mut received) {
        assert!(error.kind() != std::io::ErrorKind::WouldBlock, "the server keeps the connection");
    }
    received
}
