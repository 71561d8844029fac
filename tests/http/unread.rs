//! Output that is not read: it has a deadline, and bodies of ended jobs that only such output keeps take a part of the memory.

use beanring::server::{Config, Service};
use beanring::time::Span;
use beanring_testkit::config::config;
use beanring_testkit::http_client::get;
use beanring_testkit::stepped::Stepped;

const MIB: u64 = 1024 * 1024;
const BODY_BYTES: usize = 7_000_000;
const MAX_MEMORY: u64 = 64 * MIB;

/// How a client asks for the body of a job.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Door {
    Http,
    Client,
}

fn put() -> String {
    format!("put 0 0 600 {BODY_BYTES}\r\n{}\r\n", "b".repeat(BODY_BYTES))
}

/// Returns a server whose jobs have ended while their bodies were sent, a worker, and the connections that do not read them.
fn ended_jobs(door: Door, jobs: usize) -> (Stepped, usize, Vec<usize>) {
    let mut server = Stepped::new(Config { max_memory_bytes: Some(MAX_MEMORY), ..config(BODY_BYTES as u32) });
    let worker = server.open();
    for id in 1..=jobs {
        server.load(worker, &put());
        server.piece_bytes = 0;
        let reader = if door == Door::Http { server.open_http() } else { server.open() };
        let request = match door {
            Door::Http => get(&format!("jobs/{id}/body")),
            Door::Client => format!("peek {id}\r\n").into_bytes(),
        };
        server.send(reader, &request);
        server.run();
        server.piece_bytes = usize::MAX;
    }
    let readers: Vec<usize> = (0..jobs).map(|reader| worker + 1 + reader).collect();
    for id in 1..=jobs {
        assert_eq!(server.command(worker, &format!("delete {id}\r\n")), "DELETED\r\n");
    }
    (server, worker, readers)
}

fn can_put(server: &mut Stepped, worker: usize) -> bool {
    for piece in put().as_bytes().chunks(100_000) {
        server.send(worker, piece);
        server.run();
    }
    server.replies(worker).starts_with("INSERTED")
}

/// Lets time pass. Returns the connections that are closed then.
fn closed_within(server: &mut Stepped, span: Span) -> Vec<usize> {
    let until = server.now + span;
    let mut closed = server.run();
    while let Some(due) = server.server.next_deadline().filter(|&due| due <= until) {
        server.now = server.now.max(due);
        closed.extend(server.run());
    }
    server.now = until;
    server.server.check();
    closed
}

#[test]
fn bodies_of_ended_jobs_give_way_to_new_ones() {
    for door in [Door::Http, Door::Client] {
        let (mut server, worker, readers) = ended_jobs(door, 9);
        assert!(!can_put(&mut server, worker), "{door:?}: the memory is full");
        let closed = closed_within(&mut server, Span::from_secs(3));
        assert!(closed.len() >= 7 && closed.iter().all(|end| readers.contains(end)), "{door:?}: {closed:?}");
        assert!(can_put(&mut server, worker), "{door:?}: puts are accepted again");
        assert!(server.server.memory_bytes() <= MAX_MEMORY);
    }
}

#[test]
fn a_body_of_an_ended_job_that_is_not_read_has_a_minute() {
    for door in [Door::Http, Door::Client] {
        let (mut server, worker, readers) = ended_jobs(door, 1);
        assert!(closed_within(&mut server, Span::from_secs(29)).is_empty(), "{door:?}");
        assert_eq!(closed_within(&mut server, Span::from_secs(32)), readers, "{door:?}");
        server.close(worker);
        assert_eq!(server.server.next_deadline(), None, "nothing is left");
    }
}

#[test]
fn a_client_that_reads_slowly_gets_the_body_of_an_ended_job() {
    for door in [Door::Http, Door::Client] {
        let (mut server, _, readers) = ended_jobs(door, 1);
        server.piece_bytes = 70_000;
        while server.received(readers[0]).len() < BODY_BYTES {
            assert!(server.send_some(readers[0]), "{door:?}: the rest is there");
            assert!(closed_within(&mut server, Span::from_secs(25)).is_empty(), "{door:?}");
        }
    }
}

/// The jobs exist, so their bodies take no memory more. A stopped worker goes on later.
#[test]
fn replies_that_are_not_read_wait_for_a_client_and_not_for_an_http_client() {
    let mut server = Stepped::new(config(BODY_BYTES as u32));
    let [worker, reader, http] = [server.open(), server.open(), server.open_http()];
    server.load(worker, &put());
    server.piece_bytes = 0;
    server.send(reader, &b"peek 1\r\n".repeat(10));
    server.send(http, &get("jobs/1/body"));
    server.run();
    assert_eq!(closed_within(&mut server, Span::from_secs(3600)), [http]);
}

/// Requests are no progress of the output.
#[test]
fn an_http_client_that_sends_and_does_not_read_is_closed() {
    let mut server = Stepped::new(config(100));
    let http = server.open_http();
    server.piece_bytes = 0;
    for _ in 0..4 {
        server.send(http, &get("server"));
        if closed_within(&mut server, Span::from_secs(20)) == [http] {
            return;
        }
    }
    panic!("it is open after 80 seconds");
}
