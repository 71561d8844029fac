//! Clients that wait for a job and pipeline megabytes behind their reserve. Input that cannot be served yet must not
//! pile up.

use std::time::Duration;

use super::Fault;
use super::unread::stuff;
use crate::bounds::MemoryItem;
use crate::client::put;
use crate::context::Context;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::options::Options;

/// Bytes that each client sends at most. The kernel holds what the server does not receive.
const BYTES_MAX: usize = 2 * 1024 * 1024;

pub struct Stuffed;

impl Fault for Stuffed {
    fn name(&self) -> &'static str {
        "stuffed"
    }

    fn title(&self) -> &'static str {
        "256 clients that wait for a job and pipeline 2 MiB behind their reserve"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(15.0, 3.0)
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let count = context.options.scale(256, 128);
        context.memory_items.extend([
            MemoryItem::connections(count as u64 + 1),
            MemoryItem::inboxes(count as u64),
            MemoryItem::outputs(count as u64, 100),
            MemoryItem::jobs(count as u64, 100),
        ]);
        let mut crowd = Crowd::open(context.server.addr, count, Link::Wide)?;
        let mut bytes = b"use stuffed\r\nwatch stuffed\r\nreserve\r\n".to_vec();
        while bytes.len() < BYTES_MAX {
            bytes.extend_from_slice(b"list-tube-used\r\n");
        }
        stuff(context, &mut crowd, &bytes)?;
        context.await_connections(crowd.len())?;
        context.measure_idle_crowd(Duration::from_millis(context.options.scale(3000, 500)))?;
        // Half of the clients get a job, and then do not read the replies behind it.
        let mut client = context.client()?;
        let ask = |error| Failure::Client("put", error);
        client.request(b"use stuffed\r\n").map_err(ask)?;
        for _ in 0..count / 2 {
            client.request(&put(0, 0, 600, b"something to do")).map_err(ask)?;
        }
        while context.is_running()? {
            context.pause(Duration::from_millis(50))?;
        }
        crowd.leave();
        Ok(())
    }
}
