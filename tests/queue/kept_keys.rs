//! The share of `--max-memory` of kept idempotency keys: what is refused beyond it, that ordinary puts are not, and what
//! recovery drops.

use std::path::Path;

use beanring::io::driver::Driver;
use beanring_testkit::client::{Client, put, start};
use beanring_testkit::process::ServerProcess;
use beanring_testkit::scratch::Scratch;

const MIB: u64 = 1024 * 1024;
const FOREVER: u32 = u32::MAX;

fn put_once(key: &str, ttl: u32) -> String {
    format!("put 0 0 60 1 idp:{key}:{ttl}\r\nx\r\n")
}

/// Puts a job once and deletes it. Returns the id, if the job is accepted.
fn keep(client: &mut Client, key: &str, ttl: u32) -> Option<u64> {
    let answer = client.ask(&put_once(key, ttl)).0;
    if answer == "OUT_OF_MEMORY" {
        return None;
    }
    let id = answer.strip_prefix("INSERTED ").and_then(|id| id.parse().ok());
    let id = id.unwrap_or_else(|| panic!("{answer}"));
    client.expect(&format!("delete {id}\r\n"), "DELETED");
    Some(id)
}

/// Does the same with these keys, pipelined. Returns how many are kept.
fn keep_all(client: &mut Client, keys: impl Iterator<Item = String>, ttl: u32, first: u64) -> usize {
    let command = |(id, key): (u64, String)| put_once(&key, ttl) + &format!("delete {id}\r\n");
    let commands: Vec<String> = (first..).zip(keys).map(command).collect();
    client.send(&commands.concat());
    let mut kept = 0;
    for _ in 0..commands.len() {
        let answer = client.reply().expect("the server runs").0;
        assert!(answer.starts_with("INSERTED ") || answer == "OUT_OF_MEMORY", "{answer}");
        kept += usize::from(client.reply().expect("the server runs").0 == "DELETED");
    }
    kept
}

/// Keeps keys until the next one is refused. Returns their number.
fn keep_many(client: &mut Client, ttl: u32) -> usize {
    const BATCH: usize = 200;
    let mut kept = 0;
    for first in (0..300_000).step_by(BATCH) {
        let key = |number: usize| format!("{ttl}-{number}");
        let Some(id) = keep(client, &key(first), ttl) else { return kept };
        kept += 1 + keep_all(client, (first + 1..first + BATCH).map(key), ttl, id + 1);
    }
    panic!("the server keeps any number of keys");
}

fn ordinary_puts(client: &mut Client) -> usize {
    let command = put(0, 0, &"b".repeat(1000));
    (0..1000).filter(|_| client.ask(&command).0.starts_with("INSERTED ")).count()
}

fn stop(mut server: ServerProcess) {
    server.stop();
}

fn begin(dir: &Path, flags: &[&str]) -> (ServerProcess, Client) {
    start(dir, Driver::Epoll, &[&["-F"], flags].concat())
}

#[test]
fn kept_keys_leave_memory_to_ordinary_puts() {
    let scratch = Scratch::new("kept_keys");
    let limit = ["--max-memory", "48m"];
    {
        let (server, mut client) = begin(&scratch.0, &limit);
        let kept = keep_many(&mut client, FOREVER);
        assert!(kept > 20_000, "{kept} keys are kept");
        assert_eq!(ordinary_puts(&mut client), 1000, "{kept} keys are kept");
        assert!(client.stat("key-refusals") >= 1);
        assert_eq!(client.stat("memory-promised-keys"), 0);
        let bytes = client.stat("memory-kept-keys");
        assert!((5 * MIB..=6 * MIB).contains(&bytes), "long keys take half of the share: {bytes} bytes");
        // The other half is for keys of an hour at most.
        assert!(keep(&mut client, "long", 3601).is_none());
        assert!(keep(&mut client, "short", 3600).is_some());
        client.expect(&put_once(&format!("{FOREVER}-0"), 0), "INSERTED 1 DELETED");
        stop(server);
    }
    let (_server, mut client) = begin(&scratch.0, &limit);
    assert_eq!(ordinary_puts(&mut client), 1000);
    assert_eq!(client.stat("key-drops"), 0);
    client.expect(&put_once(&format!("{FOREVER}-0"), 0), "INSERTED 1 DELETED");
}

#[test]
fn a_promised_key_is_kept_and_its_place_is_free_with_the_key() {
    let scratch = Scratch::new("promised_keys");
    let (_server, mut client) = begin(&scratch.0, &["--max-memory", "16m"]);
    let mut ids = Vec::new();
    loop {
        let answer = client.ask(&put_once(&format!("{}", ids.len()), FOREVER)).0;
        let Some(id) = answer.strip_prefix("INSERTED ") else { break assert_eq!(answer, "OUT_OF_MEMORY") };
        ids.push(id.parse::<u64>().expect("an id"));
    }
    let promised = client.stat("memory-promised-keys");
    assert!((2 * MIB - 1000..=2 * MIB).contains(&promised), "half of the share is promised: {promised}");
    // A key without a time to live is not promised, and a repeat adds nothing.
    assert!(client.ask(&put_once("none", 0)).0.starts_with("INSERTED "));
    client.expect(&put_once("0", FOREVER), &format!("INSERTED {} READY", ids[0]));
    let repeats = format!("put-batch 2\r\n{}{}", put_once("0", FOREVER), put_once("1", FOREVER));
    client.expect(&repeats, "INSERTED_BATCH 2");
    for id in &ids[..2] {
        assert_eq!(client.line(), Some(format!("INSERTED {id} READY")));
    }
    client.expect(&format!("put-batch 2\r\n{}{}", put_once("0", 1), put_once("new", 4000)), "OUT_OF_MEMORY");
    assert_eq!(client.stat("key-refusals"), 2);
    // Deletions keep the promise and free nothing.
    ids.iter().for_each(|id| client.send(&format!("delete {id}\r\n")));
    ids.iter().for_each(|_| assert_eq!(client.line().as_deref(), Some("DELETED")));
    assert_eq!((client.stat("memory-kept-keys"), client.stat("memory-promised-keys")), (promised, 0));
    assert_eq!(client.stat("current-kept-keys"), ids.len() as u64);
    client.expect(&put_once("new", 4000), "OUT_OF_MEMORY");
    client.expect(&put_once("0", 0), &format!("INSERTED {} DELETED", ids[0]));
}

/// The log of a server without a limit.
#[test]
fn recovery_keeps_the_keys_that_are_forgotten_first() {
    const KEYS: usize = 40_000;
    const SOON: u32 = 100_000;
    let scratch = Scratch::new("recovered_keys");
    {
        let (server, mut client) = begin(&scratch.0, &[]);
        for batch in 0..KEYS / 400 {
            for (half, ttl) in [SOON, FOREVER].into_iter().enumerate() {
                let first = 1 + (batch * 400 + half * 200) as u64;
                let keys = (0..200).map(|number| format!("{ttl}-{}", batch * 200 + number));
                assert_eq!(keep_all(&mut client, keys, ttl, first), 200);
            }
        }
        stop(server);
    }
    let (server, mut client) = begin(&scratch.0, &["--max-memory", "24m"]);
    let (kept, drops) = (client.stat("current-kept-keys"), client.stat("key-drops"));
    assert_eq!(kept + drops, KEYS as u64);
    assert!((KEYS as u64 / 2..KEYS as u64 * 3 / 4).contains(&kept), "{kept} keys are kept");
    assert!(client.stat("memory-kept-keys") <= 6 * MIB);
    assert_eq!(ordinary_puts(&mut client), 1000);
    for number in [0, 7, KEYS / 2 - 1] {
        let answer = client.ask(&put_once(&format!("{SOON}-{number}"), 0)).0;
        assert!(answer.ends_with(" DELETED"), "a key that is forgotten first stays: {answer}");
    }
    let answer = client.ask(&put_once(&format!("{FOREVER}-{}", KEYS / 2 - 1), 0)).0;
    assert!(!answer.ends_with(" DELETED"), "the key that is forgotten last is dropped: {answer}");
    stop(server);
}

#[test]
fn flushed_keys_are_gone_and_stay_so_after_a_restart() {
    let scratch = Scratch::new("flushed_keys");
    let limit = ["--max-memory", "24m"];
    let kept = {
        let (server, mut client) = begin(&scratch.0, &limit);
        let kept = keep_many(&mut client, FOREVER);
        client.expect("use other\r\n", "USING other");
        let other = keep(&mut client, "other", 1000).expect("a short key has room");
        client.expect("flush-keys default\r\n", &format!("FLUSHED {kept}"));
        assert_eq!(client.stat("current-kept-keys"), 1);
        client.expect(&put_once("other", 0), &format!("INSERTED {other} DELETED"));
        client.expect("use default\r\n", "USING default");
        assert!(keep(&mut client, "again", FOREVER).is_some(), "there is room again");
        stop(server);
        kept
    };
    let (_server, mut client) = begin(&scratch.0, &limit);
    assert_eq!(client.stat("current-kept-keys"), 2, "{kept} keys were flushed");
    assert_eq!(client.ask(&put_once("again", 0)).0.split(' ').nth(2), Some("DELETED"));
    assert_eq!(client.ask(&put_once(&format!("{FOREVER}-0"), 0)).0.split(' ').nth(2), None);
}
