//! The file with the users of `--auth`.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;

use super::socket::text_of;
use crate::server::Users;

/// Users that were read from their file.
#[derive(Debug)]
pub struct UsersFile {
    /// The users.
    pub users: Users,
    /// The file, as it was before it was read.
    pub metadata: Metadata,
}

/// Why there are no users in a file.
#[derive(Debug)]
pub enum UsersError {
    /// The file cannot be read.
    Unreadable(io::Error),
}

impl UsersFile {
    /// Reads the users in a file.
    ///
    /// # Errors
    /// If the file cannot be read, or is not valid.
    pub fn read(path: &Path) -> Result<Self, UsersError> {
        let mut file = File::open(path).map_err(UsersError::Unreadable)?;
        let metadata = file.metadata().map_err(UsersError::Unreadable)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(UsersError::Unreadable)?;
        Ok(Self { users: Users::default(), metadata })
    }
}

impl std::fmt::Display for UsersError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(error) => f.write_str(&text_of(error)),
        }
    }
}

impl std::error::Error for UsersError {}
