//! What keys do.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::state::{Ask, Hint, Page, Prompt, Scroll, State};
use super::worker::Request;
use crate::cli::verbs;

/// The proposals of the prompts.
const PAUSE_SECONDS: u32 = 60;
const KICK_COUNT: u32 = 10;

/// Why a text is not accepted, in full and short.
const NUMBER_HINT: Hint = ["must be a number from 1 to 4294967295", "no number"];
const TIME_HINT: Hint = ["must be a time such as 90, 5m or 2h", "no time"];

/// The longest text of a prompt.
const TEXT_MAX: usize = 200;

/// What to do after a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    Continue,
    /// Draw the whole screen again, in case another program has written there.
    Redraw,
    /// Give the terminal to the shell until it continues the program.
    Suspend,
    Quit,
}

/// The keys with what they do, for the help.
pub(super) const HELP: [(&str, &str); 16] = [
    ("Up Down PgUp PgDn End", "move"),
    ("Home", "go to the first row, and stay there"),
    ("< > or s", "sort by the column before or after"),
    ("r", "reverse the order"),
    ("/", "filter by a text, or by a pattern with * and ?"),
    ("Esc", "clear the filter; close a page or a prompt"),
    ("Enter or d", "statistics and next jobs of the tube"),
    ("x", "bodies as hexadecimal digits or as text (in a tube)"),
    ("u", "look for the next jobs again (in a tube)"),
    ("p", "pause or resume the tube"),
    ("k", "kick jobs of the tube"),
    ("Space", "freeze the screen, or continue"),
    ("Ctrl-L", "draw the screen again"),
    ("Ctrl-Z", "suspend; the shell's fg continues"),
    ("?", "this help"),
    ("q or Ctrl-C", "quit"),
];

/// Does what a key means.
pub(super) fn press(state: &mut State, key: KeyEvent) -> After {
    if key.kind == KeyEventKind::Release {
        return After::Continue;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => After::Quit,
            KeyCode::Char('l') => After::Redraw,
            KeyCode::Char('z') => After::Suspend,
            _ => After::Continue,
        };
    }
    state.message = None;
    if state.prompt.is_some() {
        type_key(state, key.code);
        return After::Continue;
    }
    match key.code {
        KeyCode::Char('q') => return After::Quit,
        KeyCode::Char(' ') => {
            state.is_frozen = !state.is_frozen;
            state.wants_poll = true;
        }
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => {
            state.page =
                if matches!(state.page, Page::Help(_)) { Page::Table } else { Page::Help(Scroll::default()) };
        }
        KeyCode::Char('p') => {
            let seconds = if state.is_paused() { 0 } else { PAUSE_SECONDS };
            ask(state, |tube| Ask::Pause { tube }, seconds);
        }
        KeyCode::Char('k') => ask(state, |tube| Ask::Kick { tube }, KICK_COUNT),
        code => match &mut state.page {
            Page::Table => in_table(state, code),
            Page::Help(shown) => {
                if !scroll(shown, code) {
                    state.page = Page::Table;
                }
            }
            Page::Details(_) => in_details(state, code),
        },
    }
    After::Continue
}

/// Types a text that was pasted into a prompt. Elsewhere it does nothing.
pub(super) fn paste(state: &mut State, text: &str) {
    for character in text.chars().filter(|character| !character.is_control()) {
        type_key(state, KeyCode::Char(character));
    }
}

fn in_table(state: &mut State, code: KeyCode) {
    let height = state.cursor.height.max(1);
    match code {
        KeyCode::Up => state.move_by(-1),
        KeyCode::Down => state.move_by(1),
        KeyCode::PageUp => state.move_by(-(height as isize)),
        KeyCode::PageDown => state.move_by(height as isize),
        KeyCode::Home => state.follow_first(),
        KeyCode::End => state.move_to(state.tubes.shown().saturating_sub(1)),
        KeyCode::Char('s' | '>') => sort(state, 1),
        KeyCode::Char('<') => sort(state, -1),
        KeyCode::Char('r') => {
            state.tubes.reverse();
            state.follow();
        }
        KeyCode::Char('/') => {
            let text = state.tubes.filter().to_owned();
            state.prompt = Some(Prompt { asks: Ask::Filter, text, is_proposed: false, hint: None });
        }
        KeyCode::Esc => filter(state, String::new()),
        KeyCode::Enter | KeyCode::Char('d') => {
            if let Some(tube) = usable(state) {
                state.actions.push_back(Request::Details(tube));
            }
        }
        _ => {}
    }
}

fn in_details(state: &mut State, code: KeyCode) {
    let Page::Details(view) = &mut state.page else { return };
    if scroll(&mut view.scroll, code) {
        return;
    }
    match code {
        KeyCode::Char('x') => view.is_hex = !view.is_hex,
        KeyCode::Char('u') => {
            let tube = view.details.tube.clone();
            state.actions.push_back(Request::Details(tube));
        }
        KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace | KeyCode::Char('d') => state.page = Page::Table,
        _ => {}
    }
}

/// Scrolls a page. The screen keeps it within the text. Returns false if the key is another one.
fn scroll(shown: &mut Scroll, code: KeyCode) -> bool {
    let page = shown.height.max(1);
    shown.first = match code {
        KeyCode::Up => shown.first.saturating_sub(1),
        KeyCode::Down => shown.first.saturating_add(1),
        KeyCode::PageUp => shown.first.saturating_sub(page),
        KeyCode::PageDown => shown.first.saturating_add(page),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => return false,
    };
    true
}

fn sort(state: &mut State, step: isize) {
    let mut column = state.tubes.sort().beside(step);
    while !state.has(column) {
        column = column.beside(step);
    }
    state.tubes.sort_by(column);
    state.follow();
    state.wants_poll = true;
}

fn filter(state: &mut State, text: String) {
    if state.tubes.filter() != text {
        state.tubes.filter_by(text);
        state.follow();
        state.wants_poll = true;
    }
}

/// Returns the selected tube, if commands can name it. From here on the cursor stays with it.
fn usable(state: &mut State) -> Option<String> {
    state.pin();
    let Some(tube) = state.selected() else {
        state.complain("no tube is selected");
        return None;
    };
    let name = tube.tube_name().map(str::to_owned);
    if name.is_none() {
        state.complain("the protocol does not allow this name in a command");
    }
    name
}

fn ask(state: &mut State, asks: fn(String) -> Ask, proposal: u32) {
    if let Some(tube) = usable(state) {
        state.prompt =
            Some(Prompt { asks: asks(tube), text: proposal.to_string(), is_proposed: true, hint: None });
    }
}

/// A key while a prompt is open.
fn type_key(state: &mut State, code: KeyCode) {
    let Some(mut prompt) = state.prompt.take() else { return };
    let is_filter = prompt.asks == Ask::Filter;
    match code {
        KeyCode::Esc if is_filter => return filter(state, String::new()),
        KeyCode::Esc => return,
        KeyCode::Enter => return enter(state, prompt),
        KeyCode::Backspace if prompt.is_proposed => prompt.text.clear(),
        KeyCode::Backspace => {
            prompt.text.pop();
        }
        KeyCode::Char(character) => {
            let before = if prompt.is_proposed { "" } else { &prompt.text };
            let text = format!("{before}{character}");
            if text.len() <= TEXT_MAX {
                prompt.text = text;
            }
        }
        _ => {}
    }
    prompt.is_proposed &= !matches!(code, KeyCode::Char(_) | KeyCode::Backspace);
    prompt.hint = None;
    if is_filter {
        filter(state, prompt.text.clone());
    }
    state.prompt = Some(prompt);
}

fn enter(state: &mut State, mut prompt: Prompt) {
    // Without a text nothing is done.
    if prompt.text.is_empty() {
        return;
    }
    let request = match &prompt.asks {
        Ask::Filter => return,
        Ask::Pause { tube } => {
            let time = verbs::time(&prompt.text).map_err(|_| TIME_HINT);
            time.map(|time| Request::Pause { tube: tube.clone(), time })
        }
        Ask::Kick { tube } => {
            let count = verbs::count(&prompt.text).map_err(|_| NUMBER_HINT);
            count.map(|count| Request::Kick { tube: tube.clone(), count })
        }
    };
    match request {
        Ok(request) => state.actions.push_back(request),
        Err(hint) => {
            prompt.hint = Some(hint);
            state.prompt = Some(prompt);
        }
    }
}
