//! Sessions with the API, in the files of `tests/http/sessions`. Its README has the grammar.

use beanring::server::Config;
use beanring_testkit::http_client::{HttpInMemory, JSON, OCTETS, Response, request, writable};
use beanring_testkit::in_memory::Cut;
use beanring_testkit::pattern::Pattern;
use beanring_testkit::peer::Peer;
use beanring_testkit::random::seeds;
use beanring_testkit::suite::{has_members, play_all};
use serde_json::Value;

/// The header fields of each response of the API.
const GUARDS: [&str; 3] = [
    "Cache-Control: no-store\r\n",
    "X-Content-Type-Options: nosniff\r\n",
    "Content-Security-Policy: default-src 'none'",
];

/// All ways to cut input and output.
pub fn cuts() -> Vec<Cut> {
    let random = seeds(4).map(|seed| Cut::Random { seed });
    [Cut::Whole, Cut::EveryByte].into_iter().chain(random).collect()
}

#[test]
fn sessions_are_as_written_however_their_input_is_cut() {
    play_all("http/sessions", 2, |session| {
        for cut in cuts() {
            let mut bench = HttpInMemory::new(config(session.server().unwrap_or_default()), cut);
            session.play(&format!("{cut:?}"), |line| step(&mut bench, line))?;
        }
        Ok(())
    });
}

fn config(server: &str) -> Config {
    let mut config = writable();
    for (key, value) in server.split_whitespace().filter_map(|word| word.split_once('=')) {
        let number: u32 = value.parse().expect("a number");
        match key {
            "max-tubes" => config.max_tubes = Some(number),
            "max-memory" => config.max_memory_bytes = Some(number.into()),
            "max-connections" => config.max_connections = Some(number),
            "max-job-size" => config.max_job_bytes = number,
            _ => panic!("{key} is no setting of a session"),
        }
    }
    config
}

fn literal(text: &str) -> Vec<u8> {
    Pattern::parse(text)
        .ok()
        .and_then(|pattern| pattern.literal())
        .unwrap_or_else(|| panic!("{text} is no text"))
}

/// Splits a line at the first of the marks that stand between what is sent and what must come.
fn split(line: &str) -> (&str, &str, &str) {
    let marks = [" => ", " =~ ", " has ", " lacks "];
    let first = marks.into_iter().filter_map(|mark| Some((line.find(mark)?, mark))).min();
    first.map_or((line, "", ""), |(at, mark)| (&line[..at], mark.trim(), &line[at + mark.len()..]))
}

fn step(bench: &mut HttpInMemory, line: &str) {
    if let Some((count, line)) =
        line.split_once(" x ").and_then(|(count, line)| Some((count.parse().ok()?, line)))
    {
        return (0..count).for_each(|_: usize| step(bench, line));
    }
    if let Some(seconds) = line.strip_prefix("wait ") {
        return bench.advance(seconds.parse().expect("a number"));
    }
    let (sent, mark, expected) = split(line);
    if let Some(command) = sent.strip_prefix("> ") {
        bench.server.send(bench.client, &[&literal(command)[..], b"\r\n"].concat());
        let reply = bench.server.reply(bench.client);
        match mark {
            "has" => assert!(reply.lines().any(|line| line == expected), "{reply}"),
            _ => assert_eq!(reply, String::from_utf8_lossy(&literal(expected)).into_owned() + "\r\n"),
        }
        return;
    }
    let mut words = sent.splitn(3, ' ');
    let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
    let body = words.next().filter(|body| !body.is_empty());
    let bytes = body.map(|body| body.strip_prefix("<< ").map_or(body.into(), literal));
    let kind = if body.is_some_and(|body| body.starts_with("<< ")) { OCTETS } else { JSON };
    let target = if path.starts_with('/') { path.to_owned() } else { format!("/api/v1/{path}") };
    let response = bench.ask(&request(method, &target, "", bytes.as_deref().map(|bytes| (kind, bytes))));
    if target.starts_with("/api") {
        assert!(GUARDS.iter().all(|guard| response.head.contains(guard)), "{response:?}");
        assert!(response.status != 405 || response.field("Allow").is_some(), "{response:?}");
    }
    expect(&response, mark, expected);
}

fn expect(response: &Response, mark: &str, expected: &str) {
    match mark {
        "has" => assert!(response.text().lines().any(|line| line == expected), "{}", response.text()),
        "lacks" => assert!(!response.text().contains(expected), "{}", response.text()),
        _ => {
            let (status, expected) = expected.split_once(' ').unwrap_or((expected, ""));
            assert_eq!(response.status.to_string(), status, "{response:?}");
            expect_body(response, mark == "=~", expected);
        }
    }
}

fn expect_body(response: &Response, is_part: bool, expected: &str) {
    if let Some(message) = expected.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        let found = response.message();
        assert!(if is_part { found.contains(message) } else { found == message }, "{found}");
    } else if expected.starts_with('{') {
        let (found, expected): (Value, Value) =
            (response.json(), serde_json::from_str(expected).expect("JSON"));
        assert!(if is_part { has_members(&found, &expected) } else { found == expected }, "{found}");
    } else if !expected.is_empty() {
        assert_eq!(response.error().1, expected, "{response:?}");
    }
}
