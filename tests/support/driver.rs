//! The drivers that a test can run the server under.

use std::{env, thread};

use beanring::io::driver::Driver;

/// Whether the kernel lets servers have this driver. Says so if it does not. `BEANRING_ONLY` names the one that is tried
/// where it is known that no other can be had.
pub fn is_allowed(driver: Driver, what: &str) -> bool {
    if env::var("BEANRING_ONLY").is_ok_and(|only| only != driver.name()) {
        println!("skipped: {what} under {}, because BEANRING_ONLY names another", driver.name());
        return false;
    }
    // The kernel takes a ring down later, and interrupts the thread that made it: not one that is about
    // to wait for a reply.
    let probe = thread::spawn(move || driver.probe());
    match probe.join().expect("a driver that is refused does not panic") {
        Ok(()) => true,
        Err(error) => {
            println!("skipped: {what} under {}, because {error}", driver.name());
            false
        }
    }
}

/// The flags that ask for it.
pub fn flags(driver: Driver) -> Vec<String> {
    vec!["--io".to_owned(), driver.name().to_owned()]
}
