//! The invariants of the server: every count and link, recomputed.

use super::Server;
use super::beanstalk::{Session, SessionMemory};
use super::client_state::{Incoming, SessionState};
use super::http::{HTTP_KINDS, HttpConnection};
use super::memory::Kept;
use crate::values::account::Held;
use crate::wal::Wal;

impl Server {
    /// Recomputes every count of the server and its queue.
    ///
    /// # Panics
    /// If a count is wrong: a defect of the server.
    // Bounded by its caller: a test.
    pub fn check(&self) {
        let Self { core, connections } = self;
        core.engine.check();
        core.log.wal().into_iter().for_each(Wal::check);
        self.check_memory();
        let closing = connections.clients().filter(|session| session.protocol.state == SessionState::Closing);
        assert_eq!(closing.count(), core.closing.count(), "every connection that is closing is counted");
        let to_come = self.arriving().filter(|body| body.of.tags_key().is_some());
        let to_come = to_come.count() + core.batches.check();
        assert_eq!(to_come, core.engine.tags_to_come(), "tags without a job belong to an arriving body");
        for session in connections.clients() {
            assert_eq!(session.protocol.list.is_some(), session.protocol.state == SessionState::Listing);
        }
    }

    /// The bodies that are arriving.
    // Bounded by its caller: a test.
    fn arriving(&self) -> impl Iterator<Item = &Incoming> {
        let over_http = self.connections.all_http().filter_map(HttpConnection::arriving);
        self.connections.clients().filter_map(|session| session.protocol.input.body()).chain(over_http)
    }

    /// Recomputes what connections keep for their peers.
    // Bounded by its caller: a test.
    fn check_memory(&self) {
        let Self { core, connections } = self;
        let memory: Vec<SessionMemory> = connections.clients().map(Session::memory).collect();
        let lists = memory.iter().filter(|one| one.has_list).count();
        let long_lines = memory.iter().filter(|one| one.has_long_line).count();
        let http_lists = connections.all_http().filter(|connection| connection.is_listing()).count();
        let schedule_lines = self.arriving().filter(|body| body.of.is_schedule()).count();
        let counts = [Kept::LongLine, Kept::ScheduleLine, Kept::List, Kept::HttpList]
            .map(|kept| core.memory.kept(kept));
        let found = [long_lines, schedule_lines, lists, http_lists];
        assert_eq!(found, counts, "every longer line and every list is counted");
        let batches: Vec<usize> = memory.iter().filter_map(|one| one.batch_jobs).collect();
        let jobs = batches.iter().sum::<usize>();
        assert_eq!((batches.len(), jobs), core.batches.counts(), "every batch of puts is counted");
        let inboxes = memory.iter().map(|one| one.inbox_bytes).sum();
        let replies = memory.iter().map(|one| one.reply_bytes).sum::<usize>()
            + core.buffers.spare_bytes()
            + connections.all_http().map(|connection| connection.output.buffer_bytes()).sum::<usize>();
        let own = [
            (Held::Batches, core.batches.memory_bytes()),
            (Held::Inboxes, inboxes),
            (Held::Replies, replies),
        ];
        let http = HTTP_KINDS.into_iter().enumerate();
        let http = http.map(|(at, kind)| (kind, connections.all_http().map(|one| one.memory()[at]).sum()));
        for (kind, bytes) in own.into_iter().chain(http) {
            assert_eq!(bytes, core.memory.account().of(kind), "{kind:?} is counted");
        }
    }
}
