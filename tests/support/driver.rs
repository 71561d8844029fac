//! The drivers that a test can run the server under.

use std::thread;

use beanring::io::driver::Driver;

/// Whether the kernel lets servers have this driver. Says so if it does not.
pub fn is_allowed(driver: Driver, what: &str) -> bool {
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
