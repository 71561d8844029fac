//! Everything that the screen shows. Keys and reports change it; nothing here waits.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::super::output::shortened;
use super::super::{Stats, Untrusted, escaped};
use super::details::Details;
use super::tubes::{Rate, Tubes};
use super::worker::{Report, Request};
use crate::cli::verbs::Column;

/// The counters of commands that hand out jobs.
const RESERVES: [&str; 2] = ["cmd-reserve", "cmd-reserve-with-timeout"];

/// How long refusals are recent at least, and half of how long they are at most: as in the console.
const RECENT: Duration = Duration::from_mins(5);

/// Keys of `stats`, and the reason on the screen. A full tube and a large job are no lack of the server.
const REASONS: [(&str, &str); 4] = [
    ("put-refusals-memory", "memory limit"),
    ("put-refusals-keys", "idempotency keys"),
    ("put-refusals-disk", "full disk"),
    ("put-refusals-draining", "drain mode"),
];

type RefusalCounts = [u64; REASONS.len()];

/// The columns of a tube's name in a question, before its words are left out.
const NAME_COLUMNS_MIN: usize = 8;

/// What the screen shows, and what the server shall do.
#[derive(Default, Debug)]
pub(super) struct State {
    pub(super) server: Server,
    pub(super) tubes: Tubes,
    pub(super) cursor: Cursor,
    pub(super) page: Page,
    pub(super) prompt: Option<Prompt>,
    pub(super) message: Option<Message>,
    /// Nothing is asked of the server but what a key asks for.
    pub(super) is_frozen: bool,
    /// The connection has broken, and there is no other one yet.
    pub(super) outage: Option<Outage>,
    /// How long a reply has been overdue.
    pub(super) silent_seconds: Option<u64>,
    /// The age of the counts that the order is made of, if they are not read with each poll.
    pub(super) order_age_seconds: Option<u64>,
    /// The next poll must not wait for the interval, because other rows are on the screen.
    pub(super) wants_poll: bool,
    /// What keys have asked for.
    pub(super) actions: VecDeque<Request>,
}

/// A time without a connection.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Outage {
    /// Why there is none.
    reason: String,
    /// What keys have asked for and may not have happened: `not sent: kick of mail`.
    undone: Vec<String>,
}

#[derive(Default, Debug)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) stats: Option<Box<Stats>>,
    pub(super) put: Rate,
    pub(super) reserve: Rate,
    pub(super) delete: Rate,
    pub(super) refusals: Refusals,
}

/// Counts of refused puts since the program has seen the first statistics.
#[derive(Default, Debug)]
pub(super) struct Refusals {
    counts: RefusalCounts,
    /// The counts at the begin of the present interval, and of the one before.
    begins: [RefusalCounts; 2],
    begun_at: Option<Instant>,
}

/// Where the selected tube is.
#[derive(Default, Debug)]
pub(super) struct Cursor {
    /// The tube that the cursor follows. Without one, it is on the first row, whichever tube comes there.
    tube: Option<Untrusted>,
    pub(super) place: usize,
    /// The first row on the screen.
    pub(super) first: usize,
    /// The number of rows on the screen.
    pub(super) height: usize,
}

/// The page below the header.
#[derive(Default, Debug)]
pub(super) enum Page {
    #[default]
    Table,
    Help(Scroll),
    Details(View),
}

/// A tube in full, and how it is shown.
#[derive(Debug)]
pub(super) struct View {
    pub(super) details: Box<Details>,
    pub(super) is_hex: bool,
    pub(super) scroll: Scroll,
}

/// Which lines of a page are on the screen.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Scroll {
    /// The first line on the screen.
    pub(super) first: usize,
    /// The number of lines on the screen.
    pub(super) height: usize,
    /// The number of lines of the page.
    pub(super) lines: usize,
}

/// A line that is being typed.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Prompt {
    pub(super) asks: Ask,
    pub(super) text: String,
    /// The text is a proposal that the first character replaces.
    pub(super) is_proposed: bool,
    /// What the text must be instead. The next key clears it.
    pub(super) hint: Option<Hint>,
}

/// What a text must be: in full, and for a narrow terminal.
pub(super) type Hint = [&'static str; 2];

/// What a prompt asks for.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Ask {
    Filter,
    Pause { tube: String },
    Kick { tube: String },
}

/// A line about something that has happened. The next key clears it.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Message {
    pub(super) text: String,
    pub(super) is_error: bool,
}

impl State {
    pub(super) fn new(address: String, sort: Column) -> Self {
        Self { server: Server { address, ..Server::default() }, tubes: Tubes::new(sort), ..Self::default() }
    }

    /// Takes over what the server has replied.
    pub(super) fn take(&mut self, at: Instant, report: Report) {
        self.silent_seconds = None;
        if !matches!(report, Report::Gone(_))
            && let Some(outage) = self.outage.take().filter(|outage| !outage.undone.is_empty())
        {
            self.complain(format!("connected again; {}", outage.undone.join("; ")));
        }
        match report {
            Report::Server { stats, names } => {
                if self.server.read(at, stats) {
                    self.tubes.forget();
                }
                if let Some(names) = names {
                    self.tubes.list(names);
                    self.follow();
                }
            }
            Report::Tubes(tubes) => {
                for (name, stats) in tubes {
                    self.tubes.read(at, &name, stats.as_ref());
                    if let (Page::Details(view), Some(stats)) = (&mut self.page, stats)
                        && view.details.tube == name
                    {
                        view.details.stats = stats;
                    }
                }
                if self.tubes.sort() == Column::Oldest && !self.tubes.has_oldest() {
                    self.tubes.sort_by(Column::Name);
                    self.complain("the server does not report the age of ready jobs; the order is by name");
                }
            }
            Report::Details(details) => self.open(details),
            Report::Done(text) => {
                self.message = Some(Message { text, is_error: false });
                if let Page::Details(view) = &self.page {
                    self.actions.push_back(Request::Details(view.details.tube.clone()));
                }
            }
            Report::Refused(text) => self.message = Some(Message { text, is_error: true }),
            Report::Gone(reason) => {
                // An action is not sent later, when no user expects it.
                let unsent: Vec<String> =
                    self.actions.drain(..).filter_map(|action| action.action()).collect();
                self.outage.get_or_insert_with(Outage::default).reason = reason;
                if !unsent.is_empty() {
                    self.undone(format!("not sent: {}", unsent.join(", ")));
                }
            }
        }
    }

    /// Notes what an outage has prevented, or may have.
    pub(super) fn undone(&mut self, what: String) {
        self.outage.get_or_insert_with(Outage::default).undone.push(what);
    }

    /// Shows a tube in full. One that is shown already stays where it is.
    fn open(&mut self, details: Box<Details>) {
        match &mut self.page {
            Page::Details(view) if view.details.tube == details.tube => view.details = details,
            _ => self.page = Page::Details(View { details, is_hex: false, scroll: Scroll::default() }),
        }
    }

    /// The tube that keys act on.
    pub(super) fn selected(&self) -> Option<Untrusted> {
        match &self.page {
            Page::Details(view) => Some(view.details.tube.as_str().into()),
            Page::Table | Page::Help(_) => self.tubes.at(self.cursor.place).map(|tube| tube.name.clone()),
        }
    }

    /// Whether the selected tube is paused.
    pub(super) fn is_paused(&self) -> bool {
        match &self.page {
            Page::Details(view) => view.details.stats.number("pause-time-left") > 0,
            Page::Table | Page::Help(_) => {
                let counts = self.tubes.at(self.cursor.place).and_then(|tube| tube.counts.as_ref());
                counts.is_some_and(|counts| counts.of(Column::Paused) > 0)
            }
        }
    }

    /// Whether the server has something to show in a column.
    pub(super) fn has(&self, column: Column) -> bool {
        match column {
            Column::Oldest => self.tubes.has_oldest(),
            Column::Held => self.tubes.sort() == column || self.server.number("current-jobs-held") > 0,
            _ => true,
        }
    }

    /// The rows on the screen.
    pub(super) fn on_screen(&self) -> std::ops::Range<usize> {
        let end = (self.cursor.first + self.cursor.height).min(self.tubes.shown());
        self.cursor.first.min(end)..end
    }

    /// Moves the cursor by some rows.
    pub(super) fn move_by(&mut self, rows: isize) {
        let last = self.tubes.shown().saturating_sub(1);
        self.move_to(self.cursor.place.saturating_add_signed(rows).min(last));
    }

    /// Moves the cursor to a row, and has it follow the tube there.
    pub(super) fn move_to(&mut self, place: usize) {
        self.cursor.place = place;
        self.pin();
        self.follow();
    }

    /// Has the cursor follow the tube that it is on.
    pub(super) fn pin(&mut self) {
        self.cursor.tube = self.tubes.at(self.cursor.place).map(|tube| tube.name.clone());
    }

    /// Moves the cursor to the first row, where it stays.
    pub(super) fn follow_first(&mut self) {
        self.cursor.tube = None;
        self.follow();
    }

    /// Sorts the rows by what is known now.
    pub(super) fn arrange(&mut self) {
        self.tubes.arrange();
        self.follow();
    }

    /// Moves the cursor to where its tube is now, and the rows so that it can be seen.
    pub(super) fn follow(&mut self) {
        let last = self.tubes.shown().saturating_sub(1);
        let cursor = &mut self.cursor;
        cursor.place = match &cursor.tube {
            None => 0,
            Some(tube) => self.tubes.place_of(tube).unwrap_or_else(|| cursor.place.min(last)),
        };
        if cursor.tube.is_some() {
            cursor.tube = self.tubes.at(cursor.place).map(|tube| tube.name.clone());
        }
        let height = cursor.height.max(1);
        let first_max = self.tubes.shown().saturating_sub(height);
        cursor.first =
            cursor.first.min(first_max).clamp((cursor.place + 1).saturating_sub(height), cursor.place);
    }

    /// Shows an error.
    pub(super) fn complain(&mut self, text: impl Into<String>) {
        self.message = Some(Message { text: text.into(), is_error: true });
    }
}

impl Outage {
    /// What the screen says while it lasts.
    pub(super) fn text(&self) -> String {
        let undone = self.undone.iter().map(|what| format!("; {what}"));
        self.reason.clone() + &undone.collect::<String>()
    }
}

impl Scroll {
    /// Notes the size of the page and of the screen, and keeps the screen within the page.
    pub(super) fn fit(&mut self, lines: usize, height: usize) {
        *self = Self { first: self.first.min(lines.saturating_sub(height)), height, lines };
    }

    /// The number of lines below the screen.
    pub(super) const fn below(&self) -> usize {
        self.lines.saturating_sub(self.first.saturating_add(self.height))
    }
}

impl Server {
    /// Takes over new statistics. Returns whether they are those of another process than before.
    fn read(&mut self, now: Instant, stats: Box<Stats>) -> bool {
        let is_other = self.stats.as_ref().is_some_and(|old| old.text("id") != stats.text("id"));
        if is_other {
            [self.put, self.reserve, self.delete] = [Rate::default(); 3];
            self.refusals = Refusals::default();
        }
        self.put.read(now, stats.number("cmd-put"));
        self.reserve.read(now, RESERVES.iter().map(|key| stats.number(key)).sum());
        self.delete.read(now, stats.number("cmd-delete"));
        self.refusals.read(now, &stats);
        self.stats = Some(stats);
        is_other
    }

    /// A number of the server's statistics; 0 if it has none.
    pub(super) fn number(&self, key: &str) -> u64 {
        self.stats.as_ref().map_or(0, |stats| stats.number(key))
    }
}

impl Refusals {
    /// Takes over the counts of the server.
    pub(super) fn read(&mut self, now: Instant, stats: &Stats) {
        self.counts = REASONS.map(|(key, _)| stats.number(key));
        match self.begun_at {
            None => (self.begins, self.begun_at) = ([self.counts; 2], Some(now)),
            Some(at) if now.duration_since(at) >= RECENT => {
                (self.begins, self.begun_at) = ([self.counts, self.begins[0]], Some(now));
            }
            Some(_) => {}
        }
    }

    /// `puts refused: 12 (memory limit), 3 (full disk)`, if there are any.
    pub(super) fn text(&self) -> Option<String> {
        let recent = |at: usize| self.counts[at].saturating_sub(self.begins[1][at]);
        let parts = REASONS.iter().enumerate().filter(|(at, _)| recent(*at) > 0);
        let parts: Vec<String> = parts.map(|(at, (_, why))| format!("{} ({why})", recent(at))).collect();
        (!parts.is_empty()).then(|| format!("puts refused: {}", parts.join(", ")))
    }
}

impl Prompt {
    /// The question, the text and the hint in this number of columns. What does not fit becomes shorter, or is left out: first
    /// the hint, then the words of the question, then the name of the tube. Of a long text the end stays.
    pub(super) fn fitted(&self, width: usize) -> [String; 3] {
        let text = escaped(self.text.as_bytes());
        let (tube, questions) = self.questions();
        let least = |[before, after]: [&str; 2]| {
            before.len() + tube.chars().count().min(NAME_COLUMNS_MIN) + after.len()
        };
        let shortest = questions[questions.len() - 1];
        // A column is left for the cursor.
        let text_max = width.saturating_sub(least(shortest) + 1);
        let text: String = text.chars().skip(text.chars().count().saturating_sub(text_max)).collect();
        let left = width.saturating_sub(text.chars().count() + 1);
        let hints = self.hint.iter().flatten().map(|hint| format!("  {hint}"));
        let hint = hints.into_iter().find(|hint| least(shortest) + hint.len() <= left).unwrap_or_default();
        let left = left - hint.len();
        let [before, after] = questions.into_iter().find(|words| least(*words) <= left).unwrap_or(shortest);
        let tube = shortened(&tube, left.saturating_sub(before.len() + after.len()));
        [format!("{before}{tube}{after}").chars().take(left).collect(), text, hint]
    }

    /// The name of the tube, and what stands before and behind it, from the longest to the shortest question.
    fn questions(&self) -> (String, [[&'static str; 2]; 3]) {
        let (tube, questions) = match &self.asks {
            Ask::Filter => {
                let short = ["filter", ": "];
                ("", [["filter", " (text, or a pattern with * and ?): "], short, short])
            }
            Ask::Pause { tube } => {
                let full = ["pause ", " for a time such as 90 or 5m (0 resumes): "];
                (tube.as_str(), [full, ["pause ", " for a time: "], ["pause ", ": "]])
            }
            Ask::Kick { tube } => {
                let full = ["kick up to N buried jobs of ", " (delayed ones if none is buried): "];
                (tube.as_str(), [full, ["kick N buried jobs of ", ": "], ["kick ", ": "]])
            }
        };
        (escaped(tube.as_bytes()), questions)
    }
}
