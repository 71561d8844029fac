//! Clients that violate the protocol, flood the server or never read. They get an error or wait, and no other client notices.

mod commands;
mod endless;
mod input;

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};

use beanring::values::limits::{INBOX_BYTES_PAUSE, RECEIVE_BUFFERS, RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX};
use beanring_testkit::client::{Client, put, serve};
use beanring_testkit::process::{ServerProcess, Transport};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, send, sendmsg};

const MIB: usize = 1024 * 1024;

fn start(flags: &[&str]) -> (ServerProcess, Client) {
    serve(Transport::of_suite(), flags)
}

/// Runs a job through its life in a separate tube, and checks every reply.
pub fn check_server(control: &mut Client) {
    control.expect("use honest\r\n", "USING honest");
    assert!(control.ask("watch honest\r\n").0.starts_with("WATCHING"));
    control.expect("ignore default\r\n", "WATCHING 1");
    let id = control.put("hi");
    assert_eq!(control.ask("reserve\r\n"), (format!("RESERVED {id} 2"), "hi\r\n".to_owned()));
    control.expect(&format!("delete {id}\r\n"), "DELETED");
}

#[test]
fn announced_bodies_that_never_arrive_take_no_memory() {
    let (server, mut control) = start(&["-z", "1073741824"]);
    check_server(&mut control);
    let before = server.resident_bytes();
    let silent: Vec<Stream> = (0..200)
        .map(|_| {
            let mut stream = server.connect();
            stream.send(b"put 0 0 60 1000000000\r\nx");
            stream
        })
        .collect();
    check_server(&mut control);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 8 * MIB, "200 announced gigabytes took {grown} bytes");
    drop(silent);
    check_server(&mut control);
}

/// The kernel keeps input that cannot be served yet, even if much of it arrives at once.
#[test]
fn waiting_clients_that_pipeline_take_little_memory() {
    const CLIENTS: usize = 64;
    let (server, mut control) = start(&[]);
    check_server(&mut control);
    let before = server.resident_bytes();
    let flood = b"list-tube-used\r\n".repeat(MIB / 16);
    let waiting: Vec<Stream> = (0..CLIENTS)
        .map(|_| {
            let mut stream = server.connect();
            stream.send(b"watch nothing\r\nignore default\r\nreserve\r\n");
            let mut rest = &flood[..];
            while let bytes @ 1.. = stream.send_now(rest) {
                rest = &rest[bytes..];
            }
            stream
        })
        .collect();
    check_server(&mut control);
    server.settle();
    let grown = server.resident_bytes().saturating_sub(before);
    let each = 2 * (INBOX_BYTES_PAUSE + usize::from(RECEIVE_BUFFERS_EACH) * RECEIVE_BYTES_MAX);
    // The flood makes the driver use its buffers too.
    let buffers = (usize::from(RECEIVE_BUFFERS) + 1) * RECEIVE_BYTES_MAX;
    assert!(grown < CLIENTS * each + buffers, "{CLIENTS} waiting clients took {grown} bytes");
    drop(waiting);
    check_server(&mut control);
}

#[test]
fn the_server_stops_receiving_from_a_client_that_never_reads() {
    let (server, mut control) = start(&[]);
    let body = "b".repeat(60_000);
    control.expect(&put(0, 0, &body), "INSERTED 1");
    check_server(&mut control);
    let before = server.resident_bytes();

    let mut greedy = server.connect();
    let peeks = b"peek 1\r\n".repeat(8192);
    let mut sent = 0;
    let mut progress = Instant::now();
    // Once the socket buffers on both sides are full, the server receives nothing for any time.
    while progress.elapsed() < Duration::from_millis(300) {
        match greedy.send_now(&peeks[sent % 8..]) {
            0 => thread::sleep(Duration::from_millis(1)),
            bytes => (sent, progress) = (sent + bytes, Instant::now()),
        }
        assert!(sent < 256 * MIB, "the server does not stop receiving");
    }
    check_server(&mut control);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 4 * MIB, "one client that does not read took {grown} bytes");

    // Once the client reads, it gets every reply.
    let mut greedy = Client::new(greedy);
    let reply = format!("FOUND 1 60000\r\n{body}\r\n");
    for _ in 0..(sent / 8).min(64 * MIB / reply.len()) {
        greedy.expect_bytes(&reply);
    }
    drop(greedy);
    check_server(&mut control);
}

/// A receive stops at urgent data. The server must receive the bytes behind it too.
#[test]
fn input_behind_urgent_data_is_served() {
    let (server, mut client) = start(&[]);
    server.signal(Signal::SIGSTOP);
    client.send("use a\r\n");
    assert_eq!(send(client.stream.as_fd().as_raw_fd(), b"X", MsgFlags::MSG_OOB), Ok(1));
    client.send("use b\r\n");
    server.signal(Signal::SIGCONT);
    client.expect_bytes("USING a\r\nUSING b\r\n");
}

/// A receive stops at a message with descriptors. The server must receive the bytes behind it too.
#[test]
fn input_behind_descriptors_is_served() {
    let (server, _) = serve(Transport::Unix, &[]);
    let Stream::Unix(stream) = server.connect() else { unreachable!("the server listens on a UNIX socket") };
    server.signal(Signal::SIGSTOP);
    let descriptors = [stream.as_raw_fd()];
    let fd = stream.as_raw_fd();
    let control = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(fd, &[IoSlice::new(b"us")], &control, MsgFlags::empty(), None)
        .expect("the message is sent");
    assert_eq!(send(fd, b"e b\r\n", MsgFlags::empty()), Ok(5));
    server.signal(Signal::SIGCONT);
    Client::new(Stream::Unix(stream)).expect_reply("USING b");
}

#[test]
fn random_bytes_do_not_disturb_other_clients() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (server, mut control) = start(&["-z", "100000"]);
        for _ in 0..20 {
            let mut noise = Vec::new();
            for _ in 0..random.below(40) {
                noise.extend_from_slice(noise_piece(&mut random).as_slice());
            }
            let mut stream = server.connect();
            stream.send(&noise);
            if random.below(2) == 0 {
                stream.receive(Duration::from_millis(1));
            }
            drop(stream);
            check_server(&mut control);
        }
    }
}

/// Returns a piece of the protocol, or random bytes.
fn noise_piece(random: &mut Random) -> Vec<u8> {
    const PIECES: [&[u8]; 16] = [
        b"\r\n",
        b"put 0 0 60 10\r\n0123456789\r\n",
        b"put 0 0 60 10\r\n0123456789abcdef",
        b"put 0 0 60 99999\r\n",
        b"put 99999999999999 0 0 0\r\n",
        b"reserve-with-timeout 0\r\n",
        b"reserve\r\n",
        b"delete 18446744073709551615\r\n",
        b"use \x00\r\n",
        b"watch noise\r\n",
        b"kick 4294967295\r\n",
        b"stats\r\n",
        b"pause-tube default 1\r\n",
        b"quit",
        b"\r",
        b"\n",
    ];
    match random.below(4) {
        0 => (0..random.below(600)).map(|_| random.next() as u8).collect(),
        _ => PIECES[random.below(PIECES.len())].to_vec(),
    }
}
