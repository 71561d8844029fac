//! The file with the token of the HTTP API.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::named_file::{self, FileError};
use crate::server::Token;

/// More than a token and the white space around it.
const FILE_BYTES_MAX: usize = 4096;

/// The permission of every user to read.
const OTHERS_READ: u32 = 0o004;

/// A token that was read from its file.
#[derive(Debug)]
pub struct TokenFile {
    /// The token.
    pub token: Token,
    /// Every user of the machine can read the file.
    pub is_open: bool,
}

/// Why there is no token in the file.
// docs/RUNBOOK.md lists these messages.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TokenError {
    #[error("{0}")]
    Unreadable(#[source] FileError),
    #[error(
        "the file must contain a token of {} to {} visible ASCII characters, such as the output of openssl rand -hex 32",
        Token::BYTES_MIN,
        Token::BYTES_MAX
    )]
    Malformed,
}

impl TokenFile {
    /// Reads the token in a file.
    ///
    /// # Errors
    /// If the file cannot be read, or contains no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let file = named_file::read(path, FILE_BYTES_MAX).map_err(TokenError::Unreadable)?;
        let token = Token::parse(&file.content).ok_or(TokenError::Malformed)?;
        Ok(Self { token, is_open: file.metadata.permissions().mode() & OTHERS_READ != 0 })
    }
}
