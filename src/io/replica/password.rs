//! A password that is not in the URL: `PGPASSWORD`, then the password file, as with `psql`.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tracing::warn;

use crate::io::named_file::{self, FileError};

/// The largest password file.
const FILE_BYTES_MAX: usize = 256 * 1024;

/// The permissions of others, with which a password file is ignored.
const OTHERS: u32 = 0o077;

/// Returns the password for this database, if there is one.
pub(super) fn find(config: &Config, passfile: Option<&Path>) -> Option<String> {
    if let Ok(password) = env::var("PGPASSWORD") {
        return Some(password);
    }
    let path = file(passfile)?;
    let (content, metadata) = match named_file::read_text(&path, FILE_BYTES_MAX) {
        Ok(file) => file,
        // Most users have none.
        Err(FileError::Missing) => return None,
        Err(error) => {
            warn!("{} is ignored: {error}", path.display());
            return None;
        }
    };
    if metadata.permissions().mode() & OTHERS != 0 {
        warn!("{} is ignored: others can read it; run chmod 600 {0}", path.display());
        return None;
    }
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    let hosts = config.get_hosts().iter().enumerate().map(|(at, host)| {
        let port = config.get_ports().get(at).or(config.get_ports().first()).copied().unwrap_or(5432);
        let host = match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        (host, port.to_string())
    });
    hosts.into_iter().find_map(|(host, port)| in_file(&content, [&host, &port, database, user]))
}

/// The password file, which may not exist.
pub(super) fn file(passfile: Option<&Path>) -> Option<PathBuf> {
    passfile.map(Path::to_owned).or_else(default_file)
}

fn default_file() -> Option<PathBuf> {
    let named = env::var_os("PGPASSFILE").map(PathBuf::from);
    named.or_else(|| Some(Path::new(&env::var_os("HOME")?).join(".pgpass")))
}

/// The password of the first line that matches host, port, database and user.
fn in_file(content: &str, wanted: [&str; 4]) -> Option<String> {
    content.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = fields(line);
        let does_match = wanted.iter().zip(&fields).all(|(wanted, field)| field == "*" || field == wanted);
        (does_match && fields.len() > wanted.len()).then(|| fields.swap_remove(wanted.len()))
    })
}

/// The fields of a line. A backslash stands before a colon or backslash that belongs to a field.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field) = (Vec::new(), String::new());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' => fields.push(std::mem::take(&mut field)),
            '\\' => field.extend(characters.next()),
            character => field.push(character),
        }
    }
    fields.push(field);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_matches_counts() {
        let file = "# a comment\nother:5432:*:me:no\ndb:*:queue:me:se\\:cret\n*:*:*:*:any\n";
        assert_eq!(in_file(file, ["db", "5432", "queue", "me"]).as_deref(), Some("se:cret"));
        assert_eq!(in_file(file, ["db", "5432", "queue", "you"]).as_deref(), Some("any"));
        assert_eq!(in_file("db:5432:queue\n", ["db", "5432", "queue", "me"]), None);
    }
}
