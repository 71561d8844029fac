//! A server that lies: bytes of terminal commands in every field of every reply, and replies that are too long.

use std::io::{BufRead, BufReader, Write};
use std::thread;

use super::fake::{data, replies, serve};
use super::output::assert_harmless;
use super::place::{on_terminal, run_at};

/// What the replies are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lie {
    /// Those that the commands ask for, and jobs wait for a group.
    Held,
    /// The same, and no job waits.
    Free,
    /// Jobs that are reserved by another client.
    Reserved,
    /// Words of the protocol that mean no.
    Refusals,
    /// Commands that are not known.
    Unknown,
    /// Evil instead of numbers.
    Numbers,
    /// Evil after no word of the protocol.
    Foreign,
}

/// Every verb but `top`, with arguments that end it.
const VERBS: [&[&str]; 37] = [
    &["stats"],
    &["tubes"],
    &["tube", "x"],
    &["group", "x"],
    &["job", "1"],
    &["jobs", "x", "--limit", "1"],
    &["put", "a", "b"],
    &["put", "a", "--idp", "k"],
    &["put", "--delay", "0.5", "a"],
    &["peek"],
    &["peek", "1"],
    &["peek", "--body"],
    &["reserve", "--timeout", "0"],
    &["reserve", "--timeout", "0", "--delete"],
    &["kick", "1"],
    &["kick", "--all"],
    &["bury", "1"],
    &["delete", "1"],
    &["release", "1"],
    &["touch", "1", "--for", "1"],
    &["wait", "1"],
    &["pause", "x", "60"],
    &["tube-config", "x"],
    &["tube-config", "x", "max-jobs", "7"],
    &["flush", "x", "--yes"],
    &["schedule", "add", "x", "a", "-w", "every:9"],
    &["schedule", "list"],
    &["schedule", "show", "x"],
    &["schedule", "rm", "x"],
    &["schedule", "run", "x"],
    &["drain"],
    &["undrain"],
    &["watch", "-n", "1"],
    &["watch", "x", "-n", "1"],
    &["work", "--until-empty", "--", "true"],
    &["work", "--until-empty", "-v", "--", "false"],
    &["move", "x", "y", "--count", "1"],
];

/// Commands of terminals, what reorders or hides text, and every byte but the one that ends a line.
fn evil() -> Vec<u8> {
    let mut bytes = b"\x1b]0;pwned\x07\x1b[2J\x9b2J\xc2\x9b2J".to_vec();
    let hidden = "\u{202e}\u{2066}\u{2069}\u{200b}\u{200e}\u{61c}\u{2028}\u{feff}\u{ad}\u{34f}\u{e0041}";
    bytes.extend_from_slice(hidden.as_bytes());
    bytes.extend((0..=255).filter(|&byte| byte != b'\n'));
    bytes
}

/// Returns a text in which evil stands for each `@`.
pub fn fill(text: &str) -> Vec<u8> {
    text.bytes().flat_map(|byte| if byte == b'@' { evil() } else { vec![byte] }).collect()
}

/// The data of statistics.
fn statistics(parts: &str) -> Vec<u8> {
    fill(&format!("---\n@: @\ntext: \"@\"\nlist: [@, @]\n{parts}"))
}

fn line(text: &str) -> Vec<u8> {
    fill(&format!("{text}\r\n"))
}

impl Lie {
    const ALL: [Self; 7] =
        [Self::Held, Self::Free, Self::Reserved, Self::Refusals, Self::Unknown, Self::Numbers, Self::Foreign];

    /// The reply to a command. `has_job` is whether a job can be reserved.
    fn reply(self, command: &str, has_job: bool) -> Vec<u8> {
        match self {
            Self::Refusals => return line("NOT_FOUND @"),
            Self::Unknown => return line("UNKNOWN_COMMAND @"),
            Self::Foreign => return line("@"),
            Self::Held | Self::Free | Self::Reserved | Self::Numbers => {}
        }
        let number = if self == Self::Numbers { "@" } else { "1" };
        let body = fill("@\n@");
        match command {
            "stats" => {
                let keys = "version: @\nid: @\nhostname: @\nio-driver: @\ncmd-stats-group: 1\n";
                data("OK", &statistics(&format!("{keys}current-jobs-ready: {number}\n")))
            }
            "stats-tube" => {
                let keys = "name: @\ndead-letter: @\ncurrent-jobs-buried: 3\npause-time-left: 9\n";
                data("OK", &statistics(&format!("{keys}current-jobs-ready: {number}\n")))
            }
            "stats-group" => data("OK", &statistics("name: @\nwaits-for: [\"@\", \"@\"]\n")),
            "stats-job" => {
                let state = match self {
                    Self::Reserved => "state: reserved\n",
                    Self::Held => "state: @\nwaits-for: @\nwaits-for-jobs: @\n",
                    _ => "state: @\n",
                };
                data("OK", &statistics(&format!("id: {number}\ntube: @\ntags: \"@\"\nttr: @\n{state}")))
            }
            "schedule-stats" => {
                let keys = "name: @\ntube: \"@\"\nwhen: \"@\"\noverlap: @\nnext-run: @\nconfigured: true\n";
                data("OK", &statistics(&format!("{keys}last-run-age: {number}\nnext-run-left: {number}\n")))
            }
            "list-schedules" => data("OK", &fill("---\nschedules: [\"@\", \"x\"]\n")),
            "schedule-put" => line("SCHEDULED @"),
            "schedule-run" => line(&format!("INSERTED {number} @")),
            "tube-config" => data("OK", &statistics("max-jobs: 7\ndead-letter: @\n")),
            "list-tubes" => data("OK", &fill("---\n- @\n- \"@\"\n")),
            "list-jobs" => data("OK", &fill("---\n- {id: 1, @: @, pri: 1}\n")),
            "reserve-with-timeout" if !has_job => line("TIMED_OUT @"),
            "reserve-job" | "reserve-with-timeout" => data(&format!("RESERVED {}", word(number)), &body),
            _ if command.starts_with("peek") => data(&format!("FOUND {}", word(number)), &body),
            "put" => line(&format!("INSERTED {number} @ @")),
            "use" => line("USING @"),
            "watch" | "ignore" => line(&format!("WATCHING {number} @")),
            "kick" => line(&format!("KICKED {number} @")),
            "kick-job" => line("KICKED @"),
            "move-jobs" | "move-job" => line(&format!("MOVED {number} @")),
            "flush-tube" => line(&format!("FLUSHED {number} @")),
            "delete" | "wait-job" | "schedule-delete" => line("DELETED @"),
            "bury" => line("BURIED @"),
            "release" if number == "1" => line("RELEASED @"),
            "touch" => line("TOUCHED @"),
            "pause-tube" => line("PAUSED @"),
            "drain" => line("DRAINING @"),
            "undrain" => line("NOT_DRAINING @"),
            _ => line("BAD_FORMAT @"),
        }
    }

    /// Starts the server, and returns its address.
    fn serve(self) -> String {
        replies(move || {
            let mut has_job = true;
            move |line| {
                let command = line.split(' ').next().unwrap_or_default();
                if command == "a" || command == "b" {
                    // The body of a put.
                    return Vec::new();
                }
                let is_reserve = command == "reserve-with-timeout";
                self.reply(command, is_reserve && std::mem::take(&mut has_job))
            }
        })
    }
}

/// What stands for a number in a line with the length of data: it must not have spaces.
fn word(number: &str) -> &str {
    if number == "1" { "1" } else { "\x1b]0;pwned\x07\u{202e}" }
}

/// Bodies have every byte in a pipe, and in a file.
fn prints_body(arguments: &[&str]) -> bool {
    matches!(arguments[0], "peek" | "reserve")
}

#[test]
fn no_field_of_a_reply_reaches_the_terminal_as_it_is() {
    thread::scope(|scope| {
        for lie in Lie::ALL {
            let address = lie.serve();
            // Some verbs take seconds.
            for verbs in VERBS.chunks(4) {
                let address = address.clone();
                scope.spawn(move || verbs.iter().for_each(|verb| show(lie, &address, verb)));
            }
        }
    });
}

/// Checks what a verb shows, as text and as JSON.
fn show(lie: Lie, address: &str, verb: &[&str]) {
    let command = verb.iter().position(|&word| word == "--").unwrap_or(verb.len());
    let json = [&verb[..command], &["--json"], &verb[command..]].concat();
    for arguments in [verb, &json] {
        let shown = if prints_body(arguments) && !arguments.contains(&"--json") {
            on_terminal(address, arguments, &[])
        } else {
            let result = run_at(address, arguments);
            assert!(result.code.is_some(), "{lie:?} {arguments:?}: {result:?}");
            format!("{}{}", result.text(), result.stderr)
        };
        println!("{lie:?} {arguments:?}: {shown:?}");
        assert_harmless(&shown);
    }
}

#[test]
fn the_group_that_a_job_waits_for_is_escaped() {
    let address = Lie::Held.serve();
    for verb in ["bury", "release", "touch"] {
        let result = run_at(&address, &[verb, "1"]);
        let said = "job 1: it waits for group \\x1b]0;pwned\\x07\\x1b[2J\\x9b2J\\u{9b}2J\\u{202e}\\u{2066}";
        assert!(result.code == Some(1) && result.stderr.contains(said), "{result:?}");
    }
}

/// Sends a line, and what follows it until the client has closed the connection, up to 256 MiB.
fn endless(first: &str) -> String {
    let first = first.to_owned();
    serve(move |mut stream| {
        let _ = BufReader::new(&stream).read_until(b'\n', &mut Vec::new());
        let mut result = stream.write_all(first.as_bytes());
        for _ in 0..256 {
            result = result.and_then(|()| stream.write_all(&[b'A'; 1 << 20]));
        }
    })
}

#[test]
fn a_reply_has_a_bound() {
    let (statistics, list, job) = (256 << 10, 64 << 20, 1 << 30);
    for (word, bytes, arguments, bytes_max) in [
        ("OK", 4_294_967_290, &["stats"][..], statistics),
        ("OK", 262_145, &["stats"], statistics),
        ("OK", u64::MAX, &["job", "1"], statistics),
        ("OK", 4_294_967_290, &["tube", "x"], statistics),
        ("OK", 4_294_967_290, &["group", "x"], statistics),
        ("OK", 4_294_967_290, &["tube-config", "x"], statistics),
        ("OK", 4_294_967_290, &["schedule", "show", "x"], statistics),
        ("OK", 4_294_967_290, &["schedule", "list"], list),
        ("OK", 4_294_967_290, &["tubes"], list),
        ("OK", 4_294_967_290, &["jobs", "x"], list),
        ("FOUND 1", 1_073_741_825, &["peek", "1"], job),
    ] {
        let address = endless(&format!("{word} {bytes}\r\n"));
        let said = format!(
            "{address} announced a reply of {bytes} bytes, and the client reads at most {bytes_max} here; is it a beanstalk server?"
        );
        run_at(&address, arguments).fails(3, &said);
    }
    let foreign = "A".repeat(80);
    let address = endless("");
    let said = format!(
        "{address} replied \"{foreign}\", which is no reply of the beanstalk protocol; correct --addr"
    );
    run_at(&address, &["stats"]).fails(3, &said);
    // Data that the command does not ask for is not read.
    for (first, arguments) in [
        ("FOUND 1 1000000000", &["stats"][..]),
        ("OK 1000", &["delete", "1"]),
        ("FOUND 1 1000", &["schedule", "add", "x", "a", "-w", "every:9"]),
        ("RESERVED 1 1000", &["put", "x"]),
        ("OK 1000", &["peek", "1"]),
    ] {
        let address = endless(&format!("{first}\r\n"));
        let result = run_at(&address, arguments);
        let said = format!(
            "the server replied with \"{first}\", which is not what the command asks for; is it a beanstalk server?"
        );
        assert!(result.code == Some(3) && result.stderr.contains(&said), "{result:?}");
    }
}
