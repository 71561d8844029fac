//! What an event of epoll is about.

use nix::sys::epoll::{EpollEvent, EpollFlags};

use crate::io::forward::connection::Side;

/// All that can happen to a socket, each reported once.
pub const EVERYTHING: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLPRI)
    .union(EpollFlags::EPOLLRDHUP)
    .union(EpollFlags::EPOLLOUT)
    .union(EpollFlags::EPOLLET);

/// A connection: a key of one that is closed finds nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    pub slot: u32,
    /// 31 bits.
    pub generation: u32,
}

/// What an event is about, packed into the word that epoll returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    Connection(Key, Side),
    Wake,
    Watch,
}

impl Key {
    pub const GENERATION_MAX: u32 = u32::MAX >> 1;
}

impl Token {
    /// No connection has this slot: there are not that many descriptors.
    const NO_CONNECTION: u32 = u32::MAX;

    pub const fn event(self, flags: EpollFlags) -> EpollEvent {
        EpollEvent::new(flags, self.to_word())
    }

    const fn to_word(self) -> u64 {
        let (slot, low) = match self {
            Self::Connection(key, side) => (key.slot, key.generation << 1 | side as u32),
            Self::Wake => (Self::NO_CONNECTION, 0),
            Self::Watch => (Self::NO_CONNECTION, 1),
        };
        (slot as u64) << 32 | low as u64
    }

    pub const fn from_word(word: u64) -> Self {
        let (slot, low) = ((word >> 32) as u32, word as u32);
        match (slot, low) {
            (Self::NO_CONNECTION, 0) => Self::Wake,
            (Self::NO_CONNECTION, _) => Self::Watch,
            _ => {
                let side = if low & 1 == 0 { Side::Client } else { Side::Leader };
                Self::Connection(Key { slot, generation: low >> 1 }, side)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_round_trip() {
        let last = Key { slot: u32::MAX - 1, generation: Key::GENERATION_MAX };
        for token in [
            Token::Connection(Key { slot: 0, generation: 0 }, Side::Client),
            Token::Connection(last, Side::Client),
            Token::Connection(last, Side::Leader),
            Token::Wake,
            Token::Watch,
        ] {
            assert_eq!(Token::from_word(token.to_word()), token);
        }
    }
}
