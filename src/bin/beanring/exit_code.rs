//! The exit code of a failure. 2 means that the configuration is wrong, or names a user, a directory or a file that does not
//! exist: another attempt fails as well. 1 means that the system refused, or that something broke: another attempt may succeed.
//! The client has exit codes of its own.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::process::ExitCode;

use beanring::config::{ConfigError, SettingError};
use beanring::io::driver::{Cause, Unavailable};
use beanring::io::named_file::FileError;
use beanring::io::privileges::PrivilegesError;
#[cfg(feature = "replicate")]
use beanring::io::replica::{self, CheckError, UrlError};
use beanring::io::socket::{Address, ListenError};
use beanring::io::users_file::{TokenError, UsersError};
use beanring::io::wal_files::DirectoryError;
use beanring::io::wal_files::offline::ToolError;
#[cfg(feature = "client")]
use beanring::replies::ClientError;
#[cfg(feature = "tls")]
use beanring::transport::IdentityError;
use nix::errno::Errno;

use crate::cli::UsageError;
#[cfg(feature = "replicate")]
use crate::replicate_tool::ReplicateUsage;

/// The exit code for a wrong configuration, which clap and systemd use as well.
const USAGE: u8 = 2;

/// Returns the exit code for an error.
pub fn of(error: &(dyn Error + 'static)) -> ExitCode {
    let error = error.downcast_ref().map_or(error, SettingError::error);
    #[cfg(feature = "client")]
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return ExitCode::from(error.exit_code());
    }
    let is_usage = error.is::<UsageError>()
        || error.downcast_ref().is_some_and(is_wrong_setting)
        || error.downcast_ref().is_some_and(is_wrong_address)
        || error.downcast_ref().is_some_and(is_wrong_directory)
        || error.downcast_ref().is_some_and(is_wrong_argument)
        || error.downcast_ref().is_some_and(is_wrong_token)
        || error.downcast_ref().is_some_and(is_wrong_users)
        || is_wrong_certificate(error)
        || is_wrong_database(error)
        || matches!(error.downcast_ref(), Some(PrivilegesError::UnknownUser { .. }))
        || matches!(error.downcast_ref(), Some(Unavailable { cause: Cause::NotBuilt { .. }, .. }));
    if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// A file that cannot be read now may be readable later. Any other wrong setting stays wrong.
fn is_wrong_setting(error: &ConfigError) -> bool {
    match error {
        ConfigError::Unreadable { error, .. } => error.is_wrong(),
        _ => true,
    }
}

fn is_wrong_address(error: &ListenError) -> bool {
    matches!(
        error,
        ListenError::NotASocket { .. }
            | ListenError::UnknownGroup { .. }
            | ListenError::System { address: Address::Unix(_), errno: Errno::ENOENT | Errno::ENOTDIR }
    )
}

fn is_wrong_directory(error: &DirectoryError) -> bool {
    match error {
        DirectoryError::Unusable(_, error) => is_no_directory(error),
        DirectoryError::Foreign(..) => true,
        DirectoryError::Denied { .. } | DirectoryError::Locked(_) => false,
    }
}

fn is_no_directory(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A token that cannot be read now may be readable later.
fn is_wrong_token(error: &TokenError) -> bool {
    match error {
        TokenError::Unreadable(error) => error.is_wrong(),
        TokenError::Malformed => true,
    }
}

/// Users that cannot be read now may be readable later.
fn is_wrong_users(error: &UsersError) -> bool {
    match error {
        UsersError::Unreadable(error) => error.is_wrong(),
        _ => true,
    }
}

/// A certificate that cannot be read now may be readable later.
fn is_wrong_certificate(error: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "tls")]
    if let Some(error) = error.downcast_ref::<IdentityError>() {
        return !matches!(error, IdentityError::Random);
    }
    error.downcast_ref::<FileError>().is_some_and(FileError::is_wrong)
}

/// A database that cannot be reached now may be reachable later.
#[cfg(feature = "replicate")]
fn is_wrong_database(error: &(dyn Error + 'static)) -> bool {
    error.is::<ReplicateUsage>()
        || error.is::<UrlError>()
        || error.downcast_ref().is_some_and(|error: &CheckError| !error.is_temporary())
        || error.downcast_ref().is_some_and(|error: &replica::ToolError| !error.is_temporary())
}

#[cfg(not(feature = "replicate"))]
const fn is_wrong_database(_: &(dyn Error + 'static)) -> bool {
    false
}

/// A tool cannot work on the directory that was named.
fn is_wrong_argument(error: &ToolError) -> bool {
    match error {
        ToolError::Unusable(_, error) => is_no_directory(error),
        ToolError::File(_)
        | ToolError::NoLog(_)
        | ToolError::Binlog(_)
        | ToolError::NotEmpty(_)
        | ToolError::Inside(_) => true,
        _ => false,
    }
}
