//! Clients that pipeline and never read. Replies must not pile up.

use std::time::Duration;

use super::Fault;
use crate::bounds::MemoryItem;
use crate::client::put;
use crate::context::Context;
use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use crate::options::Options;

/// Size of a body, which is copied into each reply.
const BODY_BYTES: usize = 8000;

/// Each client's requests: 64 KiB of commands, with 64 MiB of replies.
const PEEKS: usize = 8192;

/// Bytes that a client reads after all.
const READ_BYTES_MAX: usize = 1024 * 1024;

pub struct Unread;

impl Fault for Unread {
    fn name(&self) -> &'static str {
        "unread"
    }

    fn title(&self) -> &'static str {
        "10,000 clients that pipeline 8,192 commands each and never read"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let count = context.options.scale(10_000, 2_000);
        let body = vec![b'b'; BODY_BYTES];
        let mut client = context.client()?;
        let ask = |error| Failure::Client("put", error);
        client.request(b"use unread\r\n").map_err(ask)?;
        let put = client.request(&put(0, 0, 60, &body)).map_err(ask)?;
        let id =
            put.number(1).ok_or_else(|| Failure::Answer(format!("a put was answered {:?}", put.line)))?;
        let reply = [format!("FOUND {id} {BODY_BYTES}\r\n").as_bytes(), &body, b"\r\n"].concat();
        let peeks = format!("peek {id}\r\n").into_bytes().repeat(PEEKS);

        context.memory_items.extend([
            MemoryItem::connections(count as u64),
            MemoryItem::inboxes(count as u64),
            MemoryItem::outputs(count as u64, reply.len() as u64),
            MemoryItem::jobs(1, BODY_BYTES as u64),
        ]);
        let mut crowd = Crowd::open(context.server.addr, count, Link::Narrow)?;
        stuff(context, &mut crowd, &peeks)?;
        context.await_connections(crowd.len() + 1)?;
        context.measure_idle_crowd(Duration::from_millis(context.options.scale(3000, 700)))?;
        let mut received = vec![0; count];
        while context.is_running()? {
            let which = context.random.below(count);
            if !reads_its_replies(&mut crowd.rogues[which], &mut received[which], &reply) {
                context
                    .broken
                    .push("a client that reads late receives other replies than it requested".to_owned());
                break;
            }
            stuff_once(&mut crowd.rogues[which..=which], &peeks);
            context.pause(Duration::from_millis(2))?;
        }
        crowd.leave();
        client.request(format!("delete {id}\r\n").as_bytes()).map_err(ask)?;
        Ok(())
    }
}

/// All clients send as much as the server takes.
pub fn stuff(context: &mut Context<'_>, crowd: &mut Crowd, bytes: &[u8]) -> Result<(), Failure> {
    let mut quiet = 0;
    while quiet < 3 && context.is_running()? {
        quiet = if stuff_once(&mut crowd.rogues, bytes) == 0 { quiet + 1 } else { 0 };
        context.pause(Duration::from_millis(50))?;
    }
    Ok(())
}

fn stuff_once(rogues: &mut [Rogue], bytes: &[u8]) -> usize {
    let mut sent = 0;
    for rogue in rogues {
        let before = (rogue.sent as usize).min(bytes.len());
        sent += rogue.send(&bytes[before..]);
    }
    sent
}

/// Reads some replies, which must continue where the last read ended.
fn reads_its_replies(rogue: &mut Rogue, received: &mut usize, reply: &[u8]) -> bool {
    if *received > READ_BYTES_MAX {
        return true;
    }
    let mut bytes = Vec::new();
    rogue.receive(&mut bytes);
    let before = *received % reply.len();
    *received += bytes.len();
    let expected = reply.iter().cycle().skip(before);
    !rogue.is_closed && bytes.iter().zip(expected).all(|(byte, expected)| byte == expected)
}
