//! The sources of the server in which threads meet without a lock, with the atomics and threads of loom. Loom runs a model again and
//! again, in every order of its threads and with every value that a load may return.

#[path = "../../../src/io/uring/threads/channel.rs"]
pub mod channel;
#[path = "../../../src/io/uring/threads/mailbox.rs"]
pub mod mailbox;
#[path = "../../../src/io/uring/threads/sleep_flag.rs"]
pub mod sleep_flag;
pub mod sync;

/// The part of the driver that `channel` names.
pub mod io {
    pub mod uring {
        pub mod requests {
            /// A completion as the kernel writes it.
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct RawCompletion {
                pub word: u64,
                pub result: i32,
                pub flags: u32,
            }
        }
    }
}
