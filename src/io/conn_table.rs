//! What a driver keeps for each connection, found by the connection's id.

use super::lost_peers::SilentSince;
use crate::values::ids::ConnId;

/// A value per connection. The server chooses the slots densely. An id of a closed connection finds nothing.
#[derive(Debug)]
pub struct ConnTable<T> {
    slots: Vec<Option<Entry<T>>>,
    open: usize,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    silent_since: SilentSince,
    value: T,
}

impl<T> ConnTable<T> {
    pub const fn new() -> Self {
        Self { slots: Vec::new(), open: 0 }
    }

    /// The memory of the table.
    pub const fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Entry<T>>>()
    }

    /// Adds the value of a connection.
    ///
    /// # Panics
    /// If the slot is in use.
    pub fn insert(&mut self, conn: ConnId, value: T) {
        let slot = conn.slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        let entry = Entry { generation: conn.generation, silent_since: SilentSince::default(), value };
        let before = self.slots[slot].replace(entry);
        assert!(before.is_none(), "{conn:?} has the slot of an open connection");
        self.open += 1;
    }

    /// The connection in a slot.
    #[cfg(feature = "uring")]
    pub fn at_slot(&mut self, slot: u32) -> Option<(ConnId, &mut T)> {
        let entry = self.slots.get_mut(slot as usize)?.as_mut()?;
        Some((ConnId { slot, generation: entry.generation }, &mut entry.value))
    }

    /// The connection in a slot, and whether its peer owes an answer.
    pub fn peer_at_slot(&mut self, slot: u32) -> Option<(ConnId, &T, &mut SilentSince)> {
        let entry = self.slots.get_mut(slot as usize)?.as_mut()?;
        Some((ConnId { slot, generation: entry.generation }, &entry.value, &mut entry.silent_since))
    }

    /// Whether there are no connections.
    pub const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// The number of slots, free ones included.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The open connections.
    pub fn iter(&self) -> impl Iterator<Item = (ConnId, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, entry)| {
            let Entry { generation, value, .. } = entry.as_ref()?;
            Some((ConnId { slot: slot as u32, generation: *generation }, value))
        })
    }

    /// Removes a connection.
    ///
    /// # Panics
    /// If it is not in the table.
    pub fn remove(&mut self, conn: ConnId) -> T {
        let entry = self.slots[conn.slot as usize].take().expect("a connection is removed once");
        assert_eq!(entry.generation, conn.generation, "the slot is that of this connection");
        self.open -= 1;
        entry.value
    }

    /// The value of a connection, unless it is closed.
    pub fn get(&self, conn: ConnId) -> Option<&T> {
        let entry = self.slots.get(conn.slot as usize)?.as_ref()?;
        (entry.generation == conn.generation).then_some(&entry.value)
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        let entry = self.slots.get_mut(conn.slot as usize)?.as_mut()?;
        (entry.generation == conn.generation).then_some(&mut entry.value)
    }
}

impl<T> Default for ConnTable<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_closed_connection_finds_nothing() {
        let first = ConnId { slot: 3, generation: 0 };
        let second = ConnId { slot: 3, generation: 1 };
        let mut table = ConnTable::new();
        assert_eq!(table.get_mut(first), None);
        table.insert(first, 'a');
        assert_eq!(table.get_mut(first), Some(&mut 'a'));
        assert_eq!(table.get_mut(second), None);
        assert_eq!(table.remove(first), 'a');
        table.insert(second, 'b');
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.get_mut(second), Some(&mut 'b'));
    }
}
