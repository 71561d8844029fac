//! What servers show of themselves over HTTP: the leader, its standby, and where the other one is.

use beanring_testkit::client::put;
use beanring_testkit::wait;
use serde_json::{Value, json};

use crate::node::Node;
use crate::site::{site, start};

fn server(node: &Node) -> Value {
    let (status, body) = node.get("/api/v1/server").expect("it answers");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).expect("it is JSON")
}

fn kinds(state: &Value) -> Vec<&str> {
    let warnings = state["warnings"].as_array().expect("a list");
    warnings.iter().map(|warning| warning["kind"].as_str().expect("a word")).collect()
}

fn message(node: &Node) -> String {
    let (status, body) = node.get("/api/v1/tubes").expect("it answers");
    assert_eq!(status, 503, "{body}");
    let error: Value = serde_json::from_str(&body).expect("it is JSON");
    error["message"].as_str().expect("a text").to_owned()
}

#[test]
fn a_standby_shows_where_the_leader_is_and_nothing_of_its_jobs() {
    let Some(site) = site("what a standby shows") else { return };
    let url = "https://queue.example/one";
    let (mut leader, mut client) = start(&site.url(), &["--advertise-http", url]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let state = server(&leader);
    assert_eq!((&state["jobs"]["ready"], &state["tubes"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&state["replication"]["role"], &state["replication"]["leader"]),
        (&json!("leader"), &Value::Null)
    );

    let (mut standby, mut forwarded) = start(&site.url(), &["--advertise-http", "127.0.0.1:9100"]);
    forwarded.expect("peek 1\r\n", "FOUND 1 3");
    let state = server(&standby);
    for absent in ["jobs", "tubes", "job_log"] {
        assert_eq!(state[absent], Value::Null, "{absent}");
    }
    let replication = &state["replication"];
    let place = json!({"address": leader.advertised, "http": format!("{url}/")});
    assert_eq!((&replication["role"], &replication["leader"]), (&json!("standby"), &place));
    assert!(replication["lag_seconds"].is_number(), "{state}");
    assert_eq!(kinds(&state), [""; 0]);
    assert_eq!(message(&standby), format!("this server is a standby; ask the leader, {url}/"));

    leader.kill();
    standby.serves("peek 1\r\n", "FOUND 1 3");
    let (other, _) = start(&site.url(), &[]);
    other.wait_for("this server is a standby of");
    assert_eq!(message(&other), "this server is a standby; ask the leader, http://127.0.0.1:9100/");
}

#[test]
fn a_standby_of_a_leader_without_advertise_http_says_how_to_name_its_console() {
    let Some(site) = site("a leader without --advertise-http") else { return };
    let (leader, mut client) = start(&site.url(), &[]);
    client.expect(&put(0, 0, "one"), "INSERTED 1");
    let (standby, _) = start(&site.url(), &[]);
    standby.wait_for("this server is a standby of");
    let place = json!({"address": leader.advertised, "http": null});
    assert_eq!(server(&standby)["replication"]["leader"], place);
    let expected = "this server is a standby; ask the leader, on the host localhost (with --advertise-http its URL is shown here)";
    assert_eq!(message(&standby), expected);
    // A link that is none is not passed on.
    site.primary.sql("update beanring_epoch set http = 'javascript:alert(1)'");
    wait::until("the row is read", || standby.metric("replication_lag_seconds").is_some_and(|lag| lag < 0.2));
    assert_eq!(server(&standby)["replication"]["leader"], place);
}

/// The database has no files of the size of a segment.
#[test]
fn the_size_of_a_log_in_the_database_is_that_of_its_records() {
    let Some(site) = site("the size of a job log") else { return };
    let (leader, mut client) = start(&site.url(), &["--no-forward"]);
    client.expect(&put(0, 0, &"x".repeat(50_000)), "INSERTED 1");
    client.expect(&put(0, 0, "x"), "INSERTED 2");
    client.expect("delete 2\r\n", "DELETED");
    let log = &server(&leader)["job_log"];
    let stored: u64 =
        site.primary.sql("select sum(octet_length(chunk)) from beanring_log").parse().expect("a number");
    let size = log["size_bytes"].as_u64().expect("a number");
    assert_eq!(client.stat("wal-disk-bytes"), size);
    assert!(size > 50_000 && size <= stored && stored < size + 2000, "{size} of {stored}");
    assert_eq!(log["segments"], 1);
}
