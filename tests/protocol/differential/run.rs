//! One random conversation: which action is next, and whether both servers agree on it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::deadlines::{Deadlines, Lateness};
use super::generator::{Awaited, Command, Ending, Situation, default_watch};
use super::pair::{Answers, Side};
use super::reply::{Comparable, Quotes};
use beanring_testkit::beanstalkd::{QUOTES_FROM, version};
use beanring_testkit::pattern::show;
use beanring_testkit::random::Random;

const CONNECTIONS_MAX: usize = 6;

/// With short deadlines commands are sent in windows. All deadlines are one or two seconds after a command, and windows
/// begin a second and a quarter apart. So no deadline falls into a window on a machine that is fast enough. If one
/// might, the window begins later.
const WINDOW_PERIOD: Duration = Duration::from_millis(1250);
const WINDOW: Duration = Duration::from_millis(200);

/// Pause between commands that set a deadline, so that deadlines are as far apart and in order.
const SPACING: Duration = Duration::from_millis(30);
const SPACINGS_PER_WINDOW: usize = 5;
const STEPS_PER_WINDOW: usize = 40;

/// Why a run ended before its last step.
pub enum Trouble {
    /// Something was late: from this step on the servers may differ. All steps before were compared.
    Late { steps: usize, why: Lateness },
    /// The servers differ, and nothing was late.
    Difference { story: Vec<String>, what: String },
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Late { steps, why } => write!(f, "after {steps} steps {why}"),
            Self::Difference { story, what } => write!(f, "{}\n{what}", story.join("\n")),
        }
    }
}

/// Returns whether time passes in the run of a seed.
pub fn is_timed(seed: u64) -> bool {
    seed % 5 == 4
}

/// Runs the conversation of `seed` with both servers.
pub fn run(reference: &Path, program: &Path, seed: u64, steps: usize) -> Result<(), Trouble> {
    // A run with deadlines sleeps and sends single commands. One without sends only bursts.
    let kinds = [Ending::Delays, Ending::Reservations, Ending::Pauses, Ending::Reservations];
    let ending = is_timed(seed).then(|| kinds[(seed / 5 % 4) as usize]);
    let quotes = if version(reference) < QUOTES_FROM { Quotes::Ignored } else { Quotes::Compared };
    let mut run = Run {
        random: Random::new(seed),
        ending,
        left: Side::start(reference, quotes),
        right: Side::start(program, quotes),
        clients: Vec::new(),
        short_ttr: Vec::new(),
        story: VecDeque::new(),
    };
    let drain_at = run.random.chance(30).then(|| steps - steps / 10);
    let mut window = Window::first();
    let mut deadlines = Deadlines::new(window.start);
    for step in 0..steps {
        let late = |why| Trouble::Late { steps: step, why };
        if drain_at == Some(step) {
            run.tell("SIGUSR1".to_owned());
            let drained = run.on_both(Side::drain);
            deadlines.check().map_err(late)?;
            drained?;
        }
        let before = Instant::now();
        let done = run.step();
        let after = Instant::now();
        if ending.is_none() {
            done?;
            continue;
        }
        // Only measured lateness excuses a difference.
        deadlines.check().map_err(late)?;
        let short = done?;
        if short {
            deadlines.set(before, after);
        }
        window.spend(short);
        deadlines.check().map_err(late)?;
        if window.is_spent() {
            run.tell("time passes".to_owned());
            let until = deadlines.quiet(window.next(), WINDOW);
            window = Window { start: until, ..Window::first() };
            run.let_pass(&mut deadlines, until, late)?;
        }
    }
    Ok(())
}

struct Run {
    random: Random,
    ending: Option<Ending>,
    left: Side,
    right: Side,
    clients: Vec<Client>,
    /// For each job, whether its reservations are short.
    short_ttr: Vec<bool>,
    story: VecDeque<String>,
}

/// The state of a connection.
struct Client {
    watched: BTreeSet<String>,
    held: Vec<usize>,
}

impl Run {
    /// Lets both servers pass all deadlines until then, and compares the results.
    fn let_pass(
        &mut self,
        deadlines: &mut Deadlines,
        until: Instant,
        late: impl Fn(Lateness) -> Trouble,
    ) -> Result<(), Trouble> {
        let stops = deadlines.stops(until).map_err(&late)?;
        let (left, right) = thread::scope(|scope| {
            let left = scope.spawn(|| self.left.sleep_until(until, &stops));
            let right = self.right.sleep_until(until, &stops);
            (left.join().expect("it sleeps"), right)
        });
        let (left, right) = (left.map_err(&late)?, right.map_err(&late)?);
        let settled = self.settle();
        deadlines.check().map_err(&late)?;
        if settled? {
            for (stop, (left, right)) in stops.iter().zip(left.into_iter().zip(right)) {
                deadlines.set_again(stop, left.0.min(right.0), left.1.max(right.1));
            }
        }
        Ok(())
    }

    /// Performs an action. Returns whether it set a short deadline.
    fn step(&mut self) -> Result<bool, Trouble> {
        let open: Vec<usize> = (0..self.clients.len()).filter(|&conn| self.left.is_open(conn)).collect();
        let (waiting, free): (Vec<usize>, Vec<usize>) = open.iter().partition(|&&conn| self.left.waits(conn));
        if free.is_empty() && open.len() == CONNECTIONS_MAX {
            let conn = self.random.pick(&waiting);
            self.end(conn);
            return self.settle();
        }
        if free.is_empty() || open.len() < CONNECTIONS_MAX && self.random.chance(10) {
            self.tell(format!("c{} opens", self.clients.len()));
            self.left.open();
            self.right.open();
            self.clients.push(Client { watched: default_watch(), held: Vec::new() });
            return self.settle();
        }
        if self.random.chance(3) {
            let conn = self.random.pick(&open);
            self.end(conn);
            return self.settle();
        }
        let conn = self.random.pick(&free);
        // Commands behind a reserve run when it is answered, at the same time as those behind the command that caused
        // the answer.
        let more_may_run = waiting.iter().any(|&other| self.left.has_more(other));
        let burst = self.ending.is_none() && !more_may_run && self.random.chance(20);
        let commands = if burst { self.burst(conn, &waiting) } else { vec![self.single(conn, &waiting)] };
        let short = self.send(conn, &commands);
        if burst && self.random.chance(4) {
            self.tell(format!("c{conn} half-closes"));
            self.left.half_close(conn);
            self.right.half_close(conn);
        }
        Ok(self.settle()? | short)
    }

    /// Ends a connection in one of several ways.
    fn end(&mut self, conn: usize) {
        let waits = self.left.waits(conn);
        if self.random.chance(40) {
            self.tell(format!("c{conn} half-closes"));
            self.left.half_close(conn);
            self.right.half_close(conn);
        } else if waits && self.left.has_more(conn) {
            // It is undefined whether the commands behind the reserve still run.
        } else if !waits && self.random.chance(30) {
            let quit = Command::quit(&mut self.random);
            self.send(conn, &[quit]);
        } else {
            if !waits && self.random.chance(30) {
                self.tell(format!("c{conn} sends a part of a command"));
                for side in [&mut self.left, &mut self.right] {
                    side.send(conn, b"put 0 0 60 100\r\nabc", &[]);
                }
            }
            self.tell(format!("c{conn} closes"));
            self.left.close(conn);
            self.right.close(conn);
        }
    }

    fn single(&mut self, conn: usize, waiting: &[usize]) -> Command {
        if self.random.chance(12) && self.may_wait(conn, waiting) {
            return Command::waiting_reserve(&mut self.random, self.ending);
        }
        self.immediate(conn, false)
    }

    fn burst(&mut self, conn: usize, waiting: &[usize]) -> Vec<Command> {
        let length = 2 + self.random.below(12);
        let reserve = (self.random.chance(25) && self.may_wait(conn, waiting))
            .then(|| (self.random.below(length), Command::waiting_reserve(&mut self.random, None)));
        let mut commands: Vec<Command> = (0..length).map(|_| self.immediate(conn, true)).collect();
        if let Some((place, reserve)) = reserve {
            // Determines now which tubes each connection waits for.
            commands
                .retain(|command| !matches!(command.awaited[0], Awaited::Watching(_) | Awaited::Ignoring(_)));
            commands.insert(place.min(commands.len()), reserve);
        }
        commands
    }

    fn immediate(&mut self, conn: usize, burst: bool) -> Command {
        let situation = Situation {
            jobs: self.short_ttr.len(),
            held: &self.clients[conn].held,
            ending: self.ending,
            burst,
        };
        Command::immediate(&mut self.random, &situation)
    }

    /// beanstalkd chooses another one of several connections that wait for one tube.
    fn may_wait(&self, conn: usize, waiting: &[usize]) -> bool {
        let watched = &self.clients[conn].watched;
        waiting.iter().all(|&other| self.clients[other].watched.is_disjoint(watched))
    }

    /// Returns whether one of the commands sets a short deadline by itself.
    fn send(&mut self, conn: usize, commands: &[Command]) -> bool {
        let awaited: Vec<Awaited> =
            commands.iter().flat_map(|command| command.awaited.iter().cloned()).collect();
        for (side, is_left) in [(&mut self.left, true), (&mut self.right, false)] {
            let bytes: Vec<u8> =
                commands.iter().flat_map(|command| command.bytes(|order| side.ids.id(order))).collect();
            side.send(conn, &bytes, &awaited);
            if is_left {
                self.story.push_back(format!("c{conn} > {}", show(&bytes)));
            }
        }
        commands.iter().any(|command| command.short)
    }

    /// Waits for both servers and compares them. Returns whether a short reservation has begun.
    fn settle(&mut self) -> Result<bool, Trouble> {
        let left = self.left.settle().map_err(|what| self.difference(format!("reference: {what}")))?;
        let right = self.right.settle().map_err(|what| self.difference(format!("ours: {what}")))?;
        for (conn, (left, right)) in left.iter().zip(&right).enumerate() {
            let agree = left.len() == right.len()
                && left.iter().zip(right).all(|((_, left), (_, right))| left.agrees(right));
            if !agree {
                return Err(self.difference(differing(conn, left, right)));
            }
        }
        let all = || left.iter().flatten();
        let made = all().filter_map(|(awaited, answer)| Some((awaited, answer.job_after("INSERTED")?)));
        for (awaited, job) in made {
            self.short_ttr.resize(self.short_ttr.len().max(job + 1), false);
            self.short_ttr[job] = *awaited == Some(Awaited::Inserted { short_ttr: true });
        }
        let mut short = false;
        for (conn, answers) in left.iter().enumerate() {
            for (awaited, answer) in answers {
                short |= self.learn(conn, awaited.as_ref(), answer);
                self.tell(format!("c{conn} < {}", answer.lines[0]));
            }
        }
        Ok(short)
    }

    /// Records a reply. Returns whether it begins a short reservation.
    fn learn(&mut self, conn: usize, awaited: Option<&Awaited>, answer: &Comparable) -> bool {
        let client = &mut self.clients[conn];
        let line = answer.lines[0].as_str();
        match awaited {
            Some(Awaited::Watching(tube)) if line.starts_with("WATCHING") => {
                client.watched.insert(tube.clone());
            }
            Some(Awaited::Ignoring(tube)) if line.starts_with("WATCHING") => {
                client.watched.remove(tube);
            }
            Some(Awaited::Touched) => return self.ending.is_some() && line == "TOUCHED",
            _ => {}
        }
        match answer.job_after("RESERVED") {
            Some(job) => {
                client.held.push(job);
                self.short_ttr[job]
            }
            None => false,
        }
    }

    fn on_both(&mut self, act: impl Fn(&mut Side) -> Result<(), String>) -> Result<(), Trouble> {
        act(&mut self.left).map_err(|what| self.difference(format!("reference: {what}")))?;
        act(&mut self.right).map_err(|what| self.difference(format!("ours: {what}")))
    }

    fn tell(&mut self, line: String) {
        const LINES_MAX: usize = 60;
        if self.story.len() >= LINES_MAX {
            self.story.pop_front();
        }
        self.story.push_back(line);
    }

    fn difference(&self, what: String) -> Trouble {
        Trouble::Difference { story: self.story.iter().cloned().collect(), what }
    }
}

/// A short period in which commands are sent.
struct Window {
    start: Instant,
    steps: usize,
    spacings: usize,
}

impl Window {
    fn first() -> Self {
        Self { start: Instant::now(), steps: 0, spacings: 0 }
    }

    fn spend(&mut self, short: bool) {
        self.steps += 1;
        if short {
            self.spacings += 1;
            thread::sleep(SPACING);
        }
    }

    fn is_spent(&self) -> bool {
        self.steps >= STEPS_PER_WINDOW
            || self.spacings >= SPACINGS_PER_WINDOW
            || self.start.elapsed() > WINDOW
    }

    /// Returns the earliest start of the next window.
    fn next(&self) -> Instant {
        (self.start + WINDOW_PERIOD).max(Instant::now())
    }
}

fn differing(conn: usize, left: &Answers, right: &Answers) -> String {
    let shown = |answers: &Answers| {
        let lines: Vec<String> = answers
            .iter()
            .map(|(awaited, answer)| format!("    {awaited:?}: {}", answer.lines.join(" | ")))
            .collect();
        lines.join("\n")
    };
    format!("c{conn} differs\n  reference\n{}\n  ours\n{}", shown(left), shown(right))
}
