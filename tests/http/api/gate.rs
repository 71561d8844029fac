//! Responses leave when the job log has committed what they tell, like replies.

use beanring::server::Event;
use beanring::time::Span;
use beanring::wal::Durability;
use beanring_testkit::http_client::{OCTETS, api, delete, get, page, post, put, writable};
use beanring_testkit::stepped::Stepped;
use serde_json::json;

/// A server with a job log, and a connection to its HTTP listener.
fn stage(durability: Durability) -> (Stepped, usize) {
    let mut server = Stepped::with_log(writable(), durability, 64 * 1024);
    let http = server.open_http();
    (server, http)
}

/// Asserts the status of the next response.
fn expect(server: &mut Stepped, http: usize, status: u16) {
    let response = server.response(http).expect("there is a response");
    assert_eq!(response.status, status, "{response:?}");
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
        (api("PUT", "schedules/s?tube=a&when=every:1h", "", Some((OCTETS, b"x"))), 200),
        (post("schedules/s/run", "{}"), 201),
        (delete("schedules/s"), 200),
    ]
}

#[test]
fn a_response_waits_for_the_commit_of_its_change() {
    for durability in [Durability::Always, Durability::Within(Span::from_millis(50)), Durability::Never] {
        let (mut server, http) = stage(durability);
        for (number, (request, status)) in writes().into_iter().enumerate() {
            assert!(
                server.ask(http, &request).is_none(),
                "{durability:?}: request {number} waits for the disk"
            );
            // What follows it waits too: it would reveal the change.
            assert!(server.ask(http, &get("jobs/1")).is_none());
            server.write();
            expect(&mut server, http, status);
            let job = server.response(http).expect("there is a response");
            assert!(job.status == 200 || number >= 7, "{durability:?}: {job:?}");
        }
        // A request that changes nothing is answered at once.
        assert_eq!(server.ask(http, &get("jobs/2")).map(|job| job.status), Some(200));
        assert_eq!(server.ask(http, &delete("jobs/1")).map(|job| job.status), Some(404));
        let log = server.ask(http, &get("server")).expect("it does not wait").json()["job_log"].clone();
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

/// The commit comes while an earlier response is being sent, and another one waits in between.
#[test]
fn a_response_behind_others_leaves_after_its_commit() {
    for durability in [Durability::Always, Durability::Within(Span::from_millis(50)), Durability::Never] {
        let (mut server, http) = stage(durability);
        server.piece_bytes = 0;
        for request in [get("server"), get("server"), put("tubes/a/jobs", b"x")] {
            server.send(http, &request);
            server.run();
        }
        server.write();
        server.piece_bytes = usize::MAX;
        while server.send_some(http) {}
        for status in [200, 200, 201] {
            expect(&mut server, http, status);
        }
        assert_eq!(server.ask(http, &get("jobs/1")).map(|job| job.status), Some(200), "{durability:?}");
        server.close(http);
        assert_eq!(server.run(), [http]);
    }
}

#[test]
fn large_bodies_wait_for_segments_like_those_of_clients() {
    for durability in [Durability::Always, Durability::Never] {
        let (mut server, http) = stage(durability);
        let requests: Vec<u8> = (0..40).flat_map(|_| put("tubes/a/jobs", &[b'x'; 30_000])).collect();
        // More than the prepared segments hold: the rest waits until the disk has made others.
        for piece in requests.chunks(16_000) {
            server.send(http, piece);
            server.run();
        }
        assert!(server.response(http).is_none(), "nothing is committed");
        let (mut count, mut operations) = (0, 0);
        while count < 40 {
            operations += 1;
            assert!(operations < 1000, "{durability:?}: {count} of 40 are answered");
            server.write_one();
            while let Some(response) = server.response(http) {
                count += 1;
                assert_eq!((response.status, response.json()), (201, json!({"id": count})));
            }
        }
        server.send(http, &get("jobs/40/body"));
        server.write();
        let body = server.response(http);
        let body = body.unwrap_or_else(|| panic!("{durability:?}: no response"));
        assert_eq!((body.status, body.body), (200, vec![b'x'; 30_000]));
    }
}

#[test]
fn another_connection_sees_a_change_only_when_it_is_committed() {
    let (mut server, http) = stage(Durability::Always);
    assert!(server.ask(http, &put("tubes/a/jobs", b"x")).is_none());
    let other = server.open_http();
    let reads =
        [get("jobs/1"), get("jobs/1/body"), get("tubes/a/next/ready"), get("schedules"), get("schedules/s")];
    for request in reads {
        assert!(server.ask(other, &request).is_none());
    }
    // Statistics name no job.
    let third = server.open_http();
    assert_eq!(server.ask(third, &get("server")).expect("it does not wait").json()["jobs"]["ready"], 1);
    assert_eq!(server.ask(third, &get("tubes")).expect("it does not wait").json()["matched"], 2);
    server.close(other);
    server.write();
    expect(&mut server, http, 201);
    assert!(server.received(other).is_empty(), "the responses of the connection that is gone are gone");
}

#[test]
fn a_job_log_that_cannot_be_written_is_reported() {
    for (number, (request, status)) in writes().into_iter().enumerate() {
        let (mut server, http) = stage(Durability::Always);
        for (earlier, _) in writes().into_iter().take(number) {
            server.ask(http, &earlier);
            server.write();
            server.response(http);
        }
        server.disk.fails_at = Some(server.disk.ended);
        assert!(server.ask(http, &request).is_none(), "request {number} waits for the disk");
        server.write();
        assert!(server.has_failed, "{status}");
        let response = server.response(http).expect("there is a response");
        assert_eq!(response.error(), (500, "internal".to_owned()), "request {number}");
    }
}

#[test]
fn a_console_shows_why_a_full_disk_stalls_everything_else() {
    let (mut server, http) = stage(Durability::Always);
    for request in [put("tubes/a/jobs", b"1"), put("tubes/a/jobs", b"2")] {
        server.ask(http, &request);
        server.write();
        expect(&mut server, http, 201);
    }
    let wait = |server: &mut Stepped| {
        for _ in 0..5 {
            server.now = server.now + Span::from_secs(1);
            server.write();
        }
    };
    server.disk.room = 0;
    assert!(server.ask(http, &delete("jobs/2")).is_none());
    wait(&mut server);
    assert!(server.disk.refused_writes > 1 && server.response(http).is_none());
    let console = server.open_http();
    let state = server.ask(console, &get("server")).expect("it does not wait").json();
    assert_eq!(
        (&state["job_log"]["stalled"], &state["warnings"][0]["kind"]),
        (&json!(true), &json!("disk-full"))
    );
    for request in [get("tubes"), get("tubes/a"), get("jobs/1"), get("jobs/1/body")] {
        assert_eq!(server.ask(console, &request).expect("it does not wait").status, 200);
    }
    assert!(server.ask(console, &get("jobs/2")).is_none(), "the job may be deleted, or not");
    server.disk.room = 100;
    wait(&mut server);
    expect(&mut server, http, 200);
    expect(&mut server, console, 404);
}

#[test]
fn probes_are_answered_while_commands_wait_for_the_disk() {
    let (mut server, http) = stage(Durability::Never);
    let client = server.open();
    assert!(server.ask(http, &put("tubes/a/jobs", b"x")).is_none());
    // A server that stops serves no commands, and ends when the disk has written everything.
    server.server.handle(server.now, Event::Stop);
    server.send(client, b"list-tube-used\r\n");
    let probe = server.open_http();
    server.run();
    assert!(server.received(client).is_empty(), "the command waits");
    // The second one waits for its turn, but not for the disk.
    server.send(probe, &page("/healthz").repeat(3));
    server.run();
    for number in 0..3 {
        assert_eq!(server.response(probe).map(|response| response.status), Some(200), "probe {number}");
    }
}
