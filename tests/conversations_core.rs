//! Every conversation with the bare core in virtual time, with its input and output cut in every way.

#[allow(dead_code)] // Each test program uses a part of it.
mod support;

use support::conversation::Conversation;
use support::core::{Core, Cut, config_for};
use support::random::seeds;
use support::runner::{Dialect, run};

fn hold_all(cut: Cut) {
    let conversations = Conversation::all();
    assert!(conversations.len() > 80, "the conversations are found");
    for conversation in &conversations {
        let mut core = Core::with(config_for(conversation), cut);
        if let Err(failure) = run(conversation, &mut core, Dialect::Quoted) {
            panic!("{cut:?}\n{failure}");
        }
    }
}

#[test]
fn in_one_piece() {
    hold_all(Cut::Whole);
}

#[test]
fn cut_at_every_byte() {
    hold_all(Cut::EveryByte);
}

#[test]
fn cut_at_random() {
    for seed in seeds(100) {
        hold_all(Cut::Random { seed });
    }
}
