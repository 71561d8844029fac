//! Many conversations, each with a server of its own.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::conversation::{Conversation, Version};

/// Conversations mostly sleep, so this has nothing to do with the number of cores.
const AT_ONCE: usize = 16;

/// What a server needs to be told for a conversation.
pub fn flags(conversation: &Conversation) -> Vec<String> {
    let size = conversation.max_job_size.iter().flat_map(|size| ["-z".to_owned(), size.to_string()]);
    let memory = conversation.max_memory.iter().flat_map(|max| ["--max-memory".to_owned(), max.to_string()]);
    let foreign = conversation.allow_foreign_requests.then(|| "--allow-foreign-requests".to_owned());
    size.chain(memory).chain(foreign).collect()
}

/// The conversations with beanring that do not need a clock of their own.
pub fn in_real_time() -> impl Iterator<Item = Conversation> {
    Conversation::all().into_iter().filter(|each| !each.needs_virtual_time)
}

/// Those with this version of beanstalkd.
pub fn with_beanstalkd(version: Version) -> Vec<Conversation> {
    let all = Conversation::of_any_server().into_iter().filter(|each| !each.needs_virtual_time);
    let (held, not_held): (Vec<_>, Vec<_>) = all.partition(|each| each.not_by(version).is_none());
    for each in not_held {
        println!("not held: {}: {}", each.path.display(), each.not_by(version).expect("a reason"));
    }
    held
}

/// Holds conversations, many at once.
///
/// # Panics
/// With all failures, if there are any.
pub fn run_all(conversations: Vec<Conversation>, hold: impl Fn(&Conversation) -> Result<(), String> + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(conversation) = conversations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = hold(conversation) {
                        failures.lock().expect("no thread panicked with it").push(failure);
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no thread panicked with it");
    failures.sort();
    println!("{} conversations held", conversations.len());
    assert!(failures.is_empty(), "{} failed\n\n{}", failures.len(), failures.join("\n"));
}
