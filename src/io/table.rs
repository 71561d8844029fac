//! What a driver keeps for each connection, found by the connection's name.

use crate::ids::ConnId;

/// A value a connection. The server chooses the slots, densely; a name that is out of date finds
/// nothing.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Option<Entry<T>>>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: T,
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// The memory that it takes.
    pub const fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Option<Entry<T>>>()
    }

    /// Keeps `value` for `conn`, whose slot must be free.
    pub fn insert(&mut self, conn: ConnId, value: T) {
        let slot = conn.slot as usize;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, || None);
        }
        let before = self.slots[slot].replace(Entry { generation: conn.generation, value });
        assert!(before.is_none(), "{conn:?} was given a slot in use");
    }

    /// The connection in a slot.
    pub fn at_slot(&mut self, slot: u32) -> Option<(ConnId, &mut T)> {
        let entry = self.slots.get_mut(slot as usize)?.as_mut()?;
        Some((ConnId { slot, generation: entry.generation }, &mut entry.value))
    }

    /// Slots that are or were in use: all values are below.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// All values.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten().map(|entry| &entry.value)
    }

    /// Forgets `conn`, which must be there.
    pub fn remove(&mut self, conn: ConnId) -> T {
        let entry = self.slots[conn.slot as usize].take().expect("a connection is closed once");
        assert_eq!(entry.generation, conn.generation, "an earlier connection was closed late");
        entry.value
    }

    /// The value of `conn`, unless the connection is gone.
    pub fn get_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        let entry = self.slots.get_mut(conn.slot as usize)?.as_mut()?;
        (entry.generation == conn.generation).then_some(&mut entry.value)
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_out_of_date_finds_nothing() {
        let first = ConnId { slot: 3, generation: 0 };
        let second = ConnId { slot: 3, generation: 1 };
        let mut table = Table::new();
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
