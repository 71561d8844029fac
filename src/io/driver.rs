//! The choice of a driver.

use clap::ValueEnum;

#[cfg(feature = "tokio-uring")]
use super::tokio_uring;
#[cfg(feature = "uring")]
use super::uring;
use super::{DriverError, Exit, Resources, epoll};
use crate::server::Service;

/// The value of `--io`.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Default, Debug)]
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
    Uring(Box<uring::PreparedRing>),
    /// Needs nothing in advance.
    Epoll,
    /// With its ring.
    #[cfg(feature = "tokio-uring")]
    TokioUring(tokio_uring::Runtime),
}

/// A driver that was chosen by name is not available.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[error("--io {name}: {cause}; --io epoll works on any kernel")]
pub struct Unavailable {
    /// The name of the driver, as `--io` takes it.
    pub name: &'static str,
    /// Why.
    pub cause: Cause,
}

/// Why a driver is not available.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Cause {
    #[error("this program was built without the feature \"{name}\"")]
    NotBuilt { name: &'static str },
    #[error("{0}")]
    Refused(DriverError),
}

impl PreparedDriver {
    /// Prepares the driver of this choice. Returns it with the reason why it is not a better one, if `auto` falls back to it.
    ///
    /// # Errors
    /// If it was chosen by name, and is not built in or is refused by the kernel.
    pub fn choose(choice: Choice) -> Result<(Self, Option<Cause>), Unavailable> {
        let named = |driver: Result<Self, Cause>, name| match driver {
            Ok(driver) => Ok((driver, None)),
            Err(cause) => Err(Unavailable { name, cause }),
        };
        match choice {
            Choice::Auto => match Self::uring() {
                Ok(driver) => Ok((driver, None)),
                Err(cause) => Ok((Self::Epoll, Some(cause))),
            },
            Choice::Uring => named(Self::uring(), "uring"),
            Choice::Epoll => Ok((Self::Epoll, None)),
            Choice::TokioUring => named(Self::tokio_uring(), "tokio-uring"),
        }
    }

    /// Returns the name of the driver that a server would run with this choice, and the reason if `auto` falls back to it.
    ///
    /// # Errors
    /// As those of [`choose`](Self::choose).
    pub fn name_of_choice(choice: Choice) -> Result<String, Unavailable> {
        let (driver, fallback) = Self::choose(choice)?;
        Ok(match fallback {
            Some(cause) => format!("{} ({cause})", driver.name()),
            None => driver.name().to_owned(),
        })
    }

    #[cfg(feature = "uring")]
    fn uring() -> Result<Self, Cause> {
        uring::prepare().map(Box::new).map(Self::Uring).map_err(Cause::Refused)
    }

    #[cfg(not(feature = "uring"))]
    const fn uring() -> Result<Self, Cause> {
        Err(Cause::NotBuilt { name: "uring" })
    }

    #[cfg(feature = "tokio-uring")]
    fn tokio_uring() -> Result<Self, Cause> {
        tokio_uring::runtime().map(Self::TokioUring).map_err(Cause::Refused)
    }

    #[cfg(not(feature = "tokio-uring"))]
    const fn tokio_uring() -> Result<Self, Cause> {
        Err(Cause::NotBuilt { name: "tokio-uring" })
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
