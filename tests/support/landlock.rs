//! Whether the kernel keeps files out of reach of a process that has given them up.

use landlock::{AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};

/// Asks the kernel, and says so if it does not.
pub fn is_there(what: &str) -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let is_there = ruleset.handle_access(AccessFs::Execute).and_then(Ruleset::create).is_ok();
    if !is_there {
        println!("skipped: {what}, because this kernel has no Landlock");
    }
    is_there
}
