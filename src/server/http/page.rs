//! Responses that are rendered in pieces between other work, no faster than they are sent.

use super::json::ServerJson;
use super::prometheus::MetricsPage;
use super::request::Version;
use super::response::JSON_TYPE;
use super::tubes::TubeList;
use crate::server::Core;
use crate::time::Time;

/// The format of metrics (prometheus.io, "Exposition formats", 0.0.4).
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A body of unknown length.
pub(super) enum Page {
    Metrics(MetricsPage),
    Server,
    Tubes(Box<TubeList>),
}

/// A response whose body is a page.
pub(super) struct PageResponse {
    pub page: Page,
    pub version: Version,
}

impl Page {
    pub const fn content_type(&self) -> &'static str {
        match self {
            Self::Metrics(_) => METRICS_TYPE,
            Self::Server | Self::Tubes(_) => JSON_TYPE,
        }
    }

    /// Renders a bounded piece. Returns true if it was the last.
    fn step(&mut self, core: &Core, now: Time, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Metrics(page) => page.step(core, now, out),
            Self::Tubes(list) => list.step(core, now, out),
            Self::Server => {
                serde_json::to_writer(out, &ServerJson::of(core, now)).expect("plain data can be rendered");
                true
            }
        }
    }
}

impl PageResponse {
    pub fn memory_bytes(&self) -> usize {
        match &self.page {
            Page::Metrics(page) => page.memory_bytes(),
            Page::Tubes(list) => size_of::<TubeList>() + list.memory_bytes(),
            Page::Server => 0,
        }
    }

    /// Whether the next piece shows the driver's statistics.
    pub const fn needs_sample(&self) -> bool {
        match &self.page {
            Page::Metrics(page) => page.is_at_start(),
            Page::Server => true,
            Page::Tubes(_) => false,
        }
    }

    /// Appends a bounded piece of the body. Returns true if it was the last.
    pub fn step(&mut self, core: &Core, now: Time, out: &mut Vec<u8>) -> bool {
        let is_chunked = self.version == Version::Http11;
        let begin = out.len();
        if is_chunked {
            out.extend_from_slice(b"00000000\r\n");
        }
        let body = out.len();
        let is_done = self.page.step(core, now, out);
        let bytes = out.len() - body;
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
