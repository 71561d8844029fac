//! Bodies of a gigabyte that are announced, begun, and never finished: they take what has come of them.

use std::path::Path;
use std::time::Duration;

use super::Fault;
use crate::bounds::Term;
use crate::crowd::{Crowd, Link};
use crate::failure::Failure;
use crate::field::Field;
use crate::options::Options;
use crate::server::Setup;

const COUNT: usize = 1000;

/// What of a body comes at first, and what is added now and then.
const BEGUN_BYTES_MAX: usize = 64 * 1024;
const ADDED_BYTES: usize = 4096;

pub struct Announced;

impl Fault for Announced {
    fn name(&self) -> &'static str {
        "announced"
    }

    fn title(&self) -> &'static str {
        "1,000 announced bodies of 1 GB, of which a little comes"
    }

    fn seconds(&self, options: &Options, _: bool) -> f64 {
        options.seconds(30.0, 3.0)
    }

    fn setup(&self, _: &Options, _: &Path) -> Result<Setup, String> {
        Ok(Setup { flags: vec!["-z".to_owned(), "1073741824".to_owned()], ..Setup::default() })
    }

    fn inject(&self, field: &mut Field<'_>) -> Result<(), Failure> {
        let mut crowd = Crowd::open(field.server.addr, COUNT, Link::Narrow)?;
        let some = vec![b'b'; BEGUN_BYTES_MAX];
        for rogue in &mut crowd.rogues {
            rogue.say(b"put 0 0 60 1000000000\r\n");
        }
        field.await_connections(crowd.len())?;
        for rogue in &mut crowd.rogues {
            rogue.say(&some[..field.random.below(BEGUN_BYTES_MAX)]);
        }
        field.watch_standing(Duration::from_millis(field.options.scale(3000, 500)))?;
        while field.rages()? {
            let which = field.random.below(COUNT);
            if field.random.below(20) == 0 {
                // It leaves, and another one begins.
                let mut fresh = Crowd::open(field.server.addr, 1, Link::Narrow)?;
                fresh.rogues[0].say(b"put 0 0 60 1000000000\r\n");
                let gone = std::mem::replace(&mut crowd.rogues[which], fresh.rogues.remove(0));
                gone.reset();
            } else {
                crowd.rogues[which].say(&some[..ADDED_BYTES]);
            }
            field.pause(Duration::from_millis(2))?;
        }
        // Those that left have given back what they had.
        let received: u64 = crowd.rogues.iter().map(|rogue| rogue.sent.next_multiple_of(4096)).sum();
        field.terms.extend([
            Term::connections(crowd.len()),
            Term::inboxes(crowd.len()),
            Term::bodies(crowd.len(), 0),
            Term::new("bytes of bodies that have come", 1, received),
        ]);
        crowd.leave();
        Ok(())
    }
}
