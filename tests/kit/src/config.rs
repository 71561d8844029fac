//! The configuration of a server under test.

use beanring::server::Config;
use beanring::values::limits::JOB_BYTES_DEFAULT;

use super::conversation::Conversation;

/// Builds a [`Config`] without limits, whose largest job body is `$max_job_bytes`.
///
/// It is a macro so that it names the caller's `beanring`: in the unit tests of the server that is another crate than the
/// one that the kit links to.
#[macro_export]
macro_rules! server_config {
    ($max_job_bytes:expr) => {
        beanring::server::Config {
            max_job_bytes: $max_job_bytes,
            max_memory_bytes: None,
            max_connections: None,
            http_connections_max: beanring::values::limits::HTTP_CONNECTIONS_MAX,
            max_tubes: None,
            max_watches: None,
            wal_segment_bytes: beanring::values::limits::WAL_FILE_BYTES_DEFAULT,
            allow_foreign_protocols: false,
            sub_second: false,
            http_hosts: beanring::server::Hosts::any(),
            http_access: beanring::server::HttpAccess { token: None, allow_writes: false },
            users: None,
            tube_rules: std::collections::BTreeMap::new(),
            schedules: Vec::new(),
            wal_dir: None,
            metrics_prefix: beanring::values::limits::METRICS_PREFIX_DEFAULT.to_owned(),
            metrics_tubes: beanring::values::limits::METRICS_TUBES_DEFAULT,
            started: beanring::time::Time::ZERO,
            recovery: beanring::time::Span::ZERO,
            seed: 0,
            host: beanring::server::HostFacts {
                pid: 1,
                version: "1".to_owned(),
                id: "0123456789abcdef".to_owned(),
                hostname: "host".to_owned(),
                os: "#1".to_owned(),
                platform: "x86_64".to_owned(),
                driver: "test",
                memory_bytes: 0,
            },
        }
    };
}

/// Builds the configuration that a conversation asks for.
pub fn config_for(conversation: &Conversation) -> Config {
    Config {
        max_memory_bytes: conversation.max_memory,
        allow_foreign_protocols: conversation.allow_foreign_protocols,
        sub_second: conversation.sub_second,
        ..config(conversation.max_job_size.unwrap_or(JOB_BYTES_DEFAULT))
    }
}

/// Builds a configuration without limits, but for the largest job body.
pub fn config(max_job_bytes: u32) -> Config {
    server_config!(max_job_bytes)
}
