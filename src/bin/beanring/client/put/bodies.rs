//! Where `beanring put` gets the bodies of jobs: arguments, files or lines. `beanring schedule add` reads one file in the same way.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use beanring::values::limits::JOB_BYTES_MAX;
use nix::errno::Errno;

use super::super::interrupt::{Interrupt, Interruptible};
use super::super::{ClientError, escaped, say};
use crate::cli::verbs::Put;

/// Bytes that are read at once.
const READ_BYTES: usize = 256 * 1024;

/// The name that stands for standard input.
const STDIN: &str = "-";

const EMPTY_INPUT: &str =
    "standard input is empty; give a body, or --allow-empty to put a job with an empty body";

/// Bodies still to be put.
pub(super) struct Bodies {
    arguments: std::vec::IntoIter<OsString>,
    files: std::vec::IntoIter<PathBuf>,
    open: Option<Open>,
    is_by_line: bool,
    allows_empty: bool,
    interrupt: Interrupt,
    bytes_read: u64,
    count: u64,
}

/// A file that is being read.
struct Open {
    reader: BufReader<Interruptible<File>>,
    path: Option<Arc<Path>>,
    lines: u64,
}

/// Where a body was found, for an error.
#[derive(Clone, Debug)]
pub(super) struct InputPlace {
    /// The file, unless it is standard input or there is none.
    path: Option<Arc<Path>>,
    /// The number of the line, from 1.
    line: Option<u64>,
    /// The number of the body, from 1.
    number: u64,
}

impl Bodies {
    /// Takes the bodies that the command line names.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub(super) fn new(verb: &Put, interrupt: Interrupt) -> Result<Self, ClientError> {
        let mut files: Vec<PathBuf> = verb.files.paths().cloned().collect();
        for path in files.iter().filter(|path| path.as_os_str() != STDIN) {
            check(path).map_err(|error| cannot_open(verb, path, error))?;
        }
        if verb.bodies.is_empty() && files.is_empty() {
            files.push(STDIN.into());
        }
        Ok(Self {
            arguments: verb.bodies.clone().into_iter(),
            files: files.into_iter(),
            open: None,
            is_by_line: verb.lines,
            allows_empty: verb.allow_empty,
            interrupt,
            bytes_read: 0,
            count: 0,
        })
    }

    /// The number of bytes that are known to come: the size of the files.
    pub(super) fn bytes_total(verb: &Put) -> Option<u64> {
        let stdin = Path::new("/dev/stdin");
        let size = |path: &PathBuf| {
            let path = if path.as_os_str() == STDIN { stdin } else { path };
            path.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len())
        };
        match verb.files.paths().next() {
            None => size(&PathBuf::from(STDIN)),
            Some(_) => verb.files.paths().map(size).sum(),
        }
    }

    /// Replaces `body` by the next one. Returns where it was found, or `None` after the last and after a signal.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(super) fn next(&mut self, body: &mut Vec<u8>) -> Result<Option<InputPlace>, ClientError> {
        body.clear();
        if self.interrupt.is_caught() {
            return Ok(None);
        }
        if let Some(argument) = self.arguments.next() {
            *body = argument.into_vec();
            return Ok(Some(self.found(None, None)));
        }
        loop {
            if self.open.is_none() {
                let Some(path) = self.files.next() else { return Ok(None) };
                self.open = Some(Open::new(path, &self.interrupt)?);
            }
            let open = self.open.as_mut().expect("a file is open");
            let path = open.path.clone();
            let bytes = open.read(body, self.is_by_line)?;
            self.bytes_read += bytes;
            // Input that ends at a signal may have ended within a body.
            if self.interrupt.is_caught() {
                return Ok(None);
            }
            if !self.is_by_line {
                if bytes == 0 && path.is_none() && !self.allows_empty {
                    return Err(ClientError::Usage(EMPTY_INPUT.to_owned()));
                }
                self.open = None;
                return Ok(Some(self.found(path, None)));
            }
            if bytes > 0 {
                open.lines += 1;
                let line = open.lines;
                return Ok(Some(self.found(path, Some(line))));
            }
            self.open = None;
        }
    }

    /// Whether the next body may have to be waited for, as from a pipe.
    pub(super) fn may_wait(&self) -> bool {
        self.arguments.len() == 0
            && self.open.as_ref().is_none_or(|open| memchr::memchr(b'\n', open.reader.buffer()).is_none())
    }

    /// Number of bytes read from files.
    pub(super) const fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    const fn found(&mut self, path: Option<Arc<Path>>, line: Option<u64>) -> InputPlace {
        self.count += 1;
        InputPlace { path, line, number: self.count }
    }
}

/// Reads one body from a file, or from standard input without one. It ends after `bytes_max` bytes and one more.
///
/// # Errors
/// If the file cannot be read, or standard input is empty and may not be.
pub(in super::super) fn read_whole(
    path: Option<&Path>,
    bytes_max: u64,
    allows_empty: bool,
) -> Result<Vec<u8>, ClientError> {
    let (file, path) = open(path.unwrap_or(Path::new(STDIN)).to_owned())?;
    let mut body = Vec::new();
    let read = file.take(bytes_max + 1).read_to_end(&mut body);
    read.map_err(|error| ClientError::File { path: path.as_deref().map(Path::to_owned), error })?;
    if body.is_empty() && path.is_none() && !allows_empty {
        return Err(ClientError::Usage(EMPTY_INPUT.to_owned()));
    }
    Ok(body)
}

/// Opens a file. The path of standard input is `-`, and none is returned for it.
fn open(path: PathBuf) -> Result<(File, Option<Arc<Path>>), ClientError> {
    if path.as_os_str() != STDIN {
        return match File::open(&path) {
            Ok(file) => Ok((file, Some(path.into()))),
            Err(error) => Err(ClientError::File { path: Some(path), error }),
        };
    }
    if io::stdin().is_terminal() {
        say(format_args!("beanring: reading from the terminal; end the input with Ctrl-D"));
    }
    // Without the buffer of the standard library, in which input could be while the descriptor has none.
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    Ok((File::from(stdin.map_err(|error| ClientError::File { path: None, error })?), None))
}

/// Finds before the first put that a file cannot be read.
fn check(path: &Path) -> io::Result<()> {
    match File::open(path)?.metadata()?.is_dir() {
        true => Err(Errno::EISDIR.into()),
        false => Ok(()),
    }
}

/// Why a file cannot be opened. A word after a file is a file too, which may have been meant as a body.
fn cannot_open(verb: &Put, path: &Path, error: io::Error) -> ClientError {
    let is_body = !verb.files.is_flagged(path) && error.kind() == ErrorKind::NotFound;
    let error = ClientError::File { path: Some(path.to_owned()), error };
    if is_body { ClientError::Usage(format!("{error}; give bodies or files, not both")) } else { error }
}

impl Open {
    fn new(path: PathBuf, interrupt: &Interrupt) -> Result<Self, ClientError> {
        let (file, path) = open(path)?;
        let reader = BufReader::with_capacity(READ_BYTES, interrupt.input(file));
        Ok(Self { reader, path, lines: 0 })
    }

    /// Reads a line without its LF, or everything. Returns the number of bytes read.
    fn read(&mut self, body: &mut Vec<u8>, is_by_line: bool) -> Result<u64, ClientError> {
        let failed = |error| ClientError::File { path: self.path.as_deref().map(Path::to_owned), error };
        // One byte more than a body may have, and the end of the line.
        let mut limited = self.reader.by_ref().take(u64::from(JOB_BYTES_MAX) + 2);
        let read = if is_by_line { limited.read_until(b'\n', body) } else { limited.read_to_end(body) };
        let bytes = read.map_err(failed)?;
        if is_by_line && body.ends_with(b"\n") {
            body.pop();
        }
        if body.len() > JOB_BYTES_MAX as usize {
            let what = if is_by_line { "a line has more than 1 GiB" } else { "it has more than 1 GiB" };
            return Err(failed(io::Error::new(ErrorKind::InvalidData, what)));
        }
        Ok(bytes as u64)
    }
}

impl fmt::Display for InputPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            f.write_str(&escaped(path.as_os_str().as_encoded_bytes()))?;
        }
        match (&self.path, self.line) {
            (Some(_), Some(line)) => write!(f, ":{line}"),
            (None, Some(line)) => write!(f, "line {line}"),
            (Some(_), None) => Ok(()),
            (None, None) => write!(f, "body {}", self.number),
        }
    }
}
