//! Every conversation with the bare core in virtual time, with input and output split at various places.

#[allow(dead_code)] // Each test program uses a part of it.
mod support;

use support::conversation::Conversation;
use support::core::{Core, Cut, config_for};
use support::random::seeds;
use support::runner::{Dialect, run};

fn run_all(cut: Cut) {
    let conversations = Conversation::all();
    assert!(conversations.len() > 80, "too few conversations");
    for conversation in &conversations {
        let mut core = Core::with(config_for(conversation), cut);
        if let Err(failure) = run(conversation, &mut core, Dialect::Quoted) {
            panic!("{cut:?}\n{failure}");
        }
    }
}

#[test]
fn conversations_in_whole_pieces() {
    run_all(Cut::Whole);
}

#[test]
fn conversations_split_at_every_byte() {
    run_all(Cut::EveryByte);
}

#[test]
fn conversations_split_at_random() {
    for seed in seeds(100) {
        run_all(Cut::Random { seed });
    }
}
