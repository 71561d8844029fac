//! What an operator may not have meant: the log of a start and `--check-config` name it alike.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use beanring::config::settings::Origin;
use beanring::config::{ServerConfig, SettingError, passwords};
use beanring::io::layers::Certificate;
use beanring::io::users_file::{TokenFile, UsersFile};
use beanring::io::{cgroup, descriptors, sandbox};
use beanring::time::Time;
use beanring::values::byte_size::Bytes;

use super::certificate;

/// The permission of every user to read.
const OTHERS_READ: u32 = 0o004;

/// What a start has found on the system.
pub struct Found {
    pub token: Option<TokenFile>,
    pub certificate: Option<Certificate>,
    pub users: Option<UsersFile>,
    /// The memory limit of the cgroup, in bytes.
    cgroup_bytes: Option<u64>,
}

impl Found {
    /// Reads the files that the configuration names.
    ///
    /// # Errors
    /// If one cannot be read or used.
    pub fn read(config: &ServerConfig) -> Result<Self, SettingError> {
        let token = config.http_token.as_deref().map(TokenFile::read).transpose();
        let token = token.map_err(|error| SettingError::about(&config.given.http_token, error))?;
        let certificate = certificate::read(config)?;
        let users = config.auth.as_deref().map(UsersFile::read).transpose();
        let users = users.map_err(|error| SettingError::about(&config.given.auth, error))?;
        Ok(Self { token, certificate, users, cgroup_bytes: cgroup::memory_limit() })
    }

    /// The warnings of a start with this configuration, beside those of the configuration itself.
    // docs/RUNBOOK.md lists these messages.
    pub fn start_warnings(&self, config: &ServerConfig, descriptors_max: u64, now: Time) -> Vec<String> {
        let mut warnings = Vec::new();
        let is_open = self.token.as_ref().is_some_and(|file| file.is_open);
        if let Some(path) = config.http_token.as_ref().filter(|_| is_open) {
            warnings.push(format!(
                "--http-token {}: every user of this machine can read the token: run chmod o-r on the file",
                path.display()
            ));
        }
        warnings.extend(certificate::certificate_warnings(config, self.certificate.as_ref(), now));
        warnings.extend(self.users_warning(config));
        warnings.extend(shared_directories(config));
        warnings.extend(open_password(config));
        warnings.extend(few_descriptors(config, descriptors_max));
        warnings.extend(cgroup_limit(config.max_memory_bytes, self.cgroup_bytes));
        warnings
    }

    // docs/RUNBOOK.md lists these messages.
    fn users_warning(&self, config: &ServerConfig) -> Option<String> {
        let (path, users) = (config.auth.as_ref()?, &self.users.as_ref()?.users);
        if users.are_without_rights() {
            return Some(format!(
                "--auth {}: no user has a right, so every client is refused: add users with rights",
                path.display()
            ));
        }
        if users.need_no_token() {
            return Some(format!(
                "--auth {}: [anonymous] may produce, consume and administer all tubes, so no client needs a token; remove rights \
                 of it",
                path.display()
            ));
        }
        let knows_clients = config.tls.as_ref().is_some_and(|tls| tls.files.client_ca.is_some());
        let user = users.first_without_token().filter(|_| !knows_clients)?;
        Some(format!(
            "--auth: user {user} has no token, and without --tls-client-ca no client can show a certificate: set it, or give \
             the user a token"
        ))
    }
}

/// A file that replaces one in a shared directory cannot be read by a running server.
// docs/RUNBOOK.md lists these messages.
fn shared_directories(config: &ServerConfig) -> impl Iterator<Item = String> {
    let certificate = config.tls.iter().flat_map(|tls| tls.files.paths());
    let files = config.auth.iter().map(PathBuf::as_path).chain(certificate);
    files.filter_map(|file| {
        let directory = sandbox::shared_directory(file)?;
        Some(format!(
            "{}: the directory {} is shared (docs/OPERATIONS.md), and a running server reads no new file there; to renew the file, \
             overwrite it in place, or move it to a directory of its own",
            file.display(),
            directory.display()
        ))
    })
}

/// Every user of the machine can read the file of `--config`, which has the password of the database.
// docs/RUNBOOK.md lists these messages.
fn open_password(config: &ServerConfig) -> Option<String> {
    let url = &config.replicate.as_ref()?.url;
    let Some(Origin::File { path, .. }) = &config.given.replicate else { return None };
    let is_open = path.metadata().is_ok_and(|file| file.permissions().mode() & OTHERS_READ != 0);
    (is_open && passwords::hide(url) != *url).then(|| {
        format!(
            "--config {}: every user of this machine can read the password of the database; run chmod o-r on the file",
            path.display()
        )
    })
}

/// Returns the warning that other machines reach the clients' listener of this name without a proof of who they are.
// docs/RUNBOOK.md lists these messages.
pub fn open_listener(name: &str, has_tls: bool, config: &ServerConfig) -> Option<String> {
    let knows_clients = has_tls && config.tls.as_ref().is_some_and(|tls| tls.files.client_ca.is_some());
    match (config.auth.is_some(), has_tls) {
        (true, false) => Some(format!(
            "other machines may connect to {name}, and tokens and jobs travel there in clear text: set --tls-listen and -l none, or \
             choose -l 127.0.0.1"
        )),
        (true, true) => None,
        (false, _) if knows_clients => None,
        (false, true) => Some(format!(
            "other machines may connect to {name}, and whoever does may read, take and delete all jobs: set --auth or \
             --tls-client-ca, or choose --tls-listen 127.0.0.1"
        )),
        (false, false) => Some(format!(
            "other machines may connect to {name}, and whoever does may read, take and delete all jobs; protect the port by a \
             firewall, set --auth, or choose -l 127.0.0.1"
        )),
    }
}

/// The approximate number of clients that fit into a limit of descriptors. A standby that forwards needs two for each.
pub(super) fn clients_within(config: &ServerConfig, descriptors_max: u64) -> u64 {
    let reserved = descriptors::reserved(descriptors_max, config.http.is_some(), config.replicate.is_some());
    let left = descriptors::connections_within(descriptors_max - reserved);
    let forwards = config.replicate.as_ref().is_some_and(|replicate| replicate.forwards);
    if forwards { left / 2 } else { left }
}

// docs/RUNBOOK.md lists these messages.
fn few_descriptors(config: &ServerConfig, descriptors_max: u64) -> Option<String> {
    let possible = clients_within(config, descriptors_max);
    let max = config.max_connections.filter(|&max| u64::from(max) > possible)?;
    Some(format!(
        "--max-connections {max}: the limit of {descriptors_max} open files leaves room for about {possible}; raise the hard \
         limit (ulimit -Hn, LimitNOFILE=)"
    ))
}

/// Beyond the limit of its cgroup, the kernel kills a server that could have refused jobs.
// docs/RUNBOOK.md lists these messages.
fn cgroup_limit(max: Option<u64>, cgroup: Option<u64>) -> Option<String> {
    let limit = cgroup.filter(|&limit| max.is_none_or(|max| max >= limit)).map(Bytes)?;
    Some(match max.map(Bytes) {
        None => format!(
            "no --max-memory, and the cgroup limits memory to {limit}: the kernel kills the server when jobs need more; set \
             --max-memory below that limit"
        ),
        Some(max) => format!(
            "--max-memory is {max}, and the cgroup limits memory to {limit}: the kernel kills the server when jobs need more; set \
             --max-memory below that limit"
        ),
    })
}

#[cfg(all(test, feature = "replicate", feature = "tls"))]
mod tests {
    use std::fs::{self, Permissions};
    use std::ops::ControlFlow;

    use super::*;

    fn config(flags: &str) -> ServerConfig {
        match crate::cli::parse(["beanring"].into_iter().chain(flags.split_whitespace())) {
            Ok(ControlFlow::Continue(parsed)) => {
                parsed.settings.complete().and_then(ServerConfig::check).expect("it is valid")
            }
            other => panic!("{flags}: {other:?}"),
        }
    }

    #[test]
    fn an_open_listener_is_warned_of_by_what_it_lacks() {
        let tls = "--tls-listen 1 --tls-cert /c";
        for (flags, has_tls, expected) in [
            ("", false, "protect the port by a firewall, set --auth, or choose -l 127.0.0.1"),
            (tls, true, "set --auth or --tls-client-ca, or choose --tls-listen 127.0.0.1"),
            ("--auth /u", false, "clear text: set --tls-listen and -l none, or choose -l 127.0.0.1"),
            (&*format!("{tls} --auth /u"), true, ""),
            (&*format!("{tls} --tls-client-ca /a"), true, ""),
            (&*format!("{tls} --tls-client-ca /a"), false, "set --auth, or choose -l 127.0.0.1"),
        ] {
            let warning = open_listener("0.0.0.0:1", has_tls, &config(flags)).unwrap_or_default();
            assert!(
                warning.ends_with(expected) && warning.is_empty() == expected.is_empty(),
                "{flags}: {warning}"
            );
        }
    }

    #[test]
    fn a_password_that_others_can_read_is_reported() {
        let file = std::env::temp_dir().join(format!("beanring-password-{}", std::process::id()));
        for (url, mode, expected) in [
            ("postgres://me:s3cret@db/queue", 0o644, true),
            ("postgres://me:s3cret@db/queue", 0o640, false),
            ("postgres://me@db/queue", 0o644, false),
        ] {
            fs::write(&file, format!("replicate = \"{url}\"\n")).expect("there is space");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("the file belongs to this test");
            let warning = open_password(&config(&format!("--config {}", file.display())));
            assert_eq!(warning.is_some(), expected, "{url} {mode:o}: {warning:?}");
        }
        fs::remove_file(&file).expect("it belongs to this test");
    }
}
