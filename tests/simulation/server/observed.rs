//! The order in which the server served what it received, as it reports that itself. The order is not trusted: the clients
//! must have sent commands that allow it, and every reply must follow from it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use beanring::protocol::announced::Follows;
use beanring::protocol::reply::Reply;
use beanring::queue::BatchRoom;
use beanring::server::{Observation, Observer};
use beanring::values::ids::ConnId;

#[derive(Debug)]
pub enum Step {
    Of(ClientStep),
    /// These long commands are unfinished, each with the number of its jobs so far.
    Changes(Vec<(ConnId, u32)>),
}

/// A step of the server for the connection in a slot.
#[derive(Debug)]
pub struct ClientStep {
    pub slot: u32,
    pub kind: StepKind,
}

#[derive(PartialEq, Eq, Debug)]
pub enum StepKind {
    /// It served this line.
    Line(Vec<u8>),
    /// It rejected a line that was too long, with what follows it.
    LineTooLong(Follows),
    /// It had a job's complete body, and decided on a reply.
    Put { id: u64, is_out_of_memory: bool },
    /// It had the last body of a put-batch, and decided on a reply: to put jobs from this id on, or none.
    PutBatch { first: Option<u64>, is_out_of_memory: bool },
    /// It had the text of a note.
    Note { is_out_of_memory: bool, is_too_big: bool },
    /// It took jobs for a reserve-batch that had its first one.
    Batch(BatchRoom),
    /// It drew these jobs for one command.
    Drawn(Vec<u64>),
    /// It ended the client's wait, because the next line is cancel-reserve.
    Canceled,
    /// It removed the client from the queue.
    Left,
}

/// Steps that the checker has not seen yet. Clones share them.
#[derive(Clone, Default)]
pub struct Steps(Rc<RefCell<VecDeque<Step>>>);

impl Steps {
    pub fn take_next(&self) -> Option<Step> {
        self.0.borrow_mut().pop_front()
    }

    /// Takes the next step if it is one of long commands.
    pub fn take_changes(&self) -> Option<Step> {
        self.0.borrow_mut().pop_front_if(|step| matches!(step, Step::Changes(_)))
    }

    pub fn clear(&self) {
        self.0.borrow_mut().clear();
    }
}

impl Observer for Steps {
    fn observe(&mut self, conn: ConnId, observation: Observation<'_>) {
        let kind = match observation {
            Observation::Line(line) => StepKind::Line(line.to_vec()),
            Observation::LineTooLong(follows) => StepKind::LineTooLong(follows),
            Observation::Put(id, reply) => {
                StepKind::Put { id: id.0, is_out_of_memory: reply == Reply::OutOfMemory }
            }
            Observation::Note(reply) => StepKind::Note {
                is_out_of_memory: reply == Reply::OutOfMemory,
                is_too_big: reply == Reply::JobTooBig,
            },
            Observation::Schedule(_) => unreachable!("no client puts a schedule"),
            Observation::PutBatch(reply, first) => StepKind::PutBatch {
                first: first.map(|id| id.0),
                is_out_of_memory: reply == Reply::OutOfMemory,
            },
            Observation::Batch(room) => StepKind::Batch(room),
            Observation::Drawn(ids) => StepKind::Drawn(ids.iter().map(|id| id.0).collect()),
            Observation::Canceled => StepKind::Canceled,
            Observation::Left => StepKind::Left,
        };
        self.0.borrow_mut().push_back(Step::Of(ClientStep { slot: conn.slot, kind }));
    }

    fn observe_changes(&mut self, unfinished: Vec<(ConnId, u32)>) {
        self.0.borrow_mut().push_back(Step::Changes(unfinished));
    }
}
