//! The configuration as a file: TOML, with the long options as keys.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;

use crate::cli::{Arguments, LogFormat};
use crate::io::driver::Choice;
use crate::io::reexec::RunningServer;

/// Why the file cannot be used.
#[derive(Debug)]
pub enum FileError {
    /// It cannot be read.
    Unreadable {
        /// Which.
        file: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is not what it should be.
    Wrong {
        /// Which.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
}

/// What can be set in it: every option of a server.
#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    listen: Option<String>,
    port: Option<Number>,
    log_dir: Option<PathBuf>,
    sync_interval: Option<Number>,
    no_sync: bool,
    log_file_size: Option<Number>,
    user: Option<String>,
    max_job_size: Option<Number>,
    max_memory: Option<Number>,
    max_connections: Option<Number>,
    max_tubes: Option<Number>,
    max_watches: Option<Number>,
    io: Option<Choice>,
    registered_memory: Option<Number>,
    allow_foreign_requests: bool,
    http: Option<Number>,
    http_host: Option<Names>,
    metrics_prefix: Option<String>,
    verbose: u8,
    log_format: Option<LogFormat>,
}

/// One name, or several.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum Names {
    One(String),
    Several(Vec<String>),
}

/// As a number or, since some have units, as text. It is checked with what was typed.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
enum Number {
    Plain(i64),
    Text(String),
}

impl From<Number> for String {
    fn from(number: Number) -> Self {
        match number {
            Number::Plain(number) => number.to_string(),
            Number::Text(text) => text,
        }
    }
}

/// Takes from the file what neither the command line nor the environment says.
pub fn complete(arguments: &mut Arguments, file: &Path) -> Result<(), FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let settings: Settings = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        wrong(file, &text, at, error.message().replace('\n', " "))
    })?;
    fill(&mut arguments.listen, settings.listen);
    fill(&mut arguments.port, settings.port);
    fill(&mut arguments.log_dir, settings.log_dir);
    // One of the two that was typed hides both of the file.
    if arguments.sync_interval.is_none() && !arguments.says_no_sync {
        arguments.no_sync = settings.no_sync;
        fill(&mut arguments.sync_interval, settings.sync_interval);
    }
    fill(&mut arguments.log_file_size, settings.log_file_size);
    fill(&mut arguments.user, settings.user);
    fill(&mut arguments.max_job_size, settings.max_job_size);
    fill(&mut arguments.max_memory, settings.max_memory);
    fill(&mut arguments.max_connections, settings.max_connections);
    fill(&mut arguments.max_tubes, settings.max_tubes);
    fill(&mut arguments.max_watches, settings.max_watches);
    fill(&mut arguments.io, settings.io);
    fill(&mut arguments.registered_memory, settings.registered_memory);
    if !arguments.says_allow_foreign_requests {
        arguments.allow_foreign_requests = settings.allow_foreign_requests;
    }
    fill(&mut arguments.http, settings.http);
    if arguments.http_host.is_empty() {
        arguments.http_host = match settings.http_host {
            None => Vec::new(),
            Some(Names::One(name)) => vec![name],
            Some(Names::Several(names)) => names,
        };
    }
    fill(&mut arguments.metrics_prefix, settings.metrics_prefix);
    fill(&mut arguments.log_format, settings.log_format);
    if !arguments.says_verbose {
        arguments.verbose = settings.verbose;
    }
    Ok(())
}

fn fill<T: Into<U>, U>(place: &mut Option<U>, from_file: Option<T>) {
    if place.is_none() {
        *place = from_file.map(Into::into);
    }
}

fn wrong(file: &Path, text: &str, at: usize, what: String) -> FileError {
    let line = 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
    FileError::Wrong { file: file.to_owned(), line, what }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, error } => {
                write!(f, "--config {}: {error}", file.display())?;
                let is_replaced = error.kind() == ErrorKind::PermissionDenied
                    && RunningServer::from_environment().is_some();
                if is_replaced {
                    f.write_str("; a server that runs reaches a new file only in a directory of its own")?;
                }
                Ok(())
            }
            Self::Wrong { file, line, what } => write!(f, "{}:{line}: {what}", file.display()),
        }
    }
}

impl std::error::Error for FileError {}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::Config;

    /// The configuration of a file and a command line.
    fn with(text: &str, line: &str) -> Result<Arguments, String> {
        let file = std::env::temp_dir().join(format!("beanring-config-{:?}", std::thread::current().id()));
        fs::write(&file, text).expect("there is room");
        let words = ["beanring"].into_iter().chain(line.split_whitespace());
        let mut arguments = Arguments::from_words(words).expect("it is a command line");
        let result = complete(&mut arguments, &file);
        fs::remove_file(&file).expect("it is there");
        result.map(|()| arguments).map_err(|error| {
            let text = error.to_string();
            text.rsplit_once(&*file.display().to_string()).expect("it names the file").1.to_owned()
        })
    }

    #[test]
    fn every_option_can_be_set() {
        let text = r#"
            listen = "::1"
            port = 11301
            log-dir = "/var/lib/queue"
            sync-interval = 0
            log-file-size = "1048576"
            user = "nobody"
            max-job-size = 7
            max-memory = "256m"
            max-connections = 9
            max-tubes = 8
            max-watches = "7"
            io = "epoll"
            registered-memory = 0
            http = 9100
            http-host = ["queue.example", "*.svc"]
            allow-foreign-requests = true
            metrics-prefix = "queue"
            verbose = 1
            log-format = "json"
        "#;
        let file = Config::check(with(text, "").unwrap()).unwrap();
        let line = "-l ::1 -p 11301 -b /var/lib/queue -f 0 -s 1048576 -u nobody -z 7 --max-memory 256m \
                    --max-connections 9 --max-tubes 8 --max-watches 7 --io epoll --registered-memory 0 --http 9100 --http-host queue.example,*.svc \
                    --allow-foreign-requests --metrics-prefix queue -V --log-format json";
        assert_eq!(file, Config::check(with("", line).unwrap()).unwrap());
        assert!(with("no-sync = true", "").unwrap().no_sync);
        let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" =")?.0.trim())).collect();
        let about_itself = ["config", "check-config", "version", "help", "no-sync"];
        for option in Arguments::command().get_arguments().filter_map(clap::Arg::get_long) {
            assert!(about_itself.contains(&option) || keys.contains(&option), "{option} is a key");
        }
    }

    #[test]
    fn the_command_line_wins() {
        assert_eq!(with("port = 1", "-p 2").unwrap().port.as_deref(), Some("2"));
        let arguments = with("no-sync = true", "-f 5").unwrap();
        assert!(!arguments.no_sync && arguments.sync_interval.as_deref() == Some("5"));
        let arguments = with("sync-interval = 5", "-F").unwrap();
        assert!(arguments.no_sync && arguments.sync_interval.is_none());
        assert_eq!(with("verbose = 1", "-VV").unwrap().verbose, 2);
        assert_eq!(with("http-host = \"a\"", "").unwrap().http_host, ["a"]);
        assert_eq!(with("http-host = \"a\"", "--http-host b").unwrap().http_host, ["b"]);
        let said = |text| {
            let file = std::env::temp_dir().join(format!("beanring-config-said-{}", std::process::id()));
            fs::write(&file, text).expect("there is room");
            let mut arguments = Arguments::default();
            (arguments.says_no_sync, arguments.says_verbose) = (true, true);
            arguments.says_allow_foreign_requests = true;
            complete(&mut arguments, &file).expect("it is good");
            fs::remove_file(&file).expect("it is there");
            arguments
        };
        let arguments = said("no-sync = true\nverbose = 2\nallow-foreign-requests = true");
        assert!(!arguments.no_sync && arguments.verbose == 0, "zero and no are said too");
        assert!(!arguments.allow_foreign_requests);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, message) in [
            ("port = 1\nprot = 2", ":2: unknown field `prot`, expected one of"),
            ("\n\nport = ", ":3: "),
            ("verbose = -1", ":1: invalid value: integer `-1`, expected u8"),
            ("port = true", ":1: expected a number or a text"),
            ("listen = 5", ":1: invalid type: integer `5`, expected a string"),
            (
                "\nio = \"fast\"",
                ":2: unknown variant `fast`, expected one of `auto`, `uring`, `epoll`, `tokio-uring`",
            ),
        ] {
            let told = with(text, "").unwrap_err();
            assert!(told.starts_with(message) && !told.contains('\n'), "{text:?}: {told}");
        }
        let mut arguments = Arguments::default();
        let error = complete(&mut arguments, Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.starts_with("--config /nowhere/at/all: "), "{error}");
    }
}
