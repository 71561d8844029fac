//! Clusters: a primary and its standbys, for one test or for all tests of a program.

use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, iter, mem};

use super::{DATABASE, End, OWNER, PASSWORD, Postgres, Programs};
use crate::scratch::Scratch;

/// Settings of all servers. The tests end processes, never the kernel, so nothing needs to reach the disk.
const SETTINGS: &str = "fsync = off
    shared_buffers = 16MB
    max_connections = 300
    wal_keep_size = 512MB
    listen_addresses = '127.0.0.1'
    password_encryption = 'scram-sha-256'
    hot_standby = on
    wal_retrieve_retry_interval = 50ms
    max_logical_replication_workers = 0
    dynamic_shared_memory_type = mmap
";

const ACCESS: &str = "local all all trust
    local replication all trust
    host all all all scram-sha-256
";

/// Gives the database its name and its owner. The other databases would only be copied with it.
const DATABASES: [(&str, &[&str]); 2] = [
    ("template1", &["alter database postgres rename to queue", "alter database queue owner to beanring"]),
    (
        DATABASE,
        &[
            "update pg_database set datistemplate = false",
            "drop database template0",
            "drop database template1",
        ],
    ),
];

/// Ends the servers in a directory and removes it, once the standard input ends.
const CLEAN: &str = r#"
    read -r _
    for file in "$0"/*/postmaster.pid; do kill -QUIT "$(head -n 1 "$file")"; done
    until rm -rf "$0"; do sleep 0.1; done"#;

/// A primary and its standbys.
pub struct Cluster {
    /// It accepts writes.
    pub primary: Postgres,
    /// Any one of them acknowledges a commit.
    pub standbys: Vec<Postgres>,
    // Removed after the servers have ended.
    _scratch: Option<Scratch>,
}

/// What the tests of a program share. A static value is never dropped, so another process cleans up after this one.
struct Shared {
    directory: PathBuf,
    _cleaner: ChildStdin,
}

impl Shared {
    fn of_program(programs: &Programs) -> &'static Self {
        static SHARED: OnceLock<Shared> = OnceLock::new();
        SHARED.get_or_init(|| {
            let scratch = directory(programs);
            let mut cleaner = Command::new("sh");
            // Whoever ends the tests ends their process group, and gigabytes of memory would stay used.
            cleaner.args(["-c", CLEAN]).arg(&scratch.0).stdin(Stdio::piped()).process_group(0);
            let cleaner = cleaner.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            let input = cleaner.expect("there is a shell").stdin.take().expect("it is a pipe");
            let shared = Self { directory: scratch.0.clone(), _cleaner: input };
            mem::forget(scratch);
            initialize(programs, &shared.template());
            shared
        })
    }

    /// The files of a server that was never started.
    fn template(&self) -> PathBuf {
        self.directory.join("template")
    }
}

/// A directory of the user of the programs.
fn directory(programs: &Programs) -> Scratch {
    let scratch = Scratch::in_memory("pg");
    if let Some((user, group)) = programs.ids() {
        chown(&scratch.0, Some(user), Some(group)).expect("it is new");
    }
    scratch
}

fn initialize(programs: &Programs, data: &Path) {
    let mut command = programs.command("initdb");
    command.args(["--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8", "--locale=C"]);
    succeed(command.arg("--wal-segsize=1").arg("-D").arg(data));
    let file = data.join("postgresql.conf");
    let content = fs::read_to_string(&file).expect("initdb has written it") + SETTINGS;
    fs::write(file, content).expect("there is space");
    fs::write(data.join("pg_hba.conf"), ACCESS).expect("there is space");
    let user = format!("create user {OWNER} password '{PASSWORD}'");
    for (database, statements) in DATABASES {
        let user = (database != DATABASE).then_some(user.as_str());
        let lines: Vec<&str> = user.into_iter().chain(statements.iter().copied()).collect();
        let mut command = programs.command("postgres");
        command.arg("--single").arg("-D").arg(data).arg(database).stdin(Stdio::piped());
        let mut server =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it is installed");
        let mut input = server.stdin.take().expect("it is a pipe");
        input.write_all((lines.join("\n") + "\n").as_bytes()).expect("it reads");
        drop(input);
        let output = server.wait_with_output().expect("it is a child");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !log.contains("ERROR"), "{log}");
    }
}

impl Cluster {
    /// Starts a primary and this many standbys. The settings are those of all servers.
    pub fn start(programs: &Programs, standbys: usize, settings: &[(&str, &str)]) -> Self {
        let scratch = directory(programs);
        let cluster = Self::start_in(&scratch.0, programs, standbys, settings);
        Self { _scratch: Some(scratch), ..cluster }
    }

    /// Returns a database of its own on servers that other tests of the program use too: a primary and two standbys, which no
    /// test stops or changes.
    pub fn shared(programs: &Programs) -> Self {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let shared = Shared::of_program(programs);
        let cluster = CLUSTER.get_or_init(|| Self::start_in(&shared.directory, programs, 2, &[]));
        let name = format!("queue{}", COUNT.fetch_add(1, Ordering::Relaxed));
        cluster.primary.sql(&format!("create database {name} template {DATABASE} owner {OWNER}"));
        // A standby may apply later than it acknowledges.
        let has_it = format!("select count(*) from pg_database where datname = '{name}'");
        cluster.standbys.iter().for_each(|standby| standby.wait_for(&has_it, "1"));
        let standbys = cluster.standbys.iter().map(|standby| standby.sharing(&name)).collect();
        Self { primary: cluster.primary.sharing(&name), standbys, _scratch: None }
    }

    fn start_in(directory: &Path, programs: &Programs, standbys: usize, settings: &[(&str, &str)]) -> Self {
        let template = Shared::of_program(programs).template();
        let place = |name: &str| {
            let server = Postgres::new(programs, directory, name);
            succeed(Command::new("cp").arg("-a").arg(&template).arg(&server.data));
            for (name, value) in settings {
                server.configure(name, value);
            }
            server
        };
        let mut primary = place("p");
        let names: Vec<String> = (1..=standbys).map(|number| format!("s{number}")).collect();
        if !names.is_empty() {
            primary.configure("synchronous_standby_names", &format!("ANY 1 ({})", names.join(",")));
        }
        let standby = |name: &String| {
            let standby = place(name);
            standby.follow(&primary, name);
            standby
        };
        let mut standbys: Vec<Postgres> = names.iter().map(standby).collect();
        let mut all: Vec<_> = [&mut primary].into_iter().chain(&mut standbys).collect();
        all.iter_mut().for_each(|server| server.launch());
        all.iter_mut().for_each(|server| server.await_start());
        let acknowledging = "select count(*) from pg_stat_replication where sync_state = 'quorum'";
        primary.wait_for(acknowledging, &standbys.len().to_string());
        Self { primary, standbys, _scratch: None }
    }

    /// The URL of the owner of the database, at the primary.
    pub fn url(&self) -> String {
        self.primary.url(OWNER)
    }

    /// Stops all standbys.
    pub fn stop_standbys(&mut self) {
        self.standbys.iter_mut().for_each(|standby| standby.stop(End::Fast));
    }

    /// Starts all standbys.
    pub fn start_standbys(&mut self) {
        self.standbys.iter_mut().for_each(Postgres::launch);
        self.standbys.iter_mut().for_each(Postgres::await_start);
    }

    /// Kills the primary, and promotes the standby that has received most, as an operator of the database does. The other standby
    /// follows it.
    pub fn fail_over(&mut self) {
        self.primary.stop(End::Killed);
        // Both first receive the rest of what was sent. A standby that is ahead of the promoted one cannot follow it.
        for standby in &self.standbys {
            standby.wait_for("select count(*) from pg_stat_wal_receiver where status = 'streaming'", "0");
        }
        let received = |standby: &Postgres| {
            let most = "greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())";
            let bytes = standby.sql(&format!("select pg_wal_lsn_diff({most}, '0/0')"));
            bytes.parse::<u64>().expect("a number")
        };
        let best = usize::from(received(&self.standbys[1]) > received(&self.standbys[0]));
        mem::swap(&mut self.primary, &mut self.standbys[best]);
        self.primary.set("synchronous_standby_names", "ANY 1 (s1,s2,s3)");
        self.primary.promote();
        let other = &self.standbys[1 - best];
        other.set("primary_conninfo", &other.connection_to(&self.primary, &format!("s{}", 2 - best)));
    }

    /// What all servers have written to their logs.
    pub fn log_texts(&self) -> String {
        let servers = iter::once(&self.primary).chain(&self.standbys);
        servers.map(|server| format!("log of {}:\n{}\n", server.data.display(), server.log_text())).collect()
    }

    /// Makes the server that was the primary before [`Self::fail_over`] a standby again.
    pub fn rejoin(&mut self) {
        let ended =
            self.standbys.iter().position(|standby| standby.process.is_none()).expect("one has ended");
        let server = &mut self.standbys[ended];
        fs::remove_dir_all(&server.data).expect("it has a directory");
        let mut command = server.programs.command("pg_basebackup");
        command.args(["--no-sync", "--checkpoint=fast", "-X", "stream", "-U", "postgres", "-h"]);
        command.arg(&self.primary.sockets).args(["-p", &self.primary.port().to_string(), "-D"]);
        succeed(command.arg(&server.data));
        server.follow(&self.primary, &format!("s{}", ended + 1));
        server.start();
    }
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("PostgreSQL is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
