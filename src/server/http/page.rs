//! Responses that are rendered in pieces between other work, no faster than they are sent.

use std::sync::Arc;

use super::json::server;
use super::object::Object;
use super::prometheus::MetricsPage;
use super::request::Version;
use super::response::JSON_TYPE;
use super::tubes::TubeList;
use crate::server::{Core, User};
use crate::time::Time;
use crate::values::budget::Cost;

/// The format of metrics (prometheus.io, "Exposition formats", 0.0.4).
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A body of unknown length.
pub(super) enum Page {
    Metrics(MetricsPage),
    /// For this user, with `--auth`.
    Server(Option<Arc<User>>),
    Tubes(Box<TubeList>),
}

/// A response whose body is a page.
pub(super) struct PageResponse {
    pub page: Page,
    pub version: Version,
}

/// A piece of a page while it is rendered.
pub(super) struct Piece<'a> {
    pub out: &'a mut Vec<u8>,
    /// It ends when the output has reached this.
    pub output_bytes_max: usize,
    /// The tubes that it has visited, in elementary steps. Its bytes come in addition.
    pub steps: usize,
}

impl Page {
    pub const fn content_type(&self) -> &'static str {
        match self {
            Self::Metrics(_) => METRICS_TYPE,
            Self::Server(_) | Self::Tubes(_) => JSON_TYPE,
        }
    }

    /// The memory that it needs, with the output that is not sent, if it may be refused for lack of memory.
    pub fn memory_bytes_max(&self) -> Option<usize> {
        if let Self::Tubes(list) = self { Some(list.memory_bytes_max()) } else { None }
    }

    /// Renders a bounded piece. Returns true if it was the last.
    fn step(&mut self, core: &mut Core, now: Time, piece: &mut Piece<'_>) -> bool {
        match self {
            Self::Metrics(page) => page.step(core, now, piece),
            Self::Tubes(list) => list.step(core, now, piece),
            Self::Server(user) => {
                Object::append(piece.out, |object| server(core, user.as_deref(), now, object));
                true
            }
        }
    }
}

impl PageResponse {
    /// The memory of the page, beside the output of its connection, which has `output_bytes` now.
    pub fn memory_bytes(&self, output_bytes: usize) -> usize {
        match &self.page {
            Page::Metrics(page) => page.memory_bytes(),
            // It was refused, or had all of this in advance, and the output too.
            Page::Tubes(list) => size_of::<TubeList>() + list.memory_bytes_max().saturating_sub(output_bytes),
            Page::Server(_) => 0,
        }
    }

    /// Whether the next piece shows what the driver counts.
    const fn shows_driver(&self) -> bool {
        match &self.page {
            Page::Metrics(page) => page.is_at_start(),
            Page::Server(_) => true,
            Page::Tubes(_) => false,
        }
    }

    /// Appends a bounded piece of the body, and counts its steps. Before it are this many unsent bytes. Returns true if it was the
    /// last.
    pub fn step(&mut self, core: &mut Core, now: Time, unsent_bytes: usize, out: &mut Vec<u8>) -> bool {
        let is_chunked = self.version == Version::Http11;
        let begin = out.len();
        if is_chunked {
            out.extend_from_slice(b"00000000\r\n");
        }
        let body = out.len();
        if self.shows_driver() {
            core.outer_counts.read_driver(now);
        }
        let output_bytes_max = core.http_output_bytes_max().saturating_sub(unsent_bytes);
        let mut piece = Piece { out, output_bytes_max, steps: 0 };
        let is_done = self.page.step(core, now, &mut piece);
        let steps = piece.steps;
        let bytes = out.len() - body;
        core.charge(Cost::visits(steps).plus(Cost::rendered(bytes)));
        if is_chunked && bytes > 0 {
            out[begin..begin + 8].copy_from_slice(format!("{bytes:08x}").as_bytes());
            out.extend_from_slice(b"\r\n");
        } else if is_chunked {
            out.truncate(begin);
        }
        if is_done && is_chunked {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        is_done
    }
}
