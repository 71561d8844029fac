//! What a server drops before it accepts connections: the privileges of root, and access to the files of others.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use beanring_testkit::client::{Client, put, serve_by};
use beanring_testkit::kernel::has_landlock;
use beanring_testkit::logged::LoggedServer;
use beanring_testkit::process::{Address, ServerProcess, Transport, beanring, program};
use beanring_testkit::scratch::{Scratch, lines_of};
use nix::sys::signal::Signal;
use nix::unistd::{Group, User, geteuid};

/// No capability.
const NONE: &str = "0000000000000000";
/// CAP_DAC_OVERRIDE and CAP_IPC_LOCK.
const OF_ROOT: &str = "0000000000004002";

/// Returns the user `nobody`, if this test may start programs as that user.
fn nobody(what: &str) -> Option<User> {
    let has_setpriv = Command::new("setpriv").arg("--version").output().is_ok();
    if !geteuid().is_root() || !has_setpriv {
        println!("skipped: {what}, because only root can become another user, by setpriv of util-linux");
        return None;
    }
    Some(User::from_name("nobody").expect("the list of users is read").expect("the user exists"))
}

/// A scratch directory with a copy of the program, which all users may execute, and with a log directory of this user.
fn prepare(name: &str, user: &User) -> (Scratch, PathBuf, String) {
    let scratch = Scratch::new(name);
    let (copied, log) = (scratch.join("beanring"), scratch.dir("log"));
    copy(Path::new(program()), &copied);
    fs::set_permissions(&log, fs::Permissions::from_mode(0o700)).expect("the mode is set");
    chown(&log, Some(user.uid.as_raw()), Some(user.gid.as_raw())).expect("root changes the owner");
    (scratch, copied, log.display().to_string())
}

/// Copies in another process: a file that a child of this one has open for writing cannot be executed.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp starts").success());
}

fn launch(command: Command, flags: &[&str]) -> (ServerProcess, Client) {
    serve_by(command, Address::fresh(Transport::Tcp), flags)
}

fn assert_rights(server: &ServerProcess, capabilities: &str, when: &str) {
    for (set, expected) in [
        ("CapInh", NONE),
        ("CapAmb", NONE),
        ("CapPrm", capabilities),
        ("CapEff", capabilities),
        ("CapBnd", capabilities),
        ("NoNewPrivs", "1"),
    ] {
        assert_eq!(server.status(set), expected, "{set} {when}");
    }
}

/// The own groups of a user.
fn groups_of(user: &User) -> String {
    let output = Command::new("id").args(["-G", &user.name]).output().expect("id starts");
    let mut groups: Vec<u32> = String::from_utf8(output.stdout)
        .expect("numbers")
        .split_whitespace()
        .map(|group| group.parse().expect("a number"))
        .collect();
    groups.sort_unstable();
    groups.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn another_user_has_nothing_of_root() {
    let Some(nobody) = nobody("-u as root") else { return };
    let (_scratch, program, log) = prepare("rights-user", &nobody);
    let mut command = Command::new("setpriv");
    command
        .args(["--groups", "4,27", "--inh-caps", "+net_admin", "--ambient-caps", "+net_admin"])
        .arg(program);
    let (server, mut client) = launch(command, &["-u", "nobody", "-b", &log]);
    for when in ["at the start", "after a restart"] {
        assert_rights(&server, NONE, when);
        for (name, id) in [("Uid", nobody.uid.as_raw()), ("Gid", nobody.gid.as_raw())] {
            assert_eq!(server.status(name), [id.to_string().as_str(); 4].join("\t"), "{name} {when}");
        }
        assert_eq!(server.status("Groups"), groups_of(&nobody), "{when}");
        client.put("stays");
        client = server.restart();
    }
}

#[test]
fn the_same_user_keeps_nothing_that_it_was_started_with() {
    let Some(nobody) = nobody("-u as that user") else { return };
    let (scratch, program, log) = prepare("rights-same", &nobody);
    let ids = [nobody.uid.to_string(), nobody.gid.to_string()];
    let as_nobody = |rights: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &ids[0], "--regid", &ids[1], "--groups", "4,27"]);
        command.args(["--inh-caps", rights, "--ambient-caps", rights]).arg(&program);
        command
    };
    let command = as_nobody("-all,+setgid,+setpcap,+net_bind_service");
    let (server, client) = launch(command, &["-u", "nobody", "-b", &log]);
    assert_rights(&server, NONE, "with rights");
    assert_eq!(server.status("Groups"), groups_of(&nobody));
    drop((server, client));

    // Without the capability to leave its groups it logs a warning.
    let said = scratch.join("said");
    let mut command = as_nobody("-all");
    command.stderr(File::create(&said).expect("the file is created"));
    let (server, _client) = launch(command, &["-u", "nobody", "-b", &log]);
    for set in ["CapInh", "CapAmb", "CapPrm", "CapEff"] {
        assert_eq!(server.status(set), NONE, "{set}");
    }
    let said = fs::read_to_string(said).expect("the file is read");
    assert!(said.contains("WARN -u nobody: the process may not leave the groups 4, 27"), "{said}");
}

#[test]
fn root_keeps_what_a_log_needs() {
    let Some(nobody) = nobody("root without -u") else { return };
    let (_scratch, program, log) = prepare("rights-root", &nobody);
    let (server, mut client) = launch(Command::new(program), &["-b", &log]);
    for when in ["at the start", "after a restart"] {
        assert_rights(&server, OF_ROOT, when);
        client.put("stays");
        client = server.restart();
    }
    client.expect("peek 2\r\n", "FOUND 2 5");
}

/// Runs the program in the root directory of an image, in a mount namespace. Arguments: the root, then those of the server. The
/// script `/beanring` stands for the program: unlike a running program it can be overwritten.
const IN_ROOT: &str = r#"
set -e
cd "$0"
for dir in usr bin sbin lib lib64 etc proc dev; do
    if [ -L /$dir ]; then cp -P /$dir .; elif [ -d /$dir ]; then mkdir $dir; mount --rbind /$dir $dir; fi
done
exec chroot . bash -c 'cd /; exec -a /beanring /opt/beanring "$@"' bash "$@"
"#;

/// Mode, owner and group of a file.
fn access_of(path: &Path) -> (u32, u32, u32) {
    let found = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (found.mode() & 0o7777, found.uid(), found.gid())
}

#[test]
fn a_unix_socket_has_the_mode_the_owner_and_the_group_of_its_address() {
    let Some(nobody) = nobody("the owner of a UNIX socket") else { return };
    let (uid, gid) = (nobody.uid.as_raw(), nobody.gid.as_raw());
    let audio = Group::from_name("audio").expect("the list of groups is read").expect("the group exists").gid;
    for (umask, options, user, mode, owner) in [
        // Without options, the mode that the umask leaves.
        ("027", "", false, 0o750, (0, 0)),
        ("027", "", true, 0o750, (uid, gid)),
        ("077", ",mode=0666", false, 0o666, (0, 0)),
        ("000", ",mode=0600", true, 0o600, (uid, gid)),
        ("022", ",group=audio", false, 0o755, (0, audio.as_raw())),
        ("077", ",group=audio,mode=0660", true, 0o660, (uid, audio.as_raw())),
    ] {
        let (scratch, program, log) = prepare("rights-socket", &nobody);
        let (clients, http) = (scratch.join("clients"), scratch.join("http"));
        let listen = [&clients, &http].map(|path| format!("unix:{}{options}", path.display()));
        let mut flags = vec!["-l", &listen[0], "--http", &listen[1], "-b", &log];
        if user {
            flags.extend(["-u", "nobody"]);
        }
        let mut command = Command::new("sh");
        command.args(["-c", &format!("umask {umask} && exec \"$0\" \"$@\"")]).arg(program);
        let (server, mut client) = serve_by(command, Address::Unix(clients.clone()), &flags);
        // A UNIX socket takes connections as soon as it is bound. A reply shows that the start is over, and both sockets exist.
        client.stats();
        let expected = (mode, owner.0, owner.1);
        for path in [&clients, &http] {
            assert_eq!(access_of(path), expected, "{umask} {options} {user} {}", path.display());
        }
        // A socket that a new program inherits stays as it is.
        fs::set_permissions(&clients, fs::Permissions::from_mode(0o700)).expect("the mode is set");
        server.restart();
        assert_eq!(access_of(&clients), (0o700, owner.0, owner.1), "{umask} {options} {user}");
        assert_eq!(access_of(&http), expected, "{umask} {options} {user}");
    }
}

#[test]
fn only_the_group_of_a_unix_socket_can_connect() {
    let Some(nobody) = nobody("the group of a UNIX socket") else { return };
    let (scratch, program, _) = prepare("rights-group", &nobody);
    let path = scratch.join("socket");
    let listen = format!("-lunix:{},mode=0660,group=audio", path.display());
    let (_server, _client) = serve_by(Command::new(&program), Address::Unix(path.clone()), &[&listen]);
    let connects = |groups: &str| {
        let mut command = Command::new("setpriv");
        let ids = [nobody.uid.to_string(), nobody.gid.to_string()];
        command.args(["--reuid", &ids[0], "--regid", &ids[1], "--groups", groups]).arg(&program);
        let address = format!("unix:{}", path.display());
        let output = command.args(["healthcheck", "-l", &address]).output().expect("setpriv starts");
        output.status.success()
    };
    assert!(connects("audio") && !connects("daemon"));
}

/// Overwrites a file, which keeps its inode.
fn overwrite(file: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(file).expect("the file opens");
    file.write_all(text.as_bytes()).expect("the file is written");
}

#[test]
fn a_program_and_a_configuration_in_the_root_bring_no_other_file_into_reach() {
    if !has_landlock("files of the root out of reach") {
        return;
    }
    let possible = Command::new("unshare").args(["--mount", "true"]).status();
    if !geteuid().is_root() || !possible.is_ok_and(|status| status.success()) {
        return println!("skipped: files of the root out of reach, because a mount namespace cannot be made");
    }
    let scratch = Scratch::new("rights-image");
    let root = scratch.join("root");
    for dir in ["", "opt", "log", "home"] {
        fs::create_dir(root.join(dir)).expect("the directory is created");
    }
    copy(Path::new(program()), &root.join("opt/beanring"));
    let (program, config) = (root.join("beanring"), root.join("beanring.toml"));
    let secrets = ["secret", "home/secret"];
    for secret in secrets {
        fs::write(root.join(secret), "secret").expect("the file is written");
    }
    let curious = "#!/bin/sh\ncd /log\ncat /secret > first\ncat /home/secret > second\ncat /beanring.toml > config\n\
                   echo x > /outside\nexit 1\n";
    fs::write(&program, curious).expect("the file is written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the mode is set");
    fs::write(&config, "max-job-size = 100\n").expect("the file is written");
    let said = scratch.join("said");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", IN_ROOT]).arg(&root);
    command.stderr(File::create(&said).expect("the file is created"));
    let (server, mut client) = launch(command, &["-b", "/log", "--config", "/beanring.toml"]);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");

    server.signal(Signal::SIGUSR2);
    let lines = lines_of(&said, 1);
    assert!(lines[0].contains("no restart: the preflight check of /beanring has failed"), "{lines:?}");
    let read = |name: &str| fs::read_to_string(root.join("log").join(name)).expect("the file is read");
    assert_eq!((read("first"), read("second")), (String::new(), String::new()), "the files cannot be read");
    assert_eq!(read("config"), "max-job-size = 100\n");
    assert!(!root.join("outside").exists());
    for name in ["first", "second", "config"] {
        fs::remove_file(root.join("log").join(name)).expect("the file is removed");
    }

    // A replacement of the file cannot be reached, which is logged.
    overwrite(&program, "#!/bin/sh\nexec /opt/beanring \"$@\"\n");
    let aside = root.join("aside");
    fs::rename(&config, &aside).expect("the file is renamed");
    fs::write(&config, "max-job-size = 4\n").expect("the file is written");
    server.signal(Signal::SIGUSR2);
    let last = lines_of(&said, 2).pop().expect("two lines");
    assert!(
        last.contains(
            "the directory / is shared (docs/OPERATIONS.md), and a running server reads no new file"
        ),
        "{last}"
    );
    fs::rename(&aside, &config).expect("the file is renamed");
    fs::rename(&program, &aside).expect("the file is renamed");
    copy(&aside, &program);
    server.signal(Signal::SIGUSR2);
    let last = lines_of(&said, 3).pop().expect("three lines");
    assert!(last.contains("cannot execute") && last.contains("only the same file"), "{last}");
    fs::rename(&aside, &program).expect("the file is renamed");

    // The same files with new contents are used by a restart.
    overwrite(&config, "max-job-size = 4\n");
    let mut client = server.restart();
    client.expect(&put(0, 0, "large"), "JOB_TOO_BIG");
    client.expect("peek 1\r\n", "FOUND 1 4");
}

/// The lines that the server logs until it ends. It must not get to listen.
fn refused(log: &Path) -> String {
    let mut command = beanring(&["-V", "-l", "127.0.0.1", "-p", "0", "-b"]);
    command.arg(log);
    let mut server = LoggedServer::spawn(command, Scratch::new("refused"));
    assert_ne!(server.wait(), Some(0));
    server.lines().join("\n")
}

#[test]
fn a_log_is_read_within_its_directory_only() {
    if !has_landlock("a log that leads elsewhere") {
        return;
    }
    let scratch = Scratch::new("rights-log");
    let (log, other) = (scratch.dir("log"), scratch.dir("other"));
    let (mut server, mut client) = launch(Command::new(program()), &["-b", log.to_str().expect("UTF-8")]);
    client.expect(&put(0, 0, "kept"), "INSERTED 1");
    server.stop();

    let names =
        fs::read_dir(&log).expect("the directory is read").map(|entry| entry.expect("an entry").file_name());
    let mut segments: Vec<_> = names.filter(|name| name != "lock").collect();
    segments.sort();
    let first = segments.first().expect("a segment");
    fs::rename(log.join(first), other.join(first)).expect("the file is renamed");
    symlink(other.join(first), log.join(first)).expect("the link is created");
    let said = refused(&log);
    assert!(said.contains("is a symbolic link") && !said.contains("recovered"), "{said}");

    fs::remove_dir_all(&log).and_then(|()| fs::create_dir(&log)).expect("the directory is created");
    fs::write(other.join("binlog.1"), "").expect("the file is written");
    symlink(other.join("binlog.1"), log.join("binlog.1")).expect("the link is created");
    let said = refused(&log);
    assert!(said.contains("cannot import") && said.contains("binlog.1 is a symbolic link"), "{said}");
}
