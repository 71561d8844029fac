//! Input without an end, and input that comes byte by byte. Over TLS each of those bytes is a record of its own.

use beanring_testkit::stream::Stream;

use super::{MIB, check_server, request, start, threads};
use beanring::values::limits::{RECEIVE_BYTES_MAX, THREAD_BUFFERS};

const CLIENTS: usize = 16;

/// The bytes that each client sends without an end of the line or body.
const FLOOD_BYTES: usize = 2 * MIB;

/// Has clients send `beginning` and many bytes, and then `end`. Each must get `reply`.
fn flood(beginning: &[u8], end: &[u8], reply: &str) {
    let (server, mut control) = start(&[]);
    check_server(&mut control);
    let before = server.resident_bytes();
    let mut clients: Vec<Stream> = (0..CLIENTS).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(beginning));
    let piece = vec![b'x'; MIB / 4];
    for _ in 0..FLOOD_BYTES / piece.len() {
        clients.iter_mut().for_each(|client| client.send(&piece));
        check_server(&mut control);
    }
    let grown = server.resident_bytes().saturating_sub(before);
    let buffers = (1 + threads()) * usize::from(THREAD_BUFFERS) * RECEIVE_BYTES_MAX;
    assert!(grown < 4 * MIB + buffers, "{CLIENTS} floods took {grown} bytes");
    for client in &mut clients {
        client.send(end);
        assert_eq!(
            request(client, b"list-tube-used\r\n", "USING default\r\n"),
            reply.to_owned() + "USING default\r\n"
        );
    }
    check_server(&mut control);
}

#[test]
fn endless_lines_take_no_memory() {
    flood(b"put 0 0 60 ", b"\r\n", "BAD_FORMAT\r\n");
}

#[test]
fn bodies_that_are_too_big_take_no_memory() {
    flood(format!("put 0 0 60 {FLOOD_BYTES}\r\n").as_bytes(), b"\r\n", "JOB_TOO_BIG\r\n");
}

#[test]
fn bytes_that_come_one_by_one_are_served() {
    let (server, mut control) = start(&[]);
    let mut clients: Vec<Stream> = (0..CLIENTS).map(|_| server.connect()).collect();
    let talk = |number: usize| {
        format!(
            "use t{number}\r\nput 0 0 60 5\r\nhello\r\nwatch t{number}\r\nignore default\r\n\
             reserve\r\nput-batch 2\r\nput 0 0 60 1\r\na\r\nput 0 0 60 0\r\n\r\nunknown\r\nquit\r\n"
        )
    };
    let talks: Vec<Vec<u8>> = (0..CLIENTS).map(|number| talk(number).into_bytes()).collect();
    let longest = talks.iter().map(Vec::len).max().expect("there are clients");
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
    for (number, client) in clients.iter_mut().enumerate() {
        let replies = request(client, b"", "UNKNOWN_COMMAND\r\n");
        let lines: Vec<String> =
            replies.split("\r\n").map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect();
        let expected = [
            "USING",
            "INSERTED",
            "WATCHING",
            "WATCHING",
            "RESERVED",
            "hello",
            "INSERTED_BATCH",
            "INSERTED",
            "INSERTED",
            "UNKNOWN_COMMAND",
            "",
        ];
        assert_eq!(lines, expected, "client {number}");
    }
    check_server(&mut control);
}
