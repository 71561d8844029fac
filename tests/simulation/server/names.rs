//! Names of tubes.

use beanring_testkit::naive::Name;

/// All names have the same length: a full disk refuses to move a job to a tube with a longer one.
pub fn name_of(tube: Name) -> String {
    if tube == 0 { "default".into() } else { format!("tube-{tube:02}") }
}
