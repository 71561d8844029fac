//! The drivers that a test starts the server under.

use std::env;

use beanring::io::driver::Driver;

use super::kernel;

/// Returns whether the kernel must support this driver. Prints "tested" or "skipped" for `ci/test`. `BEANRING_TEST_ONLY`
/// names the only driver to test, for places where no other one works.
pub fn is_allowed(driver: Driver, what: &str) -> bool {
    let name = driver.name();
    if env::var("BEANRING_TEST_ONLY").is_ok_and(|only| only != name) {
        println!("skipped: {what} under {name}, because BEANRING_TEST_ONLY names another");
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

/// Returns the drivers that [are allowed](is_allowed).
pub fn allowed(what: &str) -> impl Iterator<Item = Driver> {
    Driver::ALL.iter().copied().filter(move |&driver| is_allowed(driver, what))
}

/// Returns the flags that select the driver. `BEANRING_TEST_IO_THREADS` gives I/O threads to the one that can have some.
pub fn flags(driver: Driver) -> Vec<String> {
    let mut flags = vec!["--io".to_owned(), driver.name().to_owned()];
    if let Ok(threads) = env::var("BEANRING_TEST_IO_THREADS")
        && driver.name() == "uring"
    {
        flags.extend(["--io-threads".to_owned(), threads]);
    }
    flags
}
