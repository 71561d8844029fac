//! A process of clients that send everything, until it is killed.

use std::io;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use beanring_testkit::random::Random;

pub const CONNECTIONS: usize = 16;

/// The largest body in bytes.
pub const BODY_BYTES_MAX: usize = 40_000;

/// The pause after each action.
const PAUSE: Duration = Duration::from_millis(1);

/// Acts until the process is killed.
pub fn live(addr: SocketAddr, seed: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed);
    let mut crowd = Crowd::open(addr, CONNECTIONS, Link::Wide)?;
    crowd.rogues.iter_mut().for_each(enter);
    let body = vec![b'v'; BODY_BYTES_MAX];
    let mut received = Vec::new();
    loop {
        let which = random.below(CONNECTIONS);
        if crowd.rogues[which].is_closed {
            let fresh = Rogue::connect(addr, Link::Wide);
            crowd.rogues[which] =
                fresh.map_err(|errno| Failure::Client("connect", io::Error::from(errno)))?;
            enter(&mut crowd.rogues[which]);
        }
        act(&mut crowd.rogues[which], &body, &mut received, &mut random);
        sleep(PAUSE);
    }
}

fn enter(rogue: &mut Rogue) {
    rogue.send(b"use killed\r\nwatch killed\r\nignore default\r\n");
}

fn act(rogue: &mut Rogue, body: &[u8], received: &mut Vec<u8>, random: &mut Random) {
    let bytes = [10, 300, 9_000, BODY_BYTES_MAX][random.below(4)];
    let delay = random.below(4) / 3;
    let put = [format!("put 0 {delay} 1 {bytes}\r\n").as_bytes(), &body[..bytes], b"\r\n"].concat();
    match random.below(16) {
        0..3 => rogue.send(&put),
        // A part of the put. The rest may follow later, or another command in its place.
        3 => rogue.send(&put[..random.below(put.len())]),
        4..7 => rogue.send(b"reserve-with-timeout 0\r\n"),
        7 => rogue.send(b"reserve\r\n"),
        8 => rogue.send(&b"peek-ready\r\n".repeat(1 + random.below(3000))),
        9 => rogue.send(b"kick 100\r\nstats\r\nlist-tubes\r\n"),
        10 => rogue.send(format!("watch tube-{}\r\nuse killed\r\n", random.below(1000)).as_bytes()),
        // Buries, releases, touches or deletes the job that it has reserved last.
        11..14 => match last_job(received) {
            Some(id) => {
                let words = ["bury {} 1", "release {} 0 0", "touch {}", "delete {}"][random.below(4)];
                rogue.send(format!("{}\r\n", words.replace("{}", &id)).as_bytes())
            }
            None => 0,
        },
        14 if random.below(20) == 0 => {
            rogue.half_close();
            0
        }
        15 if random.below(10) == 0 => rogue.send(b"quit\r\n"),
        _ => rogue.receive(received),
    };
    let keep = received.len().saturating_sub(BODY_BYTES_MAX + 100);
    received.drain(..keep);
}

/// Returns the id of the job that any of the clients has received last.
fn last_job(received: &[u8]) -> Option<String> {
    let word = b"RESERVED ";
    let at = received.windows(word.len()).rposition(|window| window == word)? + word.len();
    let digits = received[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.map(|&byte| char::from(byte)).collect())
}
