//! `--json` has the names, units and types of the HTTP API, and its form of errors.

use std::collections::BTreeMap;

use beanring::io::driver::Driver;
use beanring_testkit::http_client::{HttpClient, get};
use beanring_testkit::process::{Address, Transport};
use beanring_testkit::scratch::Scratch;
use serde_json::{Value, json};

use super::fake::scripted;
use super::place::{Place, run_at};

/// What the API knows and the protocol does not report.
const OF_API_ALONE: [&str; 16] = [
    "may_write",
    "totals.reserves",
    "totals.deletes",
    "totals.releases",
    "totals.buries",
    "totals.kicks",
    "totals.moves",
    "memory.resident_bytes",
    "job_log.directory",
    "job_log.segments",
    "job_log.sync_mode",
    "job_log.sync_interval_ms",
    "job_log.sync_p99_seconds",
    "job_log.stalled",
    "warnings",
    "body_bytes",
];

/// The type of each value by its place. Places in `protocol` belong to the client alone.
fn types(value: &Value, place: &str, found: &mut BTreeMap<String, &'static str>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "array",
        Value::Object(object) => {
            for (name, inner) in object.iter().filter(|(name, _)| *name != "protocol") {
                let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                types(inner, &place, found);
            }
            return;
        }
    };
    found.insert(place.to_owned(), kind);
}

fn types_of(value: &Value) -> BTreeMap<String, &'static str> {
    let mut found = BTreeMap::new();
    types(value, "", &mut found);
    found
}

#[test]
fn the_client_has_the_names_units_and_types_of_the_api() {
    let (http, log) = (Address::fresh_tcp(), Scratch::new("vocabulary"));
    let (at, log) = (http.to_string(), log.0.display().to_string());
    let flags = ["--http", &at, "-b", &log, "--max-memory", "1g"];
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &flags);
    let api = |path: &str| HttpClient::tcp(http).ask(&get(path)).json();
    place.session(
        "
        put -q -t mail one --con k:1 --grp g --idp a:60
        put -q -t mail two --aft g
        put -q -t mail three --delay 1h
        tube-config mail max-jobs 7
        tube-config mail dead-letter rest
        ",
    );
    for (arguments, path) in [
        (&["stats"][..], "server"),
        (&["tube", "mail"], "tubes/mail"),
        (&["tube", "default"], "tubes/default"),
        (&["job", "1"], "jobs/1"),
        (&["job", "2"], "jobs/2"),
        (&["job", "3"], "jobs/3"),
        (&["group", "g"], "groups/g"),
        (&["jobs", "mail", "-s", "delayed"], "jobs/3"),
    ] {
        let (own, api) = (types_of(&place.json(arguments)), types_of(&api(path)));
        for (name, kind) in &own {
            assert_eq!(Some(kind), api.get(name), "{arguments:?}: {name}: {own:?} {api:?}");
        }
        // `list-jobs` reports what its table shows.
        let is_list = arguments[0] == "jobs";
        let missing: Vec<&String> = api
            .keys()
            .filter(|name| !own.contains_key(*name) && !OF_API_ALONE.contains(&name.as_str()))
            .filter(|name| {
                !is_list || ["priority", "age_seconds", "time_left_seconds"].contains(&name.as_str())
            })
            .collect();
        assert!(missing.is_empty(), "{arguments:?}: the client lacks {missing:?}");
    }
    let (own, job) = (place.json(&["job", "3"]), api("jobs/3"));
    let same = ["id", "tube", "state", "priority", "delay_seconds", "ttr_seconds", "reserves"];
    for name in same {
        assert_eq!(own[name], job[name], "{name}");
    }
    assert_eq!(place.json(&["tube", "mail"])["rules"], api("tubes/mail")["rules"]);
}

/// Runs the client with `--json`. Its last line on standard output is an error of the API's form with this word.
fn fails(place: &Place, arguments: &[&str], code: i32, word: &str) -> String {
    let result = place.run(&[arguments, &["--json"]].concat());
    let text = result.text();
    let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {result:?}"));
    assert_eq!((result.code, &last["error"]), (Some(code), &word.into()), "{arguments:?}: {result:?}");
    let message = last["message"].as_str().expect("a text").to_owned();
    // People read it on standard error.
    assert!(result.stderr.contains(&message), "{arguments:?}: {result:?}");
    message
}

#[test]
fn every_failure_is_an_error_of_the_apis_form() {
    let place = &Place::beanring(Driver::Epoll, Transport::Tcp, &["-z", "100"]);
    let long = "x".repeat(101);
    place.ok(&["put", "-q", "x"]);
    for (arguments, code, word) in [
        (&["job", "9"][..], 1, "not-found"),
        (&["tube", "none"], 1, "not-found"),
        (&["group", "none"], 1, "not-found"),
        (&["jobs", "none"], 1, "not-found"),
        (&["peek", "9"], 1, "not-found"),
        (&["delete", "9"], 1, "not-found"),
        (&["wait", "1", "--timeout", "0"], 5, "timed-out"),
        (&["wait", "9"], 6, "not-found"),
        (&["reserve", "-t", "none", "--timeout", "0"], 1, "timed-out"),
        (&["kick", "1"], 1, "conflict"),
        (&["pause", "none", "1"], 1, "not-found"),
        (&["put", &long], 1, "too-large"),
        (&["put", "--quiet", &long], 1, "too-large"),
        (&["put", "-f", "/nonexistent"], 2, "bad-request"),
        (&["move", "a", "a"], 2, "bad-request"),
        (&["move", "none", "a"], 1, "not-found"),
        (&["flush", "default"], 2, "bad-request"),
        (&["tube-config", "a", "rate", "x"], 2, "bad-request"),
        (&["touch", "9"], 1, "not-found"),
        (&["schedule", "show", "none"], 1, "not-found"),
        (&["schedule", "add", "a", "x", "-w", "every:0"], 2, "bad-request"),
        (&["schedule", "add", "a", &long, "-w", "every:9"], 1, "too-large"),
        (&["schedule"], 2, "bad-request"),
        (&["stats", "--addr", "127.0.0.1:1"], 3, "no-connection"),
        (&["stats", "--nonsense"], 2, "bad-request"),
        (&["job"], 2, "bad-request"),
        (&["job", "x"], 2, "bad-request"),
        (&["stats", "-p", "1"], 2, "bad-request"),
        (&["put", "x", "--ttr", "0.5"], 1, "bad-request"),
    ] {
        fails(place, arguments, code, word);
    }
    place.ok(&["drain"]);
    fails(place, &["put", "x"], 1, "draining");
    // The standard output of `work` belongs to its commands.
    let result = place.run(&["work", "--json", "--addr", "127.0.0.1:1", "--until-empty", "--", "true"]);
    let last: Value =
        serde_json::from_str(result.stderr.lines().last().unwrap_or_default()).expect("an object");
    assert_eq!((result.code, result.text().as_str(), &last["error"]), (Some(3), "", &"no-connection".into()));
    // Without --json nothing is on standard output.
    assert_eq!(place.run(&["job", "9"]).text(), "");
}

#[test]
fn a_wrong_variable_and_a_server_that_is_none() {
    let result = run_at("no address:0", &["stats", "--json"]);
    assert_eq!((result.code, &result.json()["error"]), (Some(2), &"bad-request".into()));
    let address = scripted(&["hello there\r\n"]);
    let result = run_at(&address, &["stats", "--json"]);
    let message = format!(
        "{address} replied \"hello there\", which is no reply of the beanstalk protocol; correct --addr"
    );
    assert_eq!(
        (result.code, result.json()),
        (Some(3), json!({"error": "no-connection", "message": message}))
    );
}
