//! Whether the kernel keeps files out of reach of a process that has given them up.

/// Asks the kernel, and says so if it does not.
pub fn is_there(what: &str) -> bool {
    let is_there = super::kernel::landlock().is_some();
    if !is_there {
        println!("skipped: {what}, because this kernel has no Landlock");
    }
    is_there
}
