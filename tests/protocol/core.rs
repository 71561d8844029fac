//! Every conversation with the bare core in virtual time, with input and output split at various places.

use beanring_testkit::config::config_for;
use beanring_testkit::conversation::Conversation;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::peer::Peer;
use beanring_testkit::random::seeds;
use beanring_testkit::runner::{Dialect, run};

fn run_all(cuts: impl IntoIterator<Item = Cut>) {
    let conversations = Conversation::all();
    assert!(conversations.len() > 80, "too few conversations");
    for cut in cuts {
        for conversation in &conversations {
            check(conversation, cut, &mut InMemoryServer::with(config_for(conversation), cut));
        }
    }
}

fn check(conversation: &Conversation, cut: Cut, server: &mut impl Peer) {
    if let Err(failure) = run(conversation, server, Dialect::Quoted) {
        panic!("{cut:?}\n{failure}");
    }
}

#[test]
fn conversations_in_whole_pieces() {
    run_all([Cut::Whole]);
}

#[test]
fn conversations_split_at_every_byte() {
    run_all([Cut::EveryByte]);
}

#[test]
fn conversations_split_at_random() {
    run_all(seeds(100).map(|seed| Cut::Random { seed }));
}

#[cfg(feature = "tls")]
mod over_tls {
    use beanring::server::Server;
    use beanring_testkit::tunnel::Tunnel;

    use super::*;

    /// Cuts plaintext and ciphertext.
    fn run_all(cuts: impl IntoIterator<Item = Cut>) {
        let conversations = Conversation::all();
        for cut in cuts {
            // Byte by byte, the large bodies of conversations about memory take 8 s of CPU time.
            let has_time = |each: &&Conversation| !matches!(cut, Cut::EveryByte) || each.max_memory.is_none();
            for conversation in conversations.iter().filter(has_time) {
                // Their limits are exact to some bytes.
                let tunnel = Tunnel::unmetered(Server::new(config_for(conversation)), cut);
                check(conversation, cut, &mut InMemoryServer::over(tunnel, cut));
            }
        }
    }

    #[test]
    fn conversations_in_whole_pieces() {
        run_all([Cut::Whole]);
    }

    #[test]
    fn conversations_split_at_every_byte() {
        run_all([Cut::EveryByte]);
    }

    #[test]
    fn conversations_split_at_random() {
        run_all(seeds(20).map(|seed| Cut::Random { seed }));
    }
}
