//! `beanring config show`: each setting with its value and source.

use std::fs;
use std::process::{Command, Output};

use beanring_testkit::process::program;
use beanring_testkit::scratch::Scratch;
use serde_json::{Value, json};

fn show(before: &[&str], after: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program());
    command.args(before).args(["config", "show"]).args(after).envs(variables.iter().copied());
    command.output().expect("it runs")
}

#[test]
fn each_setting_has_its_value_and_source() {
    let scratch = Scratch::new("config-show");
    let (file, token) = (scratch.join("a.toml"), scratch.join("token"));
    let lines = "port = 7\nmax-memory = \"2g\"\nhttp-host = [\"a\", \"b\"]\n[tubes.mail]\nretention = \"5m\"\n\
         [[schedule]]\nname = \"n\"\ntube = \"t\"\nwhen = \"every:5m\"\nbody = \"\"\n";
    fs::write(&file, lines).and_then(|()| fs::write(&token, "a-secret-of-the-api")).expect("there is space");
    let (file, token) = (file.to_str().expect("text"), token.to_str().expect("text"));
    let flags = ["--config", file, "-F", "-b", "/tmp", "-V", "--http-token", token, "--http", "9100"];
    let variables = [("BEANRING_MAX_TUBES", "5"), ("BEANRING_PORT", "8")];
    let output = show(&flags, &["--json"], &variables);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
    let settings: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    for expected in [
        json!({"name": "listen", "value": "0.0.0.0", "source": "default"}),
        json!({"name": "port", "value": "8", "source": "variable", "place": "BEANRING_PORT"}),
        json!({"name": "max-tubes", "value": "5", "source": "variable", "place": "BEANRING_MAX_TUBES"}),
        json!({"name": "max-memory", "value": "2g", "source": "file", "place": format!("{file}:2")}),
        json!({"name": "http-host", "value": "a,b", "source": "file", "place": format!("{file}:3")}),
        json!({"name": "no-sync", "value": "yes", "source": "flag", "place": "-F/--no-sync"}),
        json!({"name": "sync-interval", "value": null, "source": "default"}),
        json!({"name": "log-level", "value": "debug", "source": "default"}),
        json!({"name": "user", "value": null, "source": "default"}),
        json!({"name": "http-token", "value": token, "source": "flag", "place": "--http-token"}),
        json!({"name": "schedule.n.tube", "value": "t", "source": "file", "place": file}),
        json!({"name": "schedule.n.when", "value": "every:5m", "source": "file", "place": file}),
        json!({"name": "tubes.mail.retention", "value": "300", "source": "file", "place": file}),
    ] {
        assert!(settings.contains(&expected), "{expected}: {text}");
    }
    assert!(!text.contains("a-secret"), "the token is not printed");
    let table = String::from_utf8(show(&flags, &[], &variables).stdout).expect("text");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SETTING", "VALUE", "SOURCE"]);
    assert_eq!(rows.len(), settings.len() + 1);
    assert!(
        rows.contains(&vec!["port", "8", "BEANRING_PORT"]) && rows.contains(&vec!["user", "-", "default"]),
        "{table}"
    );
}

/// The URL of the database may have a password. It is shown nowhere: not as a setting, nor in an error about the file.
#[cfg(feature = "replicate")]
#[test]
fn the_password_of_the_database_is_hidden() {
    const SHOWN: &str = "postgres://me:***@db.example:5432/queue";
    let scratch = Scratch::new("config-password");
    let file = scratch.join("a.toml");
    let path = file.to_str().expect("text").to_owned();
    let url = "postgres://me:s3cret@db.example:5432/queue";
    fs::write(&file, format!("replicate = \"{url}\"\n")).expect("there is space");
    for (flags, variables) in [
        (&["--config", &*path][..], &[][..]),
        (&["--replicate", url], &[]),
        (&[], &[("BEANRING_REPLICATE", url)]),
    ] {
        for format in [&["--json"][..], &[]] {
            let output = show(flags, format, variables);
            let text = String::from_utf8(output.stdout).expect("text");
            assert!(output.status.success() && text.contains(SHOWN) && !text.contains("s3cret"), "{text}");
        }
    }
    // Nothing is shown of a value that a server would not start with.
    for url in ["me:s3cret@h/q", "postgres://h/q?passwd=s3cret", "PASSWORD=s3cret host=x", "s3cret"] {
        let output = show(&["--replicate", url], &[], &[]);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(
            output.status.success() && text.contains(" *** ") && !text.contains("s3cret"),
            "{url}: {text}"
        );
    }
    for wrong in [
        format!("replicate = {url}\n"),
        format!("replicate = \"{url}\n"),
        format!("replicate = [\"{url}\"]\n"),
        format!("replicat = \"{url}\"\n"),
        format!("replicate = \"{url}\"\nwal-dir = \"/tmp\"\n"),
        format!("replicate = '{url}' x\n"),
        "replicate = \"postgres://me:s3cret\n".to_owned(),
        "lease = 0\nreplicate = \"host=db password=s3cret\"\n".to_owned(),
    ] {
        fs::write(&file, &wrong).expect("there is space");
        let output = show(&["--config", &path], &[], &[]);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).concat();
        assert!(output.status.code() == Some(2) && !said.contains("s3cret"), "{wrong}: {said}");
    }
    for flags in
        [&[url][..], &["replicate", url], &["--port", url], &["--check-config", url], &["put", "--pri", url]]
    {
        let output = Command::new(program()).args(flags).output().expect("it runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(2) && said.contains("me:***@db"), "{flags:?}: {said}");
    }
}

#[test]
fn a_wrong_setting_is_an_error_as_at_a_start() {
    let output = show(&["-p", "x"], &["--json"], &[]);
    let message = "-p/--port \"x\": must be a number from 0 to 65535";
    let error: Value = serde_json::from_slice(&output.stdout).expect("an object");
    assert_eq!(error, json!({"error": "bad-request", "message": message}));
    let line = format!("beanring: {message}\n");
    assert_eq!((output.status.code(), output.stderr), (Some(2), line.into_bytes()));
    let output = show(&[], &["-p", "1"], &[]);
    let line = "beanring: -p/--port: this is a flag of the server; write it before the command: beanring -p ... config show\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(2), line));
}
