//! The screen: a header, a page, and a status line.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::super::output::shortened;
use super::columns::fitting;
use super::header;
use super::keys::HELP;
use super::state::{Page, Scroll, State, View};
use crate::cli::verbs::Column;

/// The rows that the header leaves to the page, even if the terminal is low.
const PAGE_ROWS_MIN: u16 = 6;

/// The most rows that a message has.
const MESSAGE_ROWS_MAX: u16 = 3;

/// The keys that the status line shows, the most important first.
const KEYS: &str =
    "q quit  ? help  / filter  s sort  r reverse  p pause  k kick  Enter details  Space freeze";
const KEYS_OF_DETAILS: &str =
    "Esc back  q quit  ? help  x hex or text  u look again  p pause  k kick  Space freeze";
const KEYS_OF_HELP: &str = "any other key goes back  q quit";

/// A terminal with fewer columns names only the most important key that scrolls.
const WIDE: u16 = 60;

/// The width of the keys in the help of a narrow terminal.
const HELP_KEYS_WIDTH: usize = 14;

/// The colors of the screen, or none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    pub(super) has_colors: bool,
}

impl Theme {
    pub(super) fn color(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    pub(super) fn bold() -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn selected() -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn error(self) -> Style {
        self.color(Color::Red).add_modifier(Modifier::BOLD)
    }
}

/// Draws the screen. The number of rows that the page has is noted in the state.
pub(super) fn draw(state: &mut State, area: Rect, theme: Theme) -> Buffer {
    let mut buffer = Buffer::empty(area);
    if area.is_empty() {
        return buffer;
    }
    let rows_max = usize::from(area.height.saturating_sub(PAGE_ROWS_MIN));
    let header = header::lines(state, area.width, rows_max, theme);
    let page = area.y + header.len() as u16;
    for (y, line) in (area.y..).zip(&header) {
        buffer.set_line(area.x, y, line, area.width);
    }
    let message = message(state, area, theme);
    let status = area.bottom() - message.len().max(1) as u16;
    let page = Rect::new(area.x, page, area.width, status.saturating_sub(page));
    if !page.is_empty() {
        match &mut state.page {
            Page::Table => table(state, page, theme, &mut buffer),
            Page::Help(scroll) => scrolled(&help(page.width), scroll, page, &mut buffer),
            Page::Details(View { details, is_hex, scroll }) => {
                scrolled(&details.lines(page.width, *is_hex), scroll, page, &mut buffer);
            }
        }
    }
    if message.is_empty() {
        status_line(state, Rect::new(area.x, status, area.width, 1), theme, &mut buffer);
    }
    for (y, line) in (status..).zip(&message) {
        buffer.set_line(area.x, y, line, area.width);
    }
    buffer
}

fn table(state: &mut State, page: Rect, theme: Theme, buffer: &mut Buffer) {
    state.cursor.height = usize::from(page.height - 1);
    state.follow();
    let (name_width, columns) = fitting(page.width, |column| state.has(column));
    let sort = state.tubes.sort();
    let mark = if state.tubes.is_ascending() { '▲' } else { '▼' };
    let title = |column: Column| {
        let mark = if column == sort { mark } else { ' ' };
        format!("{}{mark}", column.title())
    };
    let mut x = page.x + name_width;
    buffer.set_stringn(page.x, page.y, title(Column::Name), usize::from(name_width), Theme::bold());
    for &column in &columns {
        // The mark is in the column between the titles.
        let text = format!(" {:>width$}", title(column), width = usize::from(column.width()));
        buffer.set_stringn(x, page.y, text, usize::from(column.width() + 1), Theme::bold());
        x += column.width() + 1;
    }
    buffer.set_style(Rect::new(page.x, page.y, page.width, 1), Modifier::UNDERLINED);
    let hides_pause = !columns.contains(&Column::Paused);
    for (row, place) in state.on_screen().enumerate() {
        let tube = state.tubes.at(place).expect("it is on the screen");
        let y = page.y + 1 + row as u16;
        let counts = tube.counts.as_ref();
        let has = |column| counts.is_some_and(|counts| counts.of(column) > 0);
        let is_paused = has(Column::Paused);
        let suffix = if is_paused && hides_pause { " (paused)" } else { "" };
        put_name(buffer, Rect::new(page.x, y, name_width, 1), &tube.name.to_string(), suffix);
        let mut x = page.x + name_width;
        for &column in &columns {
            let style = match column {
                Column::Buried if has(column) => theme.color(Color::Red),
                Column::Paused if is_paused => theme.color(Color::Yellow),
                _ => Style::new(),
            };
            // Numbers are below the last letter of the title.
            let text = format!("{:>width$}", column.cell_of_rate(tube), width = usize::from(column.width()));
            buffer.set_stringn(x, y, text, usize::from(column.width()), style);
            x += column.width() + 1;
        }
        if place == state.cursor.place {
            buffer.set_style(Rect::new(page.x, y, page.width, 1), Theme::selected());
        }
    }
    if state.tubes.shown() == 0 && page.height > 1 && state.server.stats.is_some() {
        let text =
            if state.tubes.count() == 0 { "no tubes" } else { "no tube matches the filter; Esc clears it" };
        buffer.set_stringn(page.x, page.y + 1, text, usize::from(page.width), Style::new());
    }
}

/// Writes a name and a suffix into a row. A name that is too long ends with dots, and the suffix stays.
fn put_name(buffer: &mut Buffer, row: Rect, name: &str, suffix: &str) {
    let name = shortened(name, usize::from(row.width).saturating_sub(Span::raw(suffix).width()));
    let (end, _) = buffer.set_stringn(row.x, row.y, name, usize::from(row.width), Style::new());
    buffer.set_stringn(end, row.y, suffix, usize::from(row.right() - end), Style::new());
}

/// The lines of the help. On a narrow terminal a text has several, and keys that are too long for their column have their own.
fn help(width: u16) -> Vec<Line<'static>> {
    let widest = HELP.iter().map(|(keys, _)| keys.len()).max().unwrap_or(0);
    let keys_width = if usize::from(width) < 2 * widest { HELP_KEYS_WIDTH } else { widest + 2 };
    let mut lines = Vec::new();
    for (keys, what) in HELP {
        let mut keys = Some(keys);
        if let Some(long) = keys.take_if(|keys| keys.len() >= keys_width) {
            lines.push(Line::styled(long, Theme::bold()));
        }
        for text in by_words(what, width.saturating_sub(keys_width as u16)) {
            let keys = format!("{:keys_width$}", keys.take().unwrap_or_default());
            lines.push(Line::from(vec![Span::styled(keys, Theme::bold()), Span::raw(text)]));
        }
    }
    lines
}

/// Draws the lines of a page that are on the screen.
fn scrolled(lines: &[Line<'_>], scroll: &mut Scroll, page: Rect, buffer: &mut Buffer) {
    scroll.fit(lines.len(), usize::from(page.height));
    for (y, line) in (page.y..page.bottom()).zip(lines.iter().skip(scroll.first)) {
        buffer.set_line(page.x, y, line, page.width);
    }
}

/// The lines of a message in place of the status line. A prompt is more important.
fn message(state: &State, area: Rect, theme: Theme) -> Vec<Line<'static>> {
    let (text, style) = match (&state.prompt, &state.message, &state.outage) {
        (Some(_), ..) | (None, None, None) => return Vec::new(),
        (None, Some(message), _) if message.is_error => (message.text.clone(), theme.error()),
        (None, Some(message), _) => (message.text.clone(), theme.color(Color::Green)),
        (None, None, Some(outage)) => (outage.text(), theme.error()),
    };
    let rows = MESSAGE_ROWS_MAX.min(area.height / 4).max(1);
    let lines = by_words(&text, area.width).into_iter().take(rows.into());
    lines.map(|line| Line::styled(line, style)).collect()
}

fn status_line(state: &State, row: Rect, theme: Theme, buffer: &mut Buffer) {
    let line = if let Some(prompt) = &state.prompt {
        let [question, text, hint] = prompt.fitted(usize::from(row.width));
        let style = match prompt.hint {
            Some(_) => theme.error(),
            None if prompt.is_proposed => Theme::selected(),
            None => Style::new(),
        };
        let cursor = Span::styled(" ", Theme::selected());
        let hint = Span::styled(hint, theme.error());
        Line::from(vec![Span::styled(question, Theme::bold()), Span::styled(text, style), cursor, hint])
    } else if let Some(seconds) = state.silent_seconds {
        Line::from(Span::styled(format!("no answer for {seconds} s"), theme.error()))
    } else {
        let keys = match &state.page {
            Page::Table => KEYS.to_owned(),
            Page::Help(scroll) => scroll_keys(scroll, row.width) + KEYS_OF_HELP,
            Page::Details(view) => scroll_keys(&view.scroll, row.width) + KEYS_OF_DETAILS,
        };
        Line::raw(whole_words(&keys, usize::from(row.width)))
    };
    buffer.set_line(row.x, row.y, &line, row.width);
}

/// The keys that scroll a page, and how much is below the screen, if the page is longer than the screen.
fn scroll_keys(scroll: &Scroll, width: u16) -> String {
    match scroll.below() {
        _ if scroll.lines <= scroll.height => String::new(),
        below if width < WIDE => format!("PgDn {below} more  "),
        1 => "Up Down PgUp PgDn scroll, 1 more line  ".to_owned(),
        below => format!("Up Down PgUp PgDn scroll, {below} more lines  "),
    }
}

/// As many of the keys as fit, each with what it does.
fn whole_words(keys: &str, width: usize) -> String {
    let mut line = String::new();
    for key in keys.split("  ") {
        let space = if line.is_empty() { "" } else { "  " };
        if line.len() + space.len() + key.len() > width {
            break;
        }
        line.push_str(space);
        line.push_str(key);
    }
    line
}

/// Breaks a text into lines of this width, between any two characters. An empty text is one line.
pub(super) fn wrapped(text: &str, width: u16) -> impl Iterator<Item = String> {
    let width = usize::from(width.max(1));
    let mut lines = vec![String::new()];
    let mut used = 0;
    let mut buffer = [0; 4];
    for character in text.chars() {
        let columns = Span::raw(&*character.encode_utf8(&mut buffer)).width();
        if used + columns > width && used > 0 {
            lines.push(String::new());
            used = 0;
        }
        lines.last_mut().expect("there is a line").push(character);
        used += columns;
    }
    lines.into_iter()
}

/// Breaks a text into lines of this width, between words. Only a word that is longer than a line is broken itself.
pub(super) fn by_words(text: &str, width: u16) -> Vec<String> {
    let columns = |text: &str| Span::raw(text).width();
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) <= usize::from(width) => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.extend(wrapped(word, width)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        assert_eq!(by_words("filter by a text", 9), ["filter by", "a text"]);
        assert_eq!(by_words("a very-long-word b", 6), ["a", "very-l", "ong-wo", "rd b"]);
        assert_eq!(by_words("", 6), [""]);
        assert_eq!(by_words("ab", 0), ["a", "b"]);
    }
}
