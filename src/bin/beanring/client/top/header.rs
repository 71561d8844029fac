//! The lines above the page: what the server is, what it does, and what it has in use.

use std::time::Duration;

use beanring::replies::units::{Bytes, Seconds};
use ratatui_core::style::{Color, Style};
use ratatui_core::text::{Line, Span};

use super::super::{Stats, Value, escaped};
use super::columns::{count, rate};
use super::state::{Server, State};
use super::view::Theme;

/// How far a standby may be behind before the screen says so.
const LAG_MAX: Duration = Duration::from_secs(5);

/// The columns between two items.
const GAP: usize = 3;

/// A text that is not broken.
type Item = (String, Style);

/// Returns at most this number of lines. Items that do not fit into a line are in the next one. If there are too many, the
/// counts of jobs come before rates and resources.
pub(super) fn lines(state: &State, width: u16, lines_max: usize, theme: Theme) -> Vec<Line<'static>> {
    let (work, resources) = (work(&state.server, theme), resources(&state.server, theme));
    let flowed = |groups: [Vec<Item>; 4]| {
        let mut lines = Vec::new();
        groups.into_iter().for_each(|items| flow(items, usize::from(width), &mut lines));
        lines
    };
    let mut lines = flowed([identity(state, true, theme), work.clone(), tubes(state), resources.clone()]);
    if lines.len() > lines_max {
        lines = flowed([identity(state, false, theme), tubes(state), work, resources]);
        lines.truncate(lines_max);
    }
    lines
}

/// `has_all` adds the driver and the uptime.
fn identity(state: &State, has_all: bool, theme: Theme) -> Vec<Item> {
    let server = &state.server;
    let address = escaped(server.address.as_bytes());
    let mut items = Vec::new();
    if let Some(stats) = &server.stats {
        // Only beanring has a driver.
        let driver = stats.get("io-driver");
        let name = if driver.is_some() { "beanring" } else { "beanstalkd" };
        let version = stats.text("version");
        items.push((format!("{name} {version} at {address}"), Theme::bold()));
        if has_all {
            items.extend(driver.map(|driver| (driver.to_string(), Style::new())));
            items.push((format!("up {}", minutes(stats.number("uptime"))), Style::new()));
        }
        if stats.get("draining") == Some(&Value::Switch(true)) {
            items.push(("DRAINING".to_owned(), theme.color(Color::Yellow).patch(Theme::bold())));
        }
    } else {
        items.push((address, Theme::bold()));
    }
    if state.outage.is_some() {
        items.push(("DISCONNECTED, trying again".to_owned(), theme.error()));
    }
    if state.is_frozen {
        items.push(("FROZEN".to_owned(), theme.color(Color::Yellow).patch(Theme::bold())));
    }
    items
}

fn work(server: &Server, theme: Theme) -> Vec<Item> {
    let each =
        |what: &str, counted: super::tubes::Rate| plain(format!("{what} {}/s", rate(counted.per_second())));
    let mut items =
        vec![each("put", server.put), each("reserve", server.reserve), each("delete", server.delete)];
    let refused = server.refusals.text();
    items.extend(refused.map(|text| (text, theme.error())));
    items
}

fn tubes(state: &State) -> Vec<Item> {
    let server = &state.server;
    let mut items = Vec::new();
    for what in ["ready", "reserved", "delayed", "buried", "held"] {
        let number = server.number(&format!("current-jobs-{what}"));
        if what != "held" || number > 0 {
            items.push(plain(format!("{what} {}", count(number))));
        }
    }
    let all = state.tubes.count();
    let filter = state.tubes.filter();
    items.push(plain(match filter {
        "" => format!("tubes {all}"),
        _ => format!("tubes {} of {all} match {}", state.tubes.shown(), escaped(filter.as_bytes())),
    }));
    if let Some(seconds) = state.order_age_seconds {
        items.push(plain(format!("order up to {seconds} s old")));
    }
    items
}

fn resources(server: &Server, theme: Theme) -> Vec<Item> {
    let connections = count(server.number("current-connections"));
    let mut items = vec![match server.number("current-waiting") {
        0 => plain(format!("connections {connections}")),
        waiting => plain(format!("connections {connections}, {} waiting", count(waiting))),
    }];
    let Some(stats) = &server.stats else { return items };
    if let Some(Value::Number(used)) = stats.get("memory-used") {
        let used = used.saturating_add(stats.number("memory-reserved"));
        let limit = stats.number("max-memory");
        items.push(match used.saturating_mul(100).checked_div(limit) {
            None => plain(format!("memory {}, no limit", Bytes(used))),
            Some(percent) => {
                let style = if percent >= 90 { theme.color(Color::Red) } else { Style::new() };
                (format!("memory {} of {} ({percent} %)", Bytes(used), Bytes(limit)), style)
            }
        });
    }
    items.extend(replication(stats, theme));
    items.push(plain(match (stats.get("wal-disk-bytes"), stats.number("binlog-current-index")) {
        (_, 0) => "no job log".to_owned(),
        (Some(Value::Number(bytes)), _) => format!("job log {}", Bytes(*bytes)),
        (_, segment) => format!("job log at segment {segment}"),
    }));
    items
}

/// What a server is in a replicated queue. Its lease and its lag change all the time: the screen shows only if they are bad.
fn replication(stats: &Stats, theme: Theme) -> Option<Item> {
    let role = stats.get("replication-role")?.to_string();
    let role_and_epoch = format!("{}, epoch {}", escaped(role.as_bytes()), stats.number("replication-epoch"));
    let bad = match &*role {
        _ if stats.get("replication-damaged") == Some(&Value::Switch(true)) => Some("CANNOT FOLLOW"),
        "leader" if stats.time("replication-lease").is_zero() => Some("LEASE OVER"),
        "standby" if stats.time("replication-lag") > LAG_MAX => Some("BEHIND"),
        _ => None,
    };
    Some(match bad {
        Some(bad) => (format!("{role_and_epoch}, {bad}"), theme.error()),
        None => plain(role_and_epoch),
    })
}

fn plain(text: String) -> Item {
    (text, Style::new())
}

/// A time in minutes: the screen does not change with every second.
fn minutes(seconds: u64) -> String {
    match seconds / 60 {
        0 => "less than 1 min".to_owned(),
        minutes => Seconds(minutes * 60).to_string(),
    }
}

/// Adds items to lines.
fn flow(items: Vec<Item>, width: usize, lines: &mut Vec<Line<'static>>) {
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut used = 0;
    for (text, style) in items {
        let item = Span::styled(text, style);
        if !spans.is_empty() && used + GAP + item.width() > width {
            lines.push(Line::from(std::mem::take(&mut spans)));
            used = 0;
        }
        if !spans.is_empty() {
            spans.push(Span::raw(" ".repeat(GAP)));
            used += GAP;
        }
        used += item.width();
        spans.push(item);
    }
    lines.push(Line::from(spans));
}
