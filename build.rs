//! Tells packages that depend on this one whether it has a client and TLS: cargo passes `DEP_BEANRING_CLIENT` and `DEP_BEANRING_TLS` to
//! their build scripts. A feature here cannot enable one of the test kit: `cargo install` and `cargo package` leave out packages of tests.
//!
//! And it compresses the files that the server has over HTTP, for `src/server/http/assets.rs`: a third of their size is in the program.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::{env, io};

use miniz_oxide::deflate::compress_to_vec;

const LEVEL_MAX: u8 = 10;

const OF_API: [(&str, &str); 2] =
    [("/api/v1", "src/server/http/api.json"), ("/api/v1/openapi.yaml", "docs/openapi.yaml")];

/// The library that draws the charts. Its license asks for its text with each copy.
const VENDORED: [(&str, &str); 3] = [
    ("/assets/uplot.css", "src/console/vendor/uplot/uPlot.min.css"),
    ("/assets/uplot.js", "src/console/vendor/uplot/uPlot.iife.min.js"),
    ("/assets/uplot-license.txt", "src/console/vendor/uplot/LICENSE"),
];

const CONSOLE: &str = "src/console";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    for (feature, key) in [("CARGO_FEATURE_CLIENT", "client"), ("CARGO_FEATURE_TLS", "tls")] {
        if env::var_os(feature).is_some() {
            println!("cargo::metadata={key}=1");
        }
    }
    let mut files: Vec<(String, PathBuf)> = owned(&OF_API);
    if env::var_os("CARGO_FEATURE_CONSOLE").is_some() {
        files.extend(owned(&VENDORED));
        files.extend(of_console()?);
    }
    write(&files)
}

fn owned(files: &[(&str, &str)]) -> Vec<(String, PathBuf)> {
    files.iter().map(|(path, file)| ((*path).to_owned(), file.into())).collect()
}

/// Every file of the console, with the page itself at the root.
fn of_console() -> io::Result<Vec<(String, PathBuf)>> {
    println!("cargo::rerun-if-changed={CONSOLE}");
    let mut files = Vec::new();
    for entry in fs::read_dir(CONSOLE)? {
        let file = entry?.path();
        let Some(name) = file.file_name().and_then(|name| name.to_str()).filter(|_| file.is_file()) else {
            continue;
        };
        let path = if name == "index.html" { "/".to_owned() } else { format!("/assets/{name}") };
        files.push((path, file));
    }
    files.sort();
    Ok(files)
}

/// Writes the compressed files, and `assets.rs`, the table of them.
fn write(files: &[(String, PathBuf)]) -> io::Result<()> {
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut table = format!("static ASSETS: [Asset; {}] = [\n", files.len());
    for (number, (path, file)) in files.iter().enumerate() {
        println!("cargo::rerun-if-changed={}", file.display());
        let content = fs::read(file)?;
        let to = directory.join(format!("{number}.deflated"));
        fs::write(&to, compress_to_vec(&content, LEVEL_MAX))?;
        let (kind, bytes, hash) = (content_type(file), content.len(), hash(&content));
        writeln!(table, "    Asset::new({path:?}, {kind:?}, include_bytes!({to:?}), {bytes}, {hash}),")
            .expect("a string grows");
    }
    table.push_str("];\n");
    fs::write(directory.join("assets.rs"), table)
}

fn content_type(file: &Path) -> &'static str {
    match file.extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some("yaml") => "application/yaml",
        _ => "text/plain; charset=utf-8",
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
