//! What happens to a server and its schedules: clients, operators, crashes and clocks.

use std::rc::Rc;

use beanring::wal::Durability;
use beanring_testkit::disk::Crash;

use super::BODY_BYTES_MAX;
use super::model::{Change, FILLER, FULL_TUBE, Job, Missed, Plan, Schedule};
use super::stats;
use super::times::{SECOND, Times};
use super::world::World;

const TUBES: [&str; 3] = ["mail", "report", FULL_TUBE];
const DAY: u64 = 24 * 3600 * SECOND;
/// How far the system clock is set wrong, at most.
const DEVIATION_MAX: i64 = 12 * DAY as i64;
/// Jobs of one `delete-batch`.
const BATCH_JOBS: usize = 50;
/// Steps of a server that is about to crash, at most.
const LAST_STEPS: usize = 8;

impl World {
    /// Does one of the things that may happen.
    pub fn act(&mut self) {
        let Self { is_draining, is_short, .. } = *self;
        match self.random.below(100) {
            _ if is_draining && self.random.chance(40) => self.undrain(),
            _ if is_short && self.random.chance(40) => self.unfill(),
            0..30 => self.put_schedule(true),
            30..36 => self.delete_schedule(true),
            36..46 => self.run_by_hand(true),
            46..54 => self.work_on_a_job(true),
            54..58 => self.check_stats(),
            58..60 => self.put_never(),
            60..64 => self.drain(),
            64..68 => {
                let span = self.down_time();
                self.log(|| format!("paused for {} s", span / SECOND));
                self.pause(span);
            }
            68..76 if self.setting.clock_jumps => self.jump(),
            76..80 if self.setting.memory.is_some() => self.fill(),
            80..100 if self.setting.crashes => self.crash(),
            _ => self.put_schedule(true),
        }
        self.delete_jobs(self.setting.jobs_max);
        self.settle();
        self.compare();
    }

    fn expect(&mut self, answers: bool, expected: &str) {
        if answers {
            assert_eq!(self.reply().trim_end(), expected);
        }
    }

    /// A schedule that is there, if there is one.
    fn pick_schedule(&mut self) -> Option<String> {
        let count = self.history.state.schedules.len();
        let at = self.random.below(count.max(1));
        self.history.state.schedules.keys().nth(at).cloned()
    }

    pub fn put_schedule(&mut self, answers: bool) {
        let count = self.setting.schedules;
        let name = if self.history.state.schedules.len() < count {
            let names = (0..count).map(|number| format!("s{number:03}"));
            names
                .into_iter()
                .find(|name| !self.history.state.schedules.contains_key(name))
                .expect("one is free")
        } else {
            self.pick_schedule().expect("there are some")
        };
        let plan = self.new_plan(&name);
        self.send_schedule(&name, plan, answers);
    }

    /// A plan for a schedule: a new one, that which it has, or one with the same times.
    fn new_plan(&mut self, name: &str) -> Plan {
        let before = self.history.state.schedules.get(name).map(|before| before.plan.clone());
        let is_limited = self.setting.memory.is_some();
        let random = &mut self.random;
        let times = match &before {
            Some(before) if random.chance(30) && !is_limited => return before.clone(),
            Some(before) if random.chance(50) => Rc::clone(&before.times),
            _ => Rc::new(Times::random(self.setting.span, random)),
        };
        Plan {
            times,
            tube: random.pick(&TUBES),
            body: format!("{name} {}", random.below(1_000_000)),
            pri: random.below(2000) as u32,
            delay: random.pick(&[0, 0, 0, 7, 3600]),
            ttr: random.pick(&[0, 1, 60]),
            missed: random.pick(&Missed::ALL),
            overlaps: random.chance(50),
        }
    }

    fn send_schedule(&mut self, name: &str, plan: Plan, answers: bool) {
        let Plan { ref times, tube, ref body, pri, delay, ttr, missed, overlaps } = plan;
        let space = if self.random.one_in(8) { "   " } else { " " };
        let times = times.text.replace(' ', space);
        let missed = match missed {
            Missed::Once if self.random.chance(50) => String::new(),
            missed => format!(" missed:{}", missed.word()),
        };
        let overlap = if overlaps { "" } else { " overlap:no" };
        let length = body.len();
        self.send(&format!(
            "schedule-put {name} {pri} {delay} {ttr} {length} {tube} {times}{missed}{overlap}\r\n{body}\r\n"
        ));
        let is_there = self.wait_for_put();
        assert!(is_there || self.is_short, "a schedule is refused");
        if is_there {
            let system = self.system();
            let schedule = match self.history.state.schedules.get(name) {
                Some(before) => before.put_again(plan, system),
                None => Schedule::new(plan, system),
            };
            self.history.add(Change::Schedule(name.to_owned(), Some(schedule)));
        }
        self.expect(answers, if is_there { "SCHEDULED" } else { "OUT_OF_MEMORY" });
    }

    /// Puts a schedule at a day that no month has.
    fn put_never(&mut self) {
        let times = self.random.pick(&["0 0 31 2 *", "5 */4 30 feb *", "0 1 31 4,jun,9,11 * Europe/Berlin"]);
        self.send(&format!("schedule-put s000 0 0 60 4 mail {times}\r\nnone\r\n"));
        self.expect(true, "BAD_FORMAT");
    }

    fn delete_schedule(&mut self, answers: bool) {
        let Some(name) = self.pick_schedule() else { return };
        self.send(&format!("schedule-delete {name}\r\n"));
        self.history.add(Change::Schedule(name, None));
        self.expect(answers, "DELETED");
    }

    fn run_by_hand(&mut self, answers: bool) {
        let Some(name) = self.pick_schedule() else { return };
        self.send(&format!("schedule-run {name}\r\n"));
        let before = self.history.state.schedules[&name].counted;
        let is_done = self.counted(&name) != Some(before);
        let is_permitted = self.is_draining || self.is_short;
        assert!(is_done || is_permitted, "a run by hand is refused");
        if is_done {
            let change = self.history.state.run_by_hand(&name, self.system(), || self.new_job());
            self.history.add(change.clone());
            match change {
                Change::Run(_, _, id, _) => self.expect(answers, &format!("INSERTED {id}")),
                _ => self.expect(answers, "OUT_OF_MEMORY"),
            }
        } else if self.is_draining {
            self.expect(answers, "DRAINING");
        } else {
            self.expect(answers, "OUT_OF_MEMORY");
        }
    }

    fn work_on_a_job(&mut self, answers: bool) {
        let count = self.history.state.jobs.len();
        let at = self.random.below(count.max(1));
        let Some(&id) = self.history.state.jobs.keys().nth(at) else { return };
        match self.random.below(4) {
            0 if answers => {
                self.send(&format!("reserve-job {id}\r\n"));
                if self.reply().starts_with("RESERVED") {
                    self.send(&format!("bury {id} 5\r\n"));
                    self.expect(answers, "BURIED");
                }
            }
            1 if answers => {
                self.send(&format!("reserve-job {id}\r\n"));
                if self.reply().starts_with("RESERVED") && self.random.chance(50) {
                    self.send(&format!("release {id} 5 100\r\n"));
                    self.expect(answers, "RELEASED");
                }
            }
            _ => {
                self.send(&format!("delete {id}\r\n"));
                self.history.add(Change::Job(id, None));
                self.expect(answers, "DELETED");
            }
        }
    }

    /// Deletes jobs, the oldest first, until this many are left.
    fn delete_jobs(&mut self, left: usize) {
        while self.history.state.jobs.len() > left {
            let count = (self.history.state.jobs.len() - left).min(BATCH_JOBS);
            let ids: Vec<u64> = self.history.state.jobs.keys().take(count).copied().collect();
            let words: Vec<String> = ids.iter().map(u64::to_string).collect();
            self.send(&format!("delete-batch {}\r\n", words.join(" ")));
            ids.into_iter().for_each(|id| self.history.add(Change::Job(id, None)));
            self.expect(true, &format!("DELETED_BATCH {count} 0"));
        }
    }

    fn check_stats(&mut self) {
        let Some(name) = self.pick_schedule() else { return };
        self.check_stats_of(&name);
    }

    /// Compares what a client sees of a schedule.
    fn check_stats_of(&mut self, name: &str) {
        self.settle();
        let system = self.system();
        self.send(&format!("schedule-stats {name}\r\n"));
        let expected = stats::lines(name, &self.history.state.schedules[name], system);
        let reply = self.reply();
        let has_next = expected.iter().any(|line| line.starts_with("next-run"));
        let is_known = |line: &&str| !line.is_empty() && (has_next || !line.starts_with("next-run"));
        let found: Vec<&str> = reply.lines().skip(2).filter(is_known).collect();
        assert_eq!(found, expected, "the statistics of {name}");
    }

    fn drain(&mut self) {
        self.send("drain\r\n");
        self.is_draining = true;
        self.expect(true, "DRAINING");
    }

    fn undrain(&mut self) {
        self.send("undrain\r\n");
        self.is_draining = false;
        self.expect(true, "NOT_DRAINING");
    }

    /// Puts jobs until there is no memory.
    fn fill(&mut self) {
        self.send(&format!("use {FILLER}\r\n"));
        self.expect(true, &format!("USING {FILLER}"));
        let body = "x".repeat(BODY_BYTES_MAX as usize);
        while !self.is_draining && !self.is_short {
            self.send(&format!("put 9 0 1 {}\r\n{body}\r\n", body.len()));
            if self.has_new_job() {
                let job = Job { tube: FILLER, body: body.clone(), ttr: 1 };
                self.history.add(Change::Job(self.new_job(), Some(job)));
            }
            self.is_short = self.reply() == "OUT_OF_MEMORY\r\n";
        }
    }

    fn unfill(&mut self) {
        let jobs = self.history.state.jobs.iter().filter(|(_, job)| job.tube == FILLER);
        for id in jobs.map(|(&id, _)| id).collect::<Vec<u64>>() {
            self.send(&format!("delete {id}\r\n"));
            self.history.add(Change::Job(id, None));
            self.expect(true, "DELETED");
        }
        self.is_short = false;
    }

    /// A time that is mostly short.
    fn down_time(&mut self) -> u64 {
        let most = match self.random.below(8) {
            0..3 => SECOND,
            3..5 => 3 * 60 * SECOND,
            5..7 => 3 * 3600 * SECOND,
            _ => DAY,
        };
        self.random.below_u64(most.min(self.end() / 8))
    }

    fn jump(&mut self) {
        let hour = 3600 * SECOND;
        let most = self.random.pick(&[20 * SECOND, 600 * SECOND, hour, 2 * hour, 4 * hour, DAY, 6 * DAY]);
        let by = self.random.below_u64(2 * most) as i64 - most as i64;
        // The clock is corrected sooner or later.
        let by = if self.random.chance(30) { -self.deviation() } else { by };
        if (self.deviation() + by).abs() <= DEVIATION_MAX {
            self.log(|| format!("the clock is set by {} s", by / SECOND as i64));
            self.set_clock(by);
        }
    }

    /// The server ends, and another one goes on.
    fn crash(&mut self) {
        if self.random.chance(50)
            && let Some(due) = self.next_due_within_a_day()
        {
            self.pause(due);
        }
        for _ in 0..self.random.below(LAST_STEPS) {
            match self.random.below(10) {
                0..4 => self.turn(),
                4..7 => self.finish_disk_operation(),
                7 => self.put_schedule(false),
                8 => self.run_by_hand(false),
                _ if self.random.chance(50) => self.delete_schedule(false),
                _ => self.work_on_a_job(false),
            }
        }
        let (down, seconds) = (self.down_time(), SECOND as i64);
        let kind = self.random.below(5);
        self.log(|| format!("end {kind}, for {} s", down / SECOND));
        match kind {
            0 => {
                self.stop();
                let is_synced = self.setting.durability != Durability::Never;
                self.restart(if is_synced { Crash::PowerLoss } else { Crash::Killed }, down, 0);
            }
            1 | 2 => self.restart(Crash::PowerLoss, down, 0),
            3 => self.restart(Crash::Killed, down, 0),
            // Another machine takes over, whose clock shows something else.
            _ => {
                let apart = self.random.below_u64(120 * SECOND) as i64 - 60 * seconds;
                self.restart(Crash::Killed, down.min(20 * SECOND), apart);
            }
        }
    }

    fn next_due_within_a_day(&self) -> Option<u64> {
        let until = beanring::time::Time::from_nanos(self.now.as_nanos() + DAY);
        self.next_due(until).map(|due| due.since(self.now).as_nanos())
    }

    /// Ends a run: nothing keeps schedules from running, and each is compared.
    pub fn end_well(&mut self) {
        self.undrain();
        self.unfill();
        self.settle();
        let names: Vec<String> = self.history.state.schedules.keys().cloned().collect();
        self.send("list-schedules 1000\r\n");
        let listed: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        let reply = self.reply();
        assert_eq!(reply.lines().nth(2), Some(&*format!("schedules: [{}]", listed.join(", "))));
        names.iter().for_each(|name| self.check_stats_of(name));
        self.check();
    }
}
