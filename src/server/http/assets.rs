//! Static files that are part of the program: those of the console, and the description of the API.

use super::request::Request;
use super::response::{Head, JSON_TYPE, Rules};

/// A page of the console may load its own files and call its own server. A string never becomes markup, since the browser
/// refuses that (Trusted Types). A file may be kept, but is asked for each time: after an upgrade all are new at once.
const RULES: Rules<'static> = Rules { caching: "no-cache", policy: POLICY };

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A static file.
pub(super) struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
    /// Differs between versions of the file.
    hash: u64,
}

impl Asset {
    const fn new(path: &'static str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        Self { path, content_type, bytes, hash: hash(bytes) }
    }

    /// Returns the file that a path names, without a query.
    pub fn find(path: &str) -> Option<&'static Self> {
        // Bounded by CONSOLE_FILES: the files of the console.
        API_FILES.iter().chain(CONSOLE_FILES).find(|asset| asset.path == path)
    }

    /// Appends the response to a request for the file: without the content if the client has it.
    pub fn write(&self, request: &Request, out: &mut Vec<u8>) {
        let is_known = request.fields.if_none_match.as_deref().is_some_and(|tags| self.is_known(tags));
        let status = if is_known { "304 Not Modified" } else { "200 OK" };
        let fields = format!("ETag: {}\r\n", self.tag());
        let body_bytes = Some(self.bytes.len() as u64);
        let head = Head { status, content_type: Some(self.content_type), body_bytes, fields: &fields };
        head.write_with(&RULES, request.version, request.keeps_alive, out);
        if !is_known && request.method != "HEAD" {
            out.extend_from_slice(self.bytes);
        }
    }

    /// Returns the entity tag, in quotes.
    fn tag(&self) -> String {
        format!("\"{:016x}\"", self.hash)
    }

    /// Whether a client that sends this `If-None-Match` has the file.
    fn is_known(&self, if_none_match: &str) -> bool {
        let tag = self.tag();
        // A proxy that compresses the file makes the tag weak.
        let matches = |entry: &str| entry == "*" || entry.strip_prefix("W/").unwrap_or(entry) == tag;
        if_none_match.split(',').any(|entry| matches(entry.trim()))
    }
}

/// Where the API begins, and its description in OpenAPI.
static API_FILES: [Asset; 2] = [
    Asset::new("/api/v1", JSON_TYPE, include_bytes!("api.json")),
    Asset::new("/api/v1/openapi.yaml", "application/yaml", include_bytes!("../../../docs/openapi.yaml")),
];

/// A program without the console does not contain its files.
static CONSOLE_FILES: &[Asset] = if cfg!(feature = "console") { &FILES } else { &[] };

static FILES: [Asset; 30] = [
    Asset::new("/", HTML, include_bytes!("../../console/index.html")),
    Asset::new("/assets/access.js", SCRIPT, include_bytes!("../../console/access.js")),
    Asset::new("/assets/actions.js", SCRIPT, include_bytes!("../../console/actions.js")),
    Asset::new("/assets/api.js", SCRIPT, include_bytes!("../../console/api.js")),
    Asset::new("/assets/body.js", SCRIPT, include_bytes!("../../console/body.js")),
    Asset::new("/assets/chart.js", SCRIPT, include_bytes!("../../console/chart.js")),
    Asset::new("/assets/console.css", CSS, include_bytes!("../../console/console.css")),
    Asset::new("/assets/dom.js", SCRIPT, include_bytes!("../../console/dom.js")),
    Asset::new("/assets/find.js", SCRIPT, include_bytes!("../../console/find.js")),
    Asset::new("/assets/format.js", SCRIPT, include_bytes!("../../console/format.js")),
    Asset::new("/assets/group.js", SCRIPT, include_bytes!("../../console/group.js")),
    Asset::new("/assets/history.js", SCRIPT, include_bytes!("../../console/history.js")),
    Asset::new("/assets/icon.svg", SVG, include_bytes!("../../console/icon.svg")),
    Asset::new("/assets/job.js", SCRIPT, include_bytes!("../../console/job.js")),
    Asset::new("/assets/jobs.js", SCRIPT, include_bytes!("../../console/jobs.js")),
    Asset::new("/assets/loading.js", SCRIPT, include_bytes!("../../console/loading.js")),
    Asset::new("/assets/main.js", SCRIPT, include_bytes!("../../console/main.js")),
    Asset::new("/assets/overview.js", SCRIPT, include_bytes!("../../console/overview.js")),
    Asset::new("/assets/poll.js", SCRIPT, include_bytes!("../../console/poll.js")),
    Asset::new("/assets/put.js", SCRIPT, include_bytes!("../../console/put.js")),
    Asset::new("/assets/rules.js", SCRIPT, include_bytes!("../../console/rules.js")),
    Asset::new("/assets/schedule.js", SCRIPT, include_bytes!("../../console/schedule.js")),
    Asset::new("/assets/schedules.js", SCRIPT, include_bytes!("../../console/schedules.js")),
    Asset::new("/assets/shell.js", SCRIPT, include_bytes!("../../console/shell.js")),
    Asset::new("/assets/table.js", SCRIPT, include_bytes!("../../console/table.js")),
    Asset::new("/assets/tube.js", SCRIPT, include_bytes!("../../console/tube.js")),
    Asset::new("/assets/tubes.js", SCRIPT, include_bytes!("../../console/tubes.js")),
    Asset::new("/assets/uplot.css", CSS, include_bytes!("../../console/vendor/uplot/uPlot.min.css")),
    Asset::new("/assets/uplot.js", SCRIPT, include_bytes!("../../console/vendor/uplot/uPlot.iife.min.js")),
    // The license asks for its text with each copy.
    Asset::new(
        "/assets/uplot-license.txt",
        "text/plain; charset=utf-8",
        include_bytes!("../../console/vendor/uplot/LICENSE"),
    ),
];

/// FNV-1a, which the compiler can compute.
const fn hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut index = 0;
    // Bounded by the compiler, which computes it.
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0100_0000_01b3);
        index += 1;
    }
    hash
}

#[cfg(all(test, feature = "console"))]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::values::tube_rules::RuleKey;

    fn text(path: &str) -> &'static str {
        str::from_utf8(Asset::find(path).expect("it is in the table").bytes).expect("it is text")
    }

    #[test]
    fn every_file_is_served() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/console");
        for entry in fs::read_dir(directory).expect("the directory is there") {
            let entry = entry.expect("it can be read");
            if entry.path().is_file() && entry.file_name() != "index.html" {
                let path = format!("/assets/{}", entry.file_name().display());
                assert!(Asset::find(&path).is_some(), "{path} is not in the table");
            }
        }
    }

    // A module that the page does not name is loaded only after the one that imports it.
    #[test]
    fn the_page_names_every_file_it_loads() {
        let page = text("/");
        let named: BTreeSet<&str> = page.split('"').filter(|part| part.starts_with("assets/")).collect();
        let license = "assets/uplot-license.txt";
        let served =
            FILES.iter().map(|asset| &asset.path[1..]).filter(|path| !path.is_empty() && *path != license);
        assert_eq!(named, served.collect());
    }

    #[test]
    fn the_page_of_a_tube_has_each_rule() {
        let rules = text("/assets/rules.js");
        for word in RuleKey::ALL.map(RuleKey::word) {
            let is_there =
                [format!("  {word}: {{"), format!("  '{word}': {{")].iter().any(|key| rules.contains(key));
            assert!(is_there, "{word} is not in rules.js");
        }
    }

    #[test]
    fn a_tag_is_of_one_content() {
        let (page, style) = (
            Asset::find("/").expect("it is there"),
            Asset::find("/assets/console.css").expect("it is there"),
        );
        assert_ne!(page.tag(), style.tag());
        for (known, is_known) in [
            (page.tag(), true),
            (format!("W/{}", page.tag()), true),
            (format!("{}, {}", style.tag(), page.tag()), true),
            ("*".to_owned(), true),
            (style.tag(), false),
            (String::new(), false),
            (page.tag().replace('"', ""), false),
        ] {
            assert_eq!(page.is_known(&known), is_known, "{known}");
        }
        assert!(Asset::find("/index.html").is_none() && Asset::find("").is_none());
    }
}
