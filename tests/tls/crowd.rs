//! An address that opens connections without an end, and clients elsewhere that take some time for their handshakes.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring_testkit::driver;
use beanring_testkit::peer::Received;
use beanring_testkit::process::REPLY_PATIENCE;
use beanring_testkit::stream::connect_from;
use beanring_testkit::tls_stream::{TlsStream, client};

use super::place::Place;
use super::proxy::header;

/// The time that each flight of a client needs, in both directions together.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// Handshakes that are tried, and how many of them must succeed.
const TRIED: usize = 43;
const SUCCEED: usize = 40;

/// Handshakes at the same time.
const AT_ONCE: usize = 11;

const CONNECTS_PER_SECOND: u32 = 3000;

/// Connections of the flood that its clients keep open.
const OPEN_MAX: usize = 1000;

const FLOOD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// What a connection begins with.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Begins {
    WithHandshake,
    WithHeader,
}

/// Opens connections that send nothing, until the end.
fn flood(place: &Place, is_over: &AtomicBool) -> u64 {
    let (begun, mut open, mut count) = (Instant::now(), VecDeque::new(), 0_u64);
    while !is_over.load(Ordering::Relaxed) {
        if begun.elapsed() * CONNECTS_PER_SECOND < Duration::from_secs(count) {
            thread::sleep(Duration::from_micros(200));
            continue;
        }
        count += 1;
        open.extend(connect_from(FLOOD, place.at));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
    }
    (count as f64 / begun.elapsed().as_secs_f64()) as u64
}

/// Shakes hands as a client far away does, and executes a command.
fn shake_hands(place: &Place, begins: Begins) -> io::Result<()> {
    let mut tcp = connect_from(FAR, place.at)?;
    tcp.set_read_timeout(Some(REPLY_PATIENCE))?;
    if begins == Begins::WithHeader {
        thread::sleep(2 * ROUND_TRIP);
        tcp.write_all(&header(1))?;
    }
    let mut tls = client(&place.trusting);
    while tls.is_handshaking() || tls.wants_write() {
        if tls.wants_write() {
            thread::sleep(ROUND_TRIP);
            tls.write_tls(&mut tcp)?;
            continue;
        }
        if tls.read_tls(&mut tcp)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        tls.process_new_packets().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
    }
    let mut stream = TlsStream { tcp, tls: tls.into() };
    stream.send(b"list-tube-used\r\n")?;
    match stream.receive(REPLY_PATIENCE)? {
        Received::Bytes(bytes) if bytes == b"USING default\r\n" => Ok(()),
        _ => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn attack(begins: Begins, ended: &str) {
    for io in driver::allowed("a crowd from one address") {
        let flags = ["--proxy-protocol", "tls-listen"];
        let place = Place::under(io, if begins == Begins::WithHeader { &flags } else { &[] });
        let (is_over, next, good) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        let rate = thread::scope(|scope| {
            let rate = scope.spawn(|| flood(&place, &is_over));
            // The flood has all places.
            place.server.client().await_stat(ended, |count| count > 0);
            let clients = [(); AT_ONCE].map(|()| {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < TRIED {
                        match shake_hands(&place, begins) {
                            Ok(()) => drop(good.fetch_add(1, Ordering::Relaxed)),
                            Err(error) => println!("{error}"),
                        }
                    }
                })
            });
            clients.into_iter().for_each(|client| client.join().expect("the client does not panic"));
            is_over.store(true, Ordering::Relaxed);
            rate.join().expect("the flood does not panic")
        });
        let good = good.into_inner();
        println!("{}: {good} of {TRIED} handshakes beside {rate} connects per second", io.name());
        assert!(good >= SUCCEED, "{}: {good} of {TRIED} handshakes", io.name());
    }
}

#[test]
fn clients_elsewhere_shake_hands_beside_a_flood_of_connections() {
    attack(Begins::WithHandshake, "tls-handshake-failures-surplus");
}

#[test]
fn headers_from_elsewhere_arrive_beside_a_flood_of_connections() {
    attack(Begins::WithHeader, "proxy-header-failures");
}
