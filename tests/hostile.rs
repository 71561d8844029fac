//! Clients that break the rules, or just do not play along: they get the protocol's error, or wait, and nobody
//! else notices.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use beanring::limits::{INBOX_BYTES_PAUSE, RECEIVE_BUFFERS, RECEIVE_BUFFERS_EACH, RECEIVE_BYTES_MAX};
use beanring_testkit::pattern::show;
use beanring_testkit::peer::Received;
use beanring_testkit::process::{REPLY_PATIENCE, ServerProcess, Transport, program};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::stream::Stream;
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessage, MsgFlags, send, sendmsg};

const MIB: usize = 1024 * 1024;

fn start(flags: &[&str]) -> (ServerProcess, Stream) {
    let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
    ServerProcess::start(Path::new(program()), Transport::Tcp, &flags)
}

/// Sends a command and waits for a reply that ends like this.
fn ask(stream: &mut Stream, command: &[u8], end: &str) -> String {
    stream.send(command);
    let mut reply = Vec::new();
    while !reply.ends_with(end.as_bytes()) {
        match stream.receive(REPLY_PATIENCE) {
            Received::Bytes(bytes) => reply.extend_from_slice(&bytes),
            other => panic!("{other:?} after {}", show(&reply)),
        }
    }
    String::from_utf8_lossy(&reply).into_owned()
}

/// The full life of a job in a tube of its own, as a client would notice if something were wrong with the
/// server.
fn works(honest: &mut Stream) {
    assert_eq!(ask(honest, b"use honest\r\n", "\r\n"), "USING honest\r\n");
    assert!(ask(honest, b"watch honest\r\n", "\r\n").starts_with("WATCHING"));
    assert!(ask(honest, b"ignore default\r\n", "\r\n").starts_with("WATCHING 1"));
    assert!(ask(honest, b"put 0 0 60 2\r\nhi\r\n", "\r\n").starts_with("INSERTED"));
    let reserved = ask(honest, b"reserve\r\n", "hi\r\n");
    let id = reserved.split(' ').nth(1).expect("an id").to_owned();
    assert_eq!(ask(honest, format!("delete {id}\r\n").as_bytes(), "\r\n"), "DELETED\r\n");
}

#[test]
fn bodies_that_are_announced_and_never_sent_take_no_memory() {
    let (server, mut honest) = start(&["-z", "1073741824"]);
    works(&mut honest);
    let before = server.resident_bytes();
    let silent: Vec<Stream> = (0..200)
        .map(|_| {
            let mut stream = server.connect();
            stream.send(b"put 0 0 60 1000000000\r\nx");
            stream
        })
        .collect();
    works(&mut honest);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 8 * MIB, "200 announced gigabytes took {grown} bytes");
    drop(silent);
    works(&mut honest);
}

/// What cannot be served yet is left to the kernel, also where much of it comes at once.
#[test]
fn clients_that_wait_and_pipeline_take_little_memory() {
    const CLIENTS: usize = 64;
    let (server, mut honest) = start(&[]);
    works(&mut honest);
    let before = server.resident_bytes();
    let flood = b"list-tube-used\r\n".repeat(MIB / 16);
    let waiting: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let Stream::Tcp(mut stream) = server.connect() else { unreachable!("TCP was asked for") };
            stream.write_all(b"watch nothing\r\nignore default\r\nreserve\r\n").expect("it is heard");
            stream.set_nonblocking(true).expect("a socket option");
            let mut rest = &flood[..];
            while let Ok(bytes @ 1..) = stream.write(rest) {
                rest = &rest[bytes..];
            }
            stream
        })
        .collect();
    works(&mut honest);
    server.settle();
    let grown = server.resident_bytes().saturating_sub(before);
    let each = 2 * (INBOX_BYTES_PAUSE + RECEIVE_BUFFERS_EACH as usize * RECEIVE_BYTES_MAX);
    // The driver's buffers come to be used too.
    let buffers = (RECEIVE_BUFFERS as usize + 1) * RECEIVE_BYTES_MAX;
    assert!(grown < CLIENTS * each + buffers, "{CLIENTS} clients that wait took {grown} bytes");
    drop(waiting);
    works(&mut honest);
}

#[test]
fn a_client_that_never_reads_is_not_read_any_more() {
    let (server, mut honest) = start(&[]);
    let body = vec![b'b'; 60_000];
    let put = [b"put 0 0 60 60000\r\n", &body[..], b"\r\n"].concat();
    assert_eq!(ask(&mut honest, &put, "\r\n"), "INSERTED 1\r\n");
    works(&mut honest);
    let before = server.resident_bytes();

    let Stream::Tcp(mut greedy) = server.connect() else { unreachable!("TCP was asked for") };
    greedy.set_write_timeout(Some(Duration::from_millis(300))).expect("a socket option");
    let peeks = b"peek 1\r\n".repeat(8192);
    let mut asked = 0;
    // The kernel's buffers on both sides fill up, and then nobody takes any more.
    let refused = loop {
        match greedy.write(&peeks[asked % 8..]) {
            Ok(bytes) => asked += bytes,
            Err(error) => break error,
        }
        assert!(asked < 256 * MIB, "the server reads on and on");
    };
    assert!(matches!(refused.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{refused}");
    works(&mut honest);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 4 * MIB, "one client that does not read took {grown} bytes");

    // It changes its mind and gets every answer that it asked for.
    let expected = asked / 8 * "FOUND 1 60000\r\n\r\n".len() + asked / 8 * body.len();
    let sample = expected.min(64 * MIB);
    let mut received = 0;
    let mut buffer = vec![0; MIB];
    while received < sample {
        let bytes = greedy.read(&mut buffer).expect("answers");
        assert!(bytes > 0, "the server hung up after {received} of {expected} bytes");
        received += bytes;
    }
    drop(greedy);
    works(&mut honest);
}

/// A receive stops at urgent data, and what comes behind it is received all the same.
#[test]
fn urgent_data_hides_nothing() {
    let (server, _) = start(&[]);
    let Stream::Tcp(stream) = server.connect() else { unreachable!("TCP was asked for") };
    server.signal(Signal::SIGSTOP);
    for (bytes, flags) in
        [(&b"use a\r\n"[..], MsgFlags::empty()), (b"X", MsgFlags::MSG_OOB), (b"use b\r\n", MsgFlags::empty())]
    {
        assert_eq!(send(stream.as_raw_fd(), bytes, flags), Ok(bytes.len()));
    }
    server.signal(Signal::SIGCONT);
    assert_eq!(ask(&mut Stream::Tcp(stream), b"", "USING b\r\n"), "USING a\r\nUSING b\r\n");
}

/// A receive stops at a message with descriptors, and what comes behind it is received all the same.
#[test]
fn descriptors_in_messages_hide_nothing() {
    let program = Path::new(program());
    let (server, _) = ServerProcess::start(program, Transport::Unix, &[]);
    let Stream::Unix(stream) = server.connect() else { unreachable!("a UNIX socket was asked for") };
    server.signal(Signal::SIGSTOP);
    let descriptors = [stream.as_raw_fd()];
    let fd = stream.as_raw_fd();
    let control = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<()>(fd, &[IoSlice::new(b"us")], &control, MsgFlags::empty(), None).expect("it is sent");
    assert_eq!(send(fd, b"e b\r\n", MsgFlags::empty()), Ok(5));
    server.signal(Signal::SIGCONT);
    assert_eq!(ask(&mut Stream::Unix(stream), b"", "\r\n"), "USING b\r\n");
}

#[test]
fn random_bytes_hurt_nobody_else() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let (server, mut honest) = start(&["-z", "100000"]);
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
            works(&mut honest);
        }
    }
}

/// A piece of the protocol, or of nothing.
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
