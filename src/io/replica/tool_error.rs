//! Why a tool has not done its work.

use super::CheckError;
use super::session::SessionError;
use super::settings::LOG;
use crate::wal::replica::{Damage, Fault};

/// Why a log is not moved or written again.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ToolError {
    #[error("{0}")]
    Check(#[from] CheckError),
    #[error(
        "no server leads log {LOG}, and only one that leads has all jobs; if the log is damaged, none can begin to: restore \
        a backup"
    )]
    NoLeader,
    #[error("another server leads now, and knows nothing of the request; try again")]
    OtherLeader,
    #[error("a server leads log {LOG}; stop all servers with --replicate first")]
    Led,
    #[error("log {LOG} has {}, which an import would replace; import into an empty database", content(*.jobs))]
    NotEmpty { jobs: usize },
    #[error(
        "the job log in the database is damaged: {0}; if a server leads it, run beanring replicate rewrite, else restore \
        a backup of the database"
    )]
    Damaged(Damage),
    #[error("the job log has changed while it was read; try again")]
    Changed,
    #[error("too little memory for the jobs of the job log")]
    Memory,
    /// The commit was not acknowledged.
    #[error(
        "it is unknown whether the import has happened ({0}); run beanring replicate status: if the log has no chunks, \
        import again"
    )]
    Unknown(String),
}

impl From<SessionError> for ToolError {
    fn from(error: SessionError) -> Self {
        CheckError::from(error).into()
    }
}

impl From<Fault> for ToolError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Damaged(damage) => Self::Damaged(damage),
            Fault::Diverged => Self::Changed,
            Fault::OutOfMemory => Self::Memory,
        }
    }
}

fn content(jobs: usize) -> String {
    match jobs {
        0 => "rules, schedules or idempotency keys".to_owned(),
        1 => "1 job".to_owned(),
        _ => format!("{jobs} jobs"),
    }
}

impl ToolError {
    /// Whether it may pass without a change by people.
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Check(error) => error.is_temporary(),
            Self::NotEmpty { .. } => false,
            _ => true,
        }
    }
}
