//! Static files that are part of the program: those of the console, and the description of the API.

use std::sync::OnceLock;

use miniz_oxide::inflate::decompress_to_vec_with_limit;

use super::request::Request;
use super::response::{Head, Rules};

/// A page of the console may load its own files and call its own server. A string never becomes markup, since the browser
/// refuses that (Trusted Types). A file may be kept, but is asked for each time: after an upgrade all are new at once.
const RULES: Rules<'static> = Rules { caching: "no-cache", policy: POLICY };

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

/// A static file.
pub(super) struct Asset {
    path: &'static str,
    content_type: &'static str,
    /// As `build.rs` has compressed it.
    deflated: &'static [u8],
    /// The size of its content.
    bytes: usize,
    /// Differs between versions of the file.
    hash: u64,
    /// Its content, once it was asked for.
    content: OnceLock<Vec<u8>>,
}

impl Asset {
    const fn new(
        path: &'static str,
        content_type: &'static str,
        deflated: &'static [u8],
        bytes: usize,
        hash: u64,
    ) -> Self {
        Self { path, content_type, deflated, bytes, hash, content: OnceLock::new() }
    }

    /// Returns the file that a path names, without a query.
    pub fn find(path: &str) -> Option<&'static Self> {
        // Bounded by FILES_MAX: the files of the console and of the API.
        ASSETS.iter().find(|asset| asset.path == path)
    }

    /// Its content, which the first request decompresses.
    fn content(&self) -> &[u8] {
        self.content.get_or_init(|| {
            decompress_to_vec_with_limit(self.deflated, self.bytes).expect("the build has compressed it")
        })
    }

    /// Appends the response to a request for the file: without the content if the client has it.
    pub fn write(&self, request: &Request, out: &mut Vec<u8>) {
        let is_known = request.fields.if_none_match.as_deref().is_some_and(|tags| self.is_known(tags));
        let status = if is_known { "304 Not Modified" } else { "200 OK" };
        let fields = format!("ETag: {}\r\n", self.tag());
        let body_bytes = Some(self.bytes as u64);
        let head = Head { status, content_type: Some(self.content_type), body_bytes, fields: &fields };
        head.write_with(&RULES, request.version, request.keeps_alive, out);
        if !is_known && request.method != "HEAD" {
            out.extend_from_slice(self.content());
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

// ASSETS: the description of the API in OpenAPI, where it begins, and the files of the console, if this program has it.
include!(concat!(env!("OUT_DIR"), "/assets.rs"));

const FILES_MAX: usize = 64;

const _: () = assert!(ASSETS.len() <= FILES_MAX);

#[cfg(all(test, feature = "console"))]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::values::tube_rules::RuleKey;

    fn text(path: &str) -> &'static str {
        str::from_utf8(Asset::find(path).expect("it is in the table").content()).expect("it is text")
    }

    #[test]
    fn files_are_as_they_were_before_the_build() {
        for (path, file) in [("/", "src/console/index.html"), ("/api/v1/openapi.yaml", "docs/openapi.yaml")] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            assert!(text(path) == fs::read_to_string(file).expect("it is there"), "{path}");
        }
    }

    // A module that the page does not name is loaded only after the one that imports it.
    #[test]
    fn the_page_names_every_file_it_loads() {
        let page = text("/");
        let named: BTreeSet<&str> = page.split('"').filter(|part| part.starts_with("assets/")).collect();
        let license = "assets/uplot-license.txt";
        let assets = ASSETS.iter().map(|asset| &asset.path[1..]);
        let served = assets.filter(|path| path.starts_with("assets/") && *path != license);
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
