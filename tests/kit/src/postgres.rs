//! PostgreSQL servers as processes: a primary, and standbys that acknowledge its commits.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::mem;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

use super::certificates::Pair;
use super::process::REPLY_PATIENCE;
use super::scratch::Scratch;
use super::unused_address::ReservedPort;

/// The password of every user of the database.
pub const PASSWORD: &str = "secret";

/// The name of the database.
pub const DATABASE: &str = "queue";

/// The programs of PostgreSQL, and the user that they run as: they refuse to run as root.
#[derive(Clone, Debug)]
pub struct Programs {
    directory: PathBuf,
    /// Where those programs are that the directory does not have: archives of servers come without clients.
    installed: PathBuf,
    user: Option<User>,
    /// The network namespace that they run in, if it is not that of the test.
    namespace: Option<String>,
}

/// A server, and its files in a scratch directory.
pub struct Postgres {
    programs: Programs,
    data: PathBuf,
    /// The directory of its sockets.
    sockets: PathBuf,
    port: ReservedPort,
    process: Option<Child>,
}

/// A primary and its standbys.
pub struct Cluster {
    /// It accepts writes.
    pub primary: Postgres,
    /// Any one of them acknowledges a commit.
    pub standbys: Vec<Postgres>,
    // Removed after the servers have ended.
    _scratch: Scratch,
}

/// A pgbouncer before a server.
pub struct Pooler {
    process: Child,
    port: ReservedPort,
}

/// How a server is ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Its sessions are cut, and it writes all pages.
    Fast,
    /// As if its machine had lost power, but for what is in the page cache.
    Immediate,
    /// All its processes are killed.
    Killed,
}

impl Programs {
    /// Finds the newest version that is installed. `BEANRING_TEST_POSTGRES` names the directory of another one's programs.
    ///
    /// # Errors
    /// If there is none that can be used, with the reason.
    pub fn find() -> Result<Self, &'static str> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
        let numbered = versions.filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let directory = entry.path().join("bin");
            directory.join("initdb").is_file().then_some((number, directory))
        });
        let (_, installed) = numbered.max().ok_or("PostgreSQL is not installed")?;
        let directory =
            env::var_os("BEANRING_TEST_POSTGRES").map_or_else(|| installed.clone(), PathBuf::from);
        let user = if geteuid().is_root() {
            let named = |name| User::from_name(name).ok().flatten();
            let user = named("postgres").or_else(|| named("nobody"));
            Some(user.ok_or("there is no user to run PostgreSQL as")?)
        } else {
            None
        };
        Ok(Self { directory, installed, user, namespace: None })
    }

    /// Has the programs run in a network namespace. Only root can.
    #[must_use]
    pub fn inside(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..self }
    }

    /// A program, to be run as the user.
    fn command(&self, name: &str) -> Command {
        let own = self.directory.join(name);
        let program = if own.is_file() { own } else { self.installed.join(name) };
        self.user_command(&program)
    }

    fn user_command(&self, program: &Path) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(namespace) = &self.namespace {
            words.extend(["ip", "netns", "exec", namespace].map(OsString::from));
        }
        if let Some(user) = &self.user {
            let ids = [format!("--reuid={}", user.uid), format!("--regid={}", user.gid)];
            words.push("setpriv".into());
            words.extend(ids.map(OsString::from));
            words.push("--clear-groups".into());
        }
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        // The user may not read the directory of the tests.
        command.current_dir("/").stdin(Stdio::null()).env("LC_ALL", "C").env_remove("PGPASSWORD");
        command
    }
}

impl Cluster {
    /// Starts a primary and this many standbys, with a user `beanring` who owns the database. Each further setting of the servers is
    /// a line of their configuration.
    ///
    /// # Panics
    /// If a server does not start.
    pub fn start(programs: &Programs, standbys: usize, settings: &str) -> Self {
        let scratch = Scratch::new("pg");
        if let Some(user) = &programs.user {
            chown(&scratch.0, Some(user.uid.as_raw()), Some(user.gid.as_raw())).expect("it is new");
        }
        let mut primary = Postgres::place(programs, &scratch.0, "p");
        primary.initialize(settings);
        let mut standbys: Vec<Postgres> =
            (1..=standbys).map(|number| primary.standby(&scratch.0, &format!("s{number}"))).collect();
        primary.start();
        standbys.iter_mut().for_each(Postgres::start);
        primary.sql_in("postgres", &format!("create user beanring password '{PASSWORD}'"));
        primary.sql_in("postgres", &format!("create database {DATABASE} owner beanring"));
        if !standbys.is_empty() {
            let names: Vec<_> = (1..=standbys.len()).map(|number| format!("s{number}")).collect();
            primary.set("synchronous_standby_names", &format!("ANY 1 ({})", names.join(",")));
            primary
                .wait_for("select count(*) from pg_stat_replication where sync_state = 'quorum'", |text| {
                    text == standbys.len().to_string()
                });
            // A standby may apply later than it acknowledges.
            let has_database = format!("select count(*) from pg_database where datname = '{DATABASE}'");
            standbys.iter().for_each(|standby| standby.wait_for(&has_database, |text| text == "1"));
        }
        Self { primary, standbys, _scratch: scratch }
    }

    /// Kills the primary, and promotes the standby that has received most, as an operator of the database does. The other standby
    /// follows it.
    ///
    /// # Panics
    /// If there are not two standbys, or one does not do what it should.
    pub fn fail_over(&mut self) {
        self.primary.stop(End::Killed);
        let received = |standby: &Postgres| {
            let most = "greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())";
            let bytes = standby.sql_in("postgres", &format!("select pg_wal_lsn_diff({most}, '0/0')"));
            bytes.parse::<u64>().expect("a number")
        };
        let best = usize::from(received(&self.standbys[1]) > received(&self.standbys[0]));
        mem::swap(&mut self.primary, &mut self.standbys[best]);
        self.primary.set("synchronous_standby_names", "ANY 1 (s1,s2,s3)");
        self.primary.promote();
        let other = &self.standbys[1 - best];
        let conninfo = other.connection_to(&self.primary, &format!("s{}", 2 - best));
        other.sql_in("postgres", &format!("alter system set primary_conninfo = '{conninfo}'"));
        other.sql_in("postgres", "select pg_reload_conf()");
    }

    /// Makes the server that was the primary before [`Self::fail_over`] a standby again.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn rejoin(&mut self) {
        let ended =
            self.standbys.iter().position(|standby| standby.process.is_none()).expect("one has ended");
        let name = format!("s{}", ended + 1);
        let ended = &mut self.standbys[ended];
        fs::remove_dir_all(&ended.data).expect("it has a directory");
        ended.copy(&self.primary, &name);
    }
}

impl Postgres {
    fn place(programs: &Programs, scratch: &Path, name: &str) -> Self {
        let port = ReservedPort::take();
        let (data, sockets) = (scratch.join(name), scratch.to_owned());
        Self { programs: programs.clone(), data, sockets, port, process: None }
    }

    fn initialize(&self, settings: &str) {
        let mut command = self.programs.command("initdb");
        command.args([
            "--auth=trust",
            "--username=postgres",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "-D",
        ]);
        succeed(command.arg(&self.data));
        // The tests end processes, never the kernel. So nothing needs to reach the disk.
        let mut lines = String::from(
            "fsync = off\nshared_buffers = 16MB\nwal_keep_size = 512MB\n\
             listen_addresses = '127.0.0.1'\npassword_encryption = 'scram-sha-256'\nhot_standby = on\nlogging_collector = off\n\
             wal_retrieve_retry_interval = 100ms\n",
        );
        writeln!(lines, "unix_socket_directories = '{}'\n{settings}", self.sockets.display())
            .expect("memory");
        let file = self.data.join("postgresql.conf");
        let content = fs::read_to_string(&file).expect("initdb has written it") + &lines;
        fs::write(file, content).expect("there is space");
        let access = "local all all trust\nlocal replication all trust\nhost all all all scram-sha-256\n";
        fs::write(self.data.join("pg_hba.conf"), access).expect("there is space");
    }

    /// Copies the files of this server, which has not run yet, for a standby.
    fn standby(&self, scratch: &Path, name: &str) -> Self {
        let standby = Self::place(&self.programs, scratch, name);
        succeed(Command::new("cp").arg("-a").arg(&self.data).arg(&standby.data));
        standby.follow(self, name);
        standby
    }

    /// Copies a running server into the data directory of this one, which does not exist, and starts the copy as a standby.
    fn copy(&mut self, primary: &Self, name: &str) {
        let mut command = self.programs.command("pg_basebackup");
        command.args(["--no-sync", "--checkpoint=fast", "-X", "stream", "-U", "postgres", "-h"]);
        command.arg(&primary.sockets).args(["-p", &primary.port.get().to_string(), "-D"]).arg(&self.data);
        succeed(&mut command);
        self.follow(primary, name);
        self.start();
    }

    /// Where a standby finds its primary.
    fn connection_to(&self, primary: &Self, name: &str) -> String {
        let sockets = self.sockets.display();
        format!("host={sockets} port={} user=postgres application_name={name}", primary.port.get())
    }

    /// Makes this server, which must not run, a standby of another one.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn follow(&self, primary: &Self, name: &str) {
        let auto = self.data.join("postgresql.auto.conf");
        let mut lines = fs::read_to_string(&auto).unwrap_or_default();
        writeln!(lines, "primary_conninfo = '{}'", self.connection_to(primary, name)).expect("memory");
        self.write(&auto, &lines);
        self.write(&self.data.join("standby.signal"), "");
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// If it does not start, or runs already.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "it runs");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).expect("there is space");
        let mut command = self.programs.command("postgres");
        command.arg("-D").arg(&self.data).args(["-p", &self.port.get().to_string()]);
        command.stdout(Stdio::null()).stderr(log);
        self.process = Some(command.spawn().expect("PostgreSQL is installed"));
        let started = Instant::now();
        while !self.psql("postgres", "select 1").status.success() {
            let process = self.process.as_mut().expect("it was started");
            let has_ended = process.try_wait().expect("it is a child").is_some();
            assert!(!has_ended && started.elapsed() < REPLY_PATIENCE, "no start: {}", self.log_text());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the server, and waits for its end.
    ///
    /// # Panics
    /// If it does not run, or does not end.
    pub fn stop(&mut self, end: End) {
        let workers = if end == End::Killed { self.workers("") } else { Vec::new() };
        let signal = match end {
            End::Fast => Signal::SIGINT,
            End::Immediate => Signal::SIGQUIT,
            End::Killed => Signal::SIGKILL,
        };
        let mut process = self.process.take().expect("it runs");
        kill(process_id(&process), signal).expect("it runs");
        for &worker in &workers {
            // It may have ended with the first one.
            let _ = kill(worker, signal);
        }
        let started = Instant::now();
        while process.try_wait().expect("it is a child").is_none() {
            assert!(started.elapsed() < REPLY_PATIENCE, "it does not end: {}", self.log_text());
            thread::sleep(Duration::from_millis(5));
        }
        // Their shared memory is in use until then.
        while workers.iter().any(|&worker| kill(worker, None).is_ok()) {
            assert!(started.elapsed() < REPLY_PATIENCE, "its sessions do not end: {}", self.log_text());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops the process that accepts connections, and with it the start of new sessions, or lets it go on.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, signal: Signal) {
        kill(process_id(self.process.as_ref().expect("it runs")), signal).expect("it runs");
    }

    /// Stops the processes that send to standbys what this server writes, or lets them go on.
    pub fn signal_senders(&self, signal: Signal) {
        for sender in self.workers("walsender") {
            // It may have ended with its connection.
            let _ = kill(sender, signal);
        }
    }

    /// The processes that the server has started whose title has this word.
    fn workers(&self, word: &str) -> Vec<Pid> {
        let own = self.process.as_ref().map_or(0, Child::id).to_string();
        let all = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
        let is_worker = |directory: &Path| {
            let stat = fs::read_to_string(directory.join("stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(1));
            let title = fs::read(directory.join("cmdline")).unwrap_or_default();
            parent == Some(own.as_str()) && String::from_utf8_lossy(&title).contains(word)
        };
        all.filter(|entry| is_worker(&entry.path()))
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok().map(Pid::from_raw))
            .collect()
    }

    /// Makes a standby the primary.
    ///
    /// # Panics
    /// If it does not become one.
    pub fn promote(&self) {
        assert_eq!(self.sql_in("postgres", "select pg_promote()"), "t");
    }

    /// Changes a setting of the server.
    ///
    /// # Panics
    /// If there is no such setting.
    pub fn set(&self, name: &str, value: &str) {
        self.sql_in("postgres", &format!("alter system set {name} = '{value}'"));
        self.sql_in("postgres", "select pg_reload_conf()");
        self.wait_for(&format!("show {name}"), |text| text == value);
    }

    /// Has the server offer TLS with this certificate.
    ///
    /// # Panics
    /// If it cannot use it.
    pub fn offer_tls(&self, pair: &Pair) {
        for (from, name) in [(&pair.certificate, "server.crt"), (&pair.key, "server.key")] {
            self.write(&self.data.join(name), &fs::read_to_string(from).expect("it is there"));
        }
        self.set("ssl", "on");
    }

    /// Starts a pgbouncer before the server, if there is one.
    ///
    /// # Panics
    /// If it does not start.
    pub fn pooled(&self, mode: &str) -> Option<Pooler> {
        let program = Path::new("/usr/sbin/pgbouncer");
        if !program.is_file() {
            return None;
        }
        let port = ReservedPort::take();
        let file = |end| self.sockets.join(format!("pgbouncer-{mode}.{end}"));
        self.write(&file("users"), &format!("\"beanring\" \"{PASSWORD}\"\n"));
        let lines = format!(
            "[databases]\n{DATABASE} = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = plain\nauth_file = {}\npool_mode = {mode}\nlogfile = {}\n",
            self.port.get(),
            port.get(),
            file("users").display(),
            file("log").display()
        );
        self.write(&file("ini"), &lines);
        let mut command = self.programs.user_command(program);
        let process =
            command.arg("-q").arg(file("ini")).stderr(Stdio::null()).spawn().expect("it is installed");
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", port.get())).is_err() {
            assert!(started.elapsed() < REPLY_PATIENCE, "pgbouncer does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Some(Pooler { process, port })
    }

    /// Writes a file that only the user of the server may read.
    fn write(&self, file: &Path, content: &str) {
        fs::write(file, content).expect("there is space");
        let own = fs::metadata(&self.data).expect("it exists");
        chown(file, Some(own.uid()), Some(own.gid())).expect("the owner may be set");
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("it is there");
    }

    /// Waits until a query returns what it should.
    ///
    /// # Panics
    /// If it never does.
    pub fn wait_for(&self, query: &str, is_met: impl Fn(&str) -> bool) {
        let started = Instant::now();
        loop {
            let text = self.sql_in("postgres", query);
            if is_met(&text) {
                return;
            }
            assert!(started.elapsed() < REPLY_PATIENCE, "{query} returns {text}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Executes SQL as the superuser in the database of the test. Returns rows as lines, and columns separated by `|`.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, sql: &str) -> String {
        self.sql_in(DATABASE, sql)
    }

    /// Executes SQL as the superuser, and does not wait for its end.
    ///
    /// # Panics
    /// If psql cannot be started.
    pub fn begin_sql(&self, sql: &str) -> Child {
        let mut command = self.psql_command(DATABASE, sql);
        command.stdout(Stdio::null()).spawn().expect("psql is installed")
    }

    fn sql_in(&self, database: &str, sql: &str) -> String {
        let output = self.psql(database, sql);
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    fn psql(&self, database: &str, sql: &str) -> Output {
        self.psql_command(database, sql).output().expect("psql is installed")
    }

    fn psql_command(&self, database: &str, sql: &str) -> Command {
        let mut command = self.programs.command("psql");
        command.args([
            "-X",
            "-A",
            "-t",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-U",
            "postgres",
            "-d",
            database,
            "-h",
        ]);
        command.arg(&self.sockets).args(["-p", &self.port.get().to_string(), "-c", sql]);
        command
    }

    /// The URL for a user of the database, over TCP.
    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}:{PASSWORD}@127.0.0.1:{}/{DATABASE}", self.port.get())
    }

    /// The port on 127.0.0.1.
    pub const fn port(&self) -> u16 {
        self.port.get()
    }

    /// The directory of its data.
    pub fn data(&self) -> &Path {
        &self.data
    }

    fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// What the server has written to its log.
    pub fn log_text(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }
}

impl Pooler {
    /// The URL for a user of the database, through the pooler.
    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}:{PASSWORD}@127.0.0.1:{}/{DATABASE}", self.port.get())
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may be stopped.
            let _ = kill(process_id(&process), Signal::SIGCONT);
            let _ = kill(process_id(&process), Signal::SIGQUIT);
            let _ = process.wait();
        }
    }
}

fn process_id(process: &Child) -> Pid {
    Pid::from_raw(process.id().cast_signed())
}

fn succeed(command: &mut Command) {
    let output = command.output().expect("PostgreSQL is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
