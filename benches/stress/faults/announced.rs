//! Bodies of a gigabyte that are announced, begun and never finished. They take as much memory as has arrived of them.

use std::path::Path;
use std::time::Duration;

use super::Fault;
use crate::bounds::MemoryItem;
use crate::context::Context;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::options::Options;
use crate::server::Setup;

const COUNT: usize = 1000;

/// Bytes of a body that arrive first, and that are added from time to time.
const BEGUN_BYTES_MAX: usize = 64 * 1024;
const ADDED_BYTES: usize = 4096;

pub struct Announced;

impl Fault for Announced {
    fn name(&self) -> &'static str {
        "announced"
    }

    fn title(&self) -> &'static str {
        "1,000 announced bodies of 1 GB, of which little arrives"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn setup(&self, _: &Options, _: &Path) -> Result<Setup, String> {
        Ok(Setup { flags: vec!["-z".to_owned(), "1073741824".to_owned()], ..Setup::default() })
    }

    fn inject(&self, context: &mut Context<'_>) -> Result<(), Failure> {
        let mut crowd = Crowd::open(context.server.addr, COUNT, Link::Narrow)?;
        let some = vec![b'b'; BEGUN_BYTES_MAX];
        for rogue in &mut crowd.rogues {
            rogue.send(b"put 0 0 60 1000000000\r\n");
        }
        context.await_connections(crowd.len())?;
        for rogue in &mut crowd.rogues {
            rogue.send(&some[..context.random.below(BEGUN_BYTES_MAX)]);
        }
        context.measure_idle_crowd(Duration::from_millis(context.options.scale(3000, 500)))?;
        while context.is_running()? {
            let which = context.random.below(COUNT);
            if context.random.below(20) == 0 {
                // The client disconnects, and another one begins.
                let mut fresh = Crowd::open(context.server.addr, 1, Link::Narrow)?;
                fresh.rogues[0].send(b"put 0 0 60 1000000000\r\n");
                let gone = std::mem::replace(&mut crowd.rogues[which], fresh.rogues.remove(0));
                gone.reset();
            } else {
                crowd.rogues[which].send(&some[..ADDED_BYTES]);
            }
            context.pause(Duration::from_millis(2))?;
        }
        // Disconnected clients have released their memory.
        let received: u64 = crowd.rogues.iter().map(|rogue| rogue.sent.next_multiple_of(4096)).sum();
        context.memory_items.extend([
            MemoryItem::connections(crowd.len()),
            MemoryItem::inboxes(crowd.len()),
            MemoryItem::bodies(crowd.len(), 0),
            MemoryItem::new("received bytes of bodies", 1, received),
        ]);
        crowd.leave();
        Ok(())
    }
}
