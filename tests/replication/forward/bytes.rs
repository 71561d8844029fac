//! What passes through: every byte, unchanged and in order, and the ends.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use beanring::io::forward::{BUFFER_BYTES, RECEIVE_BYTES_MIN, Settings};
use beanring::time::Span;
use beanring_testkit::random::{Random, seeds};

use super::end::TlsEnd;
use super::place::{Standby, TLS_BYTES, end_output, end_output_of_leader, rest, settings};

const PATIENCE: Option<Duration> = Some(Duration::from_millis(300));

/// Writes bytes in random pieces.
fn write_in_pieces(stream: &mut impl Write, bytes: &[u8], mut random: Random) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = if random.chance(70) { random.below(300) } else { random.below(200_000) };
        let piece = (1 + piece).min(rest.len());
        stream.write_all(&rest[..piece]).expect("the other side reads");
        rest = &rest[piece..];
        if random.one_in(40) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads to the end in random pieces.
fn read_in_pieces(mut stream: impl Read, mut random: Random) -> Vec<u8> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 200_000]);
    loop {
        let room = 1 + if random.chance(50) { random.below(500) } else { random.below(piece.len() - 1) };
        match stream.read(&mut piece[..room]).expect("the connection does not break") {
            0 => return all,
            count => all.extend_from_slice(&piece[..count]),
        }
        if random.one_in(30) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn bytes_pass_unchanged_in_both_directions() {
    let (standby, leader) = Standby::led(settings());
    for seed in seeds(4) {
        println!("seed {seed}: BEANRING_TEST_SEED={seed} replays it");
        let mut random = Random::new(seed);
        let mut bytes = || (0..1_000_000 + random.below(1_000_000)).map(|_| random.next() as u8).collect();
        let (up, down): (Vec<u8>, Vec<u8>) = (bytes(), bytes());
        let (client, end) = standby.forwarded_to(&leader);
        thread::scope(|scope| {
            let mut to_leader = client.try_clone().expect("a descriptor is free");
            let mut to_client = end.try_clone().expect("a descriptor is free");
            let (up, down) = (&up, &down);
            scope.spawn(move || {
                write_in_pieces(&mut to_leader, up, Random::new(seed + 1));
                end_output(&to_leader);
            });
            scope.spawn(move || {
                write_in_pieces(&mut to_client, down, Random::new(seed + 2));
                end_output_of_leader(&to_client);
            });
            let at_leader = scope.spawn(|| read_in_pieces(end, Random::new(seed + 3)));
            let at_client = read_in_pieces(client, Random::new(seed + 4));
            assert!(at_client == *down, "seed {seed}: {} of {} bytes", at_client.len(), down.len());
            let at_leader = at_leader.join().expect("it reads to the end");
            assert!(at_leader == *up, "seed {seed}: {} of {} bytes", at_leader.len(), up.len());
        });
    }
    standby.wait_for("all ends", |counts| counts.open.get() == 0);
}

#[test]
fn five_hundred_clients_work_at_a_time() {
    let (standby, leader) = Standby::led(settings());
    let mut clients: Vec<TcpStream> = (0..500).map(|_| standby.client()).collect();
    let mut ends: Vec<TlsEnd> = clients.iter().map(|client| leader.end_of(client)).collect();
    let mut buffer = [0; 64];
    for round in 0..5 {
        let expect = |index: usize| format!("round {round} of {index}\r\n");
        for (index, client) in clients.iter_mut().enumerate() {
            client.write_all(expect(index).as_bytes()).expect("it is open");
        }
        let mut check = |stream: &mut dyn Read, index: usize| {
            let expected = expect(index);
            stream.read_exact(&mut buffer[..expected.len()]).expect("it is passed on");
            assert_eq!(&buffer[..expected.len()], expected.as_bytes());
            expected
        };
        for (index, end) in ends.iter_mut().enumerate() {
            let expected = check(end, index);
            end.write_all(expected.as_bytes()).expect("it is open");
        }
        clients.iter_mut().enumerate().for_each(|(index, client)| drop(check(client, index)));
    }
    assert_eq!((standby.counts().open.get(), standby.counts().total.get()), (500, 500));
    drop(clients);
    for end in &mut ends {
        assert_eq!(rest(end), b"");
    }
    drop(ends);
    standby.wait_for("all ends", |counts| counts.open.get() == 0);
    assert_eq!(standby.counts().to_leader.get(), standby.counts().to_clients.get());
}

/// Writes until the kernel takes no more for the time-out of the stream. Returns the number of bytes.
fn fill(stream: &mut impl Write) -> usize {
    let (piece, mut written) = ([7; 50_000], 0);
    loop {
        match stream.write(&piece) {
            Ok(count) => written += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return written;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_reader_that_is_slow_pauses_its_writer_and_costs_one_buffer() {
    let (standby, leader) = Standby::led(settings());
    let (mut client, mut end) = standby.forwarded_to(&leader);
    client.set_write_timeout(PATIENCE).expect("a socket option");
    end.set_write_timeout(PATIENCE).expect("a socket option");
    let (down, up) = (fill(&mut end), fill(&mut client));
    let memory = standby.counts().memory.get();
    let buffers = memory.saturating_sub(TLS_BYTES);
    assert!((1..=2 * BUFFER_BYTES as u64).contains(&buffers), "{:?}", standby.counts());
    // The rest of the last record may wait until the client reads.
    let ending = end.try_clone().expect("a descriptor is free");
    let ending = thread::spawn(move || end_output_of_leader(&ending));
    end_output(&client);
    assert_eq!(rest(&mut client).len(), down);
    assert_eq!(rest(&mut end).len(), up);
    ending.join().expect("it is sent");
    standby.wait_for("the end", |counts| counts.open.get() == 0);
}

#[test]
fn an_end_is_passed_on_and_the_other_direction_stays() {
    let (standby, leader) = Standby::led(settings());
    let (mut client, mut end) = standby.forwarded_to(&leader);
    client.write_all(b"last words").expect("it is open");
    end_output(&client);
    assert_eq!(rest(&mut end), b"last words");
    thread::sleep(Duration::from_millis(50));
    end.write_all(b"a reply").expect("it is open");
    drop(end);
    assert_eq!(rest(&mut client), b"a reply");
    standby.wait_for("the end", |counts| counts.open.get() == 0);

    // A reset of one side closes the other.
    let (client, mut end) = standby.forwarded_to(&leader);
    end.write_all(b"unread").expect("it is open");
    thread::sleep(Duration::from_millis(50));
    drop(client);
    assert_eq!(rest(&mut end), b"");
    standby.wait_for("the end", |counts| counts.open.get() == 0);
}

#[test]
fn a_client_that_does_not_end_after_its_leader_is_closed() {
    let (standby, leader) = Standby::led(settings());
    let mut client = standby.client();
    drop(leader.end_of(&client));
    assert_eq!(rest(&mut client), b"");
    assert_eq!(standby.counts().open.get(), 1);
    standby.wait_for("the end", |counts| counts.open.get() == 0);
}

/// `TCP_USER_TIMEOUT` on a forwarded connection would close it.
#[test]
fn a_leader_that_does_not_read_is_not_taken_for_a_dead_one() {
    let settings = Settings { gone_after: Span::from_secs(1), ..settings() };
    let (standby, leader) = Standby::led(settings);
    let (mut client, mut end) = standby.forwarded_to(&leader);
    client.set_write_timeout(PATIENCE).expect("a socket option");
    let written = fill(&mut client);
    // The kernel would close it at a probe of the window, 1.4 s after the first.
    thread::sleep(Duration::from_millis(2500));
    end_output(&client);
    assert_eq!(rest(&mut end).len(), written);
    assert_eq!(standby.counts().closed_by_silence.get(), 0);
}

/// Each of them could keep a whole buffer.
#[test]
fn a_crowd_that_does_not_read_takes_little_more_than_its_share_of_the_memory() {
    const CROWD: usize = 300;
    const SHARE: usize = 2 * 1024 * 1024;
    let (standby, leader) = Standby::led(Settings { memory_max: SHARE, ..settings() });
    let mut crowd: Vec<_> = (0..CROWD).map(|_| standby.forwarded_to(&leader)).collect();
    for _ in 0..4 {
        for (_, end) in &mut crowd {
            end.set_nonblocking(true).expect("a socket option");
            // Until the kernel takes no more.
            while end.write(&[b'x'; 64 * 1024]).is_ok() {}
        }
    }
    standby.wait_for("bytes that are not taken", |counts| counts.memory.get() > SHARE as u64 / 2);
    thread::sleep(Duration::from_millis(200));
    let taken = standby.counts().memory.get() as usize;
    println!("{CROWD} clients that do not read take {taken} bytes");
    // The leader sends records of up to 16 KiB, each of which comes as a whole.
    assert!(taken <= SHARE + CROWD * (16 * 1024 + RECEIVE_BYTES_MIN) + 16 * BUFFER_BYTES, "{taken} bytes");
}
