//! `beanring put`: one thread reads bodies and sends them, another receives the replies. The number of commands in flight is
//! bounded, and so is the memory.

mod bodies;
mod tally;

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver as Tokens, SyncSender, TryRecvError, TrySendError};
use std::thread;
use std::time::Instant;

use beanring::replies::{ClientError, Follows, units};
use beanring::values::tags::Tags;
use beanring::values::tube_rules::{RuleKey, Unit};
use indicatif::{ProgressBar, ProgressStyle};

pub(super) use self::bodies::read_whole;
use self::bodies::{Bodies, InputPlace};
use self::tally::Tally;
use super::connection::{Connection, PUT_LINE, Receiver, Sender, Socket};
use super::inspect;
use super::interrupt::Interrupt;
use super::output::{Output, say};
use super::tube_config;
use crate::cli::verbs::Put;

/// Commands in flight. Each holds a place of 40 bytes here, and a reply of some 20 bytes in the sockets.
const IN_FLIGHT_MAX: usize = 4096;

/// Jobs between two updates of the progress bar.
const PROGRESS_JOBS: u64 = 1024;

pub(super) fn run(verb: &Put) -> Result<ExitCode, ClientError> {
    let started = Instant::now();
    let interrupt = Interrupt::catch()?;
    let tags = verb.tags();
    check_tags(&tags)?;
    check_bodies(verb)?;
    if verb.idp.is_some() && verb.bodies.len() + verb.files.paths().count() > 1 {
        let problem =
            "--idp and several bodies: a tube has one job of a key; put them one by one, each with a key";
        return Err(ClientError::Usage(problem.to_owned()));
    }
    let mut bodies = Bodies::new(verb, interrupt.clone())?;
    let mut connection = super::connect(&verb.common)?;
    connection.use_tube(verb.tube())?;
    if !tags.is_empty() {
        require_tags(&mut connection)?;
    }
    connection.require_decimals([verb.delay, verb.ttr])?;
    let socket = connection.socket();
    let (sender, receiver) = connection.split();
    let (tokens, expected) = mpsc::sync_channel(IN_FLIGHT_MAX);
    let mut output = Output::new(&verb.common);
    let mut tally = Tally::new(verb);
    let (sent, received) = thread::scope(|scope| {
        let (tally, output) = (&mut tally, &mut output);
        let line = format!("{PUT_LINE}{tags}");
        let replies = scope.spawn(move || collect(receiver, &socket, expected, &line, tally, output));
        let sent = send(verb, &mut bodies, sender, tokens);
        (sent, replies.join().expect("it does not panic"))
    });
    output.flush()?;
    // The connection is the reason if both have failed.
    received.and(sent).inspect_err(|_| tally.report_rest())?;
    tally.report(&mut output, started.elapsed(), interrupt.is_caught())?;
    if tally.is_out_of_memory()
        && let Some(limits) = limits_found(&mut super::connect(&verb.common)?, verb.tube())?
    {
        say(format_args!("beanring: limits that refuse jobs here: {limits}"));
    }
    if interrupt.is_caught() {
        return interrupt.report(&tally.done(), &mut output);
    }
    Ok(if tally.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The first of several words may be meant as a tube, and the others as one body.
fn check_bodies(verb: &Put) -> Result<(), ClientError> {
    if verb.tube.is_some() || verb.bodies.len() < 2 {
        return Ok(());
    }
    let count = verb.bodies.len();
    let problem = format!(
        "{count} bodies and no tube: each argument is the body of a job; name the tube with -t, such as -t default, or write \
         one body in quotes"
    );
    Err(ClientError::Usage(problem))
}

/// Each tag is valid, but a job must not wait for its own group.
fn check_tags(tags: &str) -> Result<(), ClientError> {
    if Tags::of_put(tags.as_bytes()).is_some() {
        return Ok(());
    }
    let problem = "--grp and --aft: a job cannot wait for its own group; name two groups";
    Err(ClientError::Usage(problem.to_owned()))
}

/// Asks whether the server knows tags. One that does not would take a body for commands. One that knows rights knows tags, too.
fn require_tags(connection: &mut Connection) -> Result<(), ClientError> {
    let advice = "leave out --idp, --con, --grp and --aft";
    match inspect::if_permitted(inspect::of_server(connection))? {
        Some(stats) if stats.get("cmd-stats-group").is_none() => {
            Err(ClientError::Unknown { what: "tags", advice })
        }
        Some(_) | None => Ok(()),
    }
}

/// Sends every body, and a token for each, until the other thread ends.
fn send(
    verb: &Put,
    bodies: &mut Bodies,
    mut sender: Sender,
    tokens: SyncSender<InputPlace>,
) -> Result<(), ClientError> {
    let (progress, tags) = (progress(verb), verb.tags());
    let mut body = Vec::new();
    let mut count = 0_u64;
    loop {
        if bodies.may_wait() {
            sender.flush()?;
        }
        let Some(place) = bodies.next(&mut body).inspect_err(|_| drop(sender.flush()))? else { break };
        sender.put(verb.pri, [verb.delay, verb.ttr], &tags, &body)?;
        match tokens.try_send(place) {
            Ok(()) => {}
            Err(TrySendError::Full(place)) => {
                sender.flush()?;
                if tokens.send(place).is_err() {
                    return Ok(());
                }
            }
            Err(TrySendError::Disconnected(_)) => return Ok(()),
        }
        count += 1;
        if count.is_multiple_of(PROGRESS_JOBS) {
            progress.set_position(bodies.bytes_read());
            progress.set_message(format!("{count} jobs"));
        }
    }
    progress.finish_and_clear();
    sender.flush()
}

/// Receives a reply to a put like this line for each token.
fn collect(
    mut receiver: Receiver,
    socket: &Socket,
    tokens: Tokens<InputPlace>,
    line: &str,
    tally: &mut Tally,
    output: &mut Output,
) -> Result<(), ClientError> {
    loop {
        let token = match tokens.try_recv() {
            Err(TryRecvError::Empty) => {
                output.flush()?;
                tokens.recv().ok()
            }
            token => token.ok(),
        };
        let Some(place) = token else { return Ok(()) };
        tally.in_flight(place);
        // The other thread may wait until the server reads more.
        let mut reply = receiver.reply(Follows::Nothing).inspect_err(|_| socket.close())?;
        reply.note_command(line.as_bytes());
        tally.add(reply, output).inspect_err(|_| socket.close())?;
    }
}

/// A bar on a terminal, and nothing elsewhere.
fn progress(verb: &Put) -> ProgressBar {
    if !verb.lines {
        return ProgressBar::hidden();
    }
    let (bar, template) = match Bodies::bytes_total(verb) {
        Some(bytes) => (ProgressBar::new(bytes), "{bar:30} {bytes}/{total_bytes}, {msg}, {eta} left"),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {msg}"),
    };
    let style = ProgressStyle::with_template(template).expect("the template is valid");
    bar.with_style(style).with_message("0 jobs")
}

/// Returns the limits that have refused jobs on this server since its start, and that this tube has: OUT_OF_MEMORY does not tell
/// them. Nothing if the server does not count them.
///
/// # Errors
/// If the connection breaks.
pub(super) fn limits_found(connection: &mut Connection, tube: &str) -> Result<Option<String>, ClientError> {
    let Some(server) = inspect::if_permitted(inspect::of_server(connection))? else { return Ok(None) };
    let has_refused = |reason: &str| server.number(&format!("put-refusals-{reason}")) > 0;
    let mut limits = Vec::new();
    // A run of a schedule that a rule has refused is no put.
    if (has_refused("tube-rule") || server.number("rule-refusals") > 0)
        && let Ok(rules) = tube_config::rules(connection, tube)
    {
        for key in RuleKey::ALL.into_iter().filter(|key| key.limits_jobs()) {
            let limit = rules.number(key.word());
            let shown = if key.unit() == Unit::Bytes { units::whole_size(limit) } else { limit.to_string() };
            if limit > 0 {
                limits.push(format!("rule {} {shown} of {tube}", key.word()));
            }
        }
    }
    let memory = server.number("max-memory");
    if has_refused("memory") && memory > 0 {
        limits.push(format!("--max-memory {}", units::whole_size(memory)));
    }
    if has_refused("keys") {
        limits.push("the share of idempotency keys, a quarter of --max-memory".to_owned());
    }
    if has_refused("disk") {
        limits.push("the disk of the job log".to_owned());
    }
    Ok((!limits.is_empty()).then(|| limits.join(", ")))
}
