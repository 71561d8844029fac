//! Clients that wait for a job and pipeline megabytes behind that: what cannot be served yet must not pile up.

use std::time::Duration;

use super::Fault;
use super::unread::stuff;
use crate::bounds::Term;
use crate::client::put;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;

/// What each sends at most. The kernel holds what the server does not take.
const BYTES_MAX: usize = 2 * 1024 * 1024;

pub struct Stuffed;

impl Fault for Stuffed {
    fn name(&self) -> &'static str {
        "stuffed"
    }

    fn title(&self) -> &'static str {
        "256 clients that wait for a job and pipeline 2 MiB behind that"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(15.0, 3.0)
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let count = field.options.scale(256, 128);
        field.terms.extend([
            Term::connections(count as u64 + 1),
            Term::inboxes(count as u64),
            Term::outputs(count as u64, 100),
            Term::jobs(count as u64, 100),
        ]);
        let mut crowd = Crowd::open(field.server.addr, count, Link::Wide)?;
        let mut bytes = b"use stuffed\r\nwatch stuffed\r\nreserve\r\n".to_vec();
        while bytes.len() < BYTES_MAX {
            bytes.extend_from_slice(b"list-tube-used\r\n");
        }
        stuff(field, &mut crowd, &bytes)?;
        field.await_connections(crowd.len())?;
        field.watch_standing(Duration::from_millis(field.options.scale(3000, 500)))?;
        // Half of them get what they wait for, and then do not read what comes after it.
        let mut client = field.client()?;
        let ask = |error| Failure::Client("put", error);
        client.ask(b"use stuffed\r\n").map_err(ask)?;
        for _ in 0..count / 2 {
            client.ask(&put(0, 0, 600, b"something to do")).map_err(ask)?;
        }
        while field.rages()? {
            field.pause(Duration::from_millis(50))?;
        }
        crowd.leave();
        Ok(())
    }
}
