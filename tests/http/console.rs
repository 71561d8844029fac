//! The static files of the console.

#[cfg(feature = "console")]
use beanring_testkit::config::config;
use beanring_testkit::driver;
#[cfg(feature = "console")]
use beanring_testkit::http_client::{HttpInMemory, with_fields};
use beanring_testkit::http_client::{page, request};

use super::live::Live;
#[cfg(feature = "console")]
use super::stepped;

/// The page and what it loads, with their content types.
fn files(page: &str) -> Vec<(String, &'static str)> {
    let loaded = page.split('"').filter(|part| part.starts_with("assets/")).map(|part| {
        let kind = match part.rsplit_once('.').expect("a file has a type").1 {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            other => panic!("no type for {other}"),
        };
        (format!("/{part}"), kind)
    });
    let mut all: Vec<_> = loaded.collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn the_console_is_served_under_a_strict_policy() {
    for io in driver::allowed("HTTP") {
        // The files are no secret: only the API needs the token.
        let live = Live::start(io, &["--http-token", "TOKEN"]);
        let index = live.connect().ask(&page("/?a=1"));
        if !cfg!(feature = "console") {
            assert_eq!(index.status, 404);
            continue;
        }
        let mut all = files(index.text());
        assert!(all.len() > 15, "{all:?}");
        all.push(("/".to_owned(), "text/html; charset=utf-8"));
        for (path, kind) in all {
            let answer = live.connect().ask(&page(&path));
            assert_eq!(answer.status, 200, "{path}");
            for (field, value) in [
                ("Content-Type", kind),
                ("Content-Length", &answer.body.len().to_string()),
                ("X-Content-Type-Options", "nosniff"),
                ("Cache-Control", "no-cache"),
            ] {
                assert_eq!(answer.field(field), Some(value), "{path}: {field}");
            }
            let policy = answer.field("Content-Security-Policy").expect("every response has a policy");
            for rule in ["default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"] {
                assert!(policy.contains(rule), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{path}: {policy}");
            // Nothing is loaded from elsewhere, and no script is in the page.
            let body = answer.text();
            assert!(path != "/" || !(body.contains("//") || body.contains("<script>")), "{body}");
        }
        for (method, target, status) in [
            ("GET", "/api/v1/server", 401),
            ("GET", "/index.html", 404),
            ("GET", "/assets/", 404),
            ("GET", "/assets/../Cargo.toml", 404),
            ("POST", "/", 405),
        ] {
            assert_eq!(live.connect().ask(&request(method, target, "", None)).status, status, "{target}");
        }
    }
}

#[test]
#[cfg(feature = "console")]
fn a_file_is_sent_once_to_a_client_that_keeps_it() {
    let mut bench = HttpInMemory::writable();
    let file = page("/assets/main.js");
    let whole = bench.ask(&file);
    let tag = whole.field("ETag").expect("a file has a tag").to_owned();
    for known in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}")] {
        bench.send(&with_fields(&file, &format!("If-None-Match: {known}\r\n")));
        let answer = bench.response(false);
        assert!(answer.head.starts_with("HTTP/1.1 304 Not Modified\r\n"), "{known}: {answer:?}");
        assert_eq!(answer.field("ETag"), Some(&*tag), "{known}");
        assert!(bench.received.is_empty(), "{known}: no body follows");
    }
    let again = bench.ask(&with_fields(&file, "If-None-Match: \"x\"\r\n"));
    assert_eq!((&again.head, &again.body), (&whole.head, &whole.body));
    let head = bench.ask(&request("HEAD", "/assets/main.js", "", None));
    assert_eq!(head.head, whole.head);
    assert!(bench.received.is_empty(), "no body follows");
}

#[test]
#[cfg(feature = "console")]
fn a_browser_that_does_not_read_takes_little_memory() {
    let (mut server, http, _) = stepped(config(65_535));
    server.piece_bytes = 0;
    let before = server.server.memory_bytes();
    for _ in 0..100 {
        server.send(http, &page("/assets/uplot.js"));
    }
    server.turn();
    let grown = server.server.memory_bytes() - before;
    assert!(grown < 400_000, "{grown} bytes");
}
