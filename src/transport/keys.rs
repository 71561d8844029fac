//! What the keys of a TLS handshake cost. The table in docs/SECURITY.md has what was measured.

use std::sync::atomic::{AtomicU64, Ordering};

use rustls::NamedGroup;

use crate::values::budget::Cost;

/// Bits that an RSA key of the usual size has. The price grows with their third power, that of a check with their square.
const RSA_BITS: usize = 2048;

/// A kind of key, as far as its price goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyKind {
    Ed25519,
    P256,
    P384,
    Rsa { bits: usize },
}

impl KeyKind {
    /// The kind of a public key by its size in DER, as a SubjectPublicKeyInfo (RFC 5280, 4.1.2.7), with or without its first header.
    /// There are no others in TLS 1.3 by this provider.
    pub const fn of_info(bytes: usize) -> Self {
        match bytes {
            0..=60 => Self::Ed25519,
            61..=100 => Self::P256,
            101..=150 => Self::P384,
            // 38 bytes stand around the modulus.
            _ => Self::Rsa { bits: (bytes - 38) * 8 },
        }
    }

    /// A signature by a private key of this kind.
    pub const fn signature(self) -> Cost {
        Cost::visits(match self {
            Self::Ed25519 => 400,
            Self::P256 => 300,
            Self::P384 => 4500,
            Self::Rsa { bits } => cube(6000, bits),
        })
    }

    /// The check of a signature by a public key of this kind.
    pub const fn check(self) -> Cost {
        Cost::visits(match self {
            Self::Ed25519 => 1000,
            Self::P256 => 900,
            Self::P384 => 9000,
            Self::Rsa { bits } => square(400, bits),
        })
    }
}

const fn cube(steps: usize, bits: usize) -> usize {
    square(steps, bits) * bits / RSA_BITS
}

const fn square(steps: usize, bits: usize) -> usize {
    steps * bits / RSA_BITS * bits / RSA_BITS
}

/// An agreement on keys, by the group that the client has chosen.
pub(super) const fn agreement(group: NamedGroup) -> Cost {
    Cost::visits(match group {
        NamedGroup::X25519 => 800,
        NamedGroup::secp256r1 => 1000,
        _ => 8000,
    })
}

/// The checks of signatures since they were last taken: a verifier of rustls has no way to a budget.
#[derive(Default, Debug)]
pub(super) struct Checks(AtomicU64);

impl Checks {
    pub fn add(&self, kind: KeyKind) {
        self.0.fetch_add(kind.check().steps().into(), Ordering::Relaxed);
    }

    pub fn take(&self) -> Cost {
        Cost::visits(self.0.swap(0, Ordering::Relaxed) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_follows_from_the_size() {
        for (bytes, kind) in [
            (44, KeyKind::Ed25519),
            (91, KeyKind::P256),
            (120, KeyKind::P384),
            (294, KeyKind::Rsa { bits: 2048 }),
            (550, KeyKind::Rsa { bits: 4096 }),
        ] {
            assert_eq!(KeyKind::of_info(bytes), kind, "{bytes} bytes");
            // The header has 2 to 4 of them.
            let inner = KeyKind::of_info(bytes - if bytes < 128 { 2 } else { 4 });
            assert!(inner.signature().steps() * 10 >= kind.signature().steps() * 9, "{bytes} bytes");
        }
    }

    #[test]
    fn the_price_of_rsa_grows_with_its_size() {
        let [two, four] = [2048, 4096].map(|bits| KeyKind::Rsa { bits });
        assert_eq!(four.signature(), two.signature().times(8));
        assert_eq!(four.check(), two.check().times(4));
    }
}
