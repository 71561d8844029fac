//! Which reservations replies have promised. A promise ends with the time to run, or when a client sends what may end it.

use beanring::queue::LoggedState;
use beanring::time::{Span, Time};

use super::database::Process;

/// A client, and the server that it is connected with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    pub client: usize,
    pub process: Process,
}

/// A reservation that a client knows of.
#[derive(Debug)]
struct Hold {
    holder: Peer,
    ttr: Span,
    /// It lasts at least until the clock of the leader shows this.
    until: Time,
    /// When its reply left, by the clock of its server.
    told_at: Time,
    /// Clients of a later leader that have sent a touch: one of them may be the holder.
    takers: Vec<usize>,
}

/// The reservation of a job, as replies show it.
#[derive(Default)]
pub struct Holds {
    hold: Option<Hold>,
    /// Commands about the job that need its reservation.
    commands: u64,
}

/// A command that finds the reservation of a lost client, unless another command about the job comes before it.
#[derive(Clone, Copy, Debug)]
pub struct MustFind {
    until: Time,
    commands: u64,
}

impl Hold {
    /// Whether its client is lost: another process leads than the one that it was connected with.
    fn is_lost(&self, leader: Process) -> bool {
        self.holder.process != leader
    }
}

impl Holds {
    /// A client sends a command that needs the reservation: a touch, or one that ends it. `is_current` says whether its server leads.
    pub fn sent(&mut self, from: Peer, is_touch: bool, is_current: bool) -> Option<MustFind> {
        self.commands += 1;
        let hold = self.hold.as_mut()?;
        if !hold.is_lost(from.process) {
            if hold.holder == from && !is_touch {
                self.hold = None;
            }
            return None;
        }
        let must_find = MustFind { until: hold.until, commands: self.commands };
        let finds = (is_current && hold.takers.is_empty()).then_some(must_find);
        if is_touch {
            hold.takers.push(from.client);
        } else {
            self.hold = None;
        }
        finds
    }

    /// The command has not found the reservation.
    pub fn not_found(&self, id: u64, must_find: MustFind, clock: Time) {
        assert!(
            clock >= must_find.until || self.commands != must_find.commands,
            "no client can finish job {id}, which a lost client had reserved"
        );
    }

    /// A server that leads has replied RESERVED to a command that was sent at the time `since`. All times are those of its clock.
    /// The client may have ended the reservation already, if `may_be_over`.
    pub fn reserved(&mut self, id: u64, to: Peer, ttr: Span, (since, now): (Time, Time), may_be_over: bool) {
        let until = since + ttr;
        if let Some(hold) = self.hold.take_if(|hold| hold.until > now) {
            // Replies may leave in another order than that of the reservations.
            let is_before = may_be_over || !hold.is_lost(to.process) && until <= hold.told_at;
            assert!(is_before, "{:?} and {to:?} hold job {id}", hold.holder);
            self.hold = Some(hold);
            return;
        }
        let may_be_before =
            self.hold.take().is_some_and(|hold| !hold.is_lost(to.process) && until <= hold.told_at);
        if !may_be_before && !may_be_over {
            self.hold = Some(Hold { holder: to, ttr, until, told_at: now, takers: Vec::new() });
        }
    }

    /// A server that leads has replied TOUCHED to a command that was sent at the time `since`.
    pub fn touched(&mut self, to: Peer, since: Time, now: Time) {
        let Some(hold) = &mut self.hold else { return };
        if hold.holder == to || hold.is_lost(to.process) {
            let until = hold.until.max(since + hold.ttr);
            *hold = Hold { holder: to, ttr: hold.ttr, until, told_at: now, takers: Vec::new() };
        }
    }

    /// The job is gone.
    pub fn forget(&mut self) {
        self.hold = None;
    }

    /// The client closes its connection, and its jobs are ready.
    pub fn left(&mut self, client: usize) {
        self.hold.take_if(|hold| hold.holder.client == client || hold.takers.contains(&client));
    }

    /// A server leads, and has the job in this state. `before` is what the clock of the leader before it shows.
    pub fn leads(&mut self, id: u64, state: LoggedState, now: Time, before: Time) {
        // The leader before it may have ended the reservation.
        self.hold.take_if(|hold| hold.until <= before);
        let Some(hold) = &mut self.hold else { return };
        // A reservation becomes no longer than a time to run from now.
        hold.until = hold.until.min(now + hold.ttr);
        hold.takers.clear();
        let is_kept = matches!(state, LoggedState::Reserved(until) if until >= hold.until);
        assert!(
            hold.until <= now || is_kept,
            "{:?} holds job {id} until {:?}, and it is {state:?}",
            hold.holder,
            hold.until
        );
    }

    /// Whether it is the reservation of a client that is lost.
    pub fn is_lost(&self, leader: Process) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.is_lost(leader) && hold.takers.is_empty())
    }
}
