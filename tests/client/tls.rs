//! TLS and tokens: what the client accepts, what it refuses, and what it says.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::certificates::{CLIENT_NAME, Certificates, Pair};
use beanring_testkit::process::{Address, ServerProcess, program};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::tls_front;

use super::fake::{scripted, serve};
use super::place::{Ran, client, ran, run_at};

/// A server with TLS.
struct Secure {
    _server: ServerProcess,
    plain: SocketAddr,
    /// Its address without the scheme.
    address: String,
    certificates: Certificates,
    _scratch: Scratch,
}

impl Secure {
    fn start(pair: impl Fn(&Certificates) -> &Pair, wants_certificate: bool) -> Self {
        let scratch = Scratch::new("tls");
        let certificates = Certificates::new(&scratch.0);
        let plain = Address::fresh_tcp();
        let address = SocketAddr::new(plain.ip(), 11_400).to_string();
        let mut flags = pair(&certificates).flags().to_vec();
        flags.extend(["--tls-listen".to_owned(), address.clone()]);
        if wants_certificate {
            flags.extend(["--tls-client-ca".to_owned(), certificates.ca.display().to_string()]);
        }
        let (server, _) = ServerProcess::launch(Command::new(program()), Address::Tcp(plain), &flags);
        Self { _server: server, plain, address, certificates, _scratch: scratch }
    }

    /// Runs `stats` over TLS with a name that the certificate has.
    fn stats(&self, flags: &[&str]) -> Ran {
        self.run(&[&["--tls-name", "localhost", "--tls-ca", self.ca()], flags].concat())
    }

    fn run(&self, flags: &[&str]) -> Ran {
        run_at(&self.url(), &[&["stats"], flags].concat())
    }

    fn url(&self) -> String {
        format!("beanstalks://{}", self.address)
    }

    /// A client that trusts the server.
    fn client(&self, arguments: &[&str]) -> Command {
        let mut command = client();
        command.args(arguments).env("BEANRING_ADDR", self.url());
        command.env("BEANRING_TLS_CA", self.ca()).env("BEANRING_TLS_NAME", "localhost");
        command
    }

    fn ca(&self) -> &str {
        self.certificates.ca.to_str().expect("UTF-8")
    }

    fn fails(&self, flags: &[&str], problem: &str) {
        self.run(flags).fails(3, &format!("cannot connect to {}: {problem}", self.url()));
    }
}

#[test]
fn certificates_that_are_refused() {
    const AUTHORITY: &str =
        "no trusted CA has signed the server's certificate; name the CA's certificate with --tls-ca";
    let server = Secure::start(|all| &all.server, false);
    server.stats(&[]).ok();
    server.run(&["--tls-name", "127.0.0.1", "--tls-ca", server.ca()]).ok();
    server.fails(&["--tls-name", "localhost"], AUTHORITY);
    let other = server.certificates.other_ca.to_str().expect("UTF-8");
    server.fails(&["--tls-name", "localhost", "--tls-ca", other], AUTHORITY);
    server.fails(
        &["--tls-ca", server.ca()],
        "the server's certificate is for localhost, 127.0.0.1, ::1; name the host as the certificate does, or set --tls-name",
    );
    let other = Secure::start(|all| &all.other_name, false);
    other.fails(
        &["--tls-name", "localhost", "--tls-ca", other.ca()],
        "the server's certificate is for queue.test; name the host as the certificate does, or set --tls-name",
    );
    other.run(&["--tls-name", "queue.test", "--tls-ca", other.ca()]).ok();
}

#[test]
fn flags_of_tls_need_an_address_with_tls() {
    for address in ["127.0.0.1:1", "beanstalk://127.0.0.1:1", "unix:/nowhere"] {
        for flag in ["--tls-ca", "--tls-cert", "--tls-key", "--tls-name"] {
            let shown = address.trim_start_matches("beanstalk://");
            ran(client().args(["stats", "-a", address, flag, "x"]), b"").fails(
                2,
                &format!("{flag} has no effect at {shown}, an address without TLS; use -a beanstalks://HOST"),
            );
        }
        // The variables may be there for another server.
        assert_eq!(
            ran(client().args(["stats", "-a", address]).env("BEANRING_TLS_CA", "x"), b"").code,
            Some(3)
        );
    }
}

#[test]
fn an_expired_certificate() {
    let scratch = Scratch::new("tls");
    let all = Certificates::new(&scratch.0);
    let plain = Address::fresh_tcp();
    let (_server, _) = ServerProcess::launch(Command::new(program()), Address::Tcp(plain), &[""; 0]);
    let address = format!("beanstalks://{}", tls_front::start(plain, tls_front::config(&all.expired, None)));
    let mut command = client();
    command.args(["stats", "-a", &address]).env("BEANRING_TLS_CA", &all.ca);
    let said = "the server's certificate has expired; renew it, or set the clock right";
    ran(&mut command, b"").fails(3, &format!("cannot connect to {address}: {said}"));
    let result = ran(command.arg("--json"), b"");
    assert_eq!(result.json()["error"], "no-connection");
}

#[test]
fn a_server_that_wants_a_certificate() {
    let server = Secure::start(|all| &all.server, true);
    let Certificates { client: own, other_client, .. } = &server.certificates;
    let with = |pair: &Pair| server.stats(&pair.flags().each_ref().map(String::as_str));
    with(own).ok();
    let begin = format!("cannot connect to {}: the server", server.url());
    server
        .stats(&[])
        .fails(3, &format!("{begin} wants a client certificate; name one with --tls-cert and --tls-key"));
    let result = with(other_client);
    assert!(
        result.code == Some(3) && result.stderr.contains("the server refused the client certificate: "),
        "{result:?}"
    );
    // The error is the same while the other half of the connection still sends.
    let mut put = server.client(&["put", "-t", "x", "--lines"]);
    let result = ran(&mut put, &b"line\n".repeat(200_000));
    assert!(result.code == Some(3) && result.stderr.contains("wants a client certificate"), "{result:?}");
    // One file may have both.
    let both = server.certificates.ca.with_file_name("both.pem");
    let content = [&own.certificate, &own.key].map(|file| fs::read_to_string(file).expect("a file")).concat();
    fs::write(&both, content).expect("there is space");
    let mut command = server.client(&["stats", "--json"]);
    command.env("BEANRING_TLS_CLIENT_CERT", both);
    assert!(ran(&mut command, b"").ok().contains("\"version\""), "{CLIENT_NAME}");
}

#[test]
fn files_that_are_not_what_they_should_be() {
    let server = Secure::start(|all| &all.server, false);
    let key = server.certificates.client.key.to_str().expect("UTF-8");
    let certificate = server.certificates.client.certificate.to_str().expect("UTF-8");
    let other_key = server.certificates.server.key.to_str().expect("UTF-8");
    let missing = "cannot read /no/such: there is no such file; correct the path".to_owned();
    for (flags, said) in [
        (&["--tls-ca", "/no/such"][..], missing.clone()),
        (&["--tls-ca", key], format!("--tls-ca {key} does not contain a certificate in PEM format")),
        (&["--tls-cert", "/no/such"], missing.clone()),
        (
            &["--tls-cert", certificate],
            format!("--tls-key {certificate} does not contain a private key in PEM format"),
        ),
        (&["--tls-key", key], "--tls-key needs --tls-cert".to_owned()),
        (
            &["--tls-cert", certificate, "--tls-key", other_key],
            "--tls-key is not the key of the certificate in --tls-cert".to_owned(),
        ),
        (&["--token-file", "/no/such"], missing),
    ] {
        server.run(flags).fails(2, &said);
    }
}

#[test]
fn the_wrong_scheme_is_named() {
    let server = Secure::start(|all| &all.server, false);
    ran(client().args(["stats", "-a", &server.address]), b"").fails(
        3,
        &format!(
            "cannot connect to {}: the server speaks TLS at this address; write beanstalks:// before the host",
            server.address
        ),
    );
    let plain = format!("beanstalks://{}", server.plain);
    let result = ran(client().args(["stats", "-a", &plain, "--tls-ca", server.ca()]), b"");
    result.fails(
        3,
        &format!(
            "cannot connect to {plain}: the server closed the connection in the TLS handshake; name its TLS port, or write beanstalk:// for one without TLS"
        ),
    );
}

#[test]
fn jobs_move_and_large_bodies_pass() {
    let server = Secure::start(|all| &all.server, false);
    let run = |arguments: &[&str], input: &[u8]| ran(&mut server.client(arguments), input);
    let lines: Vec<u8> = (0..300_000).flat_map(|at| format!("{at}\n").into_bytes()).collect();
    run(&["put", "-t", "a", "--lines", "--quiet"], &lines).ok();
    assert_eq!(run(&["move", "a", "b"], b"").ok(), "moved 300000 jobs from a to b\n");
    let body: Vec<u8> = (0..60_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(run(&["put", "-t", "c", "-f", "-"], &body).ok(), "300001\n");
    let found = run(&["peek", "300001", "--body"], b"");
    assert!(found.code == Some(0) && found.stdout == body, "{} bytes", found.stdout.len());
}

fn stats_of(address: &str) -> Ran {
    let scratch = Scratch::new("tls");
    let all = Certificates::new(&scratch.0);
    ran(client().args(["stats", "-a", address]).env("BEANRING_TLS_CA", &all.ca), b"")
}

#[test]
fn servers_that_lie_in_the_handshake() {
    let answer = |bytes: &'static [u8]| {
        let address = serve(move |mut stream| {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(bytes);
            // Unread input would reset the connection.
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        });
        format!("beanstalks://{address}")
    };
    let closed = "the server closed the connection in the TLS handshake; name its TLS port, or write beanstalk:// for one without TLS";
    for (bytes, said) in [
        (&b""[..], closed),
        // Within a record.
        (b"\x16\x03\x03\x40\x00", closed),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "the server does not speak TLS at this address; name its TLS port, or write beanstalk://",
        ),
        (b"\x15\x03\x03\x00\x02\x02\x46", "the server has no TLS 1.3; use a newer server"),
        (b"\x15\x03\x03\x00\x02\x02\x28", "the server ended TLS: handshake failure"),
    ] {
        let address = answer(bytes);
        stats_of(&address).fails(3, &format!("cannot connect to {address}: {said}"));
    }
    let address = answer(b"\x16\x03\x03\x00\x04\xff\xff\xff\xff");
    assert_eq!(stats_of(&address).code, Some(3));
}

#[test]
fn a_server_that_stalls_in_the_handshake_is_given_up() {
    let started = Instant::now();
    // A byte of a long record now and then gains nothing.
    let address = serve(|mut stream| {
        let _ = stream.write_all(b"\x16\x03\x03\x40\x00");
        while stream.write_all(b"\x00").is_ok() {
            thread::sleep(Duration::from_millis(300));
        }
    });
    let address = format!("beanstalks://{address}");
    let said = "no TLS handshake within 10 s; is it the TLS port, and is the server overloaded?";
    stats_of(&address).fails(3, &format!("cannot connect to {address}: {said}"));
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_token_is_sent_first_and_never_shown() {
    let scratch = Scratch::new("token");
    let file = scratch.join("token");
    let with = |content: &str, address: &str, arguments: &[&str]| {
        fs::write(&file, content).expect("there is space");
        ran(client().args(arguments).env("BEANRING_ADDR", address).env("BEANRING_TOKEN_FILE", &file), b"")
    };
    let right = scripted(&["AUTHENTICATED\r\n", "DRAINING\r\n"]);
    let result = with("s3cret\r\n", &right, &["drain"]);
    assert_eq!((result.code, &*result.stderr), (Some(0), ""), "{result:?}");
    let refused = scripted(&["UNAUTHORIZED\r\n"]);
    let said = format!(
        "{refused} does not know the token; correct the file of --token-file or BEANRING_TOKEN_FILE, or add the token to the server's --auth"
    );
    with("s3cret\n", &refused, &["stats"]).fails(7, &said);
    let result = with("s3cret\n", &refused, &["stats", "--json"]);
    assert_eq!((&result.json()["error"], result.code), (&"unauthorized".into(), Some(7)));
    let unknown = scripted(&["UNKNOWN_COMMAND\r\n"]);
    with("s3cret", &unknown, &["stats"]).fails(
        1,
        "the server does not know tokens; start it with --auth, or leave out --token-file and BEANRING_TOKEN_FILE",
    );
    let forbidden = scripted(&["AUTHENTICATED\r\n", "FORBIDDEN\r\n"]);
    with("s3cret", &forbidden, &["delete", "1"]).fails(
        1,
        "job 1: FORBIDDEN: you need the right consume or admin on the tube of the job; see the server's --auth",
    );
    let forbidden = scripted(&["AUTHENTICATED\r\n", "FORBIDDEN\r\n"]);
    with("s3cret", &forbidden, &["drain"])
        .fails(1, "drain: FORBIDDEN: you need the right admin on all tubes; see the server's --auth");
    let longest = "x".repeat(200);
    assert_eq!(with(&longest, &scripted(&["UNAUTHORIZED\r\n"]), &["stats"]).code, Some(7));
    for wrong in ["", "\n", "two words", "two\nlines", "\u{7f}", "\u{e9}", &"x".repeat(201)] {
        let result = with(wrong, &refused, &["stats"]);
        let said = "must be one line of 1 to 200 printable ASCII characters without spaces";
        assert!(result.code == Some(2) && result.stderr.contains(said), "{wrong:?}: {result:?}");
    }
}
