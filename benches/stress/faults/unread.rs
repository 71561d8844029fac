//! Clients that pipeline and never read: what they are owed must not pile up.

use std::time::Duration;

use super::Fault;
use crate::bounds::Term;
use crate::client::put;
use crate::crowd::{Crowd, Link, Rogue};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;

/// A body that is copied into each reply.
const BODY_BYTES: usize = 8000;

/// What each asks for: 64 KiB of commands, for 64 MiB of replies.
const PEEKS: usize = 8192;

/// What one that changes its mind reads.
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

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let count = field.options.scale(10_000, 2_000);
        let body = vec![b'b'; BODY_BYTES];
        let mut client = field.client()?;
        let ask = |error| Failure::Client("put", error);
        client.ask(b"use unread\r\n").map_err(ask)?;
        let put = client.ask(&put(0, 0, 60, &body)).map_err(ask)?;
        let id =
            put.number(1).ok_or_else(|| Failure::Answer(format!("a put was answered {:?}", put.line)))?;
        let reply = [format!("FOUND {id} {BODY_BYTES}\r\n").as_bytes(), &body, b"\r\n"].concat();
        let peeks = format!("peek {id}\r\n").into_bytes().repeat(PEEKS);

        field.terms.extend([
            Term::connections(count as u64),
            Term::inboxes(count as u64),
            Term::outputs(count as u64, reply.len() as u64),
            Term::jobs(1, BODY_BYTES as u64),
        ]);
        let mut crowd = Crowd::open(field.server.addr, count, Link::Narrow)?;
        stuff(field, &mut crowd, &peeks)?;
        field.await_connections(crowd.len() + 1)?;
        field.watch_standing(Duration::from_millis(field.options.scale(3000, 700)))?;
        let mut heard = vec![0; count];
        while field.rages()? {
            let which = field.random.below(count);
            if !reads_what_it_asked_for(&mut crowd.rogues[which], &mut heard[which], &reply) {
                field
                    .broken
                    .push("a client that reads late gets something else than it asked for".to_owned());
                break;
            }
            stuff_once(&mut crowd.rogues[which..=which], &peeks);
            field.pause(Duration::from_millis(2))?;
        }
        crowd.leave();
        client.ask(format!("delete {id}\r\n").as_bytes()).map_err(ask)?;
        Ok(())
    }
}

/// All of them send as much of this as the server takes.
pub fn stuff(field: &mut Field<'_>, crowd: &mut Crowd, bytes: &[u8]) -> Result<(), Failure> {
    let mut quiet = 0;
    while quiet < 3 && field.rages()? {
        quiet = if stuff_once(&mut crowd.rogues, bytes) == 0 { quiet + 1 } else { 0 };
        field.pause(Duration::from_millis(50))?;
    }
    Ok(())
}

fn stuff_once(rogues: &mut [Rogue], bytes: &[u8]) -> usize {
    let mut said = 0;
    for rogue in rogues {
        let before = (rogue.sent as usize).min(bytes.len());
        said += rogue.say(&bytes[before..]);
    }
    said
}

/// Reads some; it has to go on where it left off.
fn reads_what_it_asked_for(rogue: &mut Rogue, heard: &mut usize, reply: &[u8]) -> bool {
    if *heard > READ_BYTES_MAX {
        return true;
    }
    let mut bytes = Vec::new();
    rogue.hear(&mut bytes);
    let before = *heard % reply.len();
    *heard += bytes.len();
    let expected = reply.iter().cycle().skip(before);
    !rogue.is_closed && bytes.iter().zip(expected).all(|(byte, expected)| byte == expected)
}
