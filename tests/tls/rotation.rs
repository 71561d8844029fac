//! Certificates that change while the server runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use beanring::io::driver::Driver;
use beanring_testkit::certificates::Pair;
use beanring_testkit::client::{Client, put};
use beanring_testkit::driver;
use beanring_testkit::process::program;
use beanring_testkit::scratch::await_text;
use beanring_testkit::stream::Stream;
use beanring_testkit::tls_stream::{TlsStream, certificate, client_config};
use beanring_testkit::wait;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::place::{Place, expect_service};

const CLIENTS: usize = 64;
const ROTATIONS: u64 = 100;

/// How long before it is valid a certificate is put into its file.
const EARLY: Duration = Duration::from_secs(3);

impl Place {
    /// Returns the certificate that a new connection sees. No session is resumed.
    fn shown(&self) -> Vec<u8> {
        let config = client_config(&self.certificates.ca, None);
        let stream = TlsStream::over(self.tcp(), &config).expect("the server is trusted");
        stream.tls.peer_certificates().expect("the server has a certificate")[0].to_vec()
    }

    fn rotate(&mut self, count: u64) {
        self.server.signal(Signal::SIGWINCH);
        self.await_stat("tls-certificate-reloads", count);
    }

    /// Has the server refuse a changed certificate, for the `count`th time.
    fn refuse(&mut self, count: u64) {
        self.server.signal(Signal::SIGWINCH);
        self.await_stat("tls-certificate-reload-failures", count);
    }
}

fn work(mut client: Client, is_over: &AtomicBool, jobs: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let (inserted, _) = client.ask(&put(0, 0, "hello"));
        assert!(inserted.starts_with("INSERTED "), "{inserted}");
        let (reserved, _) = client.ask("reserve\r\n");
        let id = reserved.split(' ').nth(1).expect("an id").to_owned();
        client.expect(&format!("delete {id}\r\n"), "DELETED");
        jobs.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn certificates_change_while_clients_work() {
    let mut place = Place::new(&[]);
    let (is_over, jobs) = (AtomicBool::new(false), AtomicU64::new(0));
    let clients: Vec<Client> = (0..CLIENTS).map(|_| place.connect()).collect();
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(|| work(client, &is_over, &jobs));
        }
        for count in 1..=ROTATIONS {
            place.certificates.for_server("server", &["localhost", "127.0.0.1"]);
            let before = jobs.load(Ordering::Relaxed);
            place.rotate(count);
            let expected = certificate(&place.certificates.server.certificate);
            assert_eq!(place.shown(), expected.to_vec(), "a new connection gets the new certificate");
            wait::until("a job is done", || jobs.load(Ordering::Relaxed) > before);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{} jobs during {ROTATIONS} changes", jobs.load(Ordering::Relaxed));
    assert_eq!(place.control.stat("tls-handshakes-full"), CLIENTS as u64 + ROTATIONS);
    assert_eq!(place.failures(), [0; 6]);
}

#[test]
fn a_session_is_resumed_after_a_change() {
    let mut place = Place::new(&[]);
    expect_service(&mut place.connect());
    place.certificates.for_server("server", &["localhost"]);
    place.rotate(1);
    expect_service(&mut place.connect());
    assert_eq!(place.control.stat("tls-handshakes-resumed"), 1);
}

#[test]
fn a_bad_pair_keeps_the_one_before() {
    let mut place = Place::new(&[]);
    let before = place.shown();
    let mut working = place.connect();
    let key = place.certificates.server.key.clone();
    let good = fs::read(&key).expect("the key is readable");
    let other = fs::read(&place.certificates.client.key).expect("the key is readable");
    for (count, bad) in [(1, &b"not a key"[..]), (2, b""), (3, &other)] {
        fs::write(&key, bad).expect("there is space");
        place.refuse(count);
        assert_eq!(place.shown(), before);
        expect_service(&mut working);
    }
    fs::remove_file(&key).expect("it exists");
    place.refuse(4);
    let log = place.log();
    assert_eq!(log.matches("the certificate of TLS stays as it was").count(), 4, "{log}");
    fs::write(&key, good).expect("there is space");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    place.rotate(1);
    assert_eq!(place.shown(), before);
    let log = place.log();
    assert!(log.contains("every user of this machine can read the key: run chmod o-r on the file"), "{log}");
}

#[test]
fn a_start_warns_of_certificates_that_are_of_no_use() {
    let place = Place::new(&[]);
    let from = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
    let Pair { certificate, key } = place.certificates.for_server_from("early", &["localhost"], from);
    let mut command = Command::new(program());
    command.args(["-l", "127.0.0.1", "-p", "0", "--tls-listen", "127.0.0.1:0", "--check-config"]);
    command
        .arg("--tls-cert")
        .arg(&certificate)
        .arg("--tls-key")
        .arg(&key)
        .arg("--tls-client-ca")
        .arg(&certificate);
    let output = command.output().expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for expected in [
        "the certificate becomes valid on 2033-05-18T03:33:20Z, and clients refuse it until then\n",
        "the file contains no certificate of an authority: put that of the authority into it",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// Files of the certificate become FIFOs while the server runs.
#[test]
fn a_file_that_blocks_stops_nothing() {
    driver::under_each("files of the certificate that block", replace_by_fifos);
}

fn replace_by_fifos(io: Driver) {
    let mut place = Place::with_client_ca(&driver::flags(io));
    let pair = place.certificates.server.clone();
    for (number, path) in [(1, &pair.certificate), (2, &pair.key), (3, &place.certificates.ca.clone())] {
        // By renaming, since the server may look while a file is missing, and refuse that.
        let [fifo, good] = ["fifo", "good"].map(|end| path.with_extension(end));
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
        fs::copy(path, &good).expect("there is space");
        fs::rename(&fifo, path).expect("both are in one directory");
        place.refuse(number);
        fs::rename(&good, path).expect("both are in one directory");
        place.rotate(number);
    }
    assert_eq!(place.log().matches(": it is a FIFO, not a regular file; name a regular file").count(), 3);
    // 1 MiB and more of certificates.
    let certificate = fs::read(&pair.certificate).expect("it is readable");
    fs::write(&pair.certificate, certificate.repeat(2_000)).expect("there is space");
    place.refuse(4);
    assert!(place.log().contains(": the file is larger than its limit of 1024 KiB; name a smaller one"));
    fs::remove_file(&pair.key).expect("it exists");
    mkfifo(&pair.key, Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
    place.server.signal(Signal::SIGWINCH);
    place.server.stop();
}

/// A certificate that clients would refuse does not replace one that they accept.
#[test]
fn a_certificate_that_is_not_valid_does_not_replace_a_valid_one() {
    let mut place = Place::new(&["--log-level", "info"]);
    let before = place.shown();
    let pair = place.certificates.server.clone();
    let with = |place: &mut Place, other: &Pair| {
        fs::copy(&other.certificate, &pair.certificate).expect("there is space");
        fs::copy(&other.key, &pair.key).expect("there is space");
        place.server.signal(Signal::SIGWINCH);
    };
    let expired = place.certificates.expired.clone();
    with(&mut place, &expired);
    place.await_stat("tls-certificate-reload-failures", 1);
    assert_eq!(place.shown(), before);
    let early = place.certificates.for_server_from("early", &["localhost"], SystemTime::now() + EARLY);
    with(&mut place, &early);
    place.await_stat("tls-certificate-reload-failures", 2);
    assert_eq!(place.shown(), before);
    let log = place.log();
    for why in ["has expired: put one that is valid into the file", "and is used from then on"] {
        let said = "the certificate of TLS stays as it was: the new certificate of --tls-cert ";
        let line = log.lines().find(|line| line.contains(said) && line.contains(why));
        assert!(line.is_some_and(|line| line.contains(" WARN ")), "{log}");
    }
    // Nothing else happens on the server by then.
    await_text(&place.dir.join("stderr"), "the certificate of TLS was replaced", 1);
    assert_eq!(place.shown(), certificate(&early.certificate).to_vec());
    place.await_stat("tls-certificate-reloads", 1);
}

/// Kubernetes replaces a link to a directory that has all files.
#[test]
fn a_link_is_swapped() {
    let mut place = Place::with(&[], |certificates| {
        let dir = certificates.ca.parent().expect("a directory");
        for (name, pair) in
            [("one", certificates.server.clone()), ("two", certificates.for_server("second", &["localhost"]))]
        {
            fs::create_dir(dir.join(name)).expect("it is new");
            fs::copy(&pair.certificate, dir.join(name).join("tls.crt")).expect("there is space");
            fs::copy(&pair.key, dir.join(name).join("tls.key")).expect("there is space");
        }
        symlink("one", dir.join("..data")).expect("it is new");
        symlink("..data/tls.crt", dir.join("tls.crt")).expect("it is new");
        symlink("..data/tls.key", dir.join("tls.key")).expect("it is new");
        let path = |name| dir.join(name).display().to_string();
        // The last flag counts.
        vec!["--tls-cert".to_owned(), path("tls.crt"), "--tls-key".to_owned(), path("tls.key")]
    });
    assert_eq!(place.shown(), certificate(&place.dir.join("one/tls.crt")).to_vec());
    symlink("two", place.dir.join("..new")).expect("it is new");
    fs::rename(place.dir.join("..new"), place.dir.join("..data")).expect("it is the same directory");
    place.rotate(1);
    assert_eq!(place.shown(), certificate(&place.dir.join("two/tls.crt")).to_vec());
}

/// A client that is not in a hurry sees the certificate of its handshake's beginning.
#[test]
fn a_change_within_a_handshake_does_no_harm() {
    let mut place = Place::new(&[]);
    let tcp = place.tcp();
    place.await_stat("current-tls-handshakes", 1);
    place.certificates.for_server("server", &["localhost"]);
    place.rotate(1);
    expect_service(&mut Client::new(Stream::Tls(place.over(tcp))));
}
