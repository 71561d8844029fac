//! What a start checks, and the tables.

use beanring::io::replica::{CheckError, Commits, Created, Settings, check, init, status};
use beanring::wal::replica::Request;
use beanring_testkit::certificates::Certificates;
use beanring_testkit::postgres::{End, Postgres};
use beanring_testkit::scratch::Scratch;
use beanring_testkit::unused_address::ReservedPort;

use super::store::{Store, term};
use crate::site::{empty, own_site, parse, sessions, settings, site};

fn as_user(server: &Postgres, user: &str) -> Settings {
    parse(&server.url(user))
}

/// The error of a check, which must be one line with this text.
fn refusal(settings: &Settings, trusts_storage: bool, text: &str) -> CheckError {
    let error = check(settings, trusts_storage).expect_err(text);
    let line = error.to_string();
    assert!(line.contains(text) && !line.contains('\n') && !line.contains("secret"), "{line}");
    error
}

#[test]
fn tables_are_made_once_and_the_log_in_them() {
    let Some(site) = empty("init") else { return };
    let own = settings(&site.primary);
    assert!(matches!(refusal(&own, false, "beanring replicate init"), CheckError::NoTables(_)));
    assert_eq!(init(&own).expect("it can"), Created::Tables);
    assert_eq!(init(&own).expect("it can"), Created::Nothing);
    check(&own, false).expect("all is there");
    site.primary.sql("update beanring_epoch set log = 2");
    assert!(matches!(refusal(&own, false, "the tables have no log 1"), CheckError::NoLog(_)));
    assert_eq!(init(&own).expect("it can"), Created::Log);
    check(&own, false).expect("all is there");
    assert_eq!(site.primary.sql("select count(distinct log_id) from beanring_epoch"), "2");
}

#[test]
fn a_start_names_what_is_wrong_with_the_login() {
    let Some(site) = site("logins") else { return };
    let server = &site.primary;
    let changed = |from: &str, to: &str| parse(&server.url("beanring").replace(from, to));
    assert!(matches!(refusal(&changed("secret", "wrong"), false, "password"), CheckError::Login(_)));
    assert!(matches!(refusal(&changed(":secret", ""), false, "password missing"), CheckError::Login(_)));
    assert!(matches!(refusal(&as_user(server, "nobody"), false, "login"), CheckError::Login(_)));
    assert!(matches!(refusal(&changed("/queue", "/other"), false, "other"), CheckError::NoDatabase(_)));
    server
        .sql("create user reader password 'secret'; grant select, insert, delete on beanring_log to reader");
    server.sql("grant select on beanring_epoch to reader");
    let error = refusal(&as_user(server, "reader"), false, "grant select, insert, update, delete");
    assert!(matches!(error, CheckError::Privileges(_)));
    server.sql("grant all on beanring_log, beanring_epoch to reader");
    check(&as_user(server, "reader"), false).expect("it has all privileges");
    let standby = as_user(&site.standbys[0], "beanring");
    assert!(matches!(refusal(&standby, false, "standby"), CheckError::Standby));
    let unused = ReservedPort::take();
    let nowhere = parse(&server.url_with(&format!("127.0.0.1:{}", unused.get())));
    let error = refusal(&nowhere, false, "cannot connect");
    assert!(matches!(error, CheckError::Unreachable(_)) && error.is_temporary());
}

#[test]
fn a_start_looks_at_each_host_of_the_url() {
    let Some(mut site) = own_site("several hosts") else { return };
    let unused = ReservedPort::take();
    let (primary, standby, nowhere) = (site.primary.port(), site.standbys[0].port(), unused.get());
    let (own, host) = (site.url(), site.primary.host());
    let url = |ports: &[u16], password: &str| {
        let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        parse(&own.replace(&host, &hosts.join(",")).replace("secret", password))
    };
    check(&url(&[nowhere, standby, primary], "secret"), false).expect("one is the primary");
    // What one host says is not hidden by another one that does not answer.
    let error = refusal(&url(&[primary, nowhere], "wrong"), false, &format!("127.0.0.1:{primary}/queue"));
    assert!(matches!(error, CheckError::Login(_)), "{error}");
    let error = refusal(&url(&[standby, nowhere], "secret"), false, "no host of the URL is a primary");
    let text = error.to_string();
    assert!(text.contains(&format!("127.0.0.1:{standby} is a standby")), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{nowhere}: ")) && error.is_temporary(), "{text}");
    site.standbys[1].promote();
    let other = site.standbys[1].port();
    let error = refusal(&url(&[other, primary], "secret"), false, "are primaries; stop the one");
    assert!(matches!(error, CheckError::Primaries(_)) && error.is_temporary());
    site.standbys[1].stop(End::Fast);
    check(&url(&[other, primary], "secret"), false).expect("the other one is gone");
}

#[test]
fn a_start_refuses_other_tables() {
    let Some(site) = site("other tables") else { return };
    let own = settings(&site.primary);
    site.primary.sql("update beanring_epoch set format = 2");
    assert!(matches!(refusal(&own, false, "newer version"), CheckError::Format(2)));
    site.primary.sql("update beanring_epoch set format = 1; alter table beanring_epoch add column x integer");
    assert!(matches!(refusal(&own, false, "other columns"), CheckError::OtherTables("beanring_epoch")));
    site.primary
        .sql("alter table beanring_epoch drop column x; alter table beanring_log alter pos type integer");
    assert!(matches!(refusal(&own, false, "other columns"), CheckError::OtherTables("beanring_log")));
    assert!(matches!(init(&own), Err(CheckError::OtherTables("beanring_log"))));
    site.primary.sql("drop table beanring_log");
    assert!(matches!(
        refusal(&own, false, "beanring_log is missing"),
        CheckError::MissingTable("beanring_log")
    ));
    site.primary.sql("drop table beanring_epoch; create table beanring_log (line text)");
    assert!(matches!(init(&own), Err(CheckError::OtherTables("beanring_log"))));
    site.primary.sql("drop table beanring_log, beanring_reserve; create table beanring_reserve (line text)");
    assert!(matches!(init(&own), Err(CheckError::OtherTables("beanring_reserve"))));
}

#[test]
fn a_user_who_may_not_create_tables_is_told_so() {
    let Some(site) = empty("init without rights") else { return };
    site.primary.sql("revoke create on schema public from public; create user maker password 'secret'");
    site.primary.sql("create user lost password 'secret'; alter user lost set search_path = nowhere");
    let error = init(&as_user(&site.primary, "lost")).expect_err("it has no schema");
    assert!(matches!(error, CheckError::NoSchema), "{error}");
    let error = init(&as_user(&site.primary, "maker")).expect_err("it has no right");
    assert!(
        matches!(error, CheckError::NoCreate(_)) && error.to_string().contains("grant create"),
        "{error}"
    );
}

#[test]
fn a_start_needs_a_synchronous_standby() {
    let Some(mut site) = own_site("synchronous standbys") else { return };
    let own = settings(&site.primary);
    check(&own, false).expect("there are two");
    site.stop_standbys();
    site.primary.wait_for("select count(*) from pg_stat_replication", "0");
    let error = refusal(&own, false, "no synchronous standby is connected");
    assert!(matches!(error, CheckError::NoStandby) && error.is_temporary());
    site.primary.set("synchronous_standby_names", "");
    let error = refusal(&own, false, "--replicate-trust-storage");
    assert!(matches!(error, CheckError::NotSynchronous) && !error.is_temporary());
    check(&own, true).expect("the storage is trusted");
}

#[test]
fn a_pooler_must_leave_a_session_to_its_client() {
    let Some(site) = site("poolers") else { return };
    let settings = |mode: &str| {
        let pooler = site.primary.pooled(mode)?;
        let settings = parse(&pooler.url());
        Some((pooler, settings))
    };
    let (Some((_one, transaction)), Some((_other, session))) = (settings("transaction"), settings("session"))
    else {
        return println!("skipped: poolers, because pgbouncer is not installed");
    };
    for _ in 0..10 {
        let error = refusal(&transaction, false, "pool_mode = session");
        assert!(matches!(error, CheckError::Pooler));
    }
    check(&session, false).expect("it has sessions of its own");
}

#[test]
fn tls_is_checked_as_sslmode_says() {
    let Some(site) = own_site("TLS") else { return };
    let scratch = Scratch::new("pg-tls");
    let certificates = Certificates::new(&scratch.0);
    let url = |parameters: &str| parse(&format!("{}?{parameters}", site.url()));
    let error = refusal(&url("sslmode=require"), false, "set ssl = on there");
    assert!(matches!(error, CheckError::Unreachable(_)), "the server offers no TLS: {error}");
    check(&url("sslmode=prefer"), false).expect("it goes without");
    site.primary.offer_tls(&certificates.server);
    let (ca, other_ca) = (certificates.ca.display(), certificates.other_ca.display());
    for parameters in ["sslmode=require", "sslmode=require&channel_binding=require"] {
        check(&url(parameters), false).expect(parameters);
    }
    check(&url(&format!("sslmode=verify-full&sslrootcert={ca}")), false).expect("it is the right one");
    for mode in ["require", "verify-ca", "verify-full"] {
        refusal(&url(&format!("sslmode={mode}&sslrootcert={other_ca}")), false, "UnknownIssuer");
    }
    refusal(&url("sslmode=verify-full"), false, "UnknownIssuer");
    site.primary.offer_tls(&certificates.other_name);
    check(&url(&format!("sslmode=verify-ca&sslrootcert={ca}")), false).expect("any name will do");
    refusal(&url(&format!("sslmode=verify-full&sslrootcert={ca}")), false, "not valid for");
    let mut store = Store::open(url("sslmode=require"));
    assert_eq!(store.claim(0, 1, 7), Ok(()));
    let encrypted = "usename = 'beanring' and pid in (select pid from pg_stat_ssl where ssl)";
    assert_ne!(site.primary.sql(&sessions(encrypted)), "0");
}

#[test]
fn status_shows_leader_standbys_and_size() {
    let Some(site) = site("status") else { return };
    let own = settings(&site.primary);
    let before = status(&own).expect("it is there");
    assert_eq!((before.epoch, before.leader_connected, before.chunks), (0, false, 0));
    assert_eq!((before.begin, before.end, before.epoch_seconds), (1, 0, None));
    assert_eq!((before.leader, before.lease_seconds), (None, None));
    let (mut leader, mut watcher) = (Store::new(&site.primary), Store::new(&site.primary));
    assert_eq!(leader.claim(0, 1, 7), Ok(()));
    assert_eq!(leader.append(1, 2, &"x".repeat(100_000)), Ok(()));
    watcher.begin(Request::Watch(term(1)));
    site.primary.wait_for(&sessions("application_name = 'beanring watch'"), "1");
    site.primary.sql("update beanring_epoch set lease_ms = 8000");
    let status = status(&own).expect("it is there");
    assert_eq!((status.epoch, status.leader_connected), (1, true));
    assert_eq!(status.leader.as_deref(), Some("host-7:1"));
    assert_eq!((status.lease_seconds, status.commits), (Some(8), Commits::Replicated));
    assert_eq!((status.begin, status.end, status.chunks), (1, 2, 2));
    assert_eq!(status.leader_host.as_deref(), Some("127.0.0.1"));
    assert!(status.epoch_seconds.is_some_and(|seconds| seconds < 60.0) && status.table_bytes > 100_000);
    assert_eq!(status.standbys.len(), 2);
    assert_eq!(status.watching.len(), 1);
}
