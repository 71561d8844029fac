//! Who may do what: the users of `--auth`.

/// The users of a server, and the rights of each.
#[derive(Clone, Default, Debug)]
pub struct Users {}
