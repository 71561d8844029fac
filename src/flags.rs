//! The flags of the server. A new flag is one entry of [`FLAGS`] and a line in [`ServerConfig`](crate::config::ServerConfig).
//!
//! Its variable and its key in the file of `--config` follow from its name: `--wal-dir` is `BEANRING_WAL_DIR` and `wal-dir`.

/// The beginning of every variable.
pub const VARIABLE_PREFIX: &str = "BEANRING_";

/// A flag of the server.
#[derive(Debug)]
pub struct Flag {
    /// The long name, without dashes.
    pub name: &'static str,
    /// The short name.
    pub short: Option<char>,
    /// What it takes.
    pub kind: Kind,
    /// Where it can be set.
    pub sources: Sources,
    /// The heading in `--help`.
    pub heading: &'static str,
    /// The text in `--help`.
    pub help: &'static str,
}

/// What a flag takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A value, under this name in `--help`.
    Value(&'static str),
    /// One of these words.
    Choice(&'static str, &'static [&'static str]),
    /// Several values: the flag is repeated, or its value has commas.
    List(&'static str),
    /// Nothing: the flag switches something on. Elsewhere its value is yes or no.
    Switch,
    /// Nothing: the flag may be repeated. Elsewhere its value is a number.
    Count,
}

/// Where a flag can be set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sources {
    /// On the command line.
    CommandLine,
    /// Also by a variable.
    Variable,
    /// Also in the file.
    File,
}

/// The heading of the network in `--help`.
pub const NETWORK: &str = "Network";
const TLS: &str = "TLS";
/// The heading of the job log.
pub const JOB_LOG: &str = "Job log";
/// The heading of limits.
pub const LIMITS: &str = "Limits";
const MONITORING: &str = "Monitoring";
const LOGGING: &str = "Logging";
/// The heading of the process. It has clap's own flags too.
pub const PROCESS: &str = "Process";

/// Every flag of the server, in the order of `--help`.
pub static FLAGS: &[Flag] = &[
    Flag {
        help: "Address, host name or unix:PATH[,mode=0660][,group=NAME] to listen on; none: only with TLS [default: 0.0.0.0]",
        ..Flag::value('l', "listen", "ADDR", NETWORK)
    },
    Flag { help: "TCP port to listen on [default: 11300]", ..Flag::value('p', "port", "PORT", NETWORK) },
    Flag {
        help: "I/O driver: auto, uring, epoll or tokio-uring [default: auto]",
        kind: Kind::Choice("DRIVER", &["auto", "uring", "epoll", "tokio-uring"]),
        ..Flag::long_value("io", "DRIVER", NETWORK)
    },
    Flag {
        help: "Maximum memory for zero-copy sends; 0: none [default: 64m]",
        ..Flag::long_value("zero-copy-memory", "SIZE", NETWORK)
    },
    Flag {
        help: "Seconds of silence after which a TCP connection is probed, and half as many until it is closed; 0: never [default: 60]",
        ..Flag::long_value("tcp-keepalive", "SECONDS", NETWORK)
    },
    Flag {
        help: "Do not close connections that begin with HTTP, TLS or a PROXY header",
        ..Flag::switch("allow-foreign-protocols", NETWORK)
    },
    Flag {
        help: "Accept and show times with up to three decimals, such as a delay of 0.25 seconds",
        ..Flag::switch("sub-second", NETWORK)
    },
    Flag {
        help: "Listen for clients with TLS 1.3: HOST, PORT, HOST:PORT or unix:PATH; a host alone has port 11400",
        ..Flag::long_value("tls-listen", "ADDR", TLS)
    },
    Flag {
        help: "Certificate of the server with those of its authorities, in PEM; read again when it changes",
        ..Flag::long_value("tls-cert", "FILE", TLS)
    },
    Flag {
        help: "Private key of the certificate, in PEM; without it, the file of --tls-cert has the key",
        ..Flag::long_value("tls-key", "FILE", TLS)
    },
    Flag {
        help: "Authorities in PEM: clients must show a certificate from one of them",
        ..Flag::long_value("tls-client-ca", "FILE", TLS)
    },
    Flag { help: "Serve --http over TLS too", ..Flag::switch("http-tls", TLS) },
    Flag {
        help: "Listeners whose connections begin with a PROXY header, version 2: listen, tls-listen, http",
        kind: Kind::List("LISTENER"),
        ..Flag::long_value("proxy-protocol", "LISTENER", NETWORK)
    },
    Flag {
        help: "File with the users and their rights; without it every client may do everything",
        ..Flag::long_value("auth", "FILE", NETWORK)
    },
    Flag {
        help: "Keep a job log in DIR, so that jobs survive a restart or crash",
        ..Flag::value('b', "wal-dir", "DIR", JOB_LOG)
    },
    #[cfg(feature = "replicate")]
    Flag {
        help: "Keep the job log in the PostgreSQL database of this URL instead; servers with the same one stand by for each other",
        ..Flag::long_value("replicate", "URL", JOB_LOG)
    },
    #[cfg(feature = "replicate")]
    Flag {
        help: "The service of the database replicates its storage and shows no synchronous standby",
        ..Flag::switch("replicate-trust-storage", JOB_LOG)
    },
    #[cfg(feature = "replicate")]
    Flag {
        help: "Seconds that a leader may answer without a sign of life; a standby takes over after 1.25 times that [default: 3]",
        ..Flag::long_value("lease", "SECONDS", JOB_LOG)
    },
    #[cfg(feature = "replicate")]
    Flag {
        help: "Where standbys reach this server to forward connections: HOST or HOST:PORT [default: the host name, port 11401]",
        ..Flag::long_value("advertise", "ADDR", JOB_LOG)
    },
    #[cfg(feature = "replicate")]
    Flag {
        help: "Where browsers reach the console of --http, for a link in the consoles of standbys: HOST:PORT or a URL",
        ..Flag::long_value("advertise-http", "URL", JOB_LOG)
    },
    #[cfg(feature = "replicate")]
    Flag {
        help: "As a standby, do not forward connections to the leader, and be unready",
        ..Flag::switch("no-forward", JOB_LOG)
    },
    Flag {
        help: "With -b: milliseconds from a change to its sync; 0: fsync before reply [default: 50]",
        ..Flag::value('f', "sync-interval", "MS", JOB_LOG)
    },
    Flag {
        help: "With -b: sync the job log only when the server stops",
        kind: Kind::Switch,
        ..Flag::value('F', "no-sync", "", JOB_LOG)
    },
    Flag {
        help: "With -b: size of a segment of the job log, 64k to 1024g [default: 10m]",
        ..Flag::value('s', "wal-segment-size", "SIZE", JOB_LOG)
    },
    Flag {
        help: "With -b: a reserved job stays reserved after a restart, and any client may finish it",
        ..Flag::switch("keep-reservations", JOB_LOG)
    },
    Flag {
        help: "Maximum size of a job body, at most 1g [default: 65535]",
        ..Flag::value('z', "max-job-size", "SIZE", LIMITS)
    },
    Flag {
        help: "Memory limit: 16m or more, or 0 for no limit [default: 0]",
        ..Flag::long_value("max-memory", "SIZE", LIMITS)
    },
    Flag {
        help: "Maximum number of connections; 0: no limit [default: 0]",
        ..Flag::long_value("max-connections", "NUMBER", LIMITS)
    },
    Flag {
        help: "Maximum number of tubes; 0: no limit [default: 100000]",
        ..Flag::long_value("max-tubes", "NUMBER", LIMITS)
    },
    Flag {
        help: "Maximum number of tubes that a connection watches; 0: no limit [default: 65536]",
        ..Flag::long_value("max-watches", "NUMBER", LIMITS)
    },
    Flag {
        help: "Serve metrics, probes and the API on this address: PORT, HOST:PORT or unix:PATH",
        ..Flag::long_value("http", "ADDR", MONITORING)
    },
    Flag {
        help: "Additional host name that HTTP requests may use: NAME, *.NAME or *",
        kind: Kind::List("NAME"),
        ..Flag::long_value("http-host", "NAME", MONITORING)
    },
    Flag {
        help: "File with the token that requests of the HTTP API need",
        ..Flag::long_value("http-token", "FILE", MONITORING)
    },
    Flag {
        help: "Without a token, let clients on this machine change jobs over HTTP",
        ..Flag::switch("http-allow-writes", MONITORING)
    },
    Flag {
        help: "First word of metric names [default: beanring]",
        ..Flag::long_value("metrics-prefix", "WORD", MONITORING)
    },
    Flag {
        help: "Maximum number of tubes in /metrics; 0 shows none [default: 1000]",
        ..Flag::long_value("metrics-tubes", "NUMBER", MONITORING)
    },
    Flag {
        help: "Least severe lines to log: error, warn, info, debug or trace [default: info]",
        kind: Kind::Choice("LEVEL", &["error", "warn", "info", "debug", "trace"]),
        ..Flag::long_value("log-level", "LEVEL", LOGGING)
    },
    Flag {
        help: "Same as --log-level debug; -VV: --log-level trace",
        kind: Kind::Count,
        ..Flag::value('V', "verbose", "", LOGGING)
    },
    Flag {
        help: "Format of log lines: text, or json for one object per line [default: text]",
        kind: Kind::Choice("FORMAT", &["text", "json"]),
        ..Flag::long_value("log-format", "FORMAT", LOGGING)
    },
    Flag { help: "Drop privileges to USER after binding", ..Flag::value('u', "user", "USER", PROCESS) },
    Flag {
        help: "Read settings from a TOML file; flags and variables override it",
        sources: Sources::Variable,
        ..Flag::long_value("config", "FILE", PROCESS)
    },
    Flag {
        help: "Check the configuration, print the I/O driver, and exit",
        sources: Sources::CommandLine,
        ..Flag::switch("check-config", PROCESS)
    },
];

impl Flag {
    const fn value(short: char, name: &'static str, value: &'static str, heading: &'static str) -> Self {
        Self { short: Some(short), ..Self::long_value(name, value, heading) }
    }

    const fn long_value(name: &'static str, value: &'static str, heading: &'static str) -> Self {
        let kind = Kind::Value(value);
        Self { name, short: None, kind, sources: Sources::File, heading, help: "" }
    }

    const fn switch(name: &'static str, heading: &'static str) -> Self {
        Self { kind: Kind::Switch, ..Self::long_value(name, "", heading) }
    }

    /// Returns the flag with this long name.
    pub fn find(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// The default that the help shows.
    pub fn default(&self) -> Option<&'static str> {
        let (_, rest) = self.help.split_once("[default: ")?;
        rest.strip_suffix(']')
    }

    /// The flag as an error names it: `-p/--port`.
    pub fn spelled(&self) -> String {
        self.short.map_or_else(|| format!("--{}", self.name), |short| format!("-{short}/--{}", self.name))
    }

    /// The flags that can be set in a source.
    pub fn of(source: Sources) -> impl Iterator<Item = &'static Self> {
        FLAGS.iter().filter(move |flag| flag.sources >= source)
    }
}

/// The variable of a long name.
pub fn variable(name: &str) -> String {
    format!("{VARIABLE_PREFIX}{}", name.replace('-', "_").to_ascii_uppercase())
}
