//! Schedules that run each second while faults occur: each second has its job, and none has two.

use beanring_testkit::client::Client;
use beanring_testkit::statistics::number;
use beanring_testkit::wait;

use super::place::count_of;

/// Their names, each of which is that of a tube too, in which no client works.
const NAMES: [&str; 4] = ["every-second-0", "every-second-1", "every-second-2", "every-second-3"];

/// Adds them.
pub fn put(client: &mut Client) {
    for name in NAMES {
        client
            .expect(&format!("schedule-put {name} 0 0 60 1 {name} every:1 missed:all\r\nx\r\n"), "SCHEDULED");
    }
}

/// Checks their jobs.
pub fn check(client: &mut Client) {
    let stats = |client: &mut Client, name| client.ask(&format!("schedule-stats {name}\r\n")).1;
    for name in NAMES {
        wait::until("a schedule makes up for what it has missed", || {
            let stats = stats(client, name);
            number(&stats, "runs") + 1 >= number(&stats, "age")
        });
    }
    // No run is made while they are counted.
    client.expect("drain\r\n", "DRAINING");
    for name in NAMES {
        let stats = stats(client, name);
        let [age, runs] = ["age", "runs"].map(|key| number(&stats, key));
        let left_out = ["gaps", "skips", "refusals"].map(|key| number(&stats, key));
        assert_eq!(left_out, [0; 3], "{name}: {stats}");
        assert!(runs <= age && count_of(client, name) as u64 == runs, "{name}: {stats}");
    }
    client.expect("undrain\r\n", "NOT_DRAINING");
}
