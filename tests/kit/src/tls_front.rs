//! TLS in front of a server that speaks none: a thread per connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::certificates::Pair;

/// Returns the configuration of a server with this certificate. With an authority, clients need a certificate of it.
///
/// # Panics
/// If a file is not as it should be.
pub fn config(pair: &Pair, client_ca: Option<&Path>) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has the cipher suites");
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(path).expect("a certificate")).expect("it is valid");
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("there is an authority"))
        }
    };
    let chain = vec![CertificateDer::from_pem_file(&pair.certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&pair.key).expect("a key");
    Arc::new(builder.with_single_cert(chain, key).expect("they belong together"))
}

/// Listens on a port of 127.0.0.1 until the test ends, and returns its address.
///
/// # Panics
/// If there is no port.
pub fn start(server: SocketAddr, config: Arc<ServerConfig>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let config = Arc::clone(&config);
            thread::spawn(move || {
                if let Ok(server) = TcpStream::connect(server) {
                    let session = ServerConnection::new(config).expect("it is valid");
                    let _ = Front { client, server, session, to_server: Vec::new() }.run();
                }
            });
        }
    });
    address
}

/// One connection. It keeps everything that one side cannot take yet, so neither side waits for the other.
struct Front {
    client: TcpStream,
    server: TcpStream,
    session: ServerConnection,
    to_server: Vec<u8>,
}

impl Front {
    fn run(mut self) -> io::Result<()> {
        self.client.set_nonblocking(true)?;
        self.server.set_nonblocking(true)?;
        self.client.set_nodelay(true)?;
        self.server.set_nodelay(true)?;
        self.session.set_buffer_limit(None);
        loop {
            let sends = |wants: bool| if wants { PollFlags::POLLOUT } else { PollFlags::empty() };
            let mut fds = [
                PollFd::new(self.client.as_fd(), PollFlags::POLLIN | sends(self.session.wants_write())),
                PollFd::new(self.server.as_fd(), PollFlags::POLLIN | sends(!self.to_server.is_empty())),
            ];
            poll(&mut fds, PollTimeout::NONE)?;
            let from_client = self.receive_from_client();
            let from_server = self.receive_from_server();
            let done = self.send();
            if !(from_client? && from_server?) {
                return done;
            }
            done?;
        }
    }

    /// Returns whether the client is still there.
    fn receive_from_client(&mut self) -> io::Result<bool> {
        match none_if_it_would_block(self.session.read_tls(&mut &self.client))? {
            None => return Ok(true),
            Some(0) => return Ok(false),
            Some(_) => {}
        }
        let state = match self.session.process_new_packets() {
            Ok(state) => state,
            Err(error) => {
                // The alert.
                let _ = self.session.write_tls(&mut &self.client);
                return Err(io::Error::new(ErrorKind::InvalidData, error));
            }
        };
        let at = self.to_server.len();
        self.to_server.resize(at + state.plaintext_bytes_to_read(), 0);
        self.session.reader().read_exact(&mut self.to_server[at..])?;
        Ok(!state.peer_has_closed())
    }

    /// Returns whether the server is still there.
    fn receive_from_server(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        match none_if_it_would_block((&self.server).read(&mut buffer))? {
            None => Ok(true),
            Some(0) => {
                self.session.send_close_notify();
                Ok(false)
            }
            Some(count) => self.session.writer().write_all(&buffer[..count]).map(|()| true),
        }
    }

    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            if none_if_it_would_block(self.session.write_tls(&mut &self.client))?.is_none() {
                break;
            }
        }
        while !self.to_server.is_empty() {
            match none_if_it_would_block((&self.server).write(&self.to_server))? {
                None => break,
                Some(count) => drop(self.to_server.drain(..count)),
            }
        }
        Ok(())
    }
}

fn none_if_it_would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}
