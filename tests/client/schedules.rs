//! `beanring schedule`: add, list, show, rm and run.

use std::fs;

use beanring::io::driver::Driver;
use beanring_testkit::process::Transport;
use beanring_testkit::scratch::Scratch;
use serde_json::json;

use super::fake::{data, replies, scripted};
use super::place::{Place, everywhere, run_at};
use super::session::sessions;

sessions! {
    everywhere a_server_without_schedules_is_named "schedules that beanstalkd lacks" r#"
        beanstalkd: schedule add a quit -w every:9 =1> schedule a: UNKNOWN_COMMAND: the server does not know schedules: it is beanstalkd, or an older beanring
        beanstalkd: schedule list =1> list-schedules: UNKNOWN_COMMAND: the server does not know schedules: it is beanstalkd, or an older beanring
        beanstalkd: schedule show a =1> schedule a: UNKNOWN_COMMAND: the server does not know schedules: it is beanstalkd, or an older beanring
        beanstalkd: schedule rm a =1> schedule a: UNKNOWN_COMMAND: the server does not know schedules: it is beanstalkd, or an older beanring
        beanstalkd: schedule run a --json =1
        beanstalkd: stats =~ {"totals": {"puts": 0}}
    "#

    everywhere a_schedule_that_does_not_exist_is_exit_code_1 "missing schedules by the client" r#"
        beanring: schedule show none =1> schedule none: NOT_FOUND: there is no such schedule; see beanring schedule list
        beanring: schedule rm none =1> schedule none: NOT_FOUND: there is no such schedule; see beanring schedule list
        beanring: schedule run none =1> schedule none: NOT_FOUND: there is no such schedule; see beanring schedule list
        beanring: schedule run none --json =1| {"error":"not-found","message":"schedule none: NOT_FOUND: there is no such schedule; see beanring schedule list"}
        beanring: schedule list --json =|
        beanring: schedule list => SCHEDULE  TUBE  WHEN  NEXT RUN IN  LAST RUN AGO  RUNS  SKIPS  REFUSALS
    "#
}

#[test]
fn a_schedule_from_its_add_to_its_end() {
    everywhere("schedules by the client", |place| {
        if !place.is_beanring {
            return;
        }
        let said = place.ok(&["schedule", "add", "nightly", "daily", "-w", "0 3 * * *  Europe/Berlin"]);
        let next = place.json(&["schedule", "show", "nightly"])["next_run"]["at"].clone();
        let next = next.as_str().expect("a date");
        assert!(said.starts_with(&format!("scheduled nightly; the next run is at {next}, in ")), "{said}");
        place.session(
            r#"
            schedule show nightly =~ {"name": "nightly", "tube": "default", "when": "0 3 * * * Europe/Berlin", "priority": 65536}
            schedule show nightly =~ {"delay_seconds": 0, "ttr_seconds": 60, "body_bytes": 5, "missed": "once", "overlap": true}
            schedule show nightly =~ {"configured": false, "runs": 0, "skips": 0, "refusals": 0, "gaps": 0, "last_run": null}
            schedule show nightly =* size 5 B
            schedule show nightly =* when 0 3 * * * Europe/Berlin
            schedule run nightly => 1
            schedule run nightly --json => {"id":2,"schedule":"nightly"}
            [2 0 0 0]
            peek 1 --body =| daily
            schedule show nightly =~ {"runs": 2, "last_run": {"job": 2}}
            schedule rm nightly => deleted nightly
            schedule show nightly =1
            # The jobs stay.
            [2 0 0 0]
            "#,
        );
    });
}

#[test]
fn a_schedule_is_replaced_with_all_its_flags() {
    let place = Place::default();
    place.session("schedule add sync old -w every:1d");
    let flags = "-w every:15m -t mail -p 7 -d 1m -r 5m --missed all --no-overlap";
    let said = place.ok(&[&["schedule", "add", "sync", "new"][..], &words(flags)].concat());
    assert!(said.starts_with("replaced sync; the next run is at "), "{said}");
    place.session(&format!(
        r#"
        schedule show sync =~ {{"tube": "mail", "when": "every:15m", "priority": 7, "delay_seconds": 60, "ttr_seconds": 300}}
        schedule show sync =~ {{"body_bytes": 3, "missed": "all", "overlap": false}}
        schedule show sync =* overlap no
        schedule run sync => 1
        [0 0 1 0]
        job 1 =~ {{"tube": "mail", "priority": 7, "ttr_seconds": 300}}
        schedule add sync new {flags} =~ {{"name": "sync", "runs": 1, "next_run": {{}}}}
        schedule rm sync --json => {{"name":"sync","deleted":true}}
        "#
    ));
}

#[test]
fn a_schedule_puts_jobs_by_itself() {
    let place = Place::default();
    place.session("schedule add tick x -w every:1 -t ticks --no-overlap");
    place.wait_for_jobs([1, 0, 0, 0]);
    let shown = place.json(&["schedule", "show", "tick"]);
    assert_eq!(shown["last_run"]["job"], 1, "{shown}");
    assert!(shown["last_run"]["late_seconds"].is_number() && shown["last_run"]["at"].is_string(), "{shown}");
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn the_body_is_an_argument_a_file_or_the_input() {
    let place = Place::default();
    let scratch = Scratch::new("schedule");
    let file = scratch.join("body");
    fs::write(&file, b"1\n2\r\n\xff").expect("a file");
    let path = file.to_str().expect("UTF-8");
    let add = ["schedule", "add", "a", "-w", "every:1h"];
    let body_of = |arguments: &[&str], input: &[u8]| {
        place.feed(&[&add, arguments].concat(), input).ok();
        let id = place.ok(&["schedule", "run", "a"]);
        place.run(&["peek", id.trim(), "--body"]).stdout
    };
    assert_eq!(body_of(&["a body"], b"not read"), b"a body");
    assert_eq!(body_of(&[""], b"not read"), b"");
    assert_eq!(body_of(&[], b"all\r\nof it\n"), b"all\r\nof it\n");
    assert_eq!(body_of(&["-f", path], b"not read"), b"1\n2\r\n\xff");
    assert_eq!(body_of(&["--file", "-"], b"in"), b"in");
    assert_eq!(body_of(&["--allow-empty"], b""), b"");
    let longest = "x".repeat(65_535);
    assert_eq!(body_of(&[], longest.as_bytes()), longest.as_bytes());
    place.ok(&["schedule", "rm", "a"]);
    let (missing, add) = (scratch.join("missing"), "schedule add a -w every:1h");
    place.session(&format!(
        "
        {add} =2> standard input is empty; give a body, or --allow-empty to put a job with an empty body
        {add} -f {0} =2> cannot read {0}: No such file or directory
        {add} -f / =2> cannot read /: Is a directory
        {add} body -f {path} =2> BODY and -f/--file cannot be combined; remove one of them
        ",
        missing.display()
    ));
    let said = "the body has more than 65535 bytes, the most for a schedule; shorten it, or store the data elsewhere";
    place.feed(&words(add), format!("{longest}x").as_bytes()).fails(2, said);
    place.run(&[&words(add)[..], &[&format!("{longest}x")]].concat()).fails(2, said);
    place.session("schedule list --json =|");
}

#[test]
fn wrong_usage_of_a_schedule_names_what_to_write() {
    let place = Place::default();
    let line = "not a cron line of five fields: minute, hour, day of the month, month and day of the week; a time zone may follow; \
                write a line in quotes, and an interval as every:15m";
    place.session(&format!(
        r#"
        schedule =2> beanring schedule: name a command: add, list, rm, run or show
        schedule ad =2> ad: no such command; did you mean add?
        schedule add a body =2> --when WHEN is missing; usage: beanring schedule add [FLAGS] --when WHEN NAME [BODY]
        schedule add a body -w 15m =2> -w/--when "15m": {line}
        schedule add a -w 0 3 =2> -w/--when "0": {line}
        schedule add a body -w 0 3 * * * =2> 3: a schedule has one body; write the body and the cron line in quotes
        schedule add a body -w '0 3 * * * Mars' =2> -w/--when "0 3 * * * Mars": not a time zone of the IANA database, such as Europe/Berlin; a line has five fields, without seconds
        schedule add a body -w '0 0 31 2 *' =2> -w/--when "0 0 31 2 *": at no date of the next four years
        schedule add a body -w every:0 =2> -w/--when "every:0": not an interval: `every:` and seconds, or a number with s, m, h or d, from 1 second to 366 days
        schedule add a two bodies -w every:9 =2> bodies: a schedule has one body; write the body and the cron line in quotes
        schedule add a body -w every:9 -t a -t b =2> -t/--tube: given twice; beanring schedule add takes one tube
        schedule add a body -w every:9 --missed never =2> --missed "never": must be skip, once or all
        schedule add 'a b' body -w every:9 =2> NAME "a b": must be 1 to 200 of the characters A-Z a-z 0-9 - + / ; . $ _ ( ), and not begin with -
        schedule --json list =2
        schedule list a =2> a: unexpected argument; see beanring schedule list --help
        schedule show =2> NAME is missing; usage: beanring schedule show [FLAGS] NAME
        schedule list --json =|
        "#
    ));
}

#[test]
fn all_pages_are_listed() {
    let place = Place::default();
    let put = |at: u32| format!("schedule-put s{at:04} 1 0 60 1 t{at} every:1h\r\nx\r\n");
    let mut client = place.control();
    for first in (0..2500).step_by(500) {
        let commands: String = (first..first + 500).map(put).collect();
        client.send(&commands);
        (0..500).for_each(|_| assert_eq!(client.line().as_deref(), Some("SCHEDULED")));
    }
    let listed = place.json_lines(&["schedule", "list"]);
    let names: Vec<&str> = listed.iter().map(|schedule| schedule["name"].as_str().expect("a name")).collect();
    assert!(names.len() == 2500 && names.is_sorted(), "{} names", names.len());
    assert_eq!((&listed[2499]["tube"], &listed[2499]["body_bytes"]), (&"t2499".into(), &1.into()));
    let table = place.ok(&["schedule", "list"]);
    assert_eq!(table.lines().count(), 2501);
    let row: Vec<&str> = table.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!(
        (&row[..3], &row[row.len() - 4..]),
        (&["s2499", "t2499", "every:1h"][..], &["-", "0", "0", "0"][..])
    );
}

#[test]
fn a_refused_run_says_what_to_do() {
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &["-z", "100"]);
    let long = "x".repeat(101);
    place.session(&format!(
        "
        schedule add long {long} -w every:1h =1> schedule long: JOB_TOO_BIG: the body is larger than the server or a segment of its \
         job log accepts; shorten it, or raise -z or -s of the server
        schedule add a x -w every:1h -t mail
        tube-config mail max-jobs 1
        schedule run a => 1
        schedule run a =1> schedule a: OUT_OF_MEMORY: limits that refuse jobs here: rule max-jobs 1 of mail
        drain
        schedule run a =1> schedule a: DRAINING: the server accepts no new jobs; run beanring undrain first
        schedule run a --json =1
        "
    ));
}

/// The replies of a server to `schedule add` after the look at the schedule.
fn refused(script: &'static [&'static str], said: &str) {
    let address = scripted(script);
    run_at(&address, &["schedule", "add", "a", "body", "-w", "every:9"])
        .fails(1, &format!("schedule a: {said}"));
}

#[test]
fn a_refused_schedule_says_what_to_do() {
    refused(
        &["NOT_FOUND\r\n", "BAD_FORMAT\r\n"],
        "BAD_FORMAT: the server does not know the time zone, or its clock finds no time in the next four years; correct WHEN",
    );
    refused(
        &["NOT_FOUND\r\n", "OUT_OF_MEMORY\r\n"],
        "OUT_OF_MEMORY: a limit is reached: 10,000 schedules, memory (--max-memory), or the disk of the job log; delete \
         schedules or jobs, raise --max-memory, or make room on the disk",
    );
    refused(
        &["NOT_FOUND\r\n", "FORBIDDEN\r\n"],
        "FORBIDDEN: you need the right produce on the tube default, and produce on the tube of the schedule; see the server's --auth",
    );
    let forbidden = scripted(&["FORBIDDEN\r\n"]);
    let said = "list-schedules: FORBIDDEN: you need the right produce or inspect or admin on any tube; see the server's --auth";
    run_at(&forbidden, &["schedule", "list"]).fails(1, said);
    let said = "schedule a: FORBIDDEN: you need the right produce or admin on the tube of the schedule; see the server's --auth";
    run_at(&scripted(&["FORBIDDEN\r\n", "FORBIDDEN\r\n"]), &["schedule", "rm", "a"]).fails(1, said);
    // A schedule disappears between the look at it and the command.
    let address = scripted(&["OK 14\r\n---\nname: \"a\"\n\r\n", "NOT_FOUND\r\n"]);
    let said = "schedule a: NOT_FOUND: there is no such schedule; see beanring schedule list";
    run_at(&address, &["schedule", "rm", "a"]).fails(1, said);
}

#[test]
fn a_schedule_of_the_configuration_file_comes_back() {
    let scratch = Scratch::new("schedule-file");
    let file = scratch.join("beanring.toml");
    let text = "[[schedule]]\nname = \"a\"\ntube = \"t\"\nwhen = \"every:1h\"\nbody = \"x\"\n";
    fs::write(&file, text).expect("a file");
    let path = file.to_str().expect("UTF-8");
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &["--config", path]);
    assert_eq!(place.json(&["schedule", "show", "a"])["configured"], true);
    let said = "beanring: warning: the server's configuration file has schedule a, and the next start puts it back; change the \
                file\n";
    let deleted = place.run(&["schedule", "rm", "a"]);
    assert_eq!((deleted.code, deleted.text().as_str(), &*deleted.stderr), (Some(0), "deleted a\n", said));
    // This one is of the client alone.
    place.session("schedule add a y -w every:1h\nschedule add a y -w every:2h");
    let place = Place::beanring(Driver::Epoll, Transport::Tcp, &["--config", path]);
    let replaced = place.run(&["schedule", "add", "a", "y", "-w", "every:2h"]);
    assert_eq!((replaced.code, &*replaced.stderr), (Some(0), said), "{replaced:?}");
}

#[test]
fn a_list_that_does_not_end_is_an_error() {
    // The first page is not followed by one of later names.
    for next in ["b", "a", "no name", ""] {
        let text = format!("---\nschedules: []\nnext: \"{next}\"\n");
        let address = replies(move || {
            let text = text.clone();
            move |_| data("OK", text.as_bytes())
        });
        let ran = run_at(&address, &["schedule", "list"]);
        let is_last = next.is_empty();
        assert_eq!(ran.code, Some(if is_last { 0 } else { 3 }), "{ran:?}");
        assert!(is_last || ran.stderr.contains("is not what the command asks for"), "{ran:?}");
    }
    let address = replies(|| {
        let mut page = 0;
        move |_| {
            page += 1;
            data("OK", format!("---\nschedules: []\nnext: \"s{page:09}\"\n").as_bytes())
        }
    });
    assert_eq!(run_at(&address, &["schedule", "list"]).code, Some(3));
    let address = replies(|| |_| data("OK", b"---\nnext: \"a\"\n"));
    assert_eq!(run_at(&address, &["schedule", "list", "--json"]).json()["error"], json!("no-connection"));
}

#[test]
fn the_list_shows_what_was_left_out_and_a_long_name_widens_one_row() {
    let place = Place::default();
    let long = "x".repeat(100);
    place.ok(&["schedule", "add", &long, "x", "-w", "every:1h"]);
    place.session(
        "schedule add rest x -w every:1h -t full
        tube-config full max-jobs 1
        schedule run rest => 1
        schedule run rest =1",
    );
    let list = place.ok(&["schedule", "list"]);
    let row = |name: &str| list.lines().find(|row| row.starts_with(name)).expect("a row").to_owned();
    let refusals = place.number(&["schedule", "show", "rest"], "refusals");
    assert!(row("rest").ends_with(&format!("  {refusals}")), "{list}");
    assert!(row("rest").len() < 130 && row("SCHEDULE").len() < 130, "{list}");
    assert!(row(&long).starts_with(&format!("{long}  default")), "{list}");
}
