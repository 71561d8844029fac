//! Files that the command line names: a start refuses what is no regular file or too large, and says what it is.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

#[cfg(feature = "replicate")]
use beanring_testkit::certificates::Certificates;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::beanring;
use beanring_testkit::scratch::{Scratch, secret};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// The memory that a program may have whose file has no end: more than it needs by far.
const ADDRESS_SPACE: &str = "200000";

/// Runs a program that must end. Returns its exit code, and what it says.
fn refusal(command: Command) -> (Option<i32>, String) {
    let mut server = LoggedServer::spawn(command, Scratch::new("files-said"));
    (server.wait(), server.lines().join("\n"))
}

/// Each flag that names a file, with the flags that it needs.
fn flags() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut flags = vec![("--config", vec![]), ("--auth", vec![]), ("--http-token", vec!["--http", "0"])];
    if cfg!(feature = "tls") {
        let tls = ["--tls-listen", "127.0.0.1:0"];
        flags.push(("--tls-cert", [&tls[..], &["--tls-key", "SERVER.key"]].concat()));
        flags.push(("--tls-key", [&tls[..], &["--tls-cert", "SERVER.pem"]].concat()));
        let pair = ["--tls-cert", "SERVER.pem", "--tls-key", "SERVER.key"];
        flags.push(("--tls-client-ca", [&tls[..], &pair[..]].concat()));
    }
    flags
}

#[test]
fn a_start_reads_only_regular_files() {
    let scratch = Scratch::new("files");
    let at = |name: &str| scratch.join(name);
    mkfifo(&at("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
    symlink("fifo", at("link")).expect("it is new");
    symlink("nothing", at("dangling")).expect("it is new");
    secret(&at("SERVER.pem"), "no certificate");
    secret(&at("SERVER.key"), "no key");
    File::create(at("large")).and_then(|file| file.set_len(1 << 40)).expect("the file system has holes");
    let kinds = [
        (at("fifo"), "it is a FIFO, not a regular file; name a regular file"),
        (at("link"), "it is a FIFO, not a regular file; name a regular file"),
        (at("dangling"), "it is a link to a file that does not exist; correct the link or the path"),
        (scratch.0.clone(), "it is a directory; name a file"),
        (Path::new("/dev/zero").to_owned(), "it is a device, not a regular file; name a regular file"),
        (at("large"), "KiB; name a smaller one"),
    ];
    for (flag, needed) in flags() {
        for (path, expected) in &kinds {
            // Under sh, which bounds the memory.
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"")]);
            command.arg(beanring(&[]).get_program()).args(["-l", "127.0.0.1", "-p", "0", "--io", "epoll"]);
            command.args(&needed).arg(flag).arg(path).current_dir(&scratch.0);
            let (code, said) = refusal(command);
            assert!(code == Some(2) && said.contains(expected), "{flag} {}: {code:?} {said}", path.display());
        }
    }
}

/// The files in the URL of a database. A check refuses them as a start does.
#[cfg(feature = "replicate")]
#[test]
fn a_start_reads_only_regular_files_of_the_database() {
    let scratch = Scratch::new("files-database");
    let client = Certificates::new(&scratch.0).client;
    let [fifo, certificate, key] =
        [&scratch.join("fifo"), &client.certificate, &client.key].map(|path| path.display().to_string());
    mkfifo(&scratch.join("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
    let at = |words: &str| format!("postgres://queue@127.0.0.1:1/queue?sslmode=require&{words}");
    for words in [
        format!("sslrootcert={fifo}"),
        format!("sslcert={fifo}"),
        format!("sslcert={fifo}&sslkey={key}"),
        format!("sslcert={certificate}&sslkey={fifo}"),
    ] {
        for check in [&[][..], &["--check-config"]] {
            let mut command = beanring(&["-l", "127.0.0.1", "-p", "0", "--replicate", &at(&words)]);
            command.args(check).args(["--no-forward"]);
            let (code, said) = refusal(command);
            let expected = format!("{fifo} in the URL of the database: it is a FIFO, not a regular file");
            assert!(code == Some(2) && said.contains(&expected), "{words} {check:?}: {code:?} {said}");
        }
    }
    // As with psql, a password file of another kind is ignored. The start goes on, and waits for the database.
    let url = at(&format!("passfile={fifo}"));
    let command = beanring(&["-l", "127.0.0.1", "-p", "0", "--replicate", &url, "--no-forward"]);
    let mut server = LoggedServer::spawn(command, Scratch::new("files-passfile"));
    server.logged(&format!("{fifo} is ignored: it is a FIFO, not a regular file"));
    server.logged("this server waits for that");
    server.stop();
}

#[cfg(feature = "client")]
#[test]
fn a_client_reads_only_regular_files() {
    let scratch = Scratch::new("files-client");
    let fifo = scratch.join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
    let fifo = fifo.to_str().expect("text");
    for flags in [
        &["stats", "-a", "127.0.0.1:1", "--token-file", fifo][..],
        &["stats", "-a", "beanstalks://127.0.0.1:1", "--tls-ca", fifo],
    ] {
        if flags.contains(&"--tls-ca") && !cfg!(feature = "tls") {
            continue;
        }
        let (code, said) = refusal(beanring(flags));
        assert!(
            code == Some(2) && said.contains("it is a FIFO, not a regular file"),
            "{flags:?}: {code:?} {said}"
        );
    }
}

/// The authorities that the environment names instead of those of the system.
#[cfg(all(feature = "client", feature = "tls"))]
#[test]
fn authorities_of_the_environment_are_regular_files() {
    let scratch = Scratch::new("files-trusted");
    mkfifo(&scratch.join("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).expect("it is new");
    for (named, expected) in [
        (scratch.join("fifo"), "it is a FIFO, not a regular file"),
        (Path::new("/dev/zero").to_owned(), "it is a device, not a regular file"),
        (scratch.join("nothing"), "there is no such file"),
    ] {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {ADDRESS_SPACE}; exec \"$0\" \"$@\"")]);
        command.arg(beanring(&[]).get_program()).args(["stats", "-a", "beanstalks://127.0.0.1:1"]);
        command.env("SSL_CERT_FILE", &named);
        let (code, said) = refusal(command);
        assert!(code == Some(2) && said.contains(expected), "{}: {code:?} {said}", named.display());
    }
    // Of a directory only the regular files count, and there are none.
    let mut command = beanring(&["stats", "-a", "beanstalks://127.0.0.1:1"]);
    command.env_remove("SSL_CERT_FILE").env("SSL_CERT_DIR", &scratch.0);
    let (code, said) = refusal(command);
    assert!(code == Some(2) && said.contains("the system has no trusted certificates"), "{code:?} {said}");
}
