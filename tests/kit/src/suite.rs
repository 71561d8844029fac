//! Runs of many conversations, each with a server of its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::conversation::{Conversation, Version};

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

/// Like [`run_all`], with this number of conversations at once.
///
/// # Panics
/// With all failures, if there is one.
pub fn run_at_once(
    at_once: usize,
    conversations: Vec<Conversation>,
    run: impl Fn(&Conversation) -> Result<(), String> + Sync,
) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(conversation) = conversations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = run(conversation) {
                        failures.lock().expect("no thread panicked while holding the lock").push(failure);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked while holding the lock");
    failures.sort();
    println!("{} conversations passed", conversations.len());
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n"));
}
