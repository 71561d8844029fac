//! The values of TLS and the PROXY protocol. Shown only if there is a listener for one of them.

use super::{Catalog, counter, gauge};
use crate::server::{HandshakeFailure, TlsCounts};

pub(super) fn tls(counts: &TlsCounts, catalog: &mut Catalog<'_>) {
    let connections = gauge("tls_connections", "Number of connections over TLS.");
    catalog.both("current-tls-connections", connections, counts.connections.get());
    let unfinished = gauge("tls_unfinished_handshakes", "Number of TLS handshakes that have not finished.");
    catalog.both("current-tls-handshakes", unfinished, counts.unfinished_handshakes.get());
    let handshakes = counter("tls_handshakes_total", "Number of finished TLS handshakes, by kind.");
    for (key, kind, count) in [
        ("tls-handshakes-full", "full", &counts.full_handshakes),
        ("tls-handshakes-resumed", "resumed", &counts.resumed_handshakes),
    ] {
        catalog.both(key, handshakes.label("kind", kind), count.get());
    }
    let failures = counter("tls_handshake_failures_total", "Number of failed TLS handshakes, by reason.");
    // Bounded by HandshakeFailure::ALL: the reasons of a failure.
    for failure in HandshakeFailure::ALL {
        let key = format!("tls-handshake-failures-{}", failure.word());
        catalog.both(&key, failures.label("reason", failure.word()), counts.failures(failure));
    }
    let expiry = gauge(
        "tls_certificate_expiry_timestamp_seconds",
        "When the certificate in use expires, in seconds since 1970.",
    );
    catalog.both("tls-certificate-expiry", expiry, counts.not_after_s.get());
    let headers = counter(
        "proxy_header_failures_total",
        "Number of connections closed because they did not begin with a header of the PROXY protocol.",
    );
    catalog.both("proxy-header-failures", headers, counts.wrong_proxy_headers.get());
    let reloads = counter(
        "tls_certificate_reloads_total",
        "Number of certificates taken into use while the server ran.",
    );
    catalog.both("tls-certificate-reloads", reloads, counts.reloads.get());
    let refused = counter(
        "tls_certificate_reload_failures_total",
        "Number of changed certificates that could not be used.",
    );
    catalog.both("tls-certificate-reload-failures", refused, counts.reload_failures.get());
    let outdated = gauge(
        "tls_certificate_outdated",
        "1 while the files of the certificate have changed and could not be used, else 0.",
    );
    catalog.metric(outdated, counts.is_outdated.get());
}
