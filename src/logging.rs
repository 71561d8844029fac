//! The log on stderr: lines for people, JSON objects for programs, or lines for the systemd journal.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::{self, IsTerminal};
use std::panic::{self, Location};

use clap::ValueEnum;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber, error};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::io::log_writer::{self, LogWriter};
use crate::io::systemd;

/// The least severe level of log lines that are written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LogLevel {
    /// The server ends because of a failure.
    Error,
    /// Something needs attention.
    Warn,
    /// Start, drain, restart and stop.
    #[default]
    Info,
    /// Also connections.
    Debug,
    /// Also commands.
    Trace,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

/// The format of log lines.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: one flat object per line, with `timestamp`, `level`, `message` and the values of the line.
    Json,
}

/// Writes log lines of at least this severity to stderr from now on, by [`LogWriter`]. A panic is an error line too.
pub fn to_stderr(least: LevelFilter, format: LogFormat) {
    let lines = tracing_subscriber::fmt()
        .with_max_level(least)
        .with_target(false)
        // A failed write to stderr cannot be reported on stderr.
        .log_internal_errors(false)
        .with_writer(LogWriter::default);
    match format {
        LogFormat::Text => {
            let text = TextLines { is_for_journal: systemd::is_stderr_the_journal() };
            lines.with_ansi(io::stderr().is_terminal()).event_format(text).init();
        }
        LogFormat::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
        }
    }
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(Location::to_string).unwrap_or_default();
        let message = info.payload_as_str().unwrap_or_default();
        error!("bug: the server cannot continue at {place}: {}; please report this line", one_line(message));
        log_writer::flush();
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            eprintln!("{backtrace}");
        }
    }));
}

/// A text without line breaks.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Time, level, message; at the levels debug and trace also the fields, such as the number of the connection. Messages of the
/// other levels contain what a person needs.
struct TextLines {
    /// The journal has the time of each line. It takes the priority from a number at the front (sd-daemon(3)).
    is_for_journal: bool,
}

impl<S, N> FormatEvent<S, N> for TextLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        if self.is_for_journal {
            write!(writer, "<{}>", numbers(level).0)?;
        } else {
            SystemTime.format_time(&mut writer)?;
            writer.write_char(' ')?;
        }
        if writer.has_ansi_escapes() {
            write!(writer, "\x1b[{}m{level:>5}\x1b[0m ", numbers(level).1)?;
        } else {
            write!(writer, "{level:>5} ")?;
        }
        let mut line = Line { writer, has_fields: level > Level::INFO, result: Ok(()) };
        event.record(&mut line);
        line.result?;
        writeln!(line.writer)
    }
}

/// A line that is being written.
struct Line<'a> {
    writer: Writer<'a>,
    has_fields: bool,
    result: fmt::Result,
}

impl Line<'_> {
    fn write(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let written = match field.name() {
            // The first field.
            "message" => self.writer.write_fmt(value),
            name if self.has_fields => write!(self.writer, " {name}={value}"),
            _ => Ok(()),
        };
        self.result = self.result.and(written);
    }
}

impl Visit for Line<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.write(field, format_args!("{value}"));
    }

    /// Formatted messages, numbers, and values with `%`: for these `Debug` is `Display`.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.write(field, format_args!("{value:?}"));
    }
}

/// The number of the syslog priority of a level, and that of its terminal color.
const fn numbers(level: Level) -> (u8, u8) {
    match level {
        Level::ERROR => (3, 31),
        Level::WARN => (4, 33),
        Level::INFO => (6, 32),
        Level::DEBUG => (7, 34),
        _ => (7, 35),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_assertion_is_one_line() {
        assert_eq!(one_line("assertion failed\n  left: 1\n right: 2"), "assertion failed left: 1 right: 2");
    }
}
