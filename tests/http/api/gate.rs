//! Responses leave when the job log has committed what they tell, like replies.

use beanring::io::wal_files::recover;
use beanring::queue::Engine;
use beanring::server::{Effect, Event, Peer, PeerKind, Protocol, Server, Service};
use beanring::time::{Span, Time};
use beanring::values::ids::ConnId;
use beanring::wal::{Destination, Durability, WalConfig};
use beanring_testkit::connection::send_all;
use beanring_testkit::disk::Disk;
use beanring_testkit::random::Random;
use serde_json::json;

use super::{Response, delete, get, post, put, writable};

/// A server with a job log on a disk whose operations the test completes.
struct Stage {
    server: Server,
    disk: Disk,
    now: Time,
    http: ConnId,
    received: Vec<u8>,
    random: Random,
    has_failed: bool,
}

impl Stage {
    fn new(durability: Durability) -> Self {
        let (now, disk) = (Time::from_nanos(1_000_000_000_000), Disk::new(100, true));
        let mut engine = Engine::new(0);
        let wal_config =
            WalConfig { durability, segment_bytes: 64 * 1024, destination: Destination::Directory };
        let wal = recover(&disk, wal_config, &mut engine, now).unwrap_or_else(|error| panic!("{error}"));
        let mut server = Server::with_wal(writable(), engine, Some(wal));
        let http = server.accept(Protocol::Http);
        server.set_peer(http, Peer::new(PeerKind::Unix, "unix"));
        let random = Random::new(1);
        let mut stage = Self { server, disk, now, http, received: Vec::new(), random, has_failed: false };
        stage.write();
        stage
    }

    /// Runs the server until only the disk has something to do.
    fn run(&mut self) {
        loop {
            self.server.turn(self.now);
            let mut is_idle = true;
            while let Some(effect) = self.server.next_effect() {
                match effect {
                    Effect::Disk => {
                        while let Some(operation) = self.server.disk(self.now) {
                            self.disk.begin(operation);
                            is_idle = false;
                        }
                    }
                    Effect::Send(conn) => {
                        self.received.extend(send_all(&mut self.server, conn, self.now));
                        is_idle = false;
                    }
                    Effect::Fail => self.has_failed = true,
                    Effect::Close(_) | Effect::Pause(_) | Effect::Resume(_) | Effect::LogClient(..) => {}
                }
            }
            self.server.check();
            if self.has_failed || is_idle && self.server.next_deadline().is_none_or(|at| at > self.now) {
                return;
            }
        }
    }

    /// Completes all operations of the disk.
    fn write(&mut self) {
        self.run();
        while let Some(outcome) = self.disk.finish_one(&mut self.random) {
            self.server.handle(self.now, Event::Disk(outcome));
            self.run();
        }
    }

    fn ask(&mut self, request: &[u8]) -> Option<Response> {
        self.server.handle(self.now, Event::Received { conn: self.http, bytes: request });
        self.run();
        self.take()
    }

    fn take(&mut self) -> Option<Response> {
        Response::take(&mut self.received, true)
    }

    fn expect(&mut self, status: u16) {
        let response = self.take().expect("there is a response");
        assert_eq!(response.status, status, "{response:?}");
    }
}

/// Requests that change something, and the status of the responses.
fn writes() -> Vec<(Vec<u8>, u16)> {
    vec![
        (put("tubes/a/jobs", b"x"), 201),
        (put("tubes/a/jobs", &[b'x'; 20_000]), 201),
        (post("jobs/1/bury", "{\"priority\":1}"), 200),
        (post("jobs/1/kick", "{}"), 200),
        (post("jobs/1/release", "{\"priority\":1,\"delay\":9}"), 200),
        (post("tubes/a/kick", "{\"count\":1}"), 200),
        (post("tubes/a/pause", "{\"seconds\":9}"), 200),
        (delete("jobs/1"), 200),
        (put("tubes/b/jobs", b"x"), 201),
        (post("tubes/b/flush", "{}"), 200),
        (post("tubes/b/config", "{\"key\":\"rate\",\"value\":5}"), 200),
    ]
}

#[test]
fn a_response_waits_for_the_commit_of_its_change() {
    for durability in [Durability::Always, Durability::Within(Span::from_millis(50)), Durability::Never] {
        let mut stage = Stage::new(durability);
        for (number, (request, status)) in writes().into_iter().enumerate() {
            assert!(stage.ask(&request).is_none(), "{durability:?}: request {number} waits for the disk");
            // What follows it waits too: it would reveal the change.
            assert!(stage.ask(&get("jobs/1")).is_none());
            stage.write();
            stage.expect(status);
            let job = stage.take().expect("there is a response");
            assert!(job.status == 200 || number >= 7, "{durability:?}: {job:?}");
        }
        // A request that changes nothing is answered at once.
        assert_eq!(stage.ask(&get("jobs/2")).map(|job| job.status), Some(200));
        assert_eq!(stage.ask(&delete("jobs/1")).map(|job| job.status), Some(404));
        let log = stage.ask(&get("server")).expect("it does not wait").json()["job_log"].clone();
        let mode = match durability {
            Durability::Always => json!(["always", null]),
            Durability::Within(_) => json!(["interval", 50]),
            Durability::Never => json!(["no-sync", null]),
        };
        assert_eq!(json!([log["sync_mode"], log["sync_interval_ms"]]), mode);
        assert_eq!(log["stalled"], false);
        assert!(log["segments"].as_u64() >= Some(1) && log["live_bytes"].as_u64() > Some(20_000), "{log}");
    }
}

#[test]
fn large_bodies_wait_for_segments_like_those_of_clients() {
    for durability in [Durability::Always, Durability::Never] {
        let mut stage = Stage::new(durability);
        let requests: Vec<u8> = (0..40).flat_map(|_| put("tubes/a/jobs", &[b'x'; 30_000])).collect();
        // More than the prepared segments hold: the rest waits until the disk has made others.
        let mut operations = 0;
        for piece in requests.chunks(16_000) {
            stage.server.handle(stage.now, Event::Received { conn: stage.http, bytes: piece });
            stage.run();
        }
        let answered = |stage: &mut Stage| std::iter::from_fn(|| stage.take()).count();
        assert_eq!(answered(&mut stage), 0, "nothing is committed");
        let mut count = 0;
        while count < 40 {
            operations += 1;
            assert!(operations < 1000, "{durability:?}: {count} of 40 are answered");
            if let Some(outcome) = stage.disk.finish_one(&mut stage.random) {
                stage.server.handle(stage.now, Event::Disk(outcome));
            }
            stage.run();
            while let Some(response) = stage.take() {
                count += 1;
                assert_eq!((response.status, response.json()), (201, json!({"id": count})));
            }
        }
        let body = stage.ask(&get("jobs/40/body")).or_else(|| {
            stage.write();
            stage.take()
        });
        let body = body.unwrap_or_else(|| panic!("{durability:?}: no response"));
        assert_eq!((body.status, body.body), (200, vec![b'x'; 30_000]));
    }
}

#[test]
fn another_connection_sees_a_change_only_when_it_is_committed() {
    let mut stage = Stage::new(Durability::Always);
    assert!(stage.ask(&put("tubes/a/jobs", b"x")).is_none());
    stage.http = stage.server.accept(Protocol::Http);
    stage.server.set_peer(stage.http, Peer::new(PeerKind::Unix, "unix"));
    for request in [get("jobs/1"), get("jobs/1/body"), get("tubes/a/next/ready")] {
        assert!(stage.ask(&request).is_none());
    }
    // Statistics name no job.
    let other = stage.http;
    stage.http = stage.server.accept(Protocol::Http);
    stage.server.set_peer(stage.http, Peer::new(PeerKind::Unix, "unix"));
    assert_eq!(stage.ask(&get("server")).expect("it does not wait").json()["jobs"]["ready"], 1);
    assert_eq!(stage.ask(&get("tubes")).expect("it does not wait").json()["matched"], 2);
    stage.server.handle(stage.now, Event::HungUp { conn: other });
    stage.run();
    stage.server.handle(stage.now, Event::Closed { conn: other });
    stage.write();
    stage.expect(201);
    assert!(stage.take().is_none(), "the responses of the connection that is gone are gone");
}

#[test]
fn a_job_log_that_cannot_be_written_is_reported() {
    for (number, (request, status)) in writes().into_iter().enumerate() {
        let mut stage = Stage::new(Durability::Always);
        for (earlier, _) in writes().into_iter().take(number) {
            stage.ask(&earlier);
            stage.write();
            stage.take();
        }
        stage.disk.fails_at = Some(stage.disk.ended);
        assert!(stage.ask(&request).is_none(), "request {number} waits for the disk");
        stage.write();
        assert!(stage.has_failed, "{status}");
        let response = stage.take().expect("there is a response");
        assert_eq!(response.error(), (500, "internal".to_owned()), "request {number}");
    }
}

#[test]
fn a_console_shows_why_a_full_disk_stalls_everything_else() {
    let mut stage = Stage::new(Durability::Always);
    for request in [put("tubes/a/jobs", b"1"), put("tubes/a/jobs", b"2")] {
        stage.ask(&request);
        stage.write();
        stage.expect(201);
    }
    stage.disk.room = 0;
    assert!(stage.ask(&delete("jobs/2")).is_none());
    for _ in 0..5 {
        stage.now = stage.now + Span::from_secs(1);
        stage.write();
    }
    assert!(stage.disk.refused_writes > 1 && stage.take().is_none());
    let waiting = stage.http;
    stage.http = stage.server.accept(Protocol::Http);
    stage.server.set_peer(stage.http, Peer::new(PeerKind::Unix, "unix"));
    let server = stage.ask(&get("server")).expect("it does not wait").json();
    assert_eq!(
        (&server["job_log"]["stalled"], &server["warnings"][0]["kind"]),
        (&json!(true), &json!("disk-full"))
    );
    for request in [get("tubes"), get("tubes/a"), get("jobs/1"), get("jobs/1/body")] {
        assert_eq!(stage.ask(&request).expect("it does not wait").status, 200);
    }
    assert!(stage.ask(&get("jobs/2")).is_none(), "the job may be deleted, or not");
    stage.disk.room = 100;
    stage.http = waiting;
    for _ in 0..5 {
        stage.now = stage.now + Span::from_secs(1);
        stage.write();
    }
    let mut statuses: Vec<u16> =
        std::iter::from_fn(|| stage.take()).map(|response| response.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 404]);
}

#[test]
fn probes_are_answered_while_commands_wait_for_the_disk() {
    let mut stage = Stage::new(Durability::Never);
    let client = stage.server.accept(Protocol::Beanstalk);
    assert!(stage.ask(&put("tubes/a/jobs", b"x")).is_none());
    // A server that stops serves no commands, and ends when the disk has written everything.
    stage.server.handle(stage.now, Event::Stop);
    stage.server.handle(stage.now, Event::Received { conn: client, bytes: b"list-tube-used\r\n" });
    stage.http = stage.server.accept(Protocol::Http);
    stage.run();
    assert!(stage.received.is_empty(), "the command waits");
    // The second one waits for its turn, but not for the disk.
    let probes = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3);
    stage.server.handle(stage.now, Event::Received { conn: stage.http, bytes: probes.as_bytes() });
    stage.run();
    for number in 0..3 {
        assert_eq!(stage.take().map(|response| response.status), Some(200), "probe {number}");
    }
}
