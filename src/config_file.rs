//! The file of `--config`: TOML with the long options as keys.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cli::Arguments;
use crate::io::reexec::RunningServer;

/// A problem of the file that keeps the server from starting.
#[derive(Debug)]
pub enum FileError {
    /// The file cannot be read.
    Unreadable {
        /// The path of the file.
        file: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The file has an invalid line.
    Wrong {
        /// The path of the file.
        file: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The problem.
        what: String,
    },
}

/// Fills in from the file what neither the command line nor the environment sets.
///
/// # Errors
/// If the file cannot be read or is not valid.
pub fn complete(arguments: &mut Arguments, file: &Path) -> Result<(), FileError> {
    let unreadable = |error| FileError::Unreadable { file: file.to_owned(), error };
    let text = fs::read_to_string(file).map_err(unreadable)?;
    let settings: Arguments = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        wrong(file, &text, at, error.message().replace('\n', " "))
    })?;
    arguments.fill_from(settings);
    Ok(())
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
    use super::*;
    use crate::config::ServerConfig;

    /// Combines a file and a command line.
    fn with(text: &str, line: &str) -> Result<Arguments, String> {
        let file = std::env::temp_dir().join(format!("beanring-config-{:?}", std::thread::current().id()));
        fs::write(&file, text).expect("the file can be written");
        let words = ["beanring"].into_iter().chain(line.split_whitespace());
        let mut arguments = Arguments::from_words(words).expect("the command line is valid");
        let result = complete(&mut arguments, &file);
        fs::remove_file(&file).expect("the file exists");
        result.map(|()| arguments).map_err(|error| {
            let text = error.to_string();
            text.rsplit_once(&*file.display().to_string()).expect("the message names the file").1.to_owned()
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
            metrics-tubes = 10
            log-level = "debug"
            log-format = "json"
        "#;
        let file = ServerConfig::check(with(text, "").unwrap()).unwrap();
        let line = "-l ::1 -p 11301 -b /var/lib/queue -f 0 -s 1048576 -u nobody -z 7 --max-memory 256m \
                    --max-connections 9 --max-tubes 8 --max-watches 7 --io epoll --registered-memory 0 --http 9100 --http-host queue.example,*.svc \
                    --allow-foreign-requests --metrics-prefix queue --metrics-tubes 10 --log-level debug --log-format json";
        assert_eq!(file, ServerConfig::check(with("", line).unwrap()).unwrap());
        assert!(with("no-sync = true", "").unwrap().no_sync);
        assert_eq!(with("verbose = 1", "").unwrap().verbose, 1);
        let keys: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(" =")?.0.trim())).collect();
        let not_in_a_file = ["config", "check-config", "version", "help", "no-sync", "verbose"];
        for option in Arguments::command().get_arguments().filter_map(clap::Arg::get_long) {
            assert!(not_in_a_file.contains(&option) || keys.contains(&option), "{option} is a key");
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
        assert_eq!(with("verbose = 1", "--log-level warn").unwrap().verbose, 0);
        assert_eq!(with("log-level = \"warn\"", "-V").unwrap().log_level, None);
        assert_eq!(with("http-host = \"a\"", "").unwrap().http_host, ["a"]);
        assert_eq!(with("http-host = \"a\"", "--http-host b").unwrap().http_host, ["b"]);
    }

    #[test]
    fn an_error_has_its_line() {
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
            let message_given = with(text, "").unwrap_err();
            assert!(
                message_given.starts_with(message) && !message_given.contains('\n'),
                "{text:?}: {message_given}"
            );
        }
        let mut arguments = Arguments::default();
        let error = complete(&mut arguments, Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.starts_with("--config /nowhere/at/all: "), "{error}");
    }
}
