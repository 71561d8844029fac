//! Sets `server_has_client` and `server_has_tls` for what needs a client and TLS in beanring, whose build script says whether they are in it.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (key, name) in [("DEP_BEANRING_CLIENT", "server_has_client"), ("DEP_BEANRING_TLS", "server_has_tls")]
    {
        println!("cargo::rustc-check-cfg=cfg({name})");
        if env::var_os(key).is_some() {
            println!("cargo::rustc-cfg={name}");
        }
    }
}
