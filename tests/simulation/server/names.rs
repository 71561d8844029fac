//! Conversion between tube names and numbers.

use beanring_testkit::naive::Name;

/// All names have the same length: a full disk refuses to move a job to a tube with a longer one.
pub fn name_of(tube: Name) -> String {
    if tube == 0 { "default".into() } else { format!("tube-{tube:02}") }
}

/// # Panics
/// If `name` is not the result of [`name_of`].
pub fn number_of(name: &[u8]) -> Name {
    let text = std::str::from_utf8(name).expect("a name is ASCII");
    let number = text.strip_prefix("tube-").map(|number| number.parse().expect("a number"));
    number.unwrap_or_else(|| {
        assert_eq!(text, "default");
        0
    })
}
