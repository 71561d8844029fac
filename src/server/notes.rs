//! `job-note`: from its line to the note.

use super::Core;
use super::client_state::{IncomingNote, Input, ProtocolState};
use super::outcome::{Outcome, Refusal, Shortage};
use super::rights::Need;
use super::trace::Observation;
use crate::protocol::command::Command;
use crate::protocol::reply::Reply;
use crate::queue::NoteRefusal;
use crate::time::Time;
use crate::values::ids::JobId;
use crate::values::notes::NOTE_BYTES_MAX;
use crate::values::tags::Tags;
use crate::wal::{PutSpace, note_record_bytes};

impl Core {
    /// Begins a `job-note`, whose text follows its line.
    pub(super) fn begin_note(
        &mut self,
        protocol: &mut ProtocolState,
        id: JobId,
        bytes: u32,
    ) -> Outcome<'static> {
        let whole = u64::from(bytes) + 2;
        if bytes > NOTE_BYTES_MAX {
            return protocol.skip_text(whole, Refusal::JobTooBig);
        }
        if !self.claim_memory(protocol.client, bytes + 2, Tags::NONE) {
            return protocol.skip_text(whole, Shortage::Memory.into());
        }
        match self.engine.bodies_mut().allocate_unwritten(bytes + 2) {
            Ok(text) => {
                protocol.input = Input::Note(IncomingNote { id, text, filled: 0 });
                Outcome::Pending
            }
            Err(_) => protocol.skip_text(whole, Shortage::Memory.into()),
        }
    }

    /// Takes what `rest` has of a note that is arriving. Returns `None` if more of it must arrive, or if it waits for space in the job
    /// log.
    pub(super) fn receive_note(
        &mut self,
        protocol: &mut ProtocolState,
        rest: &mut &[u8],
        now: Time,
    ) -> Option<Outcome<'static>> {
        let Input::Note(note) = &mut protocol.input else { unreachable!("the caller has seen a note") };
        let (from, count) = (note.filled, rest.len().min(note.text.len() - note.filled));
        let (text, following) = rest.split_at(count);
        note.filled += count;
        self.engine.bodies_mut().bytes_mut(&mut note.text)[from..from + count].copy_from_slice(text);
        *rest = following;
        if !note.is_complete() {
            return None;
        }
        let space = self.log.space_for_records(note_record_bytes(note.text.len()) as u64);
        if space == PutSpace::Pending {
            return None;
        }
        let Input::Note(note) = std::mem::replace(&mut protocol.input, Input::Line) else {
            unreachable!("the note is complete")
        };
        let (client, outcome) = (protocol.client, self.add_note(protocol, note, space, now));
        let reply = outcome.as_ref().map_or_else(|refusal| refusal.reply(), |()| Reply::Noted);
        self.reporter.observe(&self.engine, client, Observation::Note(reply));
        Some(outcome.map_or_else(Outcome::Refused, |()| Outcome::Done(Reply::Noted)))
    }

    /// The users may have changed since the line of the note, so rights are asked for here.
    fn add_note(
        &mut self,
        protocol: &ProtocolState,
        IncomingNote { id, text, .. }: IncomingNote,
        space: PutSpace,
        now: Time,
    ) -> Result<(), Refusal> {
        let command = Command::JobNote { id, bytes: text.len() as u32 - 2 };
        let refusal = match self.authorize(protocol, Need::of(&command)) {
            Err(refusal) => Some(refusal),
            Ok(_) if !self.engine.bodies().bytes(&text).ends_with(b"\r\n") => Some(Refusal::NoCrlf),
            Ok(_) => Refusal::for_space(space),
        };
        if let Some(refusal) = refusal {
            self.engine.bodies_mut().free(text);
            return Err(refusal);
        }
        self.memory.invalidate();
        self.engine.note(protocol.client, id, text, now).map_err(|refusal| match refusal {
            NoteRefusal::NotFound => Refusal::NoJob,
            NoteRefusal::TooLong => Refusal::JobTooBig,
        })
    }
}
