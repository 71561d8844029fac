//! The flags that name a server, and how the client proves who it is.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use beanring::config::ConfigError;
use beanring::config::address::{self, Remote};
use beanring::config::settings::{Origin, Setting};
use beanring::io::socket::{Address, PORT_DEFAULT};
use clap::Args;

use super::values::parse_address;

/// The variable with the address of the server.
const ADDRESS_VARIABLE: &str = "BEANRING_ADDR";

/// The variables of the other flags. `BEANRING_TLS_CERT` and `BEANRING_TLS_KEY` are those of the server, whose certificate no
/// client may take for its own.
const CA_VARIABLE: &str = "BEANRING_TLS_CA";
const CERT_VARIABLE: &str = "BEANRING_TLS_CLIENT_CERT";
const KEY_VARIABLE: &str = "BEANRING_TLS_CLIENT_KEY";
const NAME_VARIABLE: &str = "BEANRING_TLS_NAME";
const TOKEN_VARIABLE: &str = "BEANRING_TOKEN_FILE";

/// The host without a flag and a variable: this machine.
const HOST_DEFAULT: &str = "127.0.0.1";

/// The server, and the files for TLS and a token.
#[derive(Args, Clone, Default, Debug)]
pub struct ServerFlags {
    /// Server: HOST, HOST:PORT, PORT, unix:PATH or beanstalks://HOST for TLS [default: 127.0.0.1:11300]
    #[arg(short, long, value_name = "ADDR", help_heading = "Server and output", value_parser = parse_address)]
    pub addr: Option<Remote>,
    /// Trust this CA instead of those of the system (PEM)
    #[arg(long, value_name = "FILE", help_heading = "TLS and access")]
    pub tls_ca: Option<PathBuf>,
    /// Certificate of the client, with its chain (PEM)
    #[arg(long, value_name = "FILE", help_heading = "TLS and access")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM) [default: the file of --tls-cert]
    #[arg(long, value_name = "FILE", help_heading = "TLS and access")]
    pub tls_key: Option<PathBuf>,
    /// Name in the server's certificate, if it differs from the host
    #[arg(long, value_name = "NAME", help_heading = "TLS and access")]
    pub tls_name: Option<String>,
    /// Send the token in this file with `auth`
    #[arg(long, value_name = "FILE", help_heading = "TLS and access")]
    pub token_file: Option<PathBuf>,
}

impl ServerFlags {
    /// The address of the server: that of `--addr`, else that of the variable, else the default.
    ///
    /// # Errors
    /// If the variable is not valid.
    pub fn remote(&self) -> Result<Remote, ConfigError> {
        if let Some(remote) = &self.addr {
            return Ok(remote.clone());
        }
        let Some(value) = variable(ADDRESS_VARIABLE) else {
            let address = Address::Tcp { host: HOST_DEFAULT.to_owned(), port: PORT_DEFAULT };
            return Ok(Remote { address, is_tls: false });
        };
        address::remote(&Setting { origin: Origin::Variable(ADDRESS_VARIABLE.to_owned()), value })
    }

    /// The first given flag that has a meaning only with TLS.
    pub fn first_of_tls(&self) -> Option<&'static str> {
        let given = [
            (self.tls_ca.is_some(), "--tls-ca"),
            (self.tls_cert.is_some(), "--tls-cert"),
            (self.tls_key.is_some(), "--tls-key"),
            (self.tls_name.is_some(), "--tls-name"),
        ];
        given.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Takes the flags that are not given from the variables.
    #[must_use]
    pub fn or_variables(&self) -> Self {
        let path = |flag: &Option<PathBuf>, name| flag.clone().or_else(|| variable(name).map(PathBuf::from));
        let name = || variable(NAME_VARIABLE).map(|name| name.to_string_lossy().into_owned());
        Self {
            addr: self.addr.clone(),
            tls_ca: path(&self.tls_ca, CA_VARIABLE),
            tls_cert: path(&self.tls_cert, CERT_VARIABLE),
            tls_key: path(&self.tls_key, KEY_VARIABLE),
            tls_name: self.tls_name.clone().or_else(name),
            token_file: path(&self.token_file, TOKEN_VARIABLE),
        }
    }

    /// The variables with which another client reaches the same server.
    pub fn as_variables(&self, remote: &Remote) -> Vec<(&'static str, OsString)> {
        let path = |flag: &Option<PathBuf>| flag.clone().map(OsString::from);
        let all = [
            (ADDRESS_VARIABLE, Some(remote.to_string().into())),
            (CA_VARIABLE, path(&self.tls_ca)),
            (CERT_VARIABLE, path(&self.tls_cert)),
            (KEY_VARIABLE, path(&self.tls_key)),
            (NAME_VARIABLE, self.tls_name.clone().map(OsString::from)),
            (TOKEN_VARIABLE, path(&self.token_file)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

/// Returns the value of a variable. An empty one counts as unset.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}
