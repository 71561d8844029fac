//! The choice of a driver.

use std::fmt;

use clap::ValueEnum;
use serde::Deserialize;
use tracing::{info, warn};

#[cfg(feature = "tokio-uring")]
use super::tokio_uring;
#[cfg(feature = "uring")]
use super::uring;
use super::{DriverError, Exit, Resources, epoll};
use crate::server::Service;

/// The value of `--io`.
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

/// A driver with what the kernel has granted it.
pub enum PreparedDriver {
    /// With its ring.
    #[cfg(feature = "uring")]
    Uring(Box<uring::KernelRing>),
    /// Needs nothing in advance.
    Epoll,
    /// With its ring.
    #[cfg(feature = "tokio-uring")]
    TokioUring(tokio_uring::Runtime),
}

/// Why a driver is not available.
#[derive(Debug)]
pub enum Unavailable {
    /// This build does not contain it.
    NotBuilt {
        /// The name of the driver, which is also that of its build feature.
        name: &'static str,
    },
    /// The kernel refuses it.
    Refused(DriverError),
}

impl PreparedDriver {
    /// Prepares the driver of this choice. Logs which one `auto` chooses, and why.
    ///
    /// # Errors
    /// If it is not built in, or the kernel refuses it.
    pub fn choose(choice: Choice) -> Result<Self, Unavailable> {
        match choice {
            Choice::Auto => {
                let (driver, refusal) = Self::best();
                match refusal {
                    Some(refusal) => warn!("using epoll: {refusal}"),
                    None if cfg!(feature = "uring") => info!("using io_uring"),
                    None => info!("using epoll: this program was built without io_uring"),
                }
                Ok(driver)
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

    /// Returns the name of the driver that a server would run with this choice, and the reason if `auto` has to take epoll.
    ///
    /// # Errors
    /// As those of [`choose`](Self::choose).
    pub fn name_of_choice(choice: Choice) -> Result<String, Unavailable> {
        if choice != Choice::Auto {
            return Self::choose(choice).map(|driver| driver.name().to_owned());
        }
        let (driver, refusal) = Self::best();
        Ok(match refusal {
            Some(refusal) => format!("{} ({refusal})", driver.name()),
            None => driver.name().to_owned(),
        })
    }

    /// The best driver that the kernel allows, and why it is not a better one.
    #[cfg(feature = "uring")]
    fn best() -> (Self, Option<DriverError>) {
        match Self::uring() {
            Ok(driver) => (driver, None),
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

    /// The name of the driver in `--io` and `stats`.
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

    /// Runs the server until it stops or restarts in place.
    ///
    /// # Errors
    /// If the driver cannot start or continue, or the server fails.
    pub fn run<S: Service + 'static>(self, server: S, resources: Resources) -> Result<Exit, DriverError> {
        match self {
            #[cfg(feature = "uring")]
            Self::Uring(ring) => uring::run(server, *ring, resources),
            Self::Epoll => epoll::run(server, resources),
            #[cfg(feature = "tokio-uring")]
            Self::TokioUring(runtime) => tokio_uring::run(server, runtime, resources),
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

    /// The name of the driver in `--io` and `stats`.
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
