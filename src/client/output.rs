//! What verbs print: tables and texts for people, or JSON for programs.

use std::borrow::Cow;
use std::env;
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use comfy_table::CellAlignment;
use comfy_table::presets::NOTHING;
use serde::Serialize;

use super::escape::{self, escaped_lines};
use crate::cli::verbs::Common;
use crate::ids::JobId;

/// Standard output, and how to print there.
#[derive(Debug)]
pub struct Output {
    stdout: BufWriter<Stdout>,
    is_json: bool,
    is_terminal: bool,
    is_closed: bool,
}

/// How the cells of a column are aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// Rows below a header, in columns.
#[derive(Debug)]
pub struct Table {
    table: comfy_table::Table,
    aligns: Vec<Align>,
}

impl Output {
    /// Standard output, as the flags of a verb ask for it.
    pub fn new(common: &Common) -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { stdout: BufWriter::new(stdout), is_json: common.json, is_terminal, is_closed: false }
    }

    /// Whether JSON is asked for.
    pub const fn is_json(&self) -> bool {
        self.is_json
    }

    /// Whether people look at it.
    pub const fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether the reader of standard output has closed it. Then nothing is printed any more, and that is no error, because a
    /// verb that deletes ten jobs must not stop after the first.
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Prints a line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn line(&mut self, line: &str) -> io::Result<()> {
        self.write(format!("{line}\n").as_bytes())
    }

    /// Prints a table, with a bold header on a terminal.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn table(&mut self, table: Table) -> io::Result<()> {
        let is_bold = self.is_terminal && has_colors() && table.table.header().is_some();
        for (at, line) in table.text().lines().enumerate() {
            let (bold, plain) = if is_bold && at == 0 { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
            self.line(&format!("{bold}{line}{plain}"))?;
        }
        self.flush()
    }

    /// Prints a value as a line of JSON.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = escape::json(value).map_err(io::Error::other)?;
        self.line(&text)
    }

    /// Prints a job body: escaped on a terminal, its bytes elsewhere.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn body(&mut self, body: &[u8]) -> io::Result<()> {
        if !self.is_terminal {
            return self.write(body);
        }
        let mut text = escaped_lines(body);
        // The prompt of the shell begins a line.
        if !text.ends_with('\n') {
            text.push('\n');
        }
        self.write(text.as_bytes())
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        let result = self.stdout.flush();
        self.unless_closed(result)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        let result = self.stdout.write_all(bytes);
        self.unless_closed(result)
    }

    fn unless_closed(&mut self, result: io::Result<()>) -> io::Result<()> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            result => result,
        }
    }
}

/// Prints a line on standard error. If that is closed, work goes on.
pub fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Whether texts on a terminal may have colors: see no-color.org.
pub(super) fn has_colors() -> bool {
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// A job as JSON: a body that is text as text, any other in base64.
#[derive(Serialize, Debug)]
pub(super) struct JsonJob<'a> {
    id: u64,
    bytes: usize,
    body: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

impl<'a> JsonJob<'a> {
    pub(super) fn new(id: JobId, body: &'a [u8]) -> Self {
        let (text, encoding) = match str::from_utf8(body) {
            Ok(text) => (text.into(), None),
            Err(_) => (BASE64.encode(body).into(), Some("base64")),
        };
        Self { id: id.0, bytes: body.len(), body: text, encoding }
    }
}

impl Table {
    /// A table with a header.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let mut table = Self::without_header(&columns.iter().map(|(_, align)| *align).collect::<Vec<_>>());
        table.table.set_header(columns.iter().map(|(title, _)| *title));
        table
    }

    /// A table without a header.
    pub fn without_header(aligns: &[Align]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        Self { table, aligns: aligns.to_vec() }
    }

    /// Adds a row. Its cells must be escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.table.add_row(cells.into_iter().collect::<Vec<_>>());
    }

    /// Returns the text of the table.
    fn text(mut self) -> String {
        for (column, align) in self.table.column_iter_mut().zip(self.aligns) {
            column.set_padding((0, 2));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        self.table.trim_fmt()
    }
}
