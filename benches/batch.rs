//! `put-batch`, `reserve-batch` and `delete-batch` beside the single commands, unpipelined and pipelined: one connection, and a
//! new server for each measurement.
//!
//! `cargo bench --bench batch [-- DRIVER]`

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use beanring_testkit::bench::machine::Machine;
use beanring_testkit::bench::table::{Table, rounded};
use beanring_testkit::process::{Address, ServerProcess, Transport, program};
use beanring_testkit::stream::Stream;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

const JOBS: usize = 200_000;
/// Jobs in one batch, or in flight.
const BATCH: usize = 1000;
/// A line of a command that names many jobs, with its CR LF.
const LINE_BYTES_MAX: usize = 2048;
const ROUNDS: usize = 5;
const PUT: &str = "put 1024 0 60 64\r\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\r\n";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Unpipelined,
    Pipelined,
    Batch,
}

const MODES: [Mode; 3] = [Mode::Unpipelined, Mode::Pipelined, Mode::Batch];
const STEPS: [&str; 3] = ["put", "reserve", "delete"];

/// The cost of one step for all jobs.
#[derive(Clone, Copy, Default)]
struct Cost {
    elapsed: Duration,
    /// CPU time of the server.
    cpu: Duration,
}

/// A client with a server of its own.
struct Bench {
    mode: Mode,
    stream: BufReader<TcpStream>,
    line: String,
    clock: ClockId,
    _server: ServerProcess,
}

impl Bench {
    fn new(machine: &Machine, driver: &str, mode: Mode) -> Self {
        let command = machine.command(program(), |(server, _)| server);
        let flags = ["--io".to_owned(), driver.to_owned()];
        let (server, stream) = ServerProcess::launch(command, Address::fresh(Transport::Tcp), &flags);
        let Stream::Tcp(stream) = stream else { unreachable!("the address is one of TCP") };
        stream.set_nodelay(true).expect("the socket is open");
        let pid = Pid::from_raw(server.pid().try_into().expect("a pid"));
        let clock = clock_getcpuclockid(pid).expect("the server runs");
        Self { mode, stream: BufReader::new(stream), line: String::new(), clock, _server: server }
    }

    /// Puts, reserves and deletes all jobs, and returns the cost of each step.
    fn run(mut self) -> [Cost; STEPS.len()] {
        let mut ids = Vec::with_capacity(JOBS);
        let put = self.measure(|bench| bench.put());
        let reserve = self.measure(|bench| ids = bench.reserve());
        let delete = self.measure(|bench| bench.delete(&ids));
        [put, reserve, delete]
    }

    fn measure(&mut self, step: impl FnOnce(&mut Self)) -> Cost {
        let cpu_time = |bench: &Self| Duration::from(clock_gettime(bench.clock).expect("the server runs"));
        let (cpu, started) = (cpu_time(self), Instant::now());
        step(self);
        Cost { elapsed: started.elapsed(), cpu: cpu_time(self) - cpu }
    }

    fn put(&mut self) {
        let per_send = if self.mode == Mode::Unpipelined { 1 } else { BATCH };
        let mut commands = PUT.repeat(per_send);
        if self.mode == Mode::Batch {
            commands.insert_str(0, &format!("put-batch {BATCH}\r\n"));
        }
        for _ in 0..JOBS / per_send {
            self.send(&commands);
            if self.mode == Mode::Batch {
                self.reply("INSERTED_BATCH ");
            }
            (0..per_send).for_each(|_| _ = self.reply("INSERTED "));
        }
    }

    fn reserve(&mut self) -> Vec<u64> {
        let per_send = if self.mode == Mode::Unpipelined { 1 } else { BATCH };
        let commands = match self.mode {
            Mode::Batch => format!("reserve-batch {BATCH}\r\n"),
            Mode::Unpipelined | Mode::Pipelined => "reserve\r\n".repeat(per_send),
        };
        let mut ids = Vec::with_capacity(JOBS);
        for _ in 0..JOBS / per_send {
            self.send(&commands);
            if self.mode == Mode::Batch {
                assert_eq!(self.reply("RESERVED_BATCH "), BATCH as u64);
            }
            for _ in 0..per_send {
                ids.push(self.reply("RESERVED "));
                let mut body = [0; 66];
                self.stream.read_exact(&mut body).expect("the server runs");
            }
        }
        ids
    }

    fn delete(&mut self, ids: &[u64]) {
        if self.mode != Mode::Batch {
            for ids in ids.chunks(if self.mode == Mode::Unpipelined { 1 } else { BATCH }) {
                self.send(&ids.iter().map(|id| format!("delete {id}\r\n")).collect::<String>());
                ids.iter().for_each(|_| self.reply_word("DELETED\r\n"));
            }
            return;
        }
        for ids in ids.chunks(BATCH) {
            let lines = delete_batches(ids);
            self.send(&lines);
            let deleted: u64 = lines.lines().map(|_| self.reply("DELETED_BATCH ")).sum();
            assert_eq!(deleted, BATCH as u64);
        }
    }

    fn send(&mut self, commands: &str) {
        self.stream.get_mut().write_all(commands.as_bytes()).expect("the server runs");
    }

    /// Reads the line of a reply. Returns the first number in it.
    fn reply(&mut self, begin: &str) -> u64 {
        self.read_line();
        let number = self.line.strip_prefix(begin).and_then(|rest| rest.split_ascii_whitespace().next());
        number.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("{}", self.line))
    }

    fn reply_word(&mut self, expected: &str) {
        self.read_line();
        assert_eq!(self.line, expected);
    }

    fn read_line(&mut self) {
        self.line.clear();
        self.stream.read_line(&mut self.line).expect("the server runs");
    }
}

/// Returns as few lines as have space for the ids.
fn delete_batches(ids: &[u64]) -> String {
    let mut lines = String::new();
    let mut line_bytes = LINE_BYTES_MAX;
    for id in ids {
        let word = format!(" {id}");
        if line_bytes + word.len() + 2 > LINE_BYTES_MAX {
            lines.push_str(if lines.is_empty() { "delete-batch" } else { "\r\ndelete-batch" });
            line_bytes = "delete-batch".len();
        }
        lines.push_str(&word);
        line_bytes += word.len();
    }
    lines + "\r\n"
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let driver =
        env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or("uring".to_owned());
    let machine = Machine::inspect();
    println!("{}, {}, {} cores, {}, --io {driver}", machine.kernel, machine.cpu, machine.cores, machine.date);
    let mut costs = [const { Vec::new() }; MODES.len()];
    for _ in 0..ROUNDS {
        for (mode, costs) in MODES.into_iter().zip(&mut costs) {
            costs.push(Bench::new(&machine, &driver, mode).run());
        }
    }
    let head = ["", "unpipelined", "1,000 in flight", "batch of 1,000"];
    let mut rates = Table::new(head.map(str::to_owned).to_vec());
    let mut cpu = Table::new(head.map(str::to_owned).to_vec());
    for (step, name) in STEPS.into_iter().enumerate() {
        let line = |value: fn(Cost) -> f64| {
            let cell = |costs: &Vec<[Cost; STEPS.len()]>| {
                rounded(median(costs.iter().map(|costs| value(costs[step])).collect()))
            };
            [name.to_owned()].into_iter().chain(costs.iter().map(cell)).collect()
        };
        rates.push(line(|cost| JOBS as f64 / cost.elapsed.as_secs_f64()));
        cpu.push(line(|cost| cost.cpu.as_secs_f64() * 1e6 / JOBS as f64));
    }
    println!("\nJobs per second\n\n{}\nServer CPU per job, µs\n\n{}", rates.markdown(), cpu.markdown());
}
