//! Completions on their way from an I/O thread to the event loop: a ring of words with one writer and one reader.
//!
//! The event loop cannot read the completion queue itself. A thread that waits for one more completion would have to tell the
//! kernel how many the loop has not taken yet, and the loop takes them at any moment.

use super::sync::{Arc, AtomicU32, Ordering, Word};
use crate::io::uring::requests::RawCompletion;

/// A position on a cache line of its own: two, since processors fetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Position(AtomicU32);

struct Channel {
    slots: Box<[[Word; 2]]>,
    /// Completions written so far, modulo 2^32.
    written: Position,
    /// Completions taken so far.
    taken: Position,
}

/// The end of the I/O thread.
pub struct Sender {
    channel: Arc<Channel>,
    /// The reader sees those up to the position in the channel.
    written: u32,
    /// The position of the reader, as it was when there was no room.
    taken: u32,
}

/// The end of the event loop.
pub struct Receiver {
    channel: Arc<Channel>,
    taken: u32,
    /// The position of the writer, as it was when all was taken.
    written: u32,
}

/// Returns the ends of a channel with room for `capacity` completions: a power of two.
pub fn channel(capacity: u32) -> (Sender, Receiver) {
    assert!(capacity.is_power_of_two(), "positions wrap around");
    let slots = (0..capacity).map(|_| <[Word; 2]>::default()).collect();
    let channel = Arc::new(Channel { slots, written: Position::default(), taken: Position::default() });
    let sender = Sender { channel: channel.clone(), written: 0, taken: 0 };
    (sender, Receiver { channel, taken: 0, written: 0 })
}

impl Channel {
    fn slot(&self, position: u32) -> &[Word; 2] {
        &self.slots[position as usize & (self.slots.len() - 1)]
    }
}

impl Sender {
    /// Whether there is room for another completion.
    pub fn has_room(&mut self) -> bool {
        let is_full =
            |sender: &Self| sender.written.wrapping_sub(sender.taken) as usize == sender.channel.slots.len();
        if is_full(self) {
            // What the reader has read from a slot precedes what is written to it next.
            self.taken = self.channel.taken.0.load(Ordering::Acquire);
        }
        !is_full(self)
    }

    /// Writes a completion. There is room.
    pub fn push(&mut self, completion: RawCompletion) {
        let RawCompletion { word, result, flags } = completion;
        let slot = self.channel.slot(self.written);
        slot[0].store(word, Ordering::Relaxed);
        slot[1].store(u64::from(result as u32) << 32 | u64::from(flags), Ordering::Relaxed);
        self.written = self.written.wrapping_add(1);
    }

    /// Shows the reader what was written, and returns whether that is anything new.
    pub fn publish(&mut self) -> bool {
        let written = &self.channel.written.0;
        let is_new = written.load(Ordering::Relaxed) != self.written;
        if is_new {
            // With it the reader sees the words, and what the kernel has received into buffers.
            written.store(self.written, Ordering::Release);
        }
        is_new
    }
}

impl Receiver {
    /// Whether there is no completion now.
    pub fn is_empty(&mut self) -> bool {
        if self.taken == self.written {
            self.written = self.channel.written.0.load(Ordering::Acquire);
        }
        self.taken == self.written
    }

    /// Takes the next completion. The writer reuses its slot after [`release`](Self::release).
    pub fn next(&mut self) -> Option<RawCompletion> {
        if self.is_empty() {
            return None;
        }
        let slot = self.channel.slot(self.taken);
        let (word, rest) = (slot[0].load(Ordering::Relaxed), slot[1].load(Ordering::Relaxed));
        self.taken = self.taken.wrapping_add(1);
        Some(RawCompletion { word, result: (rest >> 32) as i32, flags: rest as u32 })
    }

    /// Returns the slots of taken completions to the writer.
    pub fn release(&mut self) {
        self.channel.taken.0.store(self.taken, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn completion(number: u32) -> RawCompletion {
        let word = u64::from(number) << 32 | u64::from(!number);
        RawCompletion { word, result: -(number as i32 & 0xfff), flags: number ^ 0x8000_0000 }
    }

    #[test]
    fn a_full_channel_has_no_room_until_completions_are_taken() {
        let (mut sender, mut receiver) = channel(4);
        for round in 0..3 {
            for number in 0..4 {
                assert!(sender.has_room());
                sender.push(completion(4 * round + number));
                assert_eq!(receiver.next(), None, "nothing is published");
            }
            assert!(!sender.has_room() && sender.publish() && !sender.publish());
            for number in 0..4 {
                assert_eq!(receiver.next(), Some(completion(4 * round + number)));
            }
            assert!(receiver.is_empty() && !sender.has_room(), "no slot is returned");
            receiver.release();
        }
    }

    #[test]
    fn completions_pass_between_threads_in_order_and_whole() {
        const COUNT: u32 = 300_000;
        let (mut sender, mut receiver) = channel(8);
        let writer = thread::spawn(move || {
            for number in 0..COUNT {
                while !sender.has_room() {
                    thread::yield_now();
                }
                sender.push(completion(number));
                if number % 3 == 0 || number + 1 == COUNT || !sender.has_room() {
                    sender.publish();
                }
            }
        });
        for number in 0..COUNT {
            let next = loop {
                match receiver.next() {
                    Some(next) => break next,
                    None => receiver.release(),
                }
                thread::yield_now();
            };
            assert_eq!(next, completion(number));
        }
        writer.join().expect("the writer does not panic");
    }
}
