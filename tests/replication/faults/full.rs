//! A tablespace that is full.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use beanring_testkit::namespaces::{command, try_run};
use beanring_testkit::process::REPLY_PATIENCE;
use nix::unistd::geteuid;

use super::clients::{Clients, Plan};
use super::figures::Times;
use super::place::{Place, Settings, rounds, seed};
use super::record::{Event, Reply};

/// The size of the tablespace at first.
const SMALL_MIB: usize = 12;

/// A file system in memory over a directory.
struct Small(PathBuf);

impl Small {
    /// Mounts it, with the directories that are there.
    fn mount(at: &Path) -> Result<Self, String> {
        let inner: Vec<PathBuf> =
            fs::read_dir(at).expect("it exists").map(|entry| entry.expect("it is there").path()).collect();
        let own = fs::metadata(at).expect("it exists");
        let text = at.to_str().expect("a name in UTF-8");
        try_run(&mut command(&["mount", "-t", "tmpfs", "-o", &format!("size={SMALL_MIB}m"), "tmpfs", text]))?;
        let mounted = Self(at.to_owned());
        for directory in inner.iter().map(PathBuf::as_path).chain([at]) {
            fs::create_dir_all(directory).expect("there is space");
            chown(directory, Some(own.uid()), Some(own.gid())).expect("root may");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).expect("root may");
        }
        Ok(mounted)
    }
}

impl Small {
    /// Gives it more space, as an operator does.
    fn grow(&self, times: usize) {
        let text = self.0.to_str().expect("a name in UTF-8");
        let size = format!("remount,size={}m", SMALL_MIB * (1 + times));
        try_run(&mut command(&["mount", "-o", &size, text])).unwrap_or_else(|reason| panic!("{reason}"));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_tablespace_loses_nothing() {
    let what = "a full tablespace";
    if !geteuid().is_root() {
        return println!("skipped: {what}, because only root can mount one");
    }
    let Some(mut place) = Place::start(what, Settings::default()) else { return };
    let (seed, rounds) = (seed(), rounds("FULL", 1));
    let primary = &place.cluster.primary;
    primary.set("allow_in_place_tablespaces", "on");
    primary.set("autovacuum_naptime", "1s");
    primary.sql("create tablespace small location ''");
    primary.sql("grant create on tablespace small to beanring");
    let id = primary.sql("select oid from pg_tablespace where spcname = 'small'");
    let small = match Small::mount(&primary.data().join("pg_tblspc").join(id)) {
        Ok(small) => small,
        Err(reason) => return println!("skipped: {what}, because {reason}"),
    };
    primary.sql("alter table beanring_log set tablespace small");
    primary.sql("alter index beanring_log_pkey set tablespace small");

    let clients =
        Clients::start(&Plan { body_bytes_max: 60_000, jobs_max: i64::MAX, workers: 4, ..place.plan(seed) });
    let mut moments = Vec::new();
    let mut spent = Vec::new();
    for round in 0..rounds {
        let full = wait_until_full(&clients);
        // Nothing is acknowledged that the database does not have. A leader keeps its lease.
        thread::sleep(Duration::from_secs(2));
        spent.push((full, clients.now()));
        small.grow(1 + round);
        let grown = clients.now();
        moments.push(grown);
        assert!(clients.wait_for_put(grown, REPLY_PATIENCE), "no put\n{}", place.logs());
    }
    let events = place.conclude(what, clients, &[]);
    let during = |is: fn(&Reply) -> bool| {
        let is_during = |event: &&Event| spent.iter().any(|(from, to)| (from..to).contains(&&event.asked_at));
        events.iter().filter(is_during).filter(|event| is(&event.reply)).count()
    };
    println!(
        "{what}: {rounds} rounds; while it was full: {} puts refused, {} accepted, {} jobs reserved, {} deleted; from new space to \
         the first put: {}",
        during(|reply| *reply == Reply::Refused),
        during(|reply| matches!(reply, Reply::Inserted(_))),
        during(|reply| matches!(reply, Reply::Reserved(..))),
        during(|reply| *reply == Reply::Deleted),
        Times::to_first_put(&moments, &events),
    );
}

/// Waits until no put is accepted for a while, because it waits or because it is refused. Returns since when.
fn wait_until_full(clients: &Clients) -> u64 {
    loop {
        let at = clients.now();
        if !clients.wait_for_put(at, Duration::from_millis(1500)) {
            return at;
        }
        assert!(at < 3 * REPLY_PATIENCE.as_micros() as u64, "never full");
        thread::sleep(Duration::from_millis(100));
    }
}
