//! A tube in full: its statistics and its next jobs.

use beanring::replies::units::{Bytes, Seconds};
use beanring::values::ids::JobId;
use beanring::values::job_state::JobState;
use ratatui_core::style::Modifier;
use ratatui_core::text::{Line, Span};

use super::super::{Stats, Untrusted, Value, escaped, escaped_lines};
use super::view::wrapped;

/// The most of a body that is kept and shown.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// The bytes in a line of hexadecimal digits.
const HEX_BYTES: usize = 16;

/// A tube.
#[derive(Clone, Debug)]
pub(super) struct Details {
    pub(super) tube: String,
    pub(super) stats: Stats,
    /// The next job of each state that has one.
    pub(super) jobs: Vec<(JobState, Option<Peeked>)>,
}

/// A job that was looked at.
#[derive(Clone, Debug)]
pub(super) struct Peeked {
    id: JobId,
    stats: Option<Stats>,
    /// The beginning of the body.
    body: Untrusted,
    bytes: usize,
}

impl Peeked {
    pub(super) fn new(id: JobId, stats: Option<Stats>, body: &Untrusted) -> Self {
        Self { id, stats, body: body.beginning(BODY_BYTES_MAX), bytes: body.bytes().len() }
    }

    /// Whether the body can be read as text. The end may cut a character.
    fn is_text(&self) -> bool {
        let body = self.body.bytes();
        match self.body.check_utf8() {
            Ok(()) => !body.contains(&0),
            Err(error) => error.error_len().is_none() && body.len() < self.bytes,
        }
    }

    /// The numbers of the job.
    fn summary(&self) -> String {
        let mut parts = vec![format!("job {}, {}", self.id, Bytes(self.bytes as u64))];
        if let Some(stats) = &self.stats {
            let time = |key| Seconds(stats.number(key));
            parts.push(format!("priority {}", stats.number("pri")));
            parts.push(format!("age {}", time("age")));
            if *stats.text("state") == "delayed" {
                parts.push(format!("delayed for {}", time("time-left")));
            }
            parts.push(format!("TTR {}", time("ttr")));
            for (key, what) in [
                ("reserves", "reserved"),
                ("timeouts", "timed out"),
                ("releases", "released"),
                ("buries", "buried"),
                ("kicks", "kicked"),
            ] {
                match stats.number(key) {
                    0 => {}
                    1 => parts.push(format!("{what} once")),
                    times => parts.push(format!("{what} {times} times")),
                }
            }
            if stats.get("passed-over") == Some(&Value::Switch(true)) {
                parts.push("passed over".to_owned());
            }
            let tags = stats.text("tags");
            if !tags.is_empty() {
                parts.push(format!("tags {tags}"));
            }
        }
        parts.join(", ")
    }
}

impl Details {
    /// The page in lines. `is_hex` shows every body in hexadecimal digits.
    pub(super) fn lines(&self, width: u16, is_hex: bool) -> Vec<Line<'static>> {
        let mut lines = vec![heading(format!("Tube {}", escaped(self.tube.as_bytes())))];
        for (state, job) in &self.jobs {
            let state = state.word();
            let Some(job) = job else {
                lines.extend([Line::raw(format!("No {state} job")), Line::default()]);
                continue;
            };
            lines.push(heading(format!("Next {state} job")));
            lines.extend(wrapped(&job.summary(), width).map(Line::raw));
            let is_hex = is_hex || !job.is_text();
            let body = if is_hex { hex(job.body.bytes(), width) } else { text(job.body.bytes(), width) };
            lines.extend(body.into_iter().map(|line| Line::raw(format!("  {line}"))));
            let shown = job.body.bytes().len();
            if shown < job.bytes {
                let rest = Bytes((job.bytes - shown) as u64);
                lines.push(Line::raw(format!("  ... {rest} more; beanring peek {} prints all", job.id)));
            }
            lines.push(Line::default());
        }
        lines.push(heading("Statistics".to_owned()));
        lines.extend(self.table(width).into_iter().map(Line::raw));
        lines
    }

    /// The statistics, in as many columns as fit.
    fn table(&self, width: u16) -> Vec<String> {
        let rows: Vec<(String, String)> = self
            .stats
            .iter()
            .filter(|(key, _)| **key != "name")
            .map(|(key, value)| (key.to_string(), value.with_unit(key.bytes())))
            .collect();
        let longest = |of: fn(&(String, String)) -> &String| {
            rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0)
        };
        let (keys, values) = (longest(|row| &row.0), longest(|row| &row.1));
        let columns = (usize::from(width) / (keys + values + 5)).clamp(1, 3);
        let height = rows.len().div_ceil(columns);
        let line = |at: usize| {
            let cells = rows[at..].iter().step_by(height.max(1));
            cells
                .map(|(key, value)| format!("{key:keys$}  {value:>values$}   "))
                .collect::<String>()
                .trim_end()
                .to_owned()
        };
        (0..height).map(line).collect()
    }
}

fn heading(text: String) -> Line<'static> {
    Line::from(Span::styled(text, Modifier::BOLD))
}

/// The lines of a body: escaped, with tabs as spaces, and broken where the terminal ends.
fn text(body: &[u8], width: u16) -> Vec<String> {
    let body = body.strip_suffix(b"\n").unwrap_or(body);
    let line = |line: &[u8]| {
        let line = escaped_lines(line.strip_suffix(b"\r").unwrap_or(line)).replace('\t', "    ");
        wrapped(&line, width.saturating_sub(2)).collect::<Vec<_>>()
    };
    body.split(|&byte| byte == b'\n').flat_map(line).collect()
}

/// Offset, bytes and characters.
fn hex(body: &[u8], width: u16) -> Vec<String> {
    // Two columns of indentation, an offset of five digits, three columns per byte, and one more for its character.
    let fitting = usize::from(width).saturating_sub(2 + 5 + 4) / 4;
    let bytes = if fitting >= HEX_BYTES { HEX_BYTES } else { fitting.clamp(1, HEX_BYTES / 2) };
    let line = |(at, some): (usize, &[u8])| {
        let digits: String = some.iter().map(|byte| format!("{byte:02x} ")).collect();
        let letter =
            |&byte: &u8| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' };
        let letters: String = some.iter().map(letter).collect();
        format!("{:05x}  {digits:digits_width$} {letters}", at * bytes, digits_width = 3 * bytes)
    };
    body.chunks(bytes).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_text_or_hex() {
        let is_text = |body: &[u8]| Peeked::new(JobId(1), None, &body.into()).is_text();
        assert!(
            is_text(b"")
                && is_text(b"{\"a\": 1}\n")
                && is_text("Gr\u{fc}\u{df}e".as_bytes())
                && is_text(b"a\x1b[2J")
        );
        assert!(!is_text(b"\xff") && !is_text(b"a\0b") && !is_text(b"cut \xc3"));
        // A long text may be cut within a character.
        let long = [vec![b'a'; BODY_BYTES_MAX - 1], "\u{fc}".as_bytes().to_vec()].concat();
        assert!(is_text(&long));
        assert_eq!(Peeked::new(JobId(1), None, &long.into()).bytes, BODY_BYTES_MAX + 1);
    }

    #[test]
    fn lines_of_bodies() {
        assert_eq!(text(b"one\r\n\ttwo\x1b[1m\\t\n\nlast\n", 80), ["one", "    two\\x1b[1m\\t", "", "last"]);
        assert_eq!(text(b"", 80), [""]);
        assert_eq!(text("abcdef\u{4e2d}\u{4e2d}".as_bytes(), 7), ["abcde", "f\u{4e2d}\u{4e2d}"]);
        assert_eq!(
            hex(b"a\x1b\xff z", 80),
            ["00000  61 1b ff 20 7a                                   a.. z"]
        );
        let all: Vec<u8> = (0..=255).collect();
        for width in [0, 1, 20, 40, 79, 80, 200] {
            for line in hex(&all, width).iter().chain(&text(&all, width)) {
                assert!(line.chars().all(|character| !character.is_control()), "{line:?}");
                assert!(width < 20 || line.len() + 2 <= usize::from(width), "{width} {line}");
            }
        }
    }
}
