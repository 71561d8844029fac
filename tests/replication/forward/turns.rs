//! A client beside others that send without an end. What it waits for is the CPU time that the forwarding thread spends before it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use beanring_testkit::wait::Stop;

use super::end::TlsEnd;
use super::place::{Standby, settings};

/// Clients that send without an end. If each of them could pass on all that the kernel has, this would take some 50 ms.
const SENDERS: usize = 384;

/// Bytes of the others that are forwarded before the client is measured. As many follow while it is.
const BUSY_BYTES: u64 = 8 << 20;

/// What the thread may spend between a byte of the client and the reply: an iteration in each direction.
const MOST: Duration = Duration::from_millis(12);

/// Writes to all clients, and reads what arrives at the leader, until told to stop.
fn load(senders: &[(TcpStream, TlsEnd)], stops: &AtomicBool) {
    let bytes = vec![7; 64 * 1024];
    let is_open = |error: std::io::Error| error.kind() == ErrorKind::WouldBlock;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                for (client, _) in senders {
                    let written = (&*client).write(&bytes);
                    assert!(written.map_or_else(is_open, |count| count > 0), "the client is connected");
                }
            }
        });
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                for (_, end) in senders {
                    let read = end.discard();
                    assert!(read.map_or_else(is_open, |count| count > 0), "the leader is connected");
                }
            }
        });
    });
}

#[test]
fn a_client_does_not_wait_for_all_bytes_of_others() {
    let (standby, leader) = Standby::led(settings());
    let senders: Vec<(TcpStream, TlsEnd)> = (0..SENDERS).map(|_| standby.forwarded_to(&leader)).collect();
    for (client, end) in &senders {
        client.set_nonblocking(true).expect("a socket option");
        end.set_nonblocking(true).expect("a socket option");
    }
    let (mut client, mut end) = standby.forwarded_to(&leader);
    let stops = AtomicBool::new(false);
    let mut spent: Vec<Duration> = thread::scope(|scope| {
        let stop = Stop(&stops);
        scope.spawn(|| load(&senders, &stops));
        scope.spawn(move || {
            let mut byte = [0];
            while let Ok(1) = end.read(&mut byte) {
                end.write_all(&byte).expect("the client reads");
            }
        });
        let mut ask = || {
            client.write_all(b"x").expect("it is connected");
            client.read_exact(&mut [0]).expect("it is connected");
        };
        standby.wait_for("the load of the others", |counts| counts.to_leader.get() > BUSY_BYTES);
        let mut spent = Vec::new();
        while spent.len() < 60 || standby.counts().to_leader.get() < 2 * BUSY_BYTES {
            let before = standby.cpu_time();
            ask();
            spent.push(standby.cpu_time() - before);
        }
        drop((stop, client));
        spent
    });
    spent.sort();
    let median = spent[spent.len() / 2];
    println!("CPU time before the reply: median {median:?}, at most {:?}", spent[spent.len() - 1]);
    assert!(median <= MOST, "{median:?}");
}
