//! Tells packages that depend on this one whether it has a client and TLS: cargo passes `DEP_BEANRING_CLIENT` and `DEP_BEANRING_TLS` to
//! their build scripts. A feature here cannot enable one of the test kit: `cargo install` and `cargo package` leave out packages of tests.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (feature, key) in [("CARGO_FEATURE_CLIENT", "client"), ("CARGO_FEATURE_TLS", "tls")] {
        if env::var_os(feature).is_some() {
            println!("cargo::metadata={key}=1");
        }
    }
}
