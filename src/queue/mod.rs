//! The queue: jobs, tubes, clients, and every transition between them. Plain state without I/O: time comes in as an
//! argument, and what the job log must record and which clients to notify come out as values.
//!
//! # Parts
//!
//! [`Engine`] is a facade of commands over parts. A part owns its fields, which are private to its file or folder, and its methods say
//! in their arguments what else they touch: `groups.leave(job, tags, &mut store)`. A method that needs two or more parts belongs to the
//! facade. Where one part leads to work of another, it says only what is next (`groups.next_released`, `cons.open_next`,
//! `rules.next_expired`), and a loop of the facade carries that out.
//!
//! | folder       | what                                                                                     |
//! |--------------|------------------------------------------------------------------------------------------|
//! | `engine`     | the facade: commands, transitions, who gets which job, long work, recovery, queries       |
//! | `store`      | the records: jobs, tubes, clients, timers, counts, and what calls lead to. Every part may read and change them |
//! | `effects`    | what a call leads to: notices and changes                                                 |
//! | `reserving`  | the search of a reserve, and the clients that wait                                        |
//! | `extensions` | groups, concurrency keys, idempotency keys, rules, notes, schedules, waits for the end of a job |
//! | `long_work`  | commands too large for one call, and the shares of work                                   |
//! | `logged`     | the persistent state of a job, recovered reservations                                     |
//!
//! # Data model
//!
//! ```text
//!            used
//!   Client ---------------------------> Tube <-- timer --> Timer
//!    | ^ ^ \                            ^  ^
//!    | | |  \ watches             tube /   |
//!    | | |   `--------------> Watch --'    | tube
//!    | | |        client        |          |
//!    | | `----------------------'          |
//!    | |  holder                           |
//!    | `------------- Lifecycle <-------- Job ----> body (Slot of the arena)
//!    |                   |      0..1       ^
//!    |                   `-----------------'
//!    `-- timer --> Timer           job
//! ```
//!
//! | in      | field            | is a      | of         | sorted by                         |
//! |---------|------------------|-----------|------------|-----------------------------------|
//! | Tube    | `ready`          | heap      | Job        | priority, id                      |
//! | Tube    | `ready_order`    | two lists | Job        | time at which it became ready     |
//! | Tube    | `delayed`        | heap      | Lifecycle  | deadline, id                      |
//! | Tube    | `delayed_order`  | list      | Job        | beginning of the delay            |
//! | Tube    | `held`           | list      | Job        | time at which it became held      |
//! | Tube    | `buried`         | list      | Job        | time of burial                    |
//! | Tube    | `reserved`       | list      | Lifecycle  | time of reservation               |
//! | Tube    | `narrow_waiters` | list      | Watch      | start of the wait                 |
//! | Tube    | `wide_watches`   | list      | Watch      |                                   |
//! | Client  | `reserved`       | heap      | Lifecycle  | deadline, id                      |
//! | Client  | `reserved_order` | list      | Job        | time of reservation               |
//! | Client  | `watches`        | vector    | Watch      | order of `list-tubes-watched`     |
//! | Client  | `bits`           | bits      | Tube       | slot                              |
//! | Jobs    | `index`          | job index | Job        | id                                |
//! | Tubes   | `slab`           | table     | Tube       | name                              |
//! | Tubes   | `reservable`     | list      | Tube       |                                   |
//! | Tubes   | `heads`          | vector    | Job        | slot of the tube                  |
//! | Tubes   | `order`          | vector    | Tube       | order of `list-tubes`             |
//! | Clients | `watches`        | table     | Watch      | client and tube                   |
//! | Waits   | `wide`           | vector    | Client     | start of the wait                 |
//! | JobWaits | `awaited`       | table     | Awaited    | key of the job                    |
//! | Awaited | `waits`          | list      | JobWait    | start of the wait                 |
//! | JobNotes | `table`         | table     | Noted      | key of the job                    |
//! | IdpKeys | `table`          | table     | IdpKey     | tube and key                      |
//! | IdpKeys | `kept`           | heap      | IdpKey     | time at which it is forgotten     |
//! | ConKeys | `table`          | table     | ConKey     | name                              |
//! | ConKeys | `lanes`          | table     | Lane       | key and tube                      |
//! | ConKey  | `jobs`           | heap      | JobTags    | id, the newest first              |
//! | ConKey  | `shut`           | heap      | Lane       | priority and id of its head       |
//! | Lane    | `parked`         | heap      | Job        | priority, id                      |
//! | Groups  | `table`          | table     | Group      | name                              |
//! | Groups  | `dependencies`   | table     | Dependency | the two groups                    |
//! | Rules   | `table`          | table     | RuledTube  | name                              |
//! | Schedules | `by_name`      | tree      | Schedule   | name                              |
//! | Schedules | `due`          | tree      | Schedule   | time at which it is due, name     |
//! | Group   | `waiting`        | list      | Hold       | time of the put of its job        |
//! | Group   | `dependencies`   | list      | Dependency |                                   |
//! | Timers  | `heap`           | heap      | Timer      | time, owner                       |
//!
//! Each kind of record lies in a slab of its own ([`Pages`](crate::intrusive::Pages)); a table is such a slab
//! with an index by hash ([`Table`](crate::intrusive::Table)). The links of lists, heaps and tables lie in the records. A record names another by slot, because no record is removed before the last link to it.
//! What may outlive a tube or a client names it by a key with a generation: sessions, timers, unfinished work. A `TubeSlot`
//! or `ClientSlot` is such a slot. The keys of jobs, watches and timers are slots too, without a generation.
//!
//! What a call leads to comes out in two queues of the store: [`Notice`]s for clients that wait, and [`Change`]s for the job log. Work that
//! takes more than one step waits in a third, until [`Engine::step`] continues it.
//!
//! A job is in exactly one primary container, the one of its [`JobState`]. That of a ready job with a concurrency key is the
//! ready heap or the lane. A ready job is also in its tube's `ready_order`, a delayed one in its `delayed_order`, and a
//! reserved one in its holder's `reserved_order` and its tube's `reserved`.
//!
//! A job with tags has a `JobTags`. Its tag `idp` makes it the owner of an `IdpKey`, which may outlive it.
//! Its tag `con` makes it a job of a `ConKey`; while it is ready, it is in a `Lane` of that key.
//! Its tag `grp` makes it a member of a `Group`, and its tag `aft` may hold it until a group is done.
//!
//! A tube with rules has a `RuledTube`, which stays when the tube is removed.
//!
//! A client is *wide* if it watches more than [`NARROW_WATCH_MAX`] tubes, and *narrow*
//! otherwise. `reserving/waits.rs` says why the two wait in different places.
//!
//! # What persists
//!
//! The job log keeps of each job its id, creation time, time to run, tube, tags, notes and body, and its [`PersistedState`]:
//! priority, delay, state, counts. Of a tube it keeps the name, the pause and the rules that clients have set. It keeps the idempotency keys of deleted jobs, and schedules. Everything else is in memory only. No client outlives the
//! process, so a reserved job is ready after a restart; if reservations are kept, it stays reserved, and `logged.rs` says by whom.

mod effects;
mod engine;
mod extensions;
mod logged;
mod long_work;
mod reserving;
mod store;

pub use effects::{Change, Notice};
pub use engine::{Engine, Ignored, JobStats, NoteRefusal, Released, Reserved, TubeStats};
pub use extensions::groups::GroupStats;
pub use extensions::idempotency::{
    FlushedKey, KEPT_KEY_BYTES, KEPT_KEY_LOG_BYTES, KeptKey, KeyStats, Repeated, kept_key_bytes,
};
pub use extensions::job_waits::{JobAwaited, JobEnd};
pub use extensions::rules::{FullBy, RuleCounts};
pub use extensions::schedules::{
    LoggedSchedule, NewSchedule, RunRefusal, Schedule, ScheduleCounts, ScheduleName,
};
pub use logged::{LoggedState, PersistedState, Restored};
pub use long_work::job_list::{JobPage, PageQuery};
pub use long_work::{BACKGROUND_STEPS, Begun, JobMoved, LogRoom, MoveRefusal, Moved};
pub use reserving::batch::BatchRoom;
pub use store::client::{Client, Clients, NARROW_WATCH_MAX};
pub use store::job::{Counts, Failure, Job, JobState, Jobs, Lifecycle, NewJob, PackedCounts, URGENT_BELOW};
pub use store::latency::{LatencyKind, Percentiles, TimeSum};
pub use store::tube::{Pause, Tube, TubeCounts, Tubes};
pub use store::tube_order::{Listed, TubeList};
pub use store::{JobTotals, TubeLimits};
