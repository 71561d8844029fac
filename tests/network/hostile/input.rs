//! Input without an end, and input that comes byte by byte. Over TLS each of those bytes is a record of its own.

use beanring_testkit::client::Client;

use super::{MIB, check_server, start};

const CLIENTS: usize = 16;

/// The bytes that each client sends without an end of the line or body.
const FLOOD_BYTES: usize = 2 * MIB;

/// Has clients send `beginning`, many bytes and an end of the line. Each must get `reply`.
fn flood(beginning: &str, reply: &str) {
    let (server, mut control) = start(&[]);
    check_server(&mut control);
    let before = server.resident_bytes();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| client.send(beginning));
    let piece = "x".repeat(MIB / 4);
    for _ in 0..FLOOD_BYTES / piece.len() {
        clients.iter_mut().for_each(|client| client.send(&piece));
        check_server(&mut control);
    }
    let grown = server.resident_bytes().saturating_sub(before);
    // With the buffers of the driver.
    assert!(grown < 8 * MIB, "{CLIENTS} floods took {grown} bytes");
    for client in &mut clients {
        client.send("\r\nlist-tube-used\r\n");
        client.expect_bytes(format!("{reply}\r\nUSING default\r\n"));
    }
    check_server(&mut control);
}

#[test]
fn endless_lines_take_no_memory() {
    flood("put 0 0 60 ", "BAD_FORMAT");
}

#[test]
fn bodies_that_are_too_big_take_no_memory() {
    flood(&format!("put 0 0 60 {FLOOD_BYTES}\r\n"), "JOB_TOO_BIG");
}

#[test]
fn bytes_that_come_one_by_one_are_served() {
    let (server, mut control) = start(&[]);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.client()).collect();
    let talk = |number: usize| {
        format!(
            "use t{number}\r\nput 0 0 60 5\r\nhello\r\nwatch t{number}\r\nignore default\r\n\
             reserve\r\nput-batch 2\r\nput 0 0 60 1\r\na\r\nput 0 0 60 0\r\n\r\nunknown\r\nquit\r\n"
        )
    };
    let talks: Vec<String> = (0..CLIENTS).map(talk).collect();
    let longest = talks.iter().map(String::len).max().expect("there are clients");
    for at in 0..longest {
        for (client, talk) in clients.iter_mut().zip(&talks) {
            if let Some(byte) = talk.get(at..=at) {
                client.send(byte);
            }
        }
        if at.is_multiple_of(20) {
            check_server(&mut control);
        }
    }
    let expected =
        "USING INSERTED WATCHING WATCHING RESERVED hello INSERTED_BATCH INSERTED INSERTED UNKNOWN_COMMAND";
    for (number, client) in clients.iter_mut().enumerate() {
        for word in expected.split(' ') {
            let line = client.line().expect("the server replies");
            assert_eq!(line.split(' ').next(), Some(word), "client {number}");
        }
        client.expect_end();
    }
    check_server(&mut control);
}
