//! The records of the queue: what clients, tubes and jobs are, and what every transition counts.

use super::client::Clients;
use super::job::Jobs;
use super::latency::QueueLatency;
use super::moving::LogRoom;
use super::stats::JobTotals;
use super::timers::Timers;
use super::tube::Tubes;
use super::tube_limits::TubeLimits;
use crate::bodies::Bodies;
use crate::values::ids::TubeSlot;
use crate::values::tube_name::TubeName;

/// Jobs, tubes and clients, which every part of the queue may read and change.
pub(super) struct Store {
    pub(super) jobs: Jobs,
    pub(super) tubes: Tubes,
    pub(super) clients: Clients,
    pub(super) timers: Timers,
    pub(super) bodies: Bodies,
    pub(super) totals: JobTotals,
    pub(super) latency: QueueLatency,
    pub(super) limits: TubeLimits,
    pub(super) log_room: LogRoom,
    pub(super) default_tube: TubeSlot,
    pub(super) next_id: u64,
    /// The smallest number that the next burial may have: see [`Engine::enter_buried`](super::Engine::enter_buried).
    pub(super) burials: u64,
}

impl Store {
    /// The tube `default` alone. `seed` keeps clients from choosing names, ids and watches whose hashes collide.
    pub(super) fn new(seed: u64) -> Self {
        let mut tubes = Tubes::new(seed);
        let mut timers = Timers::default();
        let default_tube = tubes.add(TubeName::DEFAULT, &mut timers);
        Self {
            jobs: Jobs::new(seed),
            tubes,
            clients: Clients::new(seed),
            timers,
            bodies: Bodies::new(),
            totals: JobTotals::default(),
            latency: QueueLatency::new(),
            limits: TubeLimits::default(),
            log_room: LogRoom::UNLIMITED,
            default_tube,
            next_id: 1,
            burials: 0,
        }
    }
}
