//! The results of a run.

use super::record::{Event, Reply};

/// Times in microseconds, sorted.
pub struct Times(Vec<u64>);

impl Times {
    /// From each of these moments to the reply of the first put that was asked after it and accepted.
    pub fn to_first_put(moments: &[u64], events: &[Event]) -> Self {
        let time = |&moment: &u64| {
            let is_put = |event: &&Event| matches!(event.reply, Reply::Inserted(_));
            let puts = events.iter().filter(is_put).filter(|event| event.asked_at >= moment);
            puts.map(|event| event.replied_at - moment).min()
        };
        let mut times: Vec<u64> = moments.iter().filter_map(time).collect();
        times.sort_unstable();
        Self(times)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(last) = self.0.len().checked_sub(1) else { return f.write_str("never") };
        let at = |percent: usize| self.0[(last * percent).div_ceil(100)].div_ceil(1000);
        let [median, p99, max] = [50, 99, 100].map(at);
        write!(f, "{} times, median {median} ms, p99 {p99} ms, max {max} ms", self.0.len())
    }
}
