//! Connections whose receive found no buffer. Each group of buffers has a queue of them, so that those that send most do not take all
//! buffers again and again.
//!
//! While a group has a queue, every receive of the group waits in it, and takes one buffer. So each of its connections has its turn
//! before another one has a second.

use std::collections::VecDeque;

use super::UringDriver;
use super::connection::ReceiveRequest;
use super::ring::{Group, Ring};
use crate::server::Service;
use crate::values::ids::ConnId;

/// How a connection is in the queue of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dryness {
    /// It is not.
    None,
    Waiting,
    /// Its receive was requested in its turn, and has not completed.
    Requested,
}

/// The queues of all groups.
#[derive(Default)]
pub struct DryQueues {
    /// By number. A connection may close while it waits.
    groups: Vec<VecDeque<ConnId>>,
    waiting: usize,
}

impl DryQueues {
    /// Whether connections of a group wait.
    #[inline]
    pub fn has(&self, group: Group) -> bool {
        self.groups.get(usize::from(group.number)).is_some_and(|queue| !queue.is_empty())
    }

    /// Whether no connection waits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Queues a connection: at the front if it had its turn and got nothing. Returns by how many bytes the memory has grown.
    fn push(&mut self, group: Group, conn: ConnId, is_first: bool) -> usize {
        let number = usize::from(group.number);
        if self.groups.len() <= number {
            self.groups.resize_with(number + 1, VecDeque::new);
        }
        let queue = &mut self.groups[number];
        let before = queue.capacity();
        if is_first {
            queue.push_front(conn);
        } else {
            queue.push_back(conn);
        }
        self.waiting += 1;
        (queue.capacity() - before) * size_of::<ConnId>()
    }

    fn pop(&mut self, number: usize) -> Option<ConnId> {
        let conn = self.groups[number].pop_front()?;
        self.waiting -= 1;
        Some(conn)
    }
}

impl<S: Service, R: Ring> UringDriver<S, R> {
    /// Has a connection wait for its turn to receive, if its group of buffers has run dry. Returns whether it waits.
    pub(super) fn wait_for_buffer(&mut self, conn: ConnId, has_run_dry: bool) -> bool {
        if !has_run_dry && self.dry.is_empty() {
            return false;
        }
        let group = self.ring.group_of(conn.slot);
        if !has_run_dry && !self.dry.has(group) {
            return false;
        }
        let connection = self.shell.connection(conn);
        let dryness = std::mem::replace(&mut connection.dryness, Dryness::Waiting);
        let is_first = has_run_dry && dryness == Dryness::Requested;
        let grown = self.dry.push(group, conn, is_first);
        self.shell.allocated(grown);
        true
    }

    /// Gives as many connections of each group their turn as it has buffers.
    pub(super) fn receive_in_turn(&mut self) {
        if self.dry.is_empty() {
            return;
        }
        for number in 0..self.dry.groups.len() {
            let mut requested = 0;
            while let Some(conn) = self.dry.pop(number) {
                let Some(connection) = self.shell.connections.get_mut(conn) else { continue };
                connection.dryness = Dryness::Requested;
                self.receive_if_wanted(conn);
                let connection = self.shell.connection(conn);
                if connection.receive == ReceiveRequest::None {
                    // The server wants no input any more.
                    connection.dryness = Dryness::None;
                    continue;
                }
                requested += 1;
                if requested >= self.ring.group_of(conn.slot).buffers {
                    break;
                }
            }
        }
    }
}
