//! Metrics, health, readiness, the API and the console over HTTP.

mod api;
mod console;
mod documented;
mod live;
mod proxies;
mod sessions;
mod slots;
mod turns;
mod unread;

use std::thread;
use std::time::{Duration, Instant};

use beanring::io::driver::Driver;
use beanring::server::Config;
#[cfg(feature = "tls")]
use beanring_testkit::certificates::Certificates;
use beanring_testkit::client::put;
use beanring_testkit::config::config;
use beanring_testkit::driver;
use beanring_testkit::http_client::{HttpClient, Response, page};
use beanring_testkit::peer::Received;
use beanring_testkit::process::{Address, REPLY_PATIENCE};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::statistics;
use beanring_testkit::stepped::Stepped;
use live::Live;

// The bare core, step by step.

/// A server with a connection to its HTTP listener, and one of a client.
fn stepped(config: Config) -> (Stepped, usize, usize) {
    let mut server = Stepped::new(config);
    let (http, client) = (server.open_http(), server.open());
    (server, http, client)
}

/// Commands that put a job into each of the tubes `t0`, `t1` and so on. Names are filled up to this length.
fn tubes(count: usize, name_bytes: usize) -> String {
    let put = put(0, 0, "x");
    let tube = |tube: usize| format!("use {:.<name_bytes$}\r\n{put}", format!("t{tube}"));
    (0..count).map(tube).collect()
}

/// Asks for a page, and makes iterations until the response is complete. Asserts that a client is served after each. Returns the
/// response, the number of iterations, and the most bytes that were sent in one.
fn respond_beside_a_client(
    server: &mut Stepped,
    http: usize,
    client: usize,
    request: &[u8],
) -> (Response, usize, usize) {
    server.send(http, request);
    let (mut turns, mut largest, mut before) = (0, 0, 0);
    while server.is_busy() || turns == 0 {
        turns += 1;
        server.turn();
        largest = largest.max(server.received(http).len() - before);
        server.received(client).clear();
        server.send(client, b"use default\r\n");
        server.turn();
        assert_eq!(
            *server.received(client),
            *b"USING default\r\n",
            "clients are served while a response is made"
        );
        server.server.check();
        before = server.received(http).len();
    }
    (server.response(http).expect("the response is complete"), turns, largest)
}

#[test]
fn a_page_of_many_tubes_is_rendered_between_other_work() {
    const TUBES: usize = 3000;
    const METRICS_PER_TUBE: usize = 20;
    for piece_bytes in [usize::MAX, 1000, 17] {
        let (mut server, http, client) = stepped(Config { metrics_tubes: u32::MAX, ..config(65_535) });
        server.load(client, &tubes(TUBES - 1, 0));
        server.piece_bytes = piece_bytes;
        let (page, turns, largest) = respond_beside_a_client(&mut server, http, client, &page("/metrics"));
        assert!(turns > TUBES * METRICS_PER_TUBE / 1000 / 2, "{turns}");
        assert!(largest < 100_000, "{largest} bytes in one iteration");
        let page = page.text();
        let ready =
            page.lines().filter(|line| line.starts_with("beanring_tube_jobs{") && line.contains("\"ready\""));
        assert_eq!(ready.filter(|line| line.ends_with("\"} 1")).count(), TUBES - 1);
        assert_eq!(page.lines().filter(|line| line.contains("{tube=")).count(), TUBES * METRICS_PER_TUBE);
    }
}

#[test]
fn a_page_shows_each_metric_of_a_tube_once_while_tubes_come_and_go() {
    const TUBES: usize = 600;
    let (mut server, http, client) = stepped(config(65_535));
    server.load(client, &tubes(TUBES, 0));
    server.send(http, &page("/metrics"));
    let put = put(0, 0, "x");
    let mut round = 0;
    while server.is_busy() || round == 0 {
        server.turn();
        // A tube goes and comes back with another key, or with the key of another tube.
        let (first, second) = (round * 7 % TUBES, round * 11 % TUBES);
        for tube in [first, second] {
            server.send(client, format!("use t{tube}\r\npeek-ready\r\n").as_bytes());
            server.turn();
            let replies = String::from_utf8_lossy(server.received(client)).into_owned();
            if let Some((_, found)) = replies.rsplit_once("FOUND ") {
                let id = found.split(' ').next().expect("the reply has an id");
                server.send(client, format!("delete {id}\r\nuse default\r\n").as_bytes());
            }
            server.received(client).clear();
        }
        for tube in [second, first] {
            server.send(client, format!("use t{tube}\r\n{put}use default\r\n").as_bytes());
        }
        round += 1;
    }
    server.server.check();
    let page = server.response(http).expect("the page is complete");
    let mut names: Vec<&str> =
        page.text().lines().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    let all = names.len();
    assert!(all > 19 * TUBES / 2 && round > 5, "{all} lines, {round} rounds");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all, "no line is repeated");
}

#[test]
fn a_scraper_that_does_not_read_takes_little_memory() {
    let (mut server, http, client) = stepped(config(65_535));
    server.load(client, &tubes(3000, 0));
    server.piece_bytes = 0;
    let before = server.server.memory_bytes();
    let mut requests = 0;
    while !server.is_paused(http) && requests < 10_000 {
        requests += 1;
        server.send(http, &page("/metrics"));
        server.turn();
    }
    assert!((100..1000).contains(&requests), "further requests stay in the kernel after {requests}");
    let grown = server.server.memory_bytes() - before;
    assert!(grown < 400_000, "{grown} bytes");
}

#[test]
fn the_unsent_bytes_of_all_connections_are_bounded() {
    const CROWD: usize = 64;
    let mut server = Stepped::new(config(65_535));
    let client = server.open();
    server.load(client, &tubes(3000, 0));
    let before = server.server.memory_bytes();
    for _ in 0..CROWD {
        server.piece_bytes = 0;
        let http = server.open_http();
        server.send(http, &page("/metrics"));
        server.run();
        // The client reads a little, then stops.
        server.piece_bytes = 1;
        server.send_some(http);
        server.piece_bytes = 0;
        server.run();
    }
    let each = (server.server.memory_bytes() - before) / CROWD as u64;
    assert!(each < 144 * 1024, "{each} bytes each");
}

#[test]
fn one_step_looks_at_a_bounded_number_of_clients() {
    const WORKERS: usize = 300;
    const TUBES: usize = 100;
    let (mut server, http, _) = stepped(config(65_535));
    let watches: String = (0..TUBES).map(|tube| format!("watch t{tube}\r\n")).collect();
    for _ in 0..WORKERS {
        let worker = server.open();
        server.load(worker, &(watches.clone() + "reserve\r\n"));
    }
    server.send(http, &page("/metrics"));
    let (mut most, mut before) = (0, 0);
    loop {
        let new = String::from_utf8_lossy(&server.received(http)[before..]).into_owned();
        most = new.matches("beanring_tube_waiting_connections{").count().max(most);
        before += new.len();
        if before > 0 && !server.is_busy() {
            break;
        }
        server.turn();
    }
    let page = String::from_utf8_lossy(server.received(http)).into_owned();
    assert!(page.contains(&format!("beanring_tube_waiting_connections{{tube=\"t0\"}} {WORKERS}\n")));
    assert!(most * WORKERS < 10_000, "{most} tubes with {WORKERS} workers each in one iteration");
}

#[test]
fn a_page_shows_the_busiest_tubes() {
    for (limit, shown) in [(0, 0), (2, 2), (3, 3), (100, 6)] {
        let (mut server, http, client) = stepped(Config { metrics_tubes: limit, ..config(65_535) });
        let commands: String = (0..5)
            .map(|tube| {
                let job = if tube >= 3 { put(0, 0, "x") } else { String::new() };
                format!("watch t{tube}\r\nuse t{tube}\r\n{job}")
            })
            .collect();
        server.send(client, commands.as_bytes());
        server.send(http, &page("/metrics"));
        server.run();
        let page = server.response(http).expect("the page is complete");
        let page = page.text();
        let ready = page.lines().filter_map(|line| line.strip_prefix("beanring_tube_jobs{tube=\""));
        let ready: Vec<&str> = ready.filter(|line| line.contains("ready")).collect();
        assert_eq!(ready.len(), shown, "{page}");
        let are_busy = ready.iter().take(2).all(|line| line.starts_with("t3") || line.starts_with("t4"));
        assert_eq!(are_busy, limit < 6, "{ready:?}");
        for (name, value) in [
            ("tubes_not_shown", 6 - shown),
            ("received_bytes_total", commands.len()),
            ("sent_bytes_total", server.received(client).len()),
        ] {
            assert!(page.contains(&format!("\nbeanring_{name} {value}\n")), "{name} is not {value}: {page}");
        }
    }
}

// The live server.

/// Returns the value of a metric, if the page has it.
fn metric<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
}

#[test]
fn metrics_are_as_documented_and_have_the_values_of_stats() {
    for io in driver::allowed("HTTP") {
        let scratch = Scratch::new("http-metrics");
        // With -f 0, and once all segments are prepared, the job log does nothing between two replies.
        let log = scratch.dir("log").display().to_string();
        let flags = ["--metrics-prefix", "queue", "-b", &log, "-f", "0"].map(str::to_owned).to_vec();
        // A listener with TLS has metrics of its own.
        #[cfg(feature = "tls")]
        let flags = {
            let certificate = Certificates::new(&scratch.0).server.flags();
            let listener = "--tls-listen=127.0.0.1:0".to_owned();
            flags.into_iter().chain(certificate).chain([listener]).collect::<Vec<_>>()
        };
        let mut live = Live::start(io, &flags.iter().map(String::as_str).collect::<Vec<_>>());
        let started = Instant::now();
        let mut asked = 1.0;
        while live.client.stat("wal-disk-bytes") < 30 << 20 {
            assert!(started.elapsed() < REPLY_PATIENCE, "three segments are prepared");
            thread::sleep(Duration::from_millis(10));
            asked += 1.0;
        }
        live.client.expect("use mail\r\n", "USING mail");
        for id in 1..=5 {
            live.client.expect(&put(id, 0, "x"), &format!("INSERTED {id}"));
        }
        for (command, reply) in [
            ("watch mail\r\n", "WATCHING 2"),
            ("reserve\r\n", "RESERVED 1 1"),
            ("bury 1 0\r\n", "BURIED"),
            ("move-job 2 default\r\n", "MOVED"),
            ("delete 99\r\n", "NOT_FOUND"),
            ("tube-config mail max-jobs 4\r\n", "CONFIGURED"),
            (&put(6, 0, "x"), "OUT_OF_MEMORY"),
        ] {
            live.client.expect(command, reply);
        }
        let (_, stats) = live.client.ask("stats\r\n");
        let (_, tube) = live.client.ask("stats-tube mail\r\n");
        let page = live.connect().ask(&page("/metrics"));
        let page = page.text();
        documented::check(page);
        let compared = documented::compare_with_stats(page, &stats, &tube);
        assert!(compared > 60, "{compared}");
        let value = |name: &str| metric(page, name).unwrap_or_else(|| panic!("no {name} in {page}"));
        for (name, expected) in [
            ("queue_commands_total{command=\"put\"}", "6"),
            ("queue_commands_total{command=\"kick-job\"}", "0"),
            ("queue_errors_total{kind=\"not_found\"}", "1"),
            ("queue_errors_total{kind=\"bad_format\"}", "0"),
            ("queue_jobs_buried_total", "1"),
            ("queue_tube_rule_refusals_total{tube=\"mail\"}", "1"),
            ("queue_rule_refusals_total", "1"),
            ("queue_jobs_moved_total", "1"),
            ("queue_tube_jobs_buried_total{tube=\"mail\"}", "1"),
            ("queue_tube_queue_time_seconds_count{tube=\"mail\"}", "1"),
            ("queue_accept_paused", "0"),
            ("queue_wal_stalled", "0"),
        ] {
            assert_eq!(value(name), expected, "{name}");
        }
        let number = |name: &str| value(name).parse::<f64>().expect("a number");
        assert_eq!(number("queue_wal_sync_seconds_count"), statistics::number(&stats, "wal-syncs") as f64);
        // The last `stats` is not among those that were asked for while segments were prepared.
        let replies = number("queue_reply_time_seconds_count") - asked - 1.0;
        assert!((11.0..=14.0).contains(&replies), "{page}");
        let received = number("queue_received_bytes_total") - asked * 7.0;
        assert!((150.0..500.0).contains(&received), "{asked}: {page}");
        let sent = number("queue_sent_bytes_total");
        assert!((1000.0..9000.0 * asked).contains(&sent), "{asked}: {page}");
        assert!(number("process_resident_memory_bytes") > 1e6, "{page}");
        assert!(number("process_start_time_seconds") > 1.7e9, "{page}");
        assert!(page.contains(&format!("queue_build_info{{version=\"{}\",", env!("CARGO_PKG_VERSION"))));
    }
}

#[test]
fn a_recovery_is_measured() {
    let log = Scratch::new("http-recovery-log");
    let flags = ["-b", log.0.to_str().expect("a scratch directory has a simple name")];
    for (recovered, id) in [("0", 1), ("1", 2), ("2", 3)] {
        let mut live = Live::start(Driver::Epoll, &flags);
        let page = live.connect().ask(&page("/metrics"));
        assert_eq!(metric(page.text(), "beanring_wal_recovered_jobs"), Some(recovered));
        let seconds = metric(page.text(), "beanring_wal_recovery_seconds").and_then(|text| text.parse().ok());
        let seconds: f64 = seconds.expect("a number");
        assert!(seconds > 0.0 && seconds < 60.0, "{seconds}");
        live.client.expect(&put(id, 0, "x"), &format!("INSERTED {id}"));
        live.server.stop();
    }
}

#[test]
fn health_readiness_and_bad_requests() {
    for io in driver::allowed("HTTP") {
        let mut live = Live::start(io, &[]);
        let close = "Connection: close\r\n\r\n";
        let health = live.say(&format!("GET /healthz HTTP/1.1\r\nHost: a\r\n{close}"));
        assert!(health.starts_with("HTTP/1.1 200 OK\r\n") && health.ends_with("\r\n\r\nok\n"), "{health}");
        for (asked, status) in [
            ("GET /readyz?now HTTP/1.0\r\n\r\n".to_owned(), "200 OK"),
            (format!("HEAD /healthz HTTP/1.1\r\nHost: a\r\n{close}"), "200 OK"),
            (format!("HEAD /metrics HTTP/1.1\r\nHost: a\r\n{close}"), "200 OK"),
            (format!("GET /nothing HTTP/1.1\r\nHost: a\r\n{close}"), "404 Not Found"),
            (format!("DELETE /metrics HTTP/1.1\r\nHost: a\r\n{close}"), "405 Method Not Allowed"),
            (
                "GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(),
                "400 Bad Request",
            ),
            ("put 0 0 1 1\r\na\r\n".to_owned(), "400 Bad Request"),
            (format!("GET / HTTP/1.1\r\nX: {}\r\n", "x".repeat(9000)), "431 Request Header Fields Too Large"),
            (
                format!("GET / HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(65)),
                "431 Request Header Fields Too Large",
            ),
        ] {
            let answer = live.say(&asked);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{asked:?}: {answer}");
            if asked.starts_with("HEAD") {
                assert!(answer.ends_with("\r\n\r\n"), "{asked:?}: {answer}");
            }
        }
        for (asked, body) in [
            ("GET /nothing", "no such page; request /, /metrics, /healthz, /readyz or /api/v1/server\n"),
            ("POST /metrics", "this method is not supported; use GET or HEAD\n"),
        ] {
            let answer = live.say(&format!("{asked} HTTP/1.1\r\nHost: a\r\n{close}"));
            assert_eq!(answer.split_once("\r\n\r\n").map(|(_, body)| body), Some(body), "{asked}");
        }
        let plain = live.say("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(plain.contains("\r\n\r\n# HELP beanring_jobs_urgent ") && plain.ends_with("} 0\n"));

        // Several requests over one connection, the last one incomplete, then the end of input.
        let mut client = live.connect();
        client.stream.send(&[&page("/healthz")[..], &page("/metrics"), &page("/healthz"), b"GET"].concat());
        client.stream.half_close();
        let answers = client.rest();
        assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 3, "{answers}");
        assert!(answers.ends_with("\r\n\r\nok\n"), "{answers}");

        live.server.drain();
        while live.client.ask("put 0 0 1 1\r\na\r\n").0 != "DRAINING" {
            thread::sleep(Duration::from_millis(5));
        }
        let ready = live.say("GET /readyz HTTP/1.0\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.1 503 ") && ready.ends_with("draining\n"), "{ready}");
        assert!(live.say("GET /healthz HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
        live.server.stop();
        assert!(!live.socket().exists(), "the socket file is removed");
    }
}

#[test]
fn only_requests_for_allowed_hosts_are_answered() {
    let hostname =
        nix::unistd::gethostname().expect("the host has a name").into_string().expect("responses are text");
    for io in driver::allowed("HTTP") {
        let at = Address::fresh_tcp();
        let live = Live::at(at, io, &["--http-host", "queue.example,*.svc"]);
        let ask = |text: &str| {
            let mut client = live.connect();
            client.stream.send(text.as_bytes());
            client.stream.half_close();
            client.rest()
        };
        let known =
            ["127.0.0.1:9100", "10.9.8.7", "[::1]:9100", "localhost:1", "queue.example", "a.svc:9100"];
        for host in known.into_iter().chain([&*at.to_string(), &*hostname]) {
            let answer = ask(&format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert!(
                answer.starts_with("HTTP/1.1 200 ") && answer.contains("beanring_build_info"),
                "{host}: {answer}"
            );
        }
        for host in ["evil.example", "evil.example:9100", "svc", "queue.example.evil.example"] {
            for path in ["/metrics", "/healthz", "/readyz", "/"] {
                let answer = ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
                assert!(answer.starts_with("HTTP/1.1 421 Misdirected Request\r\n"), "{host}: {answer}");
                let (_, body) = answer.split_once("\r\n\r\n").expect("the response has a head");
                assert!(body.lines().count() == 1 && body.contains("--http-host"), "{host}: {body:?}");
            }
        }
        for (text, status) in [
            ("GET /healthz HTTP/1.0\r\n\r\n", "200"),
            ("GET /healthz HTTP/1.0\r\nHost: evil.example\r\n\r\n", "421"),
            ("GET /healthz HTTP/1.1\r\n\r\n", "400"),
            ("GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", "400"),
            ("GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "421"),
            ("GET http://localhost/healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", "200"),
        ] {
            assert!(ask(text).starts_with(&format!("HTTP/1.1 {status} ")), "{text:?}");
        }
        let both = ask(
            "GET /healthz HTTP/1.1\r\nHost: evil\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
        assert!(both.contains("421 Misdirected") && both.ends_with("\r\n\r\nok\n"), "{both}");

        // A browser cannot connect to a UNIX socket.
        let live = Live::start(io, &[]);
        let answer = live.say("GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(live.say("GET /healthz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }
}

#[test]
fn a_probe_gets_in_beside_a_crowd_of_scrapers_and_clients() {
    for io in driver::allowed("HTTP") {
        let live = Live::start(io, &["--max-connections", "1"]);
        // --max-connections allows one client, and it is connected.
        let page = live.say("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(page.contains("\nbeanring_accept_paused 1\n"), "{page}");
        let mut crowd: Vec<HttpClient> = (0..200).map(|_| live.connect()).collect();
        let health = live.say("GET /healthz HTTP/1.0\r\n\r\n");
        assert!(health.ends_with("ok\n"), "{health}");
        let is_closed = |client: &mut HttpClient| client.stream.receive_now() == Received::Closed;
        let closed = crowd.iter_mut().map(is_closed).filter(|&is_closed| is_closed).count();
        assert!((130..200).contains(&closed), "{closed} of 200 were closed");
    }
}
