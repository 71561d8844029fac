//! A server with a listener for TLS, and one without, which the test asks for its counts.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::certificates::{Certificates, Pair};
use beanring_testkit::client::Client;
use beanring_testkit::process::{Address, REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics::number;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{TlsStream, client_config};
use rustls::ClientConfig;

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
        Self::with(Command::new(program()), flags, |_| Vec::new())
    }

    /// Starts a server with flags that depend on the certificates.
    pub fn with(command: Command, flags: &[&str], more: impl FnOnce(&Certificates) -> Vec<String>) -> Self {
        Self::start(command, flags, |at, certificates| {
            let mut all = vec!["--tls-listen".to_owned(), at.to_string()];
            all.extend(files(&certificates.server));
            all.extend(more(certificates));
            all
        })
    }

    fn start(
        mut command: Command,
        flags: &[&str],
        of_tls: impl FnOnce(SocketAddr, &Certificates) -> Vec<String>,
    ) -> Self {
        let dir = Scratch::new("tls");
        let certificates = Certificates::new(&dir.0);
        let Address::Tcp(at) = Address::fresh(Transport::Tcp) else { unreachable!("it is one for TCP") };
        let mut all = of_tls(at, &certificates);
        all.extend(flags.iter().map(|&flag| flag.to_owned()));
        command.stderr(File::create(dir.join("stderr")).expect("there is space"));
        let (server, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &all);
        let trusting = client_config(&certificates.ca, None);
        Self { server, control: Client::new(stream), at, certificates, trusting, dir }
    }

    /// Starts a server whose settings of TLS are in a file.
    pub fn from_file(flags: &[&str], file: &Path) -> Self {
        Self::start(Command::new(program()), flags, |at, certificates| {
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

    pub fn connect(&self) -> Client {
        let stream = TlsStream::over(self.tcp(), &self.trusting).expect("the server is trusted");
        Client::new(Stream::Tls(stream))
    }

    /// Returns the number of handshakes that have failed, by reason.
    pub fn failures(&mut self) -> [u64; 6] {
        let (_, stats) = self.control.ask("stats\r\n");
        REASONS.map(|reason| number(&stats, &format!("tls-handshake-failures-{reason}")))
    }

    /// Waits for the first failure, and asserts its reason and its line in the log.
    pub fn expect_failure(&mut self, reason: &str) {
        self.wait_for("a failed handshake", |place| place.failures().iter().sum::<u64>() > 0);
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
        self.control.expect("list-tube-used\r\n", "USING default");
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("stderr")).expect("the log is readable")
    }

    /// Waits until something is so.
    pub fn wait_for(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let started = Instant::now();
        while !is_so(self) {
            assert!(started.elapsed() < REPLY_PATIENCE, "{what} does not come: {}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Returns the flags that name a certificate.
pub fn files(pair: &Pair) -> [String; 4] {
    let (certificate, key) = (pair.certificate.display().to_string(), pair.key.display().to_string());
    ["--tls-cert".to_owned(), certificate, "--tls-key".to_owned(), key]
}

impl Drop for Place {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}
