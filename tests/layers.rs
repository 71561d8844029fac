//! Dependencies between modules point downwards, and only `io` and what stands above it touch the system.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each top module with its layer: it may use those of the layers below (docs/ARCHITECTURE.md). The
/// lowest and the highest are each one layer of small modules that use one another.
const LAYERS: [(&str, u32); 21] = [
    ("time", 0),
    ("limits", 0),
    ("ids", 0),
    ("tube_name", 0),
    ("intrusive", 0),
    ("bodies", 0),
    ("buckets", 0),
    ("protocol", 1),
    ("queue", 1),
    ("log", 2),
    ("server", 3),
    ("io", 4),
    ("cli", 5),
    ("config", 5),
    ("config_file", 5),
    ("healthcheck", 5),
    ("launch", 5),
    ("log_tool", 5),
    ("rehearsal", 5),
    ("lib", 5),
    ("main", 5),
];

/// What would be I/O or a clock, and so has no place below `io`.
const SYSTEM: [&str; 9] = [
    "nix::",
    "libc::",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "std::time",
    "io_uring::",
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("the source directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The module directly below `src` that a file belongs to, and its text without tests and comments.
fn modules() -> Vec<(String, PathBuf, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 20, "the sources are found");
    let is_library = |path: &PathBuf| !path.starts_with(src.join("bin")) && !path.ends_with("tests.rs");
    files
        .into_iter()
        .filter(is_library)
        .map(|path| {
            let relative = path.strip_prefix(&src).expect("a path below src").to_owned();
            let top = relative.components().next().expect("a name").as_os_str().to_string_lossy();
            let text = fs::read_to_string(&path).expect("a source file");
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = code.collect::<Vec<_>>().join("\n");
            (top.trim_end_matches(".rs").to_owned(), relative, code)
        })
        .collect()
}

#[test]
fn modules_use_only_what_is_below_them() {
    let layers = BTreeMap::from(LAYERS);
    for (module, path, code) in modules() {
        let own = *layers.get(&*module).unwrap_or_else(|| panic!("{module} has no layer: add it to LAYERS"));
        for reference in code.split("crate::").skip(1) {
            let used: String =
                reference.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let Some(&layer) = layers.get(&*used) else { continue };
            let may = layer < own || layer == 0 || used == module || own == 5;
            assert!(may, "{}: {module} must not use {used}, which is not below it", path.display());
        }
    }
}

#[test]
fn only_drivers_touch_the_system() {
    let layers = BTreeMap::from(LAYERS);
    for (module, path, code) in modules() {
        // The arena maps memory; it opens nothing and reads no clock.
        let is_memory = path.ends_with("bodies/memory.rs");
        if layers[&*module] >= layers["io"] || is_memory {
            continue;
        }
        for word in SYSTEM {
            assert!(!code.contains(word), "{}: {word} belongs into io", path.display());
        }
    }
}

#[test]
fn unsafe_code_stays_in_io_and_the_arena() {
    for (module, path, code) in modules() {
        let may = module == "io" || module == "bodies";
        let uses = code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl");
        assert!(may || !uses, "{}: unsafe code belongs into io or the arena", path.display());
    }
}
