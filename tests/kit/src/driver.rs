//! The drivers that a test starts the server under.

use std::{env, panic, thread};

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

/// Runs `test` under each driver of this build that the kernel allows. The runs are beside each other, since each waits most of
/// the time.
///
/// # Panics
/// If one of them does.
pub fn under_each(what: &str, test: impl Fn(Driver) + Sync) {
    let test = &test;
    thread::scope(|scope| {
        let allowed = Driver::ALL.iter().filter(|&&io| is_allowed(io, what));
        let start = |&io: &Driver| {
            let named = thread::Builder::new().name(format!("{what} under {}", io.name()));
            named.spawn_scoped(scope, move || test(io)).expect("a thread can be started")
        };
        let runs: Vec<_> = allowed.map(start).collect();
        for run in runs {
            run.join().unwrap_or_else(|payload| panic::resume_unwind(payload));
        }
    });
}

/// Defines a test for each driver of this build. If the kernel allows the driver, the test calls a function with it.
#[macro_export]
macro_rules! tests_of_drivers {
    ($what:literal, $test:path: $epoll:ident, $uring:ident, $tokio_uring:ident) => {
        #[test]
        fn $epoll() {
            $crate::tests_of_drivers!($what, $test, Epoll);
        }

        #[cfg(feature = "uring")]
        #[test]
        fn $uring() {
            $crate::tests_of_drivers!($what, $test, Uring);
        }

        #[cfg(feature = "tokio-uring")]
        #[test]
        fn $tokio_uring() {
            $crate::tests_of_drivers!($what, $test, TokioUring);
        }
    };
    ($what:literal, $test:path, $driver:ident) => {
        if $crate::driver::is_allowed(::beanring::io::driver::Driver::$driver, $what) {
            $test(::beanring::io::driver::Driver::$driver);
        }
    };
}

/// Returns the flags that select the driver.
pub const fn flags(driver: Driver) -> [&'static str; 2] {
    ["--io", driver.name()]
}
