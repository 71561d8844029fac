//! What a leader and its standbys know of each other, and no one else on the network does.

use std::fmt;

/// Two random numbers that a leader writes to the database of the job log at its take-over. They prove a standby to the leader, and
/// the key of the leader to a standby.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkSecret {
    /// The token of the claim, another one for each.
    pub token: u64,
    /// What a standby shows.
    pub shown: u64,
}

impl LinkSecret {
    /// Both numbers, to derive keys from.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.token) << 64 | u128::from(self.shown)).to_be_bytes()
    }
}

/// Does not show the numbers.
impl fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSecret(..)")
    }
}
