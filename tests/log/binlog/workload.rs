//! Random commands of every kind that a binlog records.

use super::client::Served;
use beanring_testkit::random::Random;

pub const TUBES: [&str; 4] = ["default", "mail", "a", "tube-of-a-longer-name/with;signs.$_()"];

/// A server and the jobs that the workload has put.
pub struct Workload {
    server: Served,
    random: Random,
    last_id: u64,
    /// Buried jobs by tube, in order.
    buried: [Vec<u64>; 4],
    held: Vec<(u64, usize)>,
    tube_of: Vec<usize>,
}

impl Workload {
    pub fn begin(mut server: Served) -> Self {
        for (number, tube) in TUBES.iter().enumerate().skip(1) {
            server.expect(&format!("watch {tube}"), &format!("WATCHING {}", number + 1));
        }
        Self {
            server,
            random: Random::new(7),
            last_id: 0,
            buried: Default::default(),
            held: Vec::new(),
            tube_of: vec![0],
        }
    }

    /// Puts `puts` jobs, mixed with `others` other commands, of which `deletes` percent are deletions.
    pub fn run(&mut self, puts: usize, others: usize, deletes: usize) {
        for number in 0..puts + others {
            let is_put = (number < puts / 2) || self.random.below(puts / 2 + others) < puts / 2;
            if is_put {
                self.put();
            } else if self.random.below(100) < deletes {
                self.delete_ready();
            } else {
                self.change();
            }
        }
    }

    /// Kills the server. Returns the buried jobs by tube, and the last id.
    pub fn kill(self) -> ([Vec<u64>; 4], u64) {
        (self.buried, self.last_id)
    }

    fn put(&mut self) {
        let tube = self.random.below(TUBES.len());
        self.server.expect(&format!("use {}", TUBES[tube]), &format!("USING {}", TUBES[tube]));
        let bytes = match self.random.below(100) {
            0 => 60_000,
            1..10 => self.random.below(8_000),
            10..15 => 0,
            _ => self.random.below(200),
        };
        let letter = char::from(b'a' + self.random.below(26) as u8);
        let delay = match self.random.below(20) {
            0 => 1,
            1..5 => 1000 + self.random.below(1_000_000) as u32,
            _ => 0,
        };
        let (pri, ttr) = (self.random.next() as u32, 600 + self.random.below(1000) as u32);
        self.last_id = self.server.put(pri, delay, ttr, &letter.to_string().repeat(bytes));
        self.tube_of.resize(self.last_id as usize + 1, tube);
        self.tube_of[self.last_id as usize] = tube;
    }

    fn change(&mut self) {
        match self.random.below(10) {
            0..4 => self.reserve(),
            4 => self.release(),
            5..7 => self.bury(),
            7 => self.kick_job(),
            8 => self.kick(),
            _ => self.delete_any(),
        }
    }

    fn reserve(&mut self) {
        if let Some(id) = self.server.job("reserve-with-timeout 0") {
            self.held.push((id, self.tube_of[id as usize]));
        }
    }

    fn take_held(&mut self) -> Option<(u64, usize)> {
        let count = self.held.len();
        (count > 0).then(|| self.held.swap_remove(self.random.below(count)))
    }

    fn release(&mut self) {
        let Some((id, _)) = self.take_held() else { return };
        let (pri, delay) = (self.random.below(1000), [0, 0, 5000][self.random.below(3)]);
        self.server.expect(&format!("release {id} {pri} {delay}"), "RELEASED");
    }

    fn bury(&mut self) {
        let Some((id, tube)) = self.take_held() else { return };
        let pri = self.random.below(1000);
        self.server.expect(&format!("bury {id} {pri}"), "BURIED");
        self.buried[tube].push(id);
    }

    fn kick_job(&mut self) {
        let tube = self.random.below(TUBES.len());
        if self.buried[tube].is_empty() {
            return;
        }
        let at = self.random.below(self.buried[tube].len());
        let id = self.buried[tube].remove(at);
        self.server.expect(&format!("kick-job {id}"), "KICKED");
    }

    /// Kicks the first buried job, or else a delayed one.
    fn kick(&mut self) {
        let tube = self.random.below(TUBES.len());
        self.server.expect(&format!("use {}", TUBES[tube]), &format!("USING {}", TUBES[tube]));
        self.server.ask("kick 1");
        if !self.buried[tube].is_empty() {
            self.buried[tube].remove(0);
        }
    }

    fn delete_any(&mut self) {
        let id = self.random.below(self.last_id as usize) as u64 + 1;
        self.delete(id);
    }

    fn delete_ready(&mut self) {
        let id = self.server.job("peek-ready").or_else(|| self.held.first().map(|&(id, _)| id));
        if let Some(id) = id {
            self.delete(id);
        }
    }

    fn delete(&mut self, id: u64) {
        self.server.ask(&format!("delete {id}"));
        self.held.retain(|&(held, _)| held != id);
        self.buried.iter_mut().for_each(|buried| buried.retain(|&other| other != id));
    }
}
