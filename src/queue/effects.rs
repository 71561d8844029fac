//! What a call leads to: changes for the job log, notices for clients, and work that is left to do.

use std::collections::VecDeque;

use super::change::Changes;
use super::engine::Notice;
use super::work::WorkQueue;

/// What the queue has to tell, and what it has to continue.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) work: WorkQueue,
    pub(super) notices: VecDeque<Notice>,
    pub(super) changes: Changes,
}
