//! Every conversation with the bare core in virtual time, with input and output split at various places.

use beanring_testkit::config::config_for;
use beanring_testkit::conversation::Conversation;
use beanring_testkit::in_memory::{Cut, InMemoryServer};
use beanring_testkit::random::seeds;
use beanring_testkit::runner::{Dialect, run};

fn run_all(cut: Cut) {
    let conversations = Conversation::all();
    assert!(conversations.len() > 80, "too few conversations");
    for conversation in &conversations {
        let mut core = InMemoryServer::with(config_for(conversation), cut);
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

#[cfg(feature = "tls")]
mod over_tls {
    use beanring::server::Server;
    use beanring_testkit::config::config_for;
    use beanring_testkit::conversation::Conversation;
    use beanring_testkit::in_memory::{Cut, InMemoryServer};
    use beanring_testkit::random::seeds;
    use beanring_testkit::runner::{Dialect, run};
    use beanring_testkit::tunnel::Tunnel;

    /// Cuts plaintext and ciphertext.
    fn run_all(cut: Cut) {
        // Byte by byte, the large bodies of conversations about memory take 8 s of CPU time.
        let has_time = |each: &&Conversation| !matches!(cut, Cut::EveryByte) || each.max_memory.is_none();
        for conversation in Conversation::all().iter().filter(has_time) {
            // Their limits are exact to some bytes.
            let tunnel = Tunnel::unmetered(Server::new(config_for(conversation)), cut);
            let mut core = InMemoryServer::over(tunnel, cut);
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
        for seed in seeds(20) {
            run_all(Cut::Random { seed });
        }
    }
}
