//! Connections of clients that a standby forwards to its leader.
//!
//! The standby connects to a listener of the leader that is for standbys only, over the TLS of the `link`. It sends a header of the PROXY
//! protocol, which names the client, and then what the client sends, unchanged. A field of the header has the secret of the leader. A
//! leader chooses another secret at each take-over, so a standby that knows only an earlier one reaches no client's commands.
//!
//! ```text
//! type     1 byte    0xE5, one of those that the protocol leaves to applications
//! length   2 bytes   9, big-endian
//! flags    1 byte    1: TLS, 2: a header of a load balancer comes next, 4: nothing comes, the connection watches the leader
//! secret   8 bytes   big-endian
//! ```

use core::net::SocketAddr;

use ppp::v2::{Addresses, Builder, Command, Header, Protocol, Unix, Version};
use subtle::ConstantTimeEq;

/// The type of the field.
const FIELD: u8 = 0xe5;

const FLAG_TLS: u8 = 1;
const FLAG_PROXIED: u8 = 2;
const FLAG_WATCH: u8 = 4;

/// The longest header of a standby without its first 16 bytes: the addresses of a UNIX socket take 216 of them.
pub(super) const HOP_BYTES_MAX: usize = 512;

/// What a forwarded client sends first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Inbound {
    /// A TLS handshake.
    pub has_tls: bool,
    /// A header of a load balancer, before anything else.
    pub is_proxied: bool,
    /// Nothing: there is no client, and the connection only shows that the leader is there.
    pub is_watch: bool,
}

/// The addresses of a forwarded client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientAddress {
    /// Its address, and the one that it has connected to. Both are of the same family.
    Tcp(SocketAddr, SocketAddr),
    /// It has connected to a UNIX socket.
    Unix,
}

/// Returns the header with which a standby begins a connection to the leader that has this secret.
pub fn header(client: ClientAddress, inbound: Inbound, secret: u64) -> Vec<u8> {
    let addresses = match client {
        ClientAddress::Tcp(source, destination) => Addresses::from((source, destination)),
        ClientAddress::Unix => Addresses::Unix(Unix::new([0; 108], [0; 108])),
    };
    let Inbound { has_tls, is_proxied, is_watch } = inbound;
    let [tls, proxied, watch] = [has_tls, is_proxied, is_watch].map(u8::from);
    let flags = (tls * FLAG_TLS) | (proxied * FLAG_PROXIED) | (watch * FLAG_WATCH);
    let mut field = [0; 9];
    field[0] = flags;
    field[1..].copy_from_slice(&secret.to_be_bytes());
    Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, addresses)
        .write_tlv(FIELD, &field)
        .and_then(Builder::build)
        .expect("a field of nine bytes fits into a header")
}

/// Checks the complete header of a forwarded connection. Returns what the client sends next, if the header has the secret of this
/// leader. A server that is no leader has none, and lets no connection pass.
pub fn admit(header: &[u8], secret: Option<u64>) -> Option<Inbound> {
    let (header, secret) = (Header::try_from(header).ok()?, secret?.to_be_bytes());
    let mut fields = header.tlvs().map_while(Result::ok);
    let field = fields.find(|field| field.kind == FIELD)?;
    let (&flags, shown) = field.value.split_first()?;
    let has = |flag: u8| flags & flag != 0;
    let inbound =
        Inbound { has_tls: has(FLAG_TLS), is_proxied: has(FLAG_PROXIED), is_watch: has(FLAG_WATCH) };
    let is_known = flags & !(FLAG_TLS | FLAG_PROXIED | FLAG_WATCH) == 0;
    // Slices of different lengths are different.
    (bool::from(shown.ct_eq(&secret)) && is_known).then_some(inbound)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: u64 = 0x0123_4567_89ab_cdef;

    fn addresses() -> (SocketAddr, SocketAddr) {
        let [source, destination] = ["192.0.2.7:5555", "10.0.0.1:11300"].map(|text| text.parse().unwrap());
        (source, destination)
    }

    #[test]
    fn the_secret_admits_and_nothing_else_does() {
        let six = ["[2001:db8::7]:5555", "[::1]:11300"].map(|text| text.parse().unwrap());
        let (source, destination) = addresses();
        for client in
            [ClientAddress::Tcp(source, destination), ClientAddress::Unix, ClientAddress::Tcp(six[0], six[1])]
        {
            for flags in 0..8 {
                let [has_tls, is_proxied, is_watch] = [1, 2, 4].map(|flag| flags & flag != 0);
                let inbound = Inbound { has_tls, is_proxied, is_watch };
                let header = header(client, inbound, SECRET);
                assert!(header.len() <= 16 + HOP_BYTES_MAX);
                assert_eq!(admit(&header, Some(SECRET)), Some(inbound), "{client:?}");
                assert_eq!(admit(&header, None), None);
                for bit in 0..64 {
                    assert_eq!(admit(&header, Some(SECRET ^ 1 << bit)), None, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn a_header_with_another_field_does_not_admit() {
        let with = |kind: u8, field: &[u8]| {
            Builder::with_addresses(Version::Two | Command::Proxy, Protocol::Stream, addresses())
                .write_tlv(kind, field)
                .and_then(Builder::build)
                .unwrap()
        };
        let field = |flags: u8| [&[flags][..], &SECRET.to_be_bytes()].concat();
        assert_eq!(admit(&with(FIELD, &field(0)), Some(SECRET)), Some(Inbound::default()));
        assert_eq!(admit(&with(0xe4, &field(0)), Some(SECRET)), None, "another type");
        assert_eq!(admit(&with(FIELD, &field(8)), Some(SECRET)), None, "an unknown flag");
        assert_eq!(admit(&with(FIELD, &field(0)[..8]), Some(SECRET)), None, "too short");
        assert_eq!(admit(&with(FIELD, &[&field(0)[..], &[0]].concat()), Some(SECRET)), None, "too long");
        assert_eq!(admit(&with(FIELD, &[]), Some(SECRET)), None, "empty");
        let whole = with(FIELD, &field(0));
        for end in 0..whole.len() {
            assert_eq!(admit(&whole[..end], Some(SECRET)), None, "{end} bytes");
        }
    }
}
