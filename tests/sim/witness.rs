//! In which order the server served what it was sent, as its trace tells. It is not trusted: the order has to be one
//! that clients could have asked for, and every answer has to follow from it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What the server did for the connection in this slot.
#[derive(Debug)]
pub struct Seen {
    pub slot: u32,
    pub what: What,
}

#[derive(PartialEq, Eq, Debug)]
pub enum What {
    /// It served this line.
    Line(String),
    /// It had all of a job's body, and decided this.
    Job { id: u64, answer: String },
    /// It let go of the client.
    Left,
}

thread_local! {
    static SEEN: RefCell<VecDeque<Seen>> = const { RefCell::new(VecDeque::new()) };
}

/// Listens from now on, on every thread.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Listener).expect("nobody else listens"));
    SEEN.with_borrow_mut(VecDeque::clear);
}

/// What was seen first of what was not taken yet.
pub fn next() -> Option<Seen> {
    SEEN.with_borrow_mut(VecDeque::pop_front)
}

struct Listener;

#[derive(Default)]
struct Fields {
    conn: Option<u64>,
    job: Option<u64>,
    message: String,
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() == Level::TRACE
            && metadata.target().starts_with("beanring::server")
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { conn, job, message } = fields;
        let what = match job {
            Some(id) => What::Job { id, answer: message },
            None if message == "leaves" => What::Left,
            None => What::Line(message),
        };
        let slot = conn.expect("it is said for whom") as u32;
        SEEN.with_borrow_mut(|seen| seen.push_back(Seen { slot, what }));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "conn" => self.conn = Some(value),
            "job" => self.job = Some(value),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            fmt::write(&mut self.message, format_args!("{value:?}")).expect("a String takes all");
        }
    }
}
