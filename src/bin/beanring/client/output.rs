//! What verbs print: tables and texts for people, or JSON for programs.

use std::env;
use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use beanring::values::ids::JobId;
use ratatui_core::text::Span;
use ratatui_crossterm::crossterm::terminal;
use serde::{Serialize, Serializer};

use super::{ClientError, Untrusted, json};
use crate::cli::verbs::Common;

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

/// A color of a cell on a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Color {
    /// A state that needs a look, such as buried jobs.
    Red,
    /// A state that ends by itself, such as a pause.
    Yellow,
}

/// A JSON object whose fields keep their order.
#[derive(Debug)]
pub(super) struct Fields(pub(super) Vec<(&'static str, serde_json::Value)>);

/// Rows below a header, in columns.
#[derive(Debug)]
pub struct Table {
    aligns: Vec<Align>,
    has_header: bool,
    rows: Vec<Vec<Cell>>,
    /// Cells of the columns on the left that are longer do not widen their column.
    cell_columns_max: usize,
}

#[derive(Debug)]
struct Cell {
    text: String,
    color: Option<Color>,
    /// It ends its row, begins on the left, and does not widen its column.
    is_free: bool,
}

/// The columns between two cells.
const GAP: usize = 2;

const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

impl Output {
    /// Standard output, as the flags of a verb ask for it.
    pub fn new(common: &Common) -> Self {
        let stdout = io::stdout();
        let is_terminal = stdout.is_terminal();
        Self { stdout: BufWriter::new(stdout), is_json: common.json, is_terminal, is_closed: false }
    }

    /// Prints the result of a verb: JSON if the flags ask for it, else a line.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn result(common: &Common, json: &impl Serialize, line: &str) -> Result<(), ClientError> {
        let mut output = Self::new(common);
        if output.is_json {
            output.json(json)?;
        } else {
            output.line(line)?;
        }
        Ok(output.flush()?)
    }

    /// Prints things: each as a line of JSON if the flags ask for it, else a table of them.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn list(
        common: &Common,
        objects: impl Iterator<Item: Serialize>,
        table: impl FnOnce() -> Table,
    ) -> Result<(), ClientError> {
        let mut output = Self::new(common);
        if !output.is_json {
            return Ok(output.table(table())?);
        }
        for object in objects {
            output.json(&object)?;
        }
        Ok(output.flush()?)
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

    /// Prints a table. On a terminal the header is bold, cells have their colors, and names are shortened to its width.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn table(&mut self, mut table: Table) -> io::Result<()> {
        // A terminal without a size reports 0.
        if self.is_terminal
            && table.has_header
            && let Ok((width @ 1.., _)) = terminal::size()
        {
            table.shorten(width.into());
        }
        for line in table.lines(self.is_terminal && has_colors()) {
            self.line(&line)?;
        }
        self.flush()
    }

    /// Prints a value as a line of JSON.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = json(value).map_err(io::Error::other)?;
        self.line(&text)
    }

    /// Prints a job body: escaped on a terminal, its bytes elsewhere.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn body(&mut self, body: &Untrusted) -> io::Result<()> {
        if !self.is_terminal {
            return self.write(body.bytes());
        }
        let mut text = body.lines();
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
    body_bytes: usize,
    body: JsonBody<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

#[derive(Serialize, Debug)]
#[serde(untagged)]
enum JsonBody<'a> {
    Text(&'a Untrusted),
    Base64(String),
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl<'a> JsonJob<'a> {
    pub(super) fn new(id: JobId, body: &'a Untrusted) -> Self {
        let body_bytes = body.bytes().len();
        let (body, encoding) = match body.check_utf8() {
            Ok(()) => (JsonBody::Text(body), None),
            Err(_) => (JsonBody::Base64(BASE64.encode(body.bytes())), Some("base64")),
        };
        Self { id: id.0, body_bytes, body, encoding }
    }
}

impl Table {
    /// A table with a header.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let mut table = Self::without_header(&columns.iter().map(|(_, align)| *align).collect::<Vec<_>>());
        table.has_header = true;
        table.row(columns.iter().map(|(title, _)| (*title).to_owned()));
        table
    }

    /// A table without a header.
    pub fn without_header(aligns: &[Align]) -> Self {
        Self { aligns: aligns.to_vec(), has_header: false, rows: Vec::new(), cell_columns_max: usize::MAX }
    }

    /// Adds a row. Its cells must be escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<Cell> =
            cells.into_iter().map(|text| Cell { text, color: None, is_free: false }).collect();
        assert_eq!(row.len(), self.aligns.len(), "a row has a cell for each column");
        self.rows.push(row);
    }

    /// Adds a row whose last cell is a long text. It begins on the left and does not widen its column: a terminal wraps it.
    pub fn text_row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.row(cells);
        self.rows.last_mut().and_then(|row| row.last_mut()).expect("it has a cell").is_free = true;
    }

    /// Keeps texts of more than this number of columns from widening all rows.
    pub fn pad_to(&mut self, columns: usize) {
        self.cell_columns_max = columns;
    }

    /// Colors a cell of the last row.
    pub fn color(&mut self, column: usize, color: Color) {
        self.rows.last_mut().expect("it has a row")[column].color = Some(color);
    }

    /// Shortens the names in the first column, so that no row is wider than this.
    fn shorten(&mut self, width: usize) {
        let others: usize = self.widths()[1..].iter().map(|width| GAP + width).sum();
        for cell in self.rows.iter_mut().map(|row| &mut row[0]) {
            cell.text = shortened(&cell.text, width.saturating_sub(others).max(NAME_WIDTH_MIN));
        }
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]).filter(|cell| !cell.is_free);
            let widest = cells.map(|cell| columns(&cell.text)).max().unwrap_or(0);
            if self.aligns[column] == Align::Left { widest.min(self.cell_columns_max) } else { widest }
        };
        (0..self.aligns.len()).map(width).collect()
    }

    fn lines(&self, has_colors: bool) -> impl Iterator<Item = String> {
        let widths = self.widths();
        self.rows.iter().enumerate().map(move |(at, row)| {
            let mut line = String::new();
            let mut blanks = 0;
            for ((cell, &width), align) in row.iter().zip(&widths).zip(&self.aligns) {
                let free = width.saturating_sub(columns(&cell.text));
                let is_left = *align == Align::Left || cell.is_free;
                let (before, after) = if is_left { (0, free) } else { (free, 0) };
                if cell.text.is_empty() {
                    // A line does not end with blanks.
                    blanks += width + GAP;
                    continue;
                }
                line.extend(std::iter::repeat_n(' ', blanks + before));
                match cell.color.filter(|_| has_colors) {
                    Some(color) => line.extend([color.sequence(), &cell.text, PLAIN]),
                    None => line.push_str(&cell.text),
                }
                blanks = after + GAP;
            }
            if has_colors && self.has_header && at == 0 { format!("{BOLD}{line}{PLAIN}") } else { line }
        })
    }
}

impl Color {
    /// The escape sequence that begins it.
    const fn sequence(self) -> &'static str {
        match self {
            Self::Red => "\x1b[31m",
            Self::Yellow => "\x1b[33m",
        }
    }
}

/// The least that a name keeps, even if rows are broken for that.
const NAME_WIDTH_MIN: usize = 8;

/// The columns that a text has on a terminal.
fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns a text in at most this number of columns of a terminal. One that is longer ends with dots.
pub(super) fn shortened(text: &str, width: usize) -> String {
    const DOTS: &str = "...";
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut used = 0;
    let mut buffer = [0; 4];
    for character in text.chars() {
        used += columns(character.encode_utf8(&mut buffer));
        if used > width.saturating_sub(DOTS.len()) {
            break;
        }
        short.push(character);
    }
    short + &DOTS[..width.min(DOTS.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_end_with_dots() {
        for (width, expected) in [(8, "a-name-x"), (7, "a-na..."), (4, "a..."), (3, "..."), (1, "."), (0, "")]
        {
            assert_eq!(shortened("a-name-x", width), expected);
        }
        assert_eq!(shortened("\u{4e2d}\u{4e2d}\u{4e2d}", 5), "\u{4e2d}...");
    }

    #[test]
    fn tables_are_aligned_colored_and_shortened() {
        let mut table = Table::new(&[("TUBE", Align::Left), ("READY", Align::Right), ("NOTE", Align::Left)]);
        table.row(["a-tube-with-a-name", "7", "x"].map(str::to_owned));
        table.row(["b", "1234567", ""].map(str::to_owned));
        table.color(1, Color::Red);
        let plain: Vec<String> = table.lines(false).collect();
        let expected = [
            "TUBE                  READY  NOTE",
            "a-tube-with-a-name        7  x",
            "b                   1234567",
        ];
        assert_eq!(plain, expected);
        table.shorten(24);
        let colored: Vec<String> = table.lines(true).collect();
        let expected = [
            "\x1b[1mTUBE         READY  NOTE\x1b[0m",
            "a-tube...        7  x",
            "b          \x1b[31m1234567\x1b[0m",
        ];
        assert_eq!(colored, expected);
    }
}
