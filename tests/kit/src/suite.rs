//! Runs of many conversations or sessions, each with a server of its own.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::Value;

use super::conversation::{Conversation, Version};
use super::repository;

/// Independent of the number of cores, since conversations mostly sleep.
const AT_ONCE: usize = 16;

/// Returns the flags of a server for a conversation.
pub fn flags(conversation: &Conversation) -> Vec<String> {
    let size = conversation.max_job_size.iter().flat_map(|size| ["-z".to_owned(), size.to_string()]);
    let memory = conversation.max_memory.iter().flat_map(|max| ["--max-memory".to_owned(), max.to_string()]);
    let foreign = conversation.allow_foreign_protocols.then(|| "--allow-foreign-protocols".to_owned());
    let sub_second = conversation.sub_second.then(|| "--sub-second".to_owned());
    size.chain(memory).chain(foreign).chain(sub_second).collect()
}

/// Returns the conversations with beanring that can run in real time.
pub fn in_real_time() -> impl Iterator<Item = Conversation> {
    Conversation::all().into_iter().filter(|each| !each.needs_virtual_time)
}

/// Returns the conversations with this version of beanstalkd, and prints the others.
pub fn with_beanstalkd(version: Version) -> Vec<Conversation> {
    let all = Conversation::of_any_server().into_iter().filter(|each| !each.needs_virtual_time);
    let (included, excluded): (Vec<_>, Vec<_>) = all.partition(|each| each.not_by(version).is_none());
    for each in excluded {
        println!(
            "not run: {}: {}",
            each.path.display(),
            each.not_by(version).expect("the conversation is excluded")
        );
    }
    included
}

/// Runs conversations, many at once.
///
/// # Panics
/// With all failures, if there is one.
pub fn run_all(conversations: Vec<Conversation>, run: impl Fn(&Conversation) -> Result<(), String> + Sync) {
    run_at_once(AT_ONCE, conversations, run);
}

/// Like [`run_all`], with this number at once, and for anything.
///
/// # Panics
/// With all failures, if there is one.
pub fn run_at_once<T: Sync>(at_once: usize, all: Vec<T>, run: impl Fn(&T) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(each) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = run(each) {
                        failures.lock().expect("no thread panicked while holding the lock").push(failure);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked while holding the lock");
    failures.sort();
    println!("{} passed", all.len());
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n"));
}

/// A file of lines that a test carries out in turn. A line that begins with `#` is a comment.
pub struct Session {
    name: String,
    text: String,
}

/// Plays the sessions of a directory in `tests`, several at once.
///
/// # Panics
/// With all failures, if there is one, or if the directory has no session.
pub fn play_all(directory: &str, at_once: usize, play: impl Fn(&Session) -> Result<(), String> + Sync) {
    let entries = fs::read_dir(repository().join("tests").join(directory)).expect("the directory is there");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "txt"));
    let session = |path: std::path::PathBuf| Session {
        name: path.file_name().expect("a file has a name").to_string_lossy().into_owned(),
        text: fs::read_to_string(&path).expect("it is text"),
    };
    let sessions: Vec<Session> = files.map(session).collect();
    assert!(!sessions.is_empty(), "{directory} has no session");
    run_at_once(at_once, sessions, play);
}

impl Session {
    /// Returns the settings of the server: what follows `# server: `.
    pub fn server(&self) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix("# server: "))
    }

    /// Carries out each line by a step that panics if something is not as it should be.
    ///
    /// # Errors
    /// If a step panics: the line.
    pub fn play(&self, what: &str, mut step: impl FnMut(&str)) -> Result<(), String> {
        for (number, line) in (1..).zip(self.text.lines()) {
            if !line.is_empty() && !line.starts_with('#') {
                let played = catch_unwind(AssertUnwindSafe(|| step(line)));
                played.map_err(|_| format!("{}:{number}, {what}: {line}", self.name))?;
            }
        }
        Ok(())
    }
}

/// Whether a value has the members of another, and so on within them.
pub fn has_members(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (_, Value::Object(members)) => members.iter().all(|(name, value)| has_members(&found[name], value)),
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(one, other)| has_members(one, other))
        }
        _ => found == expected,
    }
}
