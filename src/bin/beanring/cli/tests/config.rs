//! Settings of the command line, and what they are checked for.

use std::fs;
use std::ops::ControlFlow;

use beanring::config::size::Size;
use beanring::config::{Given, ServerConfig, Warning, ZERO_COPY_BYTES_DEFAULT, segment_bytes_for};
use beanring::io::socket::Address;
use beanring::time::Span;
use beanring::values::limits::{JOB_BYTES_DEFAULT, JOB_BYTES_MAX};
use beanring::wal::Durability;

use super::*;

pub fn settings(line: &str) -> Settings {
    match parse(["beanring"].into_iter().chain(line.split_whitespace())) {
        Ok(ControlFlow::Continue(parsed)) => parsed.settings,
        other => panic!("{line}: {other:?}"),
    }
}

/// The sources do not count in comparisons.
pub fn check(line: &str) -> Result<ServerConfig, String> {
    let config = ServerConfig::check(settings(line)).map_err(|error| error.to_string())?;
    Ok(ServerConfig { given: Given::default(), ..config })
}

/// Combines a file and a command line. An error lacks the directory of the file.
pub fn with_file(text: &str, line: &str) -> Result<ServerConfig, String> {
    let dir = std::env::temp_dir().join(format!("beanring-config-{:?}", std::thread::current().id()));
    fs::create_dir_all(&dir).expect("a directory is created");
    let file = dir.join("beanring.toml");
    fs::write(&file, text).expect("the file is written");
    let complete = settings(&format!("{line} --config {}", file.display())).complete();
    let result = complete.and_then(ServerConfig::check);
    fs::remove_dir_all(&dir).expect("the directory exists");
    let config = result.map(|config| ServerConfig { file: None, given: Given::default(), ..config });
    config.map_err(|error| error.to_string().replace(&format!("{}/", dir.display()), ""))
}

fn tcp(host: &str, port: u16) -> Option<Address> {
    Some(Address::Tcp { host: host.to_owned(), port })
}

#[test]
fn addresses() {
    for (line, expected) in [
        ("", None),
        ("-p 1", tcp("0.0.0.0", 1)),
        ("-p 65535", tcp("0.0.0.0", 65_535)),
        ("-l ::1", tcp("::1", 11300)),
        ("-l ::", tcp("::", 11300)),
        ("-l fe80::1%eth0", tcp("fe80::1%eth0", 11300)),
        ("-l [::1] -p 0", tcp("::1", 0)),
        ("-l localhost", tcp("localhost", 11300)),
        ("-l queue-1.example", tcp("queue-1.example", 11300)),
        ("-l unix:/a/b -p 7", Some(Address::Unix("/a/b".into()))),
    ] {
        assert_eq!(check(line).unwrap().listen, expected, "{line}");
    }
    for (given, error) in [
        ("unix:", "the path of the socket is missing; write unix:PATH, such as unix:/run/beanring/socket"),
        ("./x.sock", "a path needs unix: before it; write unix:./x.sock"),
    ] {
        assert_eq!(check(&format!("-l {given}")), Err(format!("-l/--listen \"{given}\": {error}")));
        assert_eq!(check(&format!("--http {given}")), Err(format!("--http \"{given}\": {error}")));
    }
    for given in ["[]", "1.2.3.400", "a/b", "tcp://a", "::g", &"x".repeat(254)] {
        let error = check(&format!("-l {given}")).unwrap_err();
        assert!(error.ends_with("\": must be an IP address, a host name or unix:PATH"), "{error}");
    }
    for given in ["127.0.0.1:7", "localhost:7", "[::1]:7"] {
        let error =
            format!("-l/--listen \"{given}\": must be an address without a port; set the port with -p 7");
        assert_eq!(check(&format!("-l {given}")), Err(error));
    }
    let path = "x".repeat(108);
    assert!(check(&format!("-l unix:{}", &path[1..])).is_ok());
}

#[test]
fn an_error_names_the_flag_and_the_range() {
    for (line, error) in [
        ("-p 65536", "-p/--port \"65536\": must be a number from 0 to 65535"),
        ("-p http", "-p/--port \"http\": must be a number from 0 to 65535"),
        ("-p +1", "-p/--port \"+1\": must be a number from 0 to 65535"),
        ("-z -1", "-z/--max-job-size \"-1\": must be a size such as 65536, 64k, 10m or 2g, at most 1g"),
        (
            "-s 1025g",
            "-s/--wal-segment-size \"1025g\": must be a size such as 65536, 64k, 10m or 2g, at most 1024g",
        ),
        ("--max-tubes x", "--max-tubes \"x\": must be a number from 0 to 4294967295"),
        ("--max-watches -1", "--max-watches \"-1\": must be a number from 0 to 4294967295"),
        (
            "--zero-copy-memory 1GB",
            "--zero-copy-memory \"1GB\": GB is not a unit here; write GiB or g for 1024^3 bytes",
        ),
    ] {
        assert_eq!(check(line).unwrap_err(), error, "{line}");
    }
}

#[test]
fn job_sizes_at_each_boundary() {
    for (line, bytes, warnings) in [
        ("", 65_535, 0),
        ("-z 0", 0, 0),
        ("-z 1m", 1 << 20, 0),
        ("-z 1g", JOB_BYTES_MAX, 0),
        ("-z 1073741824", JOB_BYTES_MAX, 0),
        ("-z 1073741825", JOB_BYTES_MAX, 1),
        ("-z 2g", JOB_BYTES_MAX, 1),
        ("-z 99999999999999999999999", JOB_BYTES_MAX, 1),
    ] {
        let config = check(line).unwrap();
        assert_eq!((config.job_bytes_max, config.warnings.len()), (bytes, warnings), "{line}");
    }
}

#[test]
fn the_largest_job_fits_into_a_segment() {
    let needed = segment_bytes_for(JOB_BYTES_MAX);
    for (line, bytes) in [
        ("-b /tmp", 65_535),
        ("-s 65536", 65_535),
        ("-b /tmp -s 64k", 61_146),
        ("-b /tmp -s 65536 -z 61146", 61_146),
        ("-b /tmp -s 69632", 65_242),
        ("-b /tmp -s 73728", 65_535),
        ("-b /tmp -z 10481370", 10_481_370),
        ("-z 10481371", 10_481_371),
        (&format!("-b /tmp -z 1g -s {needed}"), JOB_BYTES_MAX),
    ] {
        let config = check(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(config.job_bytes_max, bytes, "{line}");
        let is_lowered = !line.contains("-z") && bytes < JOB_BYTES_DEFAULT;
        let warning = Warning::JobBytesOfSegment { bytes };
        assert_eq!(config.warnings.contains(&warning), is_lowered, "{line}");
    }
    for (line, given, segment) in [
        ("-b /tmp -s 65536 -z 61147", "61147", "68k".to_owned()),
        ("-b /tmp -z 10481371", "10481371", "10244k".to_owned()),
        ("-b /tmp -z 1g", "1g", Size(needed).to_string()),
        ("-b /tmp -z 99999999999", "99999999999", Size(needed).to_string()),
    ] {
        let error = format!(
            "-z/--max-job-size \"{given}\": such a job does not fit into a segment of the job log; set -s to \
             {segment} or more, or -z lower"
        );
        assert_eq!(check(line), Err(error), "{line}");
    }
}

#[test]
fn limits() {
    let memory = |given: &str| check(&format!("--max-memory {given}")).map(|config| config.max_memory_bytes);
    assert_eq!(check("").unwrap().max_memory_bytes, None);
    for (given, bytes) in [
        ("0", None),
        ("0g", None),
        ("16777216", Some(16 << 20)),
        ("16384k", Some(16 << 20)),
        ("256MiB", Some(256 << 20)),
        ("2G", Some(2 << 30)),
        ("18446744073709551615", Some(u64::MAX)),
    ] {
        assert_eq!(memory(given), Ok(bytes), "{given}");
    }
    for given in ["16777215", "16383k", "15m"] {
        let error =
            format!("--max-memory \"{given}\": must be at least 16m, such as 512m or 2g, or 0 for no limit");
        assert_eq!(memory(given), Err(error));
    }
    assert!(memory("1.5g").is_err() && memory("17179869184g").is_err());
    assert_eq!(check("").unwrap().zero_copy_bytes_max, ZERO_COPY_BYTES_DEFAULT);
    assert_eq!(check("--max-memory 64m").unwrap().zero_copy_bytes_max, 16 << 20);
    assert_eq!(check("--zero-copy-memory 8MiB").unwrap().zero_copy_bytes_max, 8 << 20);
    let connections = |line| check(line).unwrap().max_connections;
    assert_eq!(connections(""), None);
    assert_eq!(connections("--max-connections 0"), None);
    assert_eq!(connections("--max-connections 7"), Some(7));
    let tubes = |line| check(line).map(|config| (config.max_tubes, config.max_watches));
    assert_eq!(tubes(""), Ok((Some(100_000), Some(65_536))));
    assert_eq!(tubes("--max-tubes 0 --max-watches 0"), Ok((None, None)));
    assert_eq!(tubes("--max-tubes 1 --max-watches 4294967295"), Ok((Some(1), Some(u32::MAX))));
}

#[test]
fn monitoring() {
    let http = |given: &str| check(&format!("--http {given}")).map(|config| config.http);
    assert_eq!(check("").unwrap().http, None);
    for (given, host, port) in [
        ("9100", "127.0.0.1", 9100),
        (":9100", "127.0.0.1", 9100),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("[::1]:80", "::1", 80),
        ("host.example:80", "host.example", 80),
    ] {
        assert_eq!(http(given), Ok(tcp(host, port)), "{given}");
    }
    assert_eq!(http("unix:/a"), Ok(Some(Address::Unix("/a".into()))));
    assert_eq!(http("unix:/a,mode=0600"), Ok(Some(Address::Unix("/a".into()))));
    for given in ["host:", "1:+80", "+80", "::1", "a/b:80"] {
        let error = format!("--http \"{given}\": must be PORT, HOST:PORT, [IPV6]:PORT or unix:PATH");
        assert_eq!(http(given), Err(error), "{given}");
    }
    let taken = "--http \"11300\": clients connect to this address (-l, -p); choose another port";
    assert_eq!(check("-l 127.0.0.1 --http 11300"), Err(taken.to_owned()));
    assert!(check("-l 127.0.0.1 -p 0 --http 0").is_ok());

    let hosts = |line: &str| check(line).map(|config| config.http_hosts);
    assert_eq!(hosts(""), Ok(vec![]));
    let several = ["a.b", "*.c", "*"].map(str::to_owned).to_vec();
    assert_eq!(hosts("--http-host a.b,*.c --http-host *"), Ok(several));
    for given in ["a:1", "a/b", "*x"] {
        let error = format!("--http-host \"{given}\": must be a host name without a port, *.NAME or *");
        assert_eq!(hosts(&format!("--http-host x,{given}")), Err(error));
    }
    let error = "--http-host \"a,,b\": a name is empty; remove the comma";
    assert_eq!(hosts("--http-host a,,b"), Err(error.to_owned()));
    let prefix =
        |given: &str| check(&format!("--metrics-prefix {given}")).map(|config| config.metrics_prefix);
    let tubes = |line: &str| check(line).map(|config| config.metrics_tubes);
    assert_eq!(["", "--metrics-tubes 0"].map(tubes), [Ok(1000), Ok(0)]);
    assert!(tubes("--metrics-tubes all").is_err());
    let keepalive = |line: &str| check(line).map(|config| config.tcp_keepalive_s);
    assert_eq!(
        ["", "--tcp-keepalive 0", "--tcp-keepalive 32767"].map(keepalive),
        [Ok(60), Ok(0), Ok(32_767)]
    );
    assert!(keepalive("--tcp-keepalive 32768").unwrap_err().contains("0 to 32767"));
    assert_eq!(check("").unwrap().metrics_prefix, "beanring");
    assert_eq!(prefix("my_Queue2"), Ok("my_Queue2".to_owned()));
    for given in ["2queue", "my-queue", "a:b", "é"] {
        assert!(prefix(given).unwrap_err().contains("must consist of letters, digits and _"), "{given}");
    }
}

#[test]
fn the_job_log() {
    let wal = |line| check(line).unwrap().wal;
    assert_eq!(check("-b /tmp").unwrap().wal_dir, Some("/tmp".into()));
    assert_eq!(check("").unwrap().wal_dir, None);
    for (line, durability) in [
        ("", Durability::Within(Span::from_millis(50))),
        ("-f 0", Durability::Always),
        ("-f 7", Durability::Within(Span::from_millis(7))),
        ("-F", Durability::Never),
        ("-F -f 7", Durability::Within(Span::from_millis(7))),
        ("-f 7 -F", Durability::Never),
    ] {
        assert_eq!(wal(line).durability, durability, "{line}");
    }
    for (line, bytes) in
        [("", 10_485_760), ("-s 1", 65_536), ("-s 65537", 69_632), ("-s 1m", 1 << 20), ("-s 1024g", 1 << 40)]
    {
        assert_eq!(wal(line).segment_bytes, bytes, "{line}");
    }
    let warnings = |line| check(line).unwrap().warnings;
    assert_eq!(warnings("-b /tmp -s 64k -z 9"), []);
    let warning = warnings("-b /tmp -s 1k").first().map(ToString::to_string);
    let expected = "-s/--wal-segment-size \"1k\": below the minimum of 64k; the server uses 64k";
    assert_eq!(warning.as_deref(), Some(expected));
}

#[test]
fn log_levels() {
    for (line, expected) in [
        ("", LogLevel::Info),
        ("--log-level error", LogLevel::Error),
        ("-V", LogLevel::Debug),
        ("-VV", LogLevel::Trace),
        ("--log-level warn -V", LogLevel::Debug),
        ("-VV --log-level warn", LogLevel::Warn),
        ("-V --log-level warn -V", LogLevel::Trace),
        ("-VVVVV", LogLevel::Trace),
    ] {
        assert_eq!(check(line).unwrap().log_level, expected, "{line}");
    }
}

#[test]
fn obsolete_flags_warn() {
    let obsolete = |flag| Warning::Obsolete { flag };
    assert_eq!(check("-c -n").unwrap().warnings, [obsolete("-c"), obsolete("-n")]);
}

#[test]
fn settings_without_effect_warn() {
    let warnings = |result: Result<ServerConfig, String>| {
        result.unwrap().warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (line, expected) in [
        ("", &[][..]),
        ("-b /tmp -f 7 -s 1m --http 9100 --http-host a --metrics-tubes 1", &[]),
        #[cfg(feature = "replicate")]
        (
            "--replicate postgres://a@b/c -f 0 -s 1m",
            &["-f/--sync-interval has no effect with --replicate; remove it"],
        ),
        ("-f 50", &["-f/--sync-interval has no effect without -b/--wal-dir; remove it, or set -b"]),
        (
            "-F -s 1m",
            &[
                "-F/--no-sync has no effect without -b/--wal-dir; remove it, or set -b",
                "-s/--wal-segment-size has no effect without -b/--wal-dir; remove it, or set -b",
            ],
        ),
        ("--http-host a", &["--http-host has no effect without --http; remove it, or set --http"]),
        ("--metrics-prefix a", &["--metrics-prefix has no effect without --http; remove it, or set --http"]),
        ("--http-token /t", &["--http-token has no effect without --http; remove it, or set --http"]),
        (
            "--http-allow-writes",
            &["--http-allow-writes has no effect without --http; remove it, or set --http"],
        ),
        ("--http 1 --http-token /t", &[]),
        ("--http 1 --proxy-protocol listen,http", &[]),
        (
            "--proxy-protocol listen,tls-listen,http",
            &[
                "--proxy-protocol tls-listen has no effect without --tls-listen; remove it, or set --tls-listen",
                "--proxy-protocol http has no effect without --http; remove it, or set --http",
            ],
        ),
        (
            "-l none --tls-listen 1 --tls-cert /c --proxy-protocol listen,tls-listen",
            &["--proxy-protocol listen has no effect without --listen; remove it, or set --listen"],
        ),
        ("--http 1 --http-allow-writes", &[]),
        (
            "--http 1 --http-token /t --http-allow-writes",
            &["--http-allow-writes has no effect with --http-token; remove one of them"],
        ),
    ] {
        // A build without TLS refuses the headers.
        if cfg!(feature = "tls") || !line.contains("--proxy-protocol") {
            assert_eq!(warnings(check(line)), expected, "{line}");
        }
    }
    assert!(warnings(with_file("no-sync = false", "")).is_empty());
    let is_off = "http = 1\nhttp-token = \"/t\"\nhttp-allow-writes = false";
    assert!(warnings(with_file(is_off, "")).is_empty());
    let of_file = warnings(with_file("\nsync-interval = 0", ""));
    assert!(of_file[0].ends_with(
        "beanring.toml:2: sync-interval has no effect without -b/--wal-dir; remove it, or set -b"
    ));
}

#[cfg(feature = "replicate")]
#[test]
fn the_console_of_a_leader_is_named_as_browsers_reach_it() {
    let line = |url: &str, more: &str| {
        format!("--replicate postgres://a/b --http 9100 --advertise-http {url}{more}")
    };
    let url = |line: &str| {
        check(line).map(|config| config.replicate.and_then(|replicate| replicate.advertise_http))
    };
    for (given, expected) in [
        ("10.0.0.5:9100", "http://10.0.0.5:9100/"),
        ("queue-1:80", "http://queue-1:80/"),
        ("[fd00::1]:80", "http://[fd00::1]:80/"),
        ("https://queue.example", "https://queue.example/"),
        ("https://queue.example:8443/one/", "https://queue.example:8443/one/"),
        ("http://10.0.0.5/one", "http://10.0.0.5/one/"),
    ] {
        assert_eq!(url(&line(given, "")), Ok(Some(expected.into())), "{given}");
    }
    if cfg!(feature = "tls") {
        let with_tls = line("queue-1:80", " --http-tls --tls-cert /c --tls-key /k");
        assert_eq!(url(&with_tls), Ok(Some("https://queue-1:80/".into())));
    }
    for wrong in [
        "9100",
        ":9100",
        "queue-1",
        "0.0.0.0:80",
        "[::]:80",
        "unix:/a",
        "https://",
        "http:///a",
        "javascript:alert(1)",
        "https://a/?b",
        "https://a/#b",
        "https://me:secret@a/",
        "ftp://a/",
    ] {
        let error = url(&line(wrong, "")).unwrap_err();
        assert!(
            error.contains("must be where browsers reach the console of this server"),
            "{wrong}: {error}"
        );
    }
}

#[cfg(feature = "replicate")]
#[test]
fn other_servers_are_told_an_address_that_leads_here() {
    for address in ["11401", "0.0.0.0", "0.0.0.0:7", "::", "[::]:7"] {
        let error = check(&format!("--replicate postgres://a/b --advertise {address}")).unwrap_err();
        let expected = "must name the host that other servers reach this one by, as in 10.0.0.5 or HOST:PORT";
        assert!(error.contains(expected), "{error}");
    }
}
