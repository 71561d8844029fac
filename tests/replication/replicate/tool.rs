//! `beanring replicate`.

use beanring_testkit::postgres::End;
use beanring_testkit::scratch::Scratch;

use super::store::Store;
use crate::site::{own_empty, replicate};

#[test]
fn init_and_status_show_a_log() {
    let Some(mut site) = own_empty("the tool", 1) else { return };
    let (url, shown) = (site.url(), site.url().replace(":secret", ""));
    let (code, out, error) = replicate(&["status"], &url);
    assert_eq!((code, &*out), (2, ""));
    assert_eq!(
        error,
        format!("beanring: the database has no tables of beanring; run beanring replicate init {shown}\n")
    );
    let made = |text: &str| (0, text.replace("URL", &shown) + "\n", String::new());
    assert_eq!(replicate(&["init"], &url), made("made the tables, and log 1 in them, in URL"));
    assert_eq!(replicate(&["init", &url], ""), made("log 1 is there already in URL"));
    let (code, out, error) = replicate(&["status"], &url);
    assert_eq!((code, &*error), (0, ""));
    assert!(out.contains("commits    wait for a synchronous standby\n"), "{out}");
    let begin =
        format!("log        1 in {shown}\nepoch      0\nleader     there has been none\nchunks     none\n");
    assert!(out.starts_with(&begin) && out.contains("standby    s1 (hidden: "), "{out}");
    site.primary.sql("grant pg_monitor to beanring");
    let mut leader = Store::new(&site.primary);
    assert_eq!(leader.claim(0, 1, 7), Ok(()));
    let (_, out, _) = replicate(&["status"], &url);
    assert!(out.contains("leader     host-7:1, connected from 127.0.0.1\n"), "{out}");
    assert!(out.contains("\nconsole    http://host-7:2/\n"), "{out}");
    assert!(out.contains("standby    s1 quorum, "), "{out}");
    assert!(out.contains("chunks     1, from position 1 to 1\n"), "{out}");
    assert_eq!((leader.append(1, 2, "two"), leader.append(1, 3, "three")), (Ok(()), Ok(())));
    site.primary.sql("delete from beanring_log where pos = 2");
    let (_, out, _) = replicate(&["status"], &url);
    assert!(out.contains("chunks     2, from position 1 to 3, 1 missing or in flight\n"), "{out}");
    let (code, out, _) = replicate(&["status", "--json"], &url);
    let value: serde_json::Value = serde_json::from_str(&out).expect("it is JSON");
    assert_eq!((code, &value["epoch"], &value["end"]), (0, &1.into(), &3.into()));
    assert_eq!((&value["leader"], &value["leader_connected"]), (&"host-7:1".into(), &true.into()));
    assert_eq!(value["leader_http"], "http://host-7:2/");
    assert_eq!(value["standbys"][0]["name"], "s1");
    assert_eq!(
        (&value["commits"], &value["lease_seconds"]),
        (&"replicated".into(), &serde_json::Value::Null)
    );
    site.primary.set("synchronous_standby_names", "nobody");
    let (_, out, _) = replicate(&["status"], &url);
    assert!(out.contains("commits    wait, because no synchronous standby is connected\n"), "{out}");
    site.primary.set("synchronous_standby_names", "");
    let (_, out, _) = replicate(&["status"], &url);
    assert!(out.contains("commits    wait for no standby: synchronous_standby_names is empty\n"), "{out}");
    site.primary.stop(End::Fast);
    let (code, _, error) = replicate(&["status"], &url);
    assert!(code == 1 && error.starts_with("beanring: cannot connect to the database"), "{error}");
}

#[test]
fn wrong_usage_ends_with_2() {
    let check = |words: &[&str], url: &str, text: &str| {
        let (code, out, error) = replicate(words, url);
        assert_eq!((code, &*out), (2, ""), "{error}");
        assert!(error.contains(text) && !error.contains("secret"), "{error}");
    };
    check(&["status"], "", "BEANRING_REPLICATE");
    check(&["status"], "mysql://me:secret@db/q", "postgres://");
    check(&["init"], "postgres://me:secret@db/q?colour=red", "colour");
    let scratch = Scratch::new("replicate");
    let file = scratch.join("ca.pem");
    std::fs::write(&file, "nothing").expect("there is space");
    let url = format!("postgres://me:secret@db/q?sslmode=verify-full&sslrootcert={}", file.display());
    check(&["init"], &url, "no certificate");
}
