//! Dependencies between modules point downwards, and only `io` and the layers above it use the system.

mod loops;
mod owners;
pub mod source;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use self::source::{Module, SRC, Uses, files, modules, relative};

static LIBRARY: LazyLock<(Vec<Module>, BTreeSet<PathBuf>)> = LazyLock::new(|| modules("lib.rs"));

/// Reads a file below `src`.
pub fn read(file: &Path) -> String {
    fs::read_to_string(Path::new(SRC).join(file)).expect("a source file")
}

/// The top modules by layer. A module may use the layers below its own (docs/internals/ARCHITECTURE.md). The modules of the lowest
/// layer, and those of the highest, may use one another.
const LAYERS: [&[&str]; 11] = [
    &["time", "values", "intrusive", "bodies"],
    &["protocol", "queue"],
    &["beanstalkd_binlog", "wal"],
    &["server"],
    &["transport"],
    &["io"],
    &["flags", "help", "logging"],
    &["config"],
    &["replies"],
    &["cli"],
    &[
        "client",
        "completions",
        "config_tool",
        "exit_code",
        "healthcheck",
        "launch",
        "manual",
        "preflight",
        "replicate_tool",
        "wal_tool",
        "lib",
        "main",
    ],
];

const IO: usize = 5;
const TOP: usize = 10;

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

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

/// Returns the violations of a module. `top` is the first name of its path, or `lib` or `main`.
fn wrongs(top: &str, uses: &Uses) -> Vec<String> {
    let Some(own) = layer(top) else { return vec![format!("{top} has no layer: add it to LAYERS")] };
    let mut wrong = Vec::new();
    for used in uses.own.iter().filter(|_| own < TOP) {
        let name = used.first().map_or("the whole crate", String::as_str);
        let is_below = layer(name).is_some_and(|layer| layer < own || layer == 0);
        if !is_below && name != top {
            wrong.push(format!("must not use {}: {name} is not below {top}", used.join("::")));
        }
    }
    // The unsafe code of the arena maps memory. It opens nothing and reads no clock.
    let is_memory = top == "bodies" && uses.is_unsafe;
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
fn a_module_with_files_of_its_own_is_the_mod_rs_of_its_folder() {
    let all = files(Path::new(SRC));
    let beside: Vec<PathBuf> =
        all.iter().filter(|file| file.with_extension("").is_dir()).map(|file| relative(file)).collect();
    assert!(all.iter().any(|file| file.ends_with("mod.rs")) && beside.is_empty(), "{beside:#?}");
}

#[test]
fn modules_use_only_what_is_below_them_and_the_system_only_in_io() {
    let (library, files_of_library) = &*LIBRARY;
    let (program, files_of_program) = modules("bin/beanring/main.rs");
    assert!(library.len() > 50, "the modules are found");
    let is_unsafe_arena =
        |module: &&Module| module.uses.is_unsafe && module.path.first().is_some_and(|top| top == "bodies");
    assert!(
        library.iter().filter(is_unsafe_arena).count() <= 1,
        "all unsafe code of the arena is in one module"
    );

    let mut all: Vec<String> = Vec::new();
    for (modules, name) in [(library, "lib"), (&program, "main")] {
        for Module { path, file, uses } in modules {
            let wrongs = wrongs(path.first().map_or(name, String::as_str), uses);
            all.extend(wrongs.into_iter().map(|wrong| format!("src/{}: {wrong}", file.display())));
        }
    }
    for file in files(Path::new(SRC)).iter().map(|file| relative(file)) {
        let is_read = files_of_library.contains(&file) || files_of_program.contains(&file);
        if !is_read && !file.starts_with("bin/beanring-bench") {
            all.push(format!("src/{}: no module says that it is there", file.display()));
        }
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// Generic code has the level of optimization of the crate that names its types, and releases build the program for size.
#[test]
fn the_program_leaves_drivers_layers_and_recovery_to_the_library() {
    let fast = [
        "io::epoll",
        "io::tokio_uring",
        "io::uring",
        "io::wal_files::recover",
        "transport::Transport",
        "transport::link",
    ];
    let (program, _) = modules("bin/beanring/main.rs");
    let named: Vec<_> =
        program.iter().flat_map(|module| &module.uses.own).map(|used| used.join("::")).collect();
    assert!(named.iter().any(|used| used == "io::layers::Layers"), "the names are found");
    let wrong: Vec<_> = named.iter().filter(|used| fast.iter().any(|name| used.starts_with(name))).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Returns the violations of a text as the module `path`.
fn wrongs_of(path: &str, text: &str) -> Vec<String> {
    let path: Vec<String> = path.split("::").map(str::to_owned).collect();
    let read = source::read(&path, text).expect("it is Rust");
    read.modules.iter().flat_map(|(path, uses)| wrongs(&path[0], uses)).collect()
}

fn refused(path: &str, text: &str) {
    assert!(!wrongs_of(path, text).is_empty(), "{path}: {text}");
}

fn allowed(path: &str, text: &str) {
    assert_eq!(wrongs_of(path, text), Vec::<String>::new(), "{path}: {text}");
}

#[test]
fn a_dependency_upwards_is_found_after_the_tests_of_a_file() {
    let mut modules: Vec<_> = LIBRARY.0.iter().collect();
    modules.sort_by_key(|module| module.path.len());
    let mut found = 0;
    for &top in LAYERS[..TOP].iter().copied().flatten() {
        let has_tests = |module: &&&Module| {
            module.path.first().is_some_and(|name| name == top) && read(&module.file).contains("#[cfg(test)]")
        };
        let Some(module) = modules.iter().find(has_tests) else { continue };
        let (path, text) = (module.path.join("::"), read(&module.file));
        allowed(&path, &text);
        for (planted, is_wrong) in [
            ("use crate::launch::start;", true),
            ("use crate::{values::ids::ConnId, launch::start};", true),
            ("fn now() { std::time::Instant::now(); }", layer(top) < Some(IO)),
            ("fn f() { unsafe { g() } }", top != "io" && top != "bodies"),
        ] {
            let wrongs = wrongs_of(&path, &format!("{text}\n{planted}\n"));
            assert_eq!(!wrongs.is_empty(), is_wrong, "{path}: {planted}: {wrongs:?}");
        }
        found += 1;
    }
    assert!(found > 10, "most modules have a file with tests");
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
    refused("queue", "use nix::sys::mman; fn f() { unsafe { mmap() } }");
    refused("queue", "unsafe impl Send for X {}");
    refused("queue", "unsafe fn f() {}");
    allowed("bodies::memory", "use nix::sys::mman; fn f() { unsafe { mmap() } }");
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
    let server = Path::new(SRC).join("server");
    for (door, other) in [("beanstalk", "http"), ("http", "beanstalk")] {
        for path in files(&server.join(door)) {
            let text = read(&path);
            let names_other =
                text.contains(&format!("server::{other}::")) || text.contains(&format!("super::{other}::"));
            assert!(!names_other, "{} names {other}", path.display());
        }
    }
}
