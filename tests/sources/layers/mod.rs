//! Dependencies between modules point downwards, and only `io` and the layers above it use the system.

mod loops;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use self::source::{Module, Uses, files, modules, relative};

/// The layer of each top module. A module may use the layers below its own (docs/internals/ARCHITECTURE.md). The modules of the
/// lowest layer, and those of the highest, may use one another.
const LAYERS: [(&str, u32); 26] = [
    ("time", 0),
    ("values", 0),
    ("intrusive", 0),
    ("bodies", 0),
    ("protocol", 1),
    ("queue", 1),
    ("beanstalkd_binlog", 2),
    ("wal", 2),
    ("server", 3),
    ("transport", 4),
    ("io", 5),
    ("flags", 6),
    ("logging", 6),
    ("config", 7),
    ("cli", 8),
    ("client", 9),
    ("completions", 9),
    ("config_tool", 9),
    ("exit_code", 9),
    ("healthcheck", 9),
    ("launch", 9),
    ("preflight", 9),
    ("replicate_tool", 9),
    ("wal_tool", 9),
    ("lib", 9),
    ("main", 9),
];

const IO: u32 = 5;
const TOP: u32 = 9;

/// Paths that mean I/O or a clock, which modules below `io` must not use.
const SYSTEM: [&[&str]; 15] = [
    &["nix"],
    &["libc"],
    &["io_uring"],
    &["tokio"],
    &["tokio_postgres"],
    &["tokio_uring"],
    &["landlock"],
    &["sd_notify"],
    &["std", "env"],
    &["std", "fs"],
    &["std", "net"],
    &["std", "os"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time"],
];

/// Returns the violations of a module. `path` has the names below the root of the crate. `top` is the first of them, or
/// `lib` or `main`.
fn wrongs(top: &str, path: &[&str], uses: &Uses) -> Vec<String> {
    let layers = BTreeMap::from(LAYERS);
    let Some(&own) = layers.get(top) else { return vec![format!("{top} has no layer: add it to LAYERS")] };
    let mut wrong = Vec::new();
    for used in uses.own.iter().filter(|_| own < TOP) {
        let name = used.first().map_or("the whole crate", String::as_str);
        let is_below = layers.get(name).is_some_and(|&layer| layer < own || layer == 0);
        if !is_below && name != top {
            wrong.push(format!("must not use {}: {name} is not below {top}", used.join("::")));
        }
    }
    // The arena maps memory. It opens nothing and reads no clock.
    let is_memory = path == ["bodies", "memory"];
    for used in uses.others.iter().filter(|_| own < IO && !is_memory) {
        let is_system =
            |system: &&[&str]| used.iter().map(String::as_str).take(system.len()).eq(system.iter().copied());
        let hides_it = used.len() == 1 && used[0] == "std" || *used == ["std", "*"];
        if SYSTEM.iter().any(is_system) || hides_it {
            wrong.push(format!("must not use {}: it belongs into io", used.join("::")));
        }
    }
    if uses.is_unsafe && top != "io" && top != "bodies" {
        wrong.push("must not have unsafe code: it belongs into io or the arena".to_owned());
    }
    wrong
}

#[test]
fn modules_use_only_what_is_below_them_and_the_system_only_in_io() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all: Vec<String> = Vec::new();
    let mut known = BTreeSet::new();
    for (root, name) in [("lib.rs", "lib"), ("main.rs", "main")] {
        let (modules, files) = modules(&src, root);
        assert!(name == "main" || modules.len() > 50, "the modules are found");
        for Module { path, file, uses } in modules {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            let top = path.first().copied().unwrap_or(name);
            let wrongs = wrongs(top, &path, &uses);
            all.extend(wrongs.into_iter().map(|wrong| format!("src/{}: {wrong}", file.display())));
        }
        known.extend(files);
    }
    for file in files(&src).iter().map(|file| relative(&src, file)) {
        if !file.starts_with("bin") && !known.contains(&file) {
            all.push(format!("src/{}: no module says that it is there", file.display()));
        }
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// Returns the violations of a text as the module `path`.
fn wrongs_of(path: &str, text: &str) -> Vec<String> {
    let path: Vec<String> = path.split("::").map(str::to_owned).collect();
    let read = source::read(&path, text).expect("it is Rust");
    let of_one = |(path, uses): &(Vec<String>, Uses)| {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        wrongs(path[0], &path, uses)
    };
    read.modules.iter().flat_map(of_one).collect()
}

fn refused(path: &str, text: &str) {
    assert!(!wrongs_of(path, text).is_empty(), "{path}: {text}");
}

fn allowed(path: &str, text: &str) {
    assert_eq!(wrongs_of(path, text), Vec::<String>::new(), "{path}: {text}");
}

#[test]
fn a_dependency_upwards_is_found_after_the_tests_of_a_file() {
    for (path, file, planted) in [
        ("bodies", "bodies.rs", "use crate::server::Server;"),
        ("bodies", "bodies.rs", "use crate::{values::ids::ConnId, server::Server};"),
        ("bodies", "bodies.rs", "fn now() { std::time::Instant::now(); }"),
        ("io::uring", "io/uring/mod.rs", "use crate::launch::start;"),
        ("protocol::parse", "protocol/parse.rs", "fn f() { unsafe { g() } }"),
    ] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        let text = fs::read_to_string(file).expect("a source file");
        assert!(text.contains("#[cfg(test)]"), "{path} has tests");
        allowed(path, &text);
        refused(path, &format!("{text}\n{planted}\n"));
    }
}

#[test]
fn a_dependency_upwards_is_found_wherever_it_stands() {
    refused("queue", "use crate::{values::ids::JobId, server::Server};");
    refused("queue", "use crate::{values::ids::{JobId}, io::{driver::{self, Driver}}};");
    refused("queue", "use super::log::Log;");
    refused("queue::heap", "use super::super::protocol;");
    refused("queue::heap", "fn f() -> super::super::server::Server { todo!() }");
    refused("queue", "fn f() { let _ = crate::io::driver::Driver::ALL; }");
    refused("queue", "mod inner { use super::super::server::Server; }");
    refused("queue", "impl From<crate::wal::WalConfig> for Queue {}");
    refused("queue", "fn f() { assert!(x, \"{}\", crate::server::LIMIT); }");
    refused("queue", "macro_rules! m { () => { use $crate::{values, server::Server}; } }");
    // A name for the whole crate hides which modules are used.
    refused("queue", "use crate as all;");
    refused("queue", "use crate::*;");
    refused("queue", "use super::*;");
    refused("queue", "#[cfg(any(test, feature = \"uring\"))] use crate::io;");
    refused("queue", "#[cfg(not(test))] use crate::io;");
    refused("config", "use crate::cli;");
    refused("flags", "use crate::config::ConfigError;");
    refused("nowhere", "");
}

#[test]
fn the_system_is_found_however_it_is_named() {
    refused("server", "use std::{cmp, time::Instant};");
    refused("server", "use std::time::{self};");
    refused("server", "use ::std::fs as files;");
    refused("server", "use std as s;");
    refused("server", "use std::*;");
    refused("server", "fn f() { println!(\"{:?}\", std::env::args()); }");
    refused("server", "fn f(fd: std::os::fd::RawFd) {}");
    refused("bodies::chunks", "use nix::sys::mman;");
    refused("queue", "unsafe impl Send for X {}");
    refused("queue", "unsafe fn f() {}");
    allowed("bodies::memory", "use nix::sys::mman;");
    allowed("io::clock", "use std::time::Instant;");
}

#[test]
fn tests_and_what_is_below_are_left_alone() {
    allowed("queue", "use crate::{values::ids::JobId, intrusive::{Heap, Slab}}; use self::heap::Heap;");
    allowed(
        "queue::heap",
        "use super::{Tube, super::values}; use crate::queue::tube::*; pub(crate) struct X;",
    );
    allowed("server", "#[cfg(test)] mod tests { use crate::io; use std::fs; use super::*; }");
    allowed("server", "#[cfg(all(test, feature = \"uring\"))] use crate::io;");
    allowed("server", "struct S { #[cfg(test)] seen: crate::io::Seen }");
    allowed("server", "fn f() { #[cfg(test)] crate::io::look(); #[cfg(test)] let x = crate::io::look(); }");
    allowed("server", "/// As [`io`](crate::io) has it.\nfn f() {}");
    allowed("launch", "use crate::{io, server}; use std::fs;");
}

/// The beanstalk protocol and HTTP are two doors of one server: neither knows the other.
#[test]
fn the_front_doors_do_not_know_each_other() {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server");
    for (door, other) in [("beanstalk", "http"), ("http", "beanstalk")] {
        for path in files(&server.join(door)) {
            let text = fs::read_to_string(&path).expect("the file is readable");
            let names_other =
                text.contains(&format!("server::{other}::")) || text.contains(&format!("super::{other}::"));
            assert!(!names_other, "{} names {other}", path.display());
        }
    }
}
