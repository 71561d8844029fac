//! PostgreSQL servers as processes: a primary, and standbys that acknowledge its commits. All functions panic if a server does not do
//! what it should.

mod cluster;
mod programs;
mod session;

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::certificates::Pair;
use super::unused_address::ReservedPort;
use super::wait;
pub use cluster::Cluster;
pub use programs::Programs;
pub use session::Session;

/// The password of every user of the database.
pub const PASSWORD: &str = "secret";

/// The user that owns each database.
pub const OWNER: &str = "beanring";

/// The database of a cluster. A test that shares its servers with others has another one.
const DATABASE: &str = "queue";

/// A database of a server, whose files are in a scratch directory.
pub struct Postgres {
    programs: Programs,
    data: PathBuf,
    /// The directory of its sockets.
    sockets: PathBuf,
    port: Arc<ReservedPort>,
    /// None while the server is stopped, or if other tests share it.
    process: Option<Child>,
    database: String,
    session: Mutex<Option<Session>>,
}

/// A pgbouncer before a server.
pub struct Pooler {
    process: Child,
    port: ReservedPort,
    database: String,
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

impl Postgres {
    fn new(programs: &Programs, scratch: &Path, name: &str) -> Self {
        let (programs, data, sockets) = (programs.clone(), scratch.join(name), scratch.to_owned());
        let (port, database) = (Arc::new(ReservedPort::take()), DATABASE.to_owned());
        Self { programs, data, sockets, port, process: None, database, session: Mutex::default() }
    }

    /// Another database of the server. Its user may not stop or change the server.
    fn sharing(&self, database: &str) -> Self {
        let (programs, data, sockets) = (self.programs.clone(), self.data.clone(), self.sockets.clone());
        let (port, database) = (self.port.clone(), database.to_owned());
        Self { programs, data, sockets, port, process: None, database, session: Mutex::default() }
    }

    /// Where a standby finds its primary.
    fn connection_to(&self, primary: &Self, name: &str) -> String {
        let sockets = self.sockets.display();
        format!("host={sockets} port={} user=postgres application_name={name}", primary.port())
    }

    /// Makes this server, which does not run, a standby of another one.
    fn follow(&self, primary: &Self, name: &str) {
        self.configure("primary_conninfo", &self.connection_to(primary, name));
        self.write(&self.data.join("standby.signal"), "");
    }

    /// Changes a setting while the server does not run.
    fn configure(&self, name: &str, value: &str) {
        let file = self.data.join("postgresql.auto.conf");
        let mut lines = fs::read_to_string(&file).unwrap_or_default();
        writeln!(lines, "{name} = '{value}'").expect("memory");
        self.write(&file, &lines);
    }

    /// Starts the server, and waits until it accepts connections.
    pub fn start(&mut self) {
        self.launch();
        self.await_start();
    }

    fn launch(&mut self) {
        assert!(self.process.is_none(), "it runs");
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log()).expect("there is space");
        let mut command = self.programs.command("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.sockets).args(["-p", &self.port().to_string()]);
        command.stdout(Stdio::null()).stderr(log);
        self.process = Some(command.spawn().expect("PostgreSQL is installed"));
    }

    fn await_start(&mut self) {
        let pid = self.process().to_string();
        let file = self.data.join("postmaster.pid");
        wait::until_ok(|| {
            let text = fs::read_to_string(&file).unwrap_or_default();
            let mut lines = text.lines();
            // The last line is its state. The file of a process that was killed has the id of that.
            let is_new = lines.next() == Some(&pid);
            if is_new && lines.next_back().is_some_and(|line| line.trim_end() == "ready") {
                return Ok(());
            }
            let process = self.process.as_mut().expect("it was started");
            assert_eq!(process.try_wait().expect("it is a child"), None, "{}", self.log_text());
            Err(format!("it does not start: {}", self.log_text()))
        });
    }

    /// Whether this value has started it, and has not ended it.
    pub const fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// The process that accepts connections.
    fn process(&self) -> Pid {
        process_id(self.process.as_ref().expect("it runs, and no other test shares it"))
    }

    /// Ends the server, and waits for its end.
    pub fn stop(&mut self, end: End) {
        let workers = if end == End::Killed { self.workers("") } else { Vec::new() };
        let signal = match end {
            End::Fast => Signal::SIGINT,
            End::Immediate => Signal::SIGQUIT,
            End::Killed => Signal::SIGKILL,
        };
        self.signal(signal);
        for &worker in &workers {
            // It may have ended with the first one.
            let _ = kill(worker, signal);
        }
        let mut process = self.process.take().expect("it was signalled");
        *self.session.get_mut().expect("no query panics") = None;
        wait::until("the server ends", || process.try_wait().expect("it is a child").is_some());
        // Their shared memory is in use until then.
        let have_ended = || workers.iter().all(|&worker| kill(worker, None).is_err());
        wait::until("its sessions end", have_ended);
    }

    /// Stops the process that accepts connections, and with it the start of new sessions, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        kill(self.process(), signal).expect("it runs");
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
        let own = self.process().to_string();
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
    pub fn promote(&self) {
        self.process();
        assert_eq!(self.sql("select pg_promote()"), "t");
    }

    /// Changes a setting of the server.
    pub fn set(&self, name: &str, value: &str) {
        self.process();
        self.sql(&format!("alter system set {name} = '{value}'"));
        self.sql("select pg_reload_conf()");
        self.wait_for(&format!("show {name}"), value);
    }

    /// Has the server offer TLS with this certificate.
    pub fn offer_tls(&self, pair: &Pair) {
        for (from, name) in [(&pair.certificate, "server.crt"), (&pair.key, "server.key")] {
            self.write(&self.data.join(name), &fs::read_to_string(from).expect("it is there"));
        }
        self.set("ssl", "on");
    }

    /// Starts a pgbouncer before the server, if there is one.
    pub fn pooled(&self, mode: &str) -> Option<Pooler> {
        let program = Path::new("/usr/sbin/pgbouncer");
        if !program.is_file() {
            return None;
        }
        let (port, database) = (ReservedPort::take(), self.database.clone());
        let file = |end| self.sockets.join(format!("{database}-{mode}.{end}"));
        self.write(&file("users"), &format!("\"{OWNER}\" \"{PASSWORD}\"\n"));
        let lines = format!(
            "[databases]\n{database} = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = plain\nauth_file = {}\npool_mode = {mode}\nlogfile = {}\n",
            self.port(),
            port.get(),
            file("users").display(),
            file("log").display()
        );
        self.write(&file("ini"), &lines);
        let mut command = self.programs.user_command(program);
        let process =
            command.arg("-q").arg(file("ini")).stderr(Stdio::null()).spawn().expect("it is installed");
        wait::until("pgbouncer listens", || TcpStream::connect(("127.0.0.1", port.get())).is_ok());
        Some(Pooler { process, port, database })
    }

    /// Writes a file that only the user of the server may read.
    fn write(&self, file: &Path, content: &str) {
        fs::write(file, content).expect("there is space");
        let own = fs::metadata(&self.data).expect("it exists");
        chown(file, Some(own.uid()), Some(own.gid())).expect("the owner may be set");
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).expect("it is there");
    }

    /// Waits until a query returns this.
    pub fn wait_for(&self, query: &str, expected: &str) {
        wait::until_ok(|| match self.sql(query) {
            text if text == expected => Ok(()),
            text => Err(format!("{query} returns {text}")),
        });
    }

    /// Executes SQL as the superuser in the database of the test. Returns rows as lines, and columns separated by `|`.
    pub fn sql(&self, sql: &str) -> String {
        let mut session = self.session.lock().expect("no query panics");
        let result = session.get_or_insert_with(|| self.open()).query(sql);
        drop(session);
        result.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Executes SQL as the superuser, and does not wait for its end.
    pub fn begin_sql(&self, sql: &str) -> Session {
        let mut session = self.open();
        session.begin(sql);
        session
    }

    fn open(&self) -> Session {
        let socket = self.sockets.join(format!(".s.PGSQL.{}", self.port()));
        Session::open(&socket, &self.database).unwrap_or_else(|error| panic!("{error}: {}", self.log_text()))
    }

    /// The URL for a user of the database, over TCP.
    pub fn url(&self, user: &str) -> String {
        url(user, &self.host(), &self.database)
    }

    /// The URL of the owner with other hosts, which are separated by commas.
    pub fn url_with(&self, hosts: &str) -> String {
        url(OWNER, hosts, &self.database)
    }

    /// The address in a URL.
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
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
    /// The URL of the owner of the database, through the pooler.
    pub fn url(&self) -> String {
        url(OWNER, &format!("127.0.0.1:{}", self.port.get()), &self.database)
    }
}

fn url(user: &str, hosts: &str, database: &str) -> String {
    format!("postgres://{user}:{PASSWORD}@{hosts}/{database}")
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
