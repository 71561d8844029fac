//! Why there is no TLS with a server, and what to do.

use std::io;
#[cfg(feature = "tls")]
use std::time::Duration;

use super::escaped;

/// Why there is no TLS with a server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TlsProblem {
    /// The program was built without TLS.
    #[cfg(not(feature = "tls"))]
    #[error("this beanring was built without TLS")]
    NotBuilt,
    /// The server replied something else.
    #[error("the server does not speak TLS at this address")]
    NotTls,
    /// The server speaks TLS, and the address is one without.
    #[error("the server speaks TLS at this address")]
    OnlyTls,
    /// The server has not done the handshake in time.
    #[error("no TLS handshake within {seconds} s")]
    Silent {
        /// The time in seconds.
        seconds: u64,
    },
    /// The server closed the connection in the handshake.
    #[error("the server closed the connection in the TLS handshake")]
    Closed,
    /// The server has no TLS 1.3.
    #[error("the server has no TLS 1.3")]
    Version,
    /// The certificate of the server has expired.
    #[error("the server's certificate has expired")]
    Expired,
    /// The certificate of the server is not valid yet.
    #[error("the server's certificate is not valid yet")]
    NotYetValid,
    /// The certificate of the server has other names.
    #[error("the server's certificate {}", about_names(.names))]
    OtherName {
        /// Its names.
        names: Vec<String>,
    },
    /// No trusted authority has signed the certificate of the server.
    #[error("no trusted CA has signed the server's certificate")]
    UnknownAuthority,
    /// The certificate of the server is not for servers, or is that of an authority.
    #[error("the server's certificate is not one for servers")]
    Purpose,
    /// The server wants a certificate of the client.
    #[error("the server wants a client certificate")]
    CertificateRequired,
    /// The server refused the certificate of the client.
    #[error("the server refused the client certificate: {alert}")]
    CertificateRefused {
        /// The name of its alert.
        alert: String,
    },
    /// Something else, as the library or the system says it.
    #[error("{}", escaped(.0.as_bytes()))]
    Other(String),
}

fn about_names(names: &[String]) -> String {
    match names {
        [] => "has another name".to_owned(),
        names => format!("is for {}", escaped(names.join(", ").as_bytes())),
    }
}

impl TlsProblem {
    /// What to do, as the end of the sentence, or nothing.
    pub const fn advice(&self) -> &'static str {
        match self {
            #[cfg(not(feature = "tls"))]
            Self::NotBuilt => "; build it with the feature tls",
            Self::NotTls => "; name its TLS port, or write beanstalk://",
            Self::OnlyTls => "; write beanstalks:// before the host",
            Self::Silent { .. } => "; is it the TLS port, and is the server overloaded?",
            Self::Closed => "; name its TLS port, or write beanstalk:// for one without TLS",
            Self::Version => "; use a newer server",
            Self::Expired => "; renew it, or set the clock right",
            Self::NotYetValid => "; set the clock right",
            Self::OtherName { .. } => "; name the host as the certificate does, or set --tls-name",
            Self::UnknownAuthority => "; name the CA's certificate with --tls-ca",
            Self::Purpose => "; make one with the extended key usage serverAuth that is no CA",
            Self::CertificateRequired => "; name one with --tls-cert and --tls-key",
            Self::CertificateRefused { .. } => "; name one that the server's --tls-client-ca has signed",
            Self::Other(_) => "",
        }
    }

    /// Returns what an error in the handshake means. `patience` is how long the client waits for it.
    #[cfg(feature = "tls")]
    pub fn in_handshake(error: &io::Error, patience: Duration) -> Self {
        use io::ErrorKind;
        match (Self::within(error), error.kind()) {
            (Some(problem), _) => problem,
            (None, ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Self::Silent { seconds: patience.as_secs() }
            }
            (None, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Self::Closed,
            (None, _) => Self::Other(crate::io::socket::text_of(error)),
        }
    }

    /// Returns the problem that an error of a connection contains.
    #[cfg(feature = "tls")]
    pub fn within(error: &io::Error) -> Option<Self> {
        error.get_ref().and_then(|error| error.downcast_ref()).map(Self::of)
    }

    /// Without TLS there is none.
    #[cfg(not(feature = "tls"))]
    pub const fn within(_: &io::Error) -> Option<Self> {
        None
    }

    /// Returns what an error of the protocol means.
    #[cfg(feature = "tls")]
    pub fn of(error: &rustls::Error) -> Self {
        use rustls::{AlertDescription as Alert, CertificateError, Error, InvalidMessage};
        match error {
            Error::InvalidMessage(
                InvalidMessage::InvalidContentType
                | InvalidMessage::UnknownProtocolVersion
                | InvalidMessage::MessageTooLarge,
            ) => Self::NotTls,
            Error::PeerIncompatible(_) | Error::AlertReceived(Alert::ProtocolVersion) => Self::Version,
            Error::AlertReceived(Alert::CertificateRequired) => Self::CertificateRequired,
            Error::AlertReceived(
                alert @ (Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied),
            ) => Self::CertificateRefused { alert: words(&format!("{alert:?}")) },
            Error::AlertReceived(alert) => {
                Self::Other(format!("the server ended TLS: {}", words(&format!("{alert:?}"))))
            }
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Self::NotYetValid
                }
                CertificateError::NotValidForName => Self::OtherName { names: Vec::new() },
                CertificateError::NotValidForNameContext { presented, .. } => {
                    Self::OtherName { names: presented.iter().map(|name| name_in(name)).collect() }
                }
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    Self::Purpose
                }
                // webpki has the reason only as another error: a certificate of an authority.
                CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
                    Self::Purpose
                }
                other => Self::Other(format!("the server's certificate is not valid: {other}")),
            },
            other => Self::Other(other.to_string()),
        }
    }
}

/// Returns a name as it is in a certificate: webpki shows `DnsName("queue.test")` and `IpAddress(127.0.0.1)`.
#[cfg(feature = "tls")]
fn name_in(shown: &str) -> String {
    let inner = shown.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    let name = inner.unwrap_or(shown).trim_matches('"');
    // webpki writes ::1 as 0::1.
    name.parse::<std::net::IpAddr>().map_or_else(|_| name.to_owned(), |address| address.to_string())
}

/// `UnknownCA` as `unknown ca`.
#[cfg(feature = "tls")]
fn words(name: &str) -> String {
    let mut words = String::new();
    let mut is_after_capital = true;
    for one in name.chars() {
        if one.is_ascii_uppercase() && !is_after_capital {
            words.push(' ');
        }
        is_after_capital = one.is_ascii_uppercase();
        words.push(one.to_ascii_lowercase());
    }
    words
}
