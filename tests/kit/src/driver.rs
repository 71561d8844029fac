//! The drivers that a test runs the server under.

use std::env;

use beanring::io::driver::Driver;

use super::kernel;

/// Whether servers must run under this driver, which the kernel decides. Prints "tested" or "skipped", which `ci/test`
/// reads. `BEANRING_ONLY` names the one that is tried where it is known that no other can be had.
pub fn is_allowed(driver: Driver, what: &str) -> bool {
    let name = driver.name();
    if env::var("BEANRING_ONLY").is_ok_and(|only| only != name) {
        println!("skipped: {what} under {name}, because BEANRING_ONLY names another");
        return false;
    }
    match kernel::allows(name) {
        Ok(()) => {
            println!("tested: {what} under {name}");
            true
        }
        Err(reason) => {
            println!("skipped: {what} under {name}, because {reason}");
            false
        }
    }
}

/// The flags that ask for it.
pub fn flags(driver: Driver) -> Vec<String> {
    vec!["--io".to_owned(), driver.name().to_owned()]
}
