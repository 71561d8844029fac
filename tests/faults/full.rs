//! A tablespace that is full.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use beanring_testkit::namespaces::{command, try_run};
use beanring_testkit::process::REPLY_PATIENCE;
use nix::unistd::geteuid;

use super::clients::{Clients, Plan};
use super::place::{Place, Settings, rounds, seed};
use super::record::{Event, Reply};

/// A file system in memory over a directory.
struct Small(PathBuf);

impl Small {
    /// Mounts it, with the directories that are there.
    fn mount(at: &Path, size: &str) -> Result<Self, String> {
        let inner: Vec<PathBuf> =
            fs::read_dir(at).expect("it exists").map(|entry| entry.expect("it is there").path()).collect();
        let own = fs::metadata(at).expect("it exists");
        let text = at.to_str().expect("a name in UTF-8");
        try_run(&mut command(&["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", text]))?;
        let mounted = Self(at.to_owned());
        for directory in inner.iter().map(PathBuf::as_path).chain([at]) {
            fs::create_dir_all(directory).expect("there is space");
            chown(directory, Some(own.uid()), Some(own.gid())).expect("root may");
            fs::set_permissions(directory, fs::Permissions::from_mode(0o700)).expect("root may");
        }
        Ok(mounted)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_tablespace_refuses_puts_and_loses_nothing() {
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
    let small = match Small::mount(&primary.data().join("pg_tblspc").join(id), "24m") {
        Ok(small) => small,
        Err(reason) => return println!("skipped: {what}, because {reason}"),
    };
    primary.sql("alter table beanring_log set tablespace small");
    primary.sql("alter index beanring_log_pkey set tablespace small");

    for round in 0..rounds as u64 {
        let plan = place.plan(seed + round);
        let plan = Plan { body_bytes_max: 60_000, jobs_max: 1_000_000, workers: 4, ..plan };
        let clients = Clients::start(&plan);
        let shared = &clients.shared;
        while shared.refused.load(Ordering::Relaxed) == 0 {
            assert!(clients.now() < 2 * REPLY_PATIENCE.as_micros() as u64, "never full\n{}", place.logs());
            thread::sleep(Duration::from_millis(20));
        }
        let full_at = clients.now();
        thread::sleep(Duration::from_secs(3));
        let events = place.conclude(what, clients, true);
        let since = |reply: fn(&Event) -> bool| {
            events.iter().filter(|event| event.asked_at > full_at && reply(event)).count()
        };
        println!(
            "{what}: in 3 s since the first refused put: {} puts refused, {} accepted, {} jobs reserved, {} deleted",
            since(|event| event.reply == Reply::Refused),
            since(|event| matches!(event.reply, Reply::Inserted(_))),
            since(|event| matches!(event.reply, Reply::Reserved(..))),
            since(|event| event.reply == Reply::Deleted),
        );
    }
    drop(place);
    drop(small);
}
