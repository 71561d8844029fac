//! Bodies of jobs in requests and responses, and connections that end in the middle of one.

use beanring::server::{Config, PeerKind};
use beanring_testkit::client;
use beanring_testkit::http_client::{HttpInMemory, OCTETS, api, delete, get, put, writable};
use beanring_testkit::in_memory::Cut;
use beanring_testkit::peer::Peer;
use beanring_testkit::random::{Random, seeds};
use serde_json::json;

/// A body of any bytes, among them line ends and commands.
fn body(random: &mut Random, bytes: usize) -> Vec<u8> {
    let mut body: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
    for at in (0..bytes.saturating_sub(12)).step_by(50) {
        body[at..at + 12].copy_from_slice(b"\r\ndelete 1\r\n");
    }
    body
}

#[test]
fn bodies_of_any_bytes_and_sizes_come_back_as_they_were() {
    for seed in seeds(6) {
        let mut random = Random::new(seed);
        let config = Config { max_job_bytes: 1 << 20, ..writable() };
        let mut bench = HttpInMemory::new(config, Cut::Random { seed });
        for (number, bytes) in
            [0, 1, 2, 255, 8191, 8193, 16_384, 65_535, 65_536, 300_000, 1 << 20].into_iter().enumerate()
        {
            let (id, body) = (number + 1, body(&mut random, bytes));
            assert_eq!(bench.ask(&put("tubes/a/jobs", &body)).json(), json!({"id": id}), "seed {seed}");
            let answer = bench.ask(&get(&format!("jobs/{id}/body")));
            assert!(answer.body == body, "seed {seed}: {bytes} bytes");
            assert_eq!(answer.field("Content-Type"), Some(OCTETS));
            assert_eq!(answer.field("X-Body-Bytes"), Some(&*bytes.to_string()));
            let name = format!("attachment; filename=\"job-{id}\"");
            assert_eq!(answer.field("Content-Disposition"), Some(&*name));
            for limit in [0, 1, bytes / 2, bytes, bytes + 1] {
                let answer = bench.ask(&get(&format!("jobs/{id}/body?limit={limit}")));
                assert!(answer.body == body[..bytes.min(limit)], "seed {seed}: {limit} of {bytes} bytes");
                assert_eq!(answer.field("X-Body-Bytes"), Some(&*bytes.to_string()));
            }
            let head = bench.ask(&api("HEAD", &format!("jobs/{id}/body"), "", None));
            assert_eq!(head.field("Content-Length"), Some(&*bytes.to_string()));
        }
        let too_large = vec![0; (1 << 20) + 1];
        assert_eq!(bench.ask(&put("tubes/a/jobs", &too_large)).error(), (413, "too-large".to_owned()));
        assert_eq!(bench.ask(&get("server")).json()["jobs"]["ready"], 11);
    }
}

#[test]
fn tube_names_of_every_legal_byte_can_be_addressed() {
    let mut bench = HttpInMemory::writable();
    let alphabet: Vec<u8> =
        (0..=255).filter(|byte: &u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(byte)).collect();
    let mut names: Vec<Vec<u8>> = alphabet.iter().map(|&byte| vec![b'x', byte]).collect();
    names.push(alphabet.clone());
    names.push(vec![b'z'; 200]);
    for name in names {
        let text = String::from_utf8(name.clone()).expect("the alphabet is ASCII");
        let encoded: String = name.iter().map(|byte| format!("%{byte:02X}")).collect();
        let id = bench.ask(&put(&format!("tubes/{encoded}/jobs"), b"x")).json()["id"].clone();
        assert_eq!(bench.ask(&get(&format!("jobs/{id}"))).json()["tube"], text);
        assert_eq!(bench.ask(&get(&format!("tubes/{encoded}"))).json()["name"], text);
        if !text.contains('/') {
            assert_eq!(bench.ask(&get(&format!("tubes/{text}"))).json()["name"], text);
        }
        let list = bench.ask(&get(&format!("tubes?filter={encoded}"))).json();
        assert_eq!((&list["matched"], &list["tubes"][0]["name"]), (&json!(1), &json!(text)));
        bench.ask(&delete(&format!("jobs/{id}")));
    }
}

#[test]
fn a_client_that_asks_first_is_told_to_send_its_body() {
    let mut bench = HttpInMemory::writable();
    let expect = "Expect: 100-continue\r\n";
    for (request, body) in [
        (api("POST", "tubes/a/jobs", expect, Some((OCTETS, &[b'x'; 9000]))), 9000),
        (api("POST", "undrain", expect, Some(("application/json", b"{}"))), 2),
    ] {
        let (head, body) = request.split_at(request.len() - body);
        assert_eq!(bench.ask(head).status, 100);
        bench.send(&body[..1]);
        assert!(bench.next(true).is_none(), "it is asked for once");
        assert!([200, 201].contains(&bench.ask(&body[1..]).status));
    }
    // It need not send the body of a refused request, so the connection ends.
    let request = api("POST", "tubes/a/jobs", expect, Some(("text/plain", &[b'x'; 9000])));
    let answer = bench.ask(&request[..request.len() - 9000]);
    assert_eq!((answer.status, answer.field("Connection")), (415, Some("close")));
    assert!(bench.is_closed());
}

#[test]
fn a_put_whose_client_leaves_is_forgotten() {
    let request = put("tubes/a/jobs", &[b'x'; 50_000]);
    for half in [false, true] {
        for sent in [request.len() - 50_000, request.len() - 30_000, request.len() - 1] {
            // The check of the server finds a body that nothing uses.
            let mut bench = HttpInMemory::writable();
            bench.send(&request[..sent]);
            assert_eq!(bench.stat("stats\r\n", "current-tubes"), "2");
            if half {
                bench.server.half_close(bench.http);
                assert!(bench.is_closed());
            } else {
                bench.server.close(bench.http);
            }
            assert_eq!(bench.stat("stats\r\n", "current-tubes"), "1");
            assert_eq!(bench.stat("stats\r\n", "current-jobs-ready"), "0");
            bench.server.close(bench.client);
            bench.server.check();
        }
    }
    // A complete request is carried out though its client sends nothing after it.
    let mut bench = HttpInMemory::writable();
    bench.send(&request);
    bench.server.half_close(bench.http);
    assert_eq!(bench.response(true).status, 201);
    assert!(bench.is_closed());
}

#[test]
fn a_slow_reader_of_a_large_body_takes_little_memory() {
    const BYTES: usize = 20 << 20;
    let mut bench = HttpInMemory::new(Config { max_job_bytes: BYTES as u32, ..writable() }, Cut::Whole);
    let body = body(&mut Random::new(7), BYTES);
    bench.ask(&put("tubes/a/jobs", &body));
    let before = bench.server.memory_bytes();
    bench.server.block(bench.http, true);
    bench.send(&get("jobs/1/body"));
    let grown = bench.server.memory_bytes() - before;
    assert!(grown < 250_000, "{grown} bytes");
    // The body stays as long as it is being sent.
    assert_eq!(bench.command("delete 1\r\n"), "DELETED\r\n");
    bench.server.block(bench.http, false);
    assert!(bench.response(true).body == body);
    assert!(bench.server.memory_bytes() < before - BYTES as u64 / 2, "the body is freed");

    // Nor does it stay when its reader leaves.
    bench.ask(&put("tubes/a/jobs", &body));
    bench.server.block(bench.http, true);
    bench.send(&get("jobs/2/body"));
    bench.command("delete 2\r\n");
    bench.server.close(bench.http);
    bench.server.close(bench.client);
    bench.server.check();
}

#[test]
fn a_connection_that_is_busy_with_a_body_may_make_room() {
    let mut bench = HttpInMemory::writable();
    let request = put("tubes/a/jobs", &[b'x'; 50_000]);
    bench.send(&request[..20_000]);
    // Later connections are more active.
    bench.advance(1);
    for _ in 0..70 {
        let conn = bench.server.open_http(PeerKind::Unix);
        bench.server.send(conn, &get("server"));
        bench.server.block(conn, true);
        bench.server.send(conn, &get("server"));
    }
    assert!(bench.is_closed());
    assert_eq!(bench.command(&client::put(0, 0, "a")), "INSERTED 2\r\n");
    assert_eq!(bench.stat("stats\r\n", "current-tubes"), "1");
}
