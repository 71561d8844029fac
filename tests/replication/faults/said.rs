//! Tests of [`Check`]: records and survivors as text.

use std::ops::Range;
use std::slice;

use super::check::{Check, Left, Survivor};
use super::record::{ATTEMPTS_MAX, Asked, CONCURRENCY_KEYS, Event, KEYED, RULED, Reply, Token};

/// A concurrency key whose limit is 1. That of the next one is 2.
const KEY: u8 = 2;

const ALWAYS: Range<u64> = 0..u64::MAX;

/// The tokens of client 1 by name, with their numbers and kinds.
const TOKENS: [(&str, u32, u8); 11] = [
    ("a", 1, 0),
    ("b", 2, 0),
    ("k", 1, KEYED),
    ("l", 2, KEYED),
    ("g", 3, KEYED | (1 + CONCURRENCY_KEYS + 2)),
    ("x", 1, KEYED | KEY),
    ("y", 2, KEYED | KEY),
    ("z", 3, KEYED | KEY),
    ("u", 1, KEYED | (KEY + 1)),
    ("v", 2, KEYED | (KEY + 1)),
    ("r", 1, RULED),
];

#[test]
fn violations_are_found_in_records() {
    let lines = include_str!("records.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (case, expected) = line.split_once(" -> ").expect("a violation");
        let (said, left) = case.split_once(';').expect("what is left");
        let events: Vec<Event> = (1..).zip(parts(said)).map(|(at, part)| event(at * 100_000, part)).collect();
        let closing = if left.contains("closing") { slice::from_ref(&ALWAYS) } else { &[] };
        match Check::new(&events, &survivor(left, &events), closing).run() {
            Ok(figures) => {
                let with_left = format!("ok, {} left", figures.left);
                assert!(["ok", &with_left].contains(&expected), "{line}: {figures:?}");
            }
            Err(found) => assert!(found.contains(expected), "{line}: {found}"),
        }
    }
}

#[test]
fn replies_that_leave_together_may_come_in_any_order() {
    let found = |asked_at| {
        // The reply to client 2 has waited for an acknowledgement longer than the time to run, and comes right after that to client 3.
        let (mut late, other) = (event(asked_at, "2 reserve = 1 a"), event(70_000_000, "3 reserve = 1 a"));
        late.replied_at = other.replied_at + 500;
        let events = [event(100_000, "1 put a = 1"), other, late];
        Check::new(&events, &survivor(" 1 reserved", &events), &[]).run().err()
    };
    assert_eq!(found(200_000), None);
    let violation = found(69_000_000).expect("both had it at the same time");
    assert!(violation.contains("it was reserved twice"), "{violation}");
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn token(name: &str) -> Token {
    let (_, number, kind) = TOKENS.iter().find(|(found, ..)| *found == name).expect("a token");
    Token::new(1, *number, 60).of_kind(*kind)
}

/// What a client asked at this time. A command takes a millisecond.
fn event(asked_at: u64, text: &str) -> Event {
    let (command, reply) = text.split_once(" = ").unwrap_or((text, ""));
    let (client, command) = command.split_once(' ').expect("a command");
    let (client, connection) = client.split_once('.').unwrap_or((client, "1"));
    let (name, argument) = command.split_once(' ').unwrap_or((command, ""));
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} in {command}"));
    let (asked, success) = match name {
        "put" => (Asked::Put(token(argument)), Reply::Refused),
        "reserve" => (Asked::Reserve, Reply::Nothing),
        "delete" => (Asked::Delete(number(argument)), Reply::Deleted),
        "release" => (Asked::Release(number(argument)), Reply::Released),
        "bury" => (Asked::Bury(number(argument)), Reply::Buried),
        "kick" => (Asked::Kick(number(argument)), Reply::Kicked),
        "touch" => (Asked::Touch(number(argument)), Reply::Touched),
        "wait" => (Asked::Wait(number(argument)), Reply::Gone),
        "rule" => (Asked::Rule(number(argument)), Reply::Configured),
        "leave" => (Asked::Leave, Reply::GaveUp),
        _ => panic!("an unknown command: {name}"),
    };
    let reply = match (asked, reply.split_once(' ')) {
        (_, None) if reply.is_empty() => success,
        (_, None) if reply == "lost" => Reply::Closed,
        (_, None) if reply == "maybe" => Reply::MaybeDeleted,
        (_, None) if reply == "buried" => Reply::SeenBuried,
        (_, Some(("gave", "up"))) => Reply::GaveUp,
        (_, Some(("not", "found"))) => Reply::NotFound,
        (_, Some(("repeated", id))) => Reply::Repeated(number(id)),
        (_, Some(("finished", id))) => Reply::Finished(number(id)),
        (Asked::Put(_), None) => Reply::Inserted(number(reply)),
        (Asked::Reserve, Some((id, name))) => Reply::Reserved(number(id), token(name)),
        _ => panic!("an unknown reply: {reply}"),
    };
    let [client, connection] = [client, connection].map(number);
    let (client, connection) = (client as u16, connection as u32);
    Event { client, connection, asked, reply, asked_at, replied_at: asked_at + 1000 }
}

/// The queue that is left. A job is in the tube of its token, if no other one is named.
fn survivor(text: &str, events: &[Event]) -> Survivor {
    let asked_at = 100_000 * (1 + events.len() as u64);
    let mut survivor = Survivor {
        rules: format!("max-attempts: {ATTEMPTS_MAX}\ndead-letter: \"dead\"\n"),
        ..Survivor::default()
    };
    for part in parts(text) {
        match part.split(' ').collect::<Vec<_>>()[..] {
            ["closing"] => {}
            ["unknown"] => survivor.count += 1,
            ["no", "rules"] => survivor.rules.clear(),
            ["rule", value] => survivor.rules += &format!("max-jobs: {value}\n"),
            [id, state, ref rest @ ..] => {
                let id: u64 = id.parse().expect("an id");
                let own = events.iter().filter_map(Event::identity).find(|(found, _)| *found == id);
                let tube =
                    if let ["in", tube] = rest { tube } else { own.map_or("", |(_, token)| token.tube()) };
                let (state, tube, replied_at) = (state.to_owned(), tube.to_owned(), asked_at + 1000);
                let is_passed_over = *rest == ["passed", "over"];
                survivor.jobs.insert(id, Some(Left { state, tube, is_passed_over, asked_at, replied_at }));
                survivor.count += 1;
            }
            _ => panic!("unknown: {part}"),
        }
    }
    survivor
}
