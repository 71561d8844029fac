//! What neither the conversations of `tests/conversations` nor random lines show: very long numbers and lines, and requests of browsers.

mod naive;

use super::*;

fn check(line: &str, expect: Command<'_>) {
    assert_eq!(parse(line.as_bytes()), Ok(expect), "{line:?}");
}

fn check_bad(lines: &[&str]) {
    for line in lines {
        assert_eq!(parse(line.as_bytes()), Err(ParseError::BadFormat), "{line:?}");
    }
}

#[test]
fn long_numbers_are_exact() {
    check("delete 9999999999999999999", Command::Delete(JobId(9_999_999_999_999_999_999)));
    check("delete 0000000000000000000000018446744073709551615", Command::Delete(JobId(u64::MAX)));
    check_bad(&["delete 000018446744073709551616", "delete 36893488147419103232", "delete ٣"]);
    let Ok(Command::DeleteBatch(ids)) = parse(b"delete-batch  7   007 018446744073709551615 0") else {
        panic!("it is a command");
    };
    assert_eq!(ids.iter().collect::<Vec<_>>(), [7, 7, u64::MAX, 0].map(JobId));
}

fn check_put(args: &str, bytes: u32, tags: Option<&str>) {
    let put = PutArgs { pri: 0, delay: Seconds::ZERO, ttr: Seconds::ZERO, bytes };
    let tags =
        tags.map(|tags| if tags.is_empty() { Tags::NONE } else { Tags::new(tags.as_bytes()).unwrap() });
    check(&format!("put {args}"), Command::Put { args: put, tags });
}

#[test]
fn only_tags_make_a_put_longer() {
    let put = |zeros: usize, rest: &str| format!("put {}0 0 0 5{rest}", "0".repeat(zeros));
    let usual = LINE_BYTES_MAX - 2 - put(0, "").len();
    check_put(&put(usual, "")[4..], 5, Some(""));
    check_bad(&[&put(usual + 1, "")]);
    check_put(&put(usual - 2, " x")[4..], 5, None);
    check_bad(&[&put(usual - 1, " x")]);
    check_put(&put(usual, " idp:k")[4..], 5, Some("idp:k"));
    check_put(&put(usual - 7, " idp:k ")[4..], 5, None);
    check_bad(&[&put(usual - 6, " idp:k ")]);
}

/// Parses a line as a server with `--sub-second` does.
fn parse_with_decimals(line: &[u8]) -> Result<Command<'_>, ParseError> {
    match parse(line) {
        Err(ParseError::BadFormat) => parse_decimals(line),
        parsed => parsed,
    }
}

/// A browser may send any method, but its target begins with `/`, and that of other programs with `/`, `*` or `http`.
#[test]
fn no_request_line_is_a_command_that_does_something() {
    let parsed = |line: String| match parse(line.as_bytes()) {
        Ok(Command::Quit | Command::PutBatch { count: None }) | Err(_) => None,
        Ok(command) => Some(format!("{command:?}")),
    };
    assert!(parsed("move-job 3 HTTP/1.1".to_owned()).is_some());
    for word in naive::WORDS.map(str::trim_end) {
        for target in ["/", "/1", "/a?b=1", "*", "http://a/", "https://a:1/b"] {
            for version in ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0"] {
                assert_eq!(parsed(format!("{word} {target} {version}")), None, "{word}");
            }
        }
    }
}
