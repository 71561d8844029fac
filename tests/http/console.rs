//! The static files of the console.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::*;

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

fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n{fields}Connection: close\r\n\r\n")
}

#[test]
fn the_console_is_served_under_a_strict_policy() {
    for io in drivers() {
        // The files are no secret: only the API needs the token.
        let secret = Scratch::new("console-token");
        let token = secret.join("token");
        fs::write(&token, "a-secret-of-this-test\n").expect("the file is written");
        fs::set_permissions(&token, Permissions::from_mode(0o600)).expect("it is ours");
        let live = Live::start("console", io, &["--http-token", &token.display().to_string()]);
        let page = live.request(&get("/?a=1", ""));
        if !cfg!(feature = "console") {
            assert!(page.starts_with("HTTP/1.1 404 "), "{page}");
            continue;
        }
        let mut all = files(&page);
        assert!(all.len() > 15, "{all:?}");
        all.push(("/".to_owned(), "text/html; charset=utf-8"));
        for (path, kind) in all {
            let answer = live.request(&get(&path, ""));
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head ends");
            let has = |field: &str| head.lines().any(|line| line.starts_with(field));
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
            assert!(has(&format!("Content-Type: {kind}")), "{path}: {head}");
            assert!(has(&format!("Content-Length: {}", body.len())), "{path}: {head}");
            assert!(
                has("X-Content-Type-Options: nosniff") && has("Cache-Control: no-cache"),
                "{path}: {head}"
            );
            let policy = head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: "));
            let policy = policy.expect("every response has a policy");
            for rule in ["default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"] {
                assert!(policy.contains(rule), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{path}: {policy}");
            // Nothing is loaded from elsewhere, and no script is in the page.
            assert!(path != "/" || !(body.contains("//") || body.contains("<script>")), "{body}");
        }
        let api = live.request(&get("/api/v1/server", ""));
        assert!(api.starts_with("HTTP/1.1 401 "), "{api}");
        for (asked, status) in [
            (get("/index.html", ""), "404 Not Found"),
            (get("/assets/", ""), "404 Not Found"),
            (get("/assets/../Cargo.toml", ""), "404 Not Found"),
            (get("/", "").replace("GET", "POST"), "405 Method Not Allowed"),
        ] {
            let answer = live.request(&asked);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{asked}: {answer}");
        }
    }
}

#[test]
#[cfg(feature = "console")]
fn a_file_is_sent_once_to_a_client_that_keeps_it() {
    let mut bench = Bench::new(usize::MAX);
    let mut ask = |request: &str| {
        bench.sent[HTTP].clear();
        bench.receive(HTTP, request);
        bench.turn();
        bench.text()
    };
    let plain = |fields: &str| format!("GET /assets/main.js HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let whole = ask(&plain(""));
    let tag =
        whole.lines().find_map(|line| line.strip_prefix("ETag: ")).expect("a file has a tag").to_owned();
    for known in [tag.clone(), format!("W/{tag}"), format!("\"x\", {tag}")] {
        let answer = ask(&plain(&format!("If-None-Match: {known}\r\n")));
        assert!(answer.starts_with("HTTP/1.1 304 Not Modified\r\n"), "{known}: {answer}");
        assert!(
            answer.ends_with("\r\n\r\n") && answer.contains(&format!("ETag: {tag}\r\n")),
            "{known}: {answer}"
        );
    }
    assert_eq!(ask(&plain("If-None-Match: \"x\"\r\n")), whole);
    let head = ask(&plain("").replace("GET", "HEAD"));
    assert!(whole.starts_with(&head) && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
#[cfg(feature = "console")]
fn a_browser_that_does_not_read_takes_little_memory() {
    let mut bench = Bench::new(0);
    let before = bench.server.memory_bytes();
    for _ in 0..100 {
        bench.receive(HTTP, "GET /assets/uplot.js HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    // Nothing is sent.
    bench.server.turn(NOW);
    let grown = bench.server.memory_bytes() - before;
    assert!(grown < 400_000, "{grown} bytes");
}
