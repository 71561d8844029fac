//! Clients that shut down their sending side and stay: while they wait for a job, in the middle of a body, or with
//! replies that they do not read.

use std::time::{Duration, Instant};

use super::Fault;
use crate::bounds::MemoryItem;
use crate::client::put;
use crate::context::Context;
use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use crate::options::Options;

const BODY_BYTES: usize = 8000;
const PEEKS: usize = 256;

/// A reserve of a half-closed client times out at once. This is the machine's allowance for it.
const ANSWER_MAX: Duration = Duration::from_secs(20);

pub struct HalfClosed;

impl Fault for HalfClosed {
    fn name(&self) -> &'static str {
        "half-closed"
    }

    fn title(&self) -> &'static str {
        "4,000 clients that shut down their side while they wait, put, or do not read their replies"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let count = context.options.scale(4_000, 1_000);
        let mut client = context.client()?;
        let ask = |error| Failure::Client("put", error);
        client.request(b"use half\r\n").map_err(ask)?;
        let put = client.request(&put(0, 0, 60, &vec![b'b'; BODY_BYTES])).map_err(ask)?;
        let id =
            put.number(1).ok_or_else(|| Failure::Answer(format!("a put was answered {:?}", put.line)))?;
        context.memory_items.extend([
            MemoryItem::connections(count as u64),
            MemoryItem::inboxes(count as u64),
            MemoryItem::outputs(count as u64 / 4, BODY_BYTES as u64 + 100),
            MemoryItem::bodies(count as u64 / 4, 1000),
            MemoryItem::jobs(1, BODY_BYTES as u64),
        ]);
        let mut crowd = Crowd::open(context.server.addr, count, Link::Narrow)?;
        let peeks = format!("peek {id}\r\n").repeat(PEEKS).into_bytes();
        // Half of the waiting clients are in the queue before they shut down their side. The others do so with the
        // command.
        for (number, rogue) in crowd.rogues.iter_mut().enumerate() {
            begin(number, rogue, &peeks);
        }
        context.await_connections(crowd.len() / 2)?;
        crowd.rogues.iter_mut().for_each(Rogue::half_close);
        context.measure_idle_crowd(Duration::from_millis(context.options.scale(3000, 1000)))?;
        if !all_time_out(context, &mut crowd)? {
            context.broken.push("reserves of half-closed clients do not time out".to_owned());
        }
        // From now on clients come and go.
        while context.is_running()? {
            let which = context.random.below(count);
            let fresh = Rogue::connect(context.server.addr, Link::Narrow);
            let mut fresh = fresh.map_err(|errno| Failure::Client("connect", errno.into()))?;
            begin(which, &mut fresh, &peeks);
            fresh.half_close();
            std::mem::replace(&mut crowd.rogues[which], fresh).reset();
            context.pause(Duration::from_millis(2))?;
        }
        crowd.leave();
        client.request(format!("delete {id}\r\n").as_bytes()).map_err(ask)?;
        Ok(())
    }
}

fn begin(number: usize, rogue: &mut Rogue, peeks: &[u8]) {
    match number % 4 {
        0 => rogue.send(b"watch nothing\r\nignore default\r\nreserve\r\n"),
        1 => rogue.send(peeks),
        2 => rogue.send(&[&b"put 0 0 60 60000\r\n"[..], &[b'b'; 1000]].concat()),
        _ => {
            let waits: usize =
                rogue.send(b"watch nothing\r\nignore default\r\nreserve-with-timeout 1000\r\n");
            // More than the server keeps for a waiting client.
            waits + rogue.send(&b"list-tube-used\r\n".repeat(4000))
        }
    };
}

/// Returns whether all waiting clients receive TIMED_OUT and the end of the connection.
fn all_time_out(context: &mut Context<'_>, crowd: &mut Crowd) -> Result<bool, Failure> {
    let begin = Instant::now();
    let mut received: Vec<Vec<u8>> = vec![Vec::new(); crowd.rogues.len()];
    while begin.elapsed() < ANSWER_MAX {
        let mut open = 0;
        for (rogue, received) in crowd.rogues.iter_mut().zip(&mut received).step_by(4) {
            rogue.receive(received);
            open += usize::from(!rogue.is_closed);
        }
        if open == 0 {
            return Ok(received.iter().step_by(4).all(|received| received.ends_with(b"TIMED_OUT\r\n")));
        }
        context.pause(Duration::from_millis(20))?;
    }
    Ok(false)
}
