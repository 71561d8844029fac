//! Which driver runs.

use std::fmt;

use clap::ValueEnum;
use serde::Deserialize;
use tracing::{info, warn};

#[cfg(feature = "tokio-uring")]
use super::tokio_uring;
#[cfg(feature = "uring")]
use super::uring;
use super::{DriverError, Ending, Sources, epoll};
use crate::server::Service;

/// What can be asked for (`--io`).
#[derive(ValueEnum, Deserialize, Clone, Copy, PartialEq, Eq, Default, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Choice {
    /// The best that the kernel allows
    #[default]
    Auto,
    /// Requests on an io_uring
    Uring,
    /// Readiness by epoll: works everywhere
    Epoll,
    /// Requests on an io_uring, by the runtime tokio-uring
    TokioUring,
}

/// The drivers of this build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Driver {
    #[cfg(feature = "uring")]
    Uring,
    Epoll,
    #[cfg(feature = "tokio-uring")]
    TokioUring,
}

/// A driver with what it has taken from the kernel already.
pub enum Ready {
    /// With its ring.
    #[cfg(feature = "uring")]
    Uring(Box<uring::KernelRing>),
    /// Needs nothing.
    Epoll,
    /// With its ring.
    #[cfg(feature = "tokio-uring")]
    TokioUring(tokio_uring::Runtime),
}

/// Why what was asked for cannot be had.
#[derive(Debug)]
pub enum Unavailable {
    /// This build leaves it out.
    NotBuilt {
        /// What `--io` calls it; the feature of the build has the same name.
        name: &'static str,
    },
    /// The kernel refuses it.
    Refused(DriverError),
}

impl Ready {
    /// The driver for what was asked.
    pub fn choose(choice: Choice) -> Result<Self, Unavailable> {
        match choice {
            Choice::Auto => {
                let (ready, refusal) = Self::best();
                match refusal {
                    Some(refusal) => warn!("using epoll: {refusal}"),
                    None if cfg!(feature = "uring") => info!("using io_uring"),
                    None => info!("using epoll: this program was built without io_uring"),
                }
                Ok(ready)
            }
            Choice::Epoll => Ok(Self::Epoll),
            #[cfg(feature = "uring")]
            Choice::Uring => Self::uring().map_err(Unavailable::Refused),
            #[cfg(not(feature = "uring"))]
            Choice::Uring => Err(Unavailable::NotBuilt { name: "uring" }),
            #[cfg(feature = "tokio-uring")]
            Choice::TokioUring => tokio_uring::runtime().map(Self::TokioUring).map_err(Unavailable::Refused),
            #[cfg(not(feature = "tokio-uring"))]
            Choice::TokioUring => Err(Unavailable::NotBuilt { name: "tokio-uring" }),
        }
    }

    /// Names the driver that a server would have, with the reason where it is not the one that was hoped for.
    pub fn foresee(choice: Choice) -> Result<String, Unavailable> {
        if choice != Choice::Auto {
            return Self::choose(choice).map(|ready| ready.name().to_owned());
        }
        let (ready, refusal) = Self::best();
        Ok(match refusal {
            Some(refusal) => format!("{} ({refusal})", ready.name()),
            None => ready.name().to_owned(),
        })
    }

    /// The best driver that the kernel allows, and why it is no better.
    #[cfg(feature = "uring")]
    fn best() -> (Self, Option<DriverError>) {
        match Self::uring() {
            Ok(ready) => (ready, None),
            Err(refusal) => (Self::Epoll, Some(refusal)),
        }
    }

    #[cfg(not(feature = "uring"))]
    const fn best() -> (Self, Option<DriverError>) {
        (Self::Epoll, None)
    }

    #[cfg(feature = "uring")]
    fn uring() -> Result<Self, DriverError> {
        uring::ring().map(Box::new).map(Self::Uring)
    }

    /// What `--io` and `stats` call it.
    pub const fn name(&self) -> &'static str {
        let driver = match self {
            #[cfg(feature = "uring")]
            Self::Uring(_) => Driver::Uring,
            Self::Epoll => Driver::Epoll,
            #[cfg(feature = "tokio-uring")]
            Self::TokioUring(_) => Driver::TokioUring,
        };
        driver.name()
    }

    /// Serves until the process is told to stop, or to let another program take over.
    pub fn run<S: Service + 'static>(self, server: S, sources: Sources) -> Result<Ending, DriverError> {
        match self {
            #[cfg(feature = "uring")]
            Self::Uring(ring) => uring::run(server, *ring, sources),
            Self::Epoll => epoll::run(server, sources),
            #[cfg(feature = "tokio-uring")]
            Self::TokioUring(runtime) => tokio_uring::run(server, runtime, sources),
        }
    }
}

impl Driver {
    /// Every driver of this build.
    pub const ALL: &'static [Self] = &[
        #[cfg(feature = "uring")]
        Self::Uring,
        Self::Epoll,
        #[cfg(feature = "tokio-uring")]
        Self::TokioUring,
    ];

    /// What `--io` and `stats` call it.
    pub const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "uring")]
            Self::Uring => uring::NAME,
            Self::Epoll => epoll::NAME,
            #[cfg(feature = "tokio-uring")]
            Self::TokioUring => tokio_uring::NAME,
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt { name } => write!(
                f,
                "--io {name}: this program was built without it (the feature \"{name}\" of its build)"
            ),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unavailable {}
