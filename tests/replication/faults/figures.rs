//! The results of a run.

use super::record::{Event, Reply};

/// Times in microseconds.
pub struct Times(Vec<u64>);

impl Times {
    /// From each of these moments to the reply of the first put that was asked after it and accepted.
    pub fn to_first_put(moments: &[u64], events: &[Event]) -> Self {
        let mut puts: Vec<(u64, u64)> = events
            .iter()
            .filter(|event| matches!(event.reply, Reply::Inserted(_)))
            .map(|event| (event.replied_at, event.asked_at))
            .collect();
        puts.sort_unstable();
        let time = |&moment: &u64| {
            let from = puts.partition_point(|&(replied_at, _)| replied_at < moment);
            let first = puts[from..].iter().find(|&&(_, asked_at)| asked_at >= moment);
            first.map(|&(replied_at, _)| replied_at - moment)
        };
        let mut times: Vec<u64> = moments.iter().filter_map(time).collect();
        times.sort_unstable();
        Self(times)
    }

    fn milliseconds_at(&self, percent: usize) -> u64 {
        self.0[((self.0.len() - 1) * percent).div_ceil(100)].div_ceil(1000)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("never");
        }
        let [median, p99, max] = [50, 99, 100].map(|percent| self.milliseconds_at(percent));
        write!(f, "{} times, median {median} ms, p99 {p99} ms, max {max} ms", self.0.len())
    }
}
