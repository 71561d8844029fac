//! Prints what the kernel permits, one line per driver. `ci/test` requires the suites of each permitted driver.

use beanring_testkit::kernel;

fn main() {
    for driver in ["uring", "epoll", "tokio-uring"] {
        match kernel::allows(driver) {
            Ok(()) => println!("{driver}: allowed"),
            Err(reason) => println!("{driver}: refused: {reason}"),
        }
    }
    match kernel::landlock() {
        Some(version) => println!("landlock: version {version}"),
        None => println!("landlock: refused: this kernel has none, or it is off"),
    }
}
