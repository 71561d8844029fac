//! The list of tubes, beside a simple one.

use std::collections::{BTreeMap, BTreeSet};

use beanring::server::{Config, PeerKind};
use beanring_testkit::client;
use beanring_testkit::config::config;
use beanring_testkit::http_client::{HttpInMemory, Response, get, page, writable};
use beanring_testkit::in_memory::Cut;
use beanring_testkit::peer::{Patience, Peer, Received};
use beanring_testkit::random::{Random, seeds};
use beanring_testkit::stepped::Stepped;
use serde_json::{Value, json};

use crate::{respond_beside_a_client, stepped, tubes};

/// What a tube is sorted by.
fn rank(tube: &Value, sort: &str) -> u64 {
    let key = match sort {
        "oldest" => "oldest_ready_seconds",
        "paused" => "paused_seconds",
        _ => sort,
    };
    tube[key].as_u64().unwrap_or(0)
}

/// Reads all pages of the jobs of `default` in a state. Returns the ids.
fn ids_in(bench: &mut HttpInMemory, state: &str, limit: usize) -> Vec<u64> {
    let mut ids: Vec<u64> = Vec::new();
    loop {
        let after = ids.last().copied().unwrap_or(0);
        let page =
            bench.ask(&get(&format!("tubes/default/jobs?state={state}&after={after}&limit={limit}"))).json();
        let jobs = page["jobs"].as_array().expect("a list");
        assert!(jobs.iter().all(|job| job["state"] == state && job["tube"] == "default"), "{page}");
        if jobs.is_empty() {
            return ids;
        }
        ids.extend(jobs.iter().map(|job| job["id"].as_u64().expect("a number")));
    }
}

#[test]
fn the_jobs_of_a_tube_are_listed_in_pages() {
    let mut bench = HttpInMemory::writable();
    bench.command(&format!("use other\r\n{}use default\r\n", client::put(1, 0, "x")));
    // Enough ready jobs for a search in steps.
    bench.load(&(0..30).map(|at| client::put(9 - at % 9, 0, "x").repeat(100)).collect::<String>());
    bench.command(&client::put(1, 1000, "four").repeat(3));
    let worker = bench.server.open();
    bench.server.send(worker, b"reserve-job 5\r\nreserve-job 7\r\nbury 7 3\r\n");
    assert_eq!(ids_in(&mut bench, "reserved", 1), [5]);
    assert_eq!(ids_in(&mut bench, "buried", 500), [7]);
    assert_eq!(ids_in(&mut bench, "delayed", 2), [3002, 3003, 3004]);
    let ready: Vec<u64> = (2..=3001).filter(|id| ![5, 7].contains(id)).collect();
    assert_eq!(ids_in(&mut bench, "ready", 400), ready);
    let delayed = bench.ask(&get("tubes/default/jobs?state=delayed&limit=1")).json();
    assert_eq!(
        delayed,
        json!({"jobs": [{
            "id": 3002, "tube": "default", "state": "delayed", "priority": 1, "age_seconds": 0, "delay_seconds": 1000,
            "ttr_seconds": 60, "time_left_seconds": 1000, "reserves": 0, "timeouts": 0, "releases": 0, "buries": 0,
            "kicks": 0, "losses": 0, "attempts": 0, "body_bytes": 4
        }]})
    );
    let missing = bench.ask(&get("tubes/none/jobs"));
    assert_eq!((missing.status, missing.json()["error"].as_str()), (404, Some("not-found")));
}

#[test]
fn lists_are_filtered_sorted_and_cut_into_pages() {
    for seed in seeds(3) {
        let mut random = Random::new(seed);
        let mut bench = HttpInMemory::new(writable(), Cut::Whole);
        for number in 0..200 {
            let name = format!("{}{number}", random.pick(&["a", "B", "b", "mail", "x/"]));
            for _ in 0..random.below(4) {
                let delay = random.below(2) as u32 * 100;
                let put = client::put(random.below(2000) as u32, delay, "x");
                bench.command(&format!("use {name}\r\n{put}"));
            }
            bench.advance(1);
        }
        bench.command("watch mail1\r\n");
        let waiting = bench.server.open();
        bench.server.send(waiting, b"watch b1\r\nignore default\r\nreserve\r\n");
        let all = bench.ask(&get("tubes?limit=500")).json();
        let tubes = all["tubes"].as_array().expect("a list").clone();
        assert_eq!(all["total"], tubes.len());
        assert!(tubes.len() > 100, "{}", tubes.len());
        let name = |tube: &Value| tube["name"].as_str().expect("a name").to_owned();
        for sort in [
            "name", "ready", "reserved", "delayed", "buried", "held", "waiting", "puts", "deletes", "oldest",
            "paused",
        ] {
            for order in ["asc", "desc"] {
                for filter in ["", "B", "mAIl1", "/", "none", "a*", "a."] {
                    let (offset, limit) = (random.below(60), 1 + random.below(60));
                    let part = filter.to_ascii_lowercase();
                    let is_shown = |tube: &&Value| name(tube).to_ascii_lowercase().contains(&part);
                    let mut expected: Vec<&Value> = tubes.iter().filter(is_shown).collect();
                    expected.sort_by_key(|tube| name(tube));
                    if (sort, order) == ("name", "desc") {
                        expected.reverse();
                    } else if order == "desc" {
                        expected.sort_by_key(|tube| !rank(tube, sort));
                    } else {
                        expected.sort_by_key(|tube| rank(tube, sort));
                    }
                    let matched = expected.len();
                    let page: Vec<Value> = expected.into_iter().skip(offset).take(limit).cloned().collect();
                    let query = format!(
                        "tubes?filter={filter}&sort={sort}&order={order}&offset={offset}&limit={limit}"
                    );
                    let found = bench.ask(&get(&query)).json();
                    // The oldest age in whole seconds may hide an order within them.
                    assert_eq!(
                        found,
                        json!({"total": tubes.len(), "matched": matched, "offset": offset, "tubes": page}),
                        "seed {seed}: {query}"
                    );
                }
            }
        }
        let past = bench.ask(&get("tubes?offset=4294967295")).json();
        assert_eq!(past["tubes"], json!([]));
        // The list has the numbers of the protocol.
        for (name, tube) in
            tubes.iter().map(|tube| (name(tube), tube)).collect::<BTreeMap<_, _>>().iter().take(20)
        {
            for (key, own) in [
                ("current-jobs-ready", "ready"),
                ("current-jobs-delayed", "delayed"),
                ("current-jobs-urgent", "urgent"),
                ("total-jobs", "puts"),
                ("current-using", "using"),
                ("current-watching", "watching"),
                ("current-waiting", "waiting"),
            ] {
                let value = bench.stat(&format!("stats-tube {name}\r\n"), key);
                assert_eq!(value, tube[own].to_string(), "{name} {key}");
            }
        }
    }
}

#[test]
fn a_list_of_many_tubes_takes_bounded_memory_and_is_freed() {
    let mut bench = HttpInMemory::new(Config { max_tubes: None, ..writable() }, Cut::Whole);
    bench.load(&tubes(20_000, 0));
    let before = bench.server.memory_bytes();
    bench.server.block(bench.http, true);
    for _ in 0..20 {
        bench.send(&get("tubes?limit=500"));
    }
    let grown = bench.server.memory_bytes() - before;
    assert!(grown < 400_000, "{grown} bytes");
    bench.server.block(bench.http, false);
    for _ in 0..20 {
        let list = bench.response(true).json();
        assert_eq!(list["matched"], 20_001);
        assert_eq!(list["tubes"].as_array().expect("a list").len(), 500);
    }
    let last = bench.ask(&get("tubes?offset=20000&limit=500&sort=name")).json();
    assert_eq!(last["tubes"].as_array().expect("a list").len(), 1);
    assert_eq!(last["tubes"][0]["name"], "t9999");
}

#[test]
fn a_list_is_made_between_other_work() {
    const TUBES: usize = 5000;
    for sort in ["name", "ready", "waiting"] {
        let (mut server, http, client) = stepped(config(65_535));
        server.load(client, &tubes(TUBES - 1, 0));
        let request = get(&format!("tubes?limit=500&sort={sort}"));
        let (list, turns, largest) = respond_beside_a_client(&mut server, http, client, &request);
        // Each of these turns does two steps.
        assert!(turns >= (TUBES / 1000 + 500 / 100) / 2, "{turns}");
        assert!(largest < 60_000, "{largest} bytes in one iteration");
        let list = list.json();
        assert_eq!((&list["matched"], list["tubes"].as_array().map(Vec::len)), (&json!(TUBES), Some(500)));
    }
}

/// Makes tubes with names of this length and one or several jobs each.
fn make_tubes(bench: &mut HttpInMemory, count: usize, name_bytes: usize, jobs: &mut Random) {
    let tube = |tube: usize| {
        let puts = client::put(0, 0, "x").repeat(1 + jobs.below(4) * jobs.below(2));
        format!("use {:0name_bytes$}\r\n{puts}", tube * 7919 % count)
    };
    bench.load(&((0..count).map(tube).collect::<String>() + "use default\r\n"));
}

/// Puts jobs until the memory limit refuses one.
fn fill(bench: &mut HttpInMemory) {
    let puts = client::put(0, 0, &"x".repeat(1000)).repeat(50);
    while !bench.command(&puts).ends_with("OUT_OF_MEMORY\r\n") {}
}

#[test]
fn every_page_of_a_long_list_is_found() {
    const TUBES: usize = 7000;
    for seed in seeds(2) {
        let mut random = Random::new(seed);
        let mut bench = HttpInMemory::new(writable(), Cut::Whole);
        make_tubes(&mut bench, TUBES, 8, &mut random);
        let mut all: Vec<Value> = Vec::new();
        for offset in (0..=TUBES).step_by(500) {
            let page = bench.ask(&get(&format!("tubes?offset={offset}&limit=500"))).json();
            all.extend(page["tubes"].as_array().expect("a list").iter().cloned());
        }
        assert_eq!(all.len(), TUBES + 1, "seed {seed}");
        assert!(all.is_sorted_by(|one, other| one["name"].as_str() < other["name"].as_str()), "seed {seed}");
        for (sort, order) in [("name", "desc"), ("ready", "asc"), ("ready", "desc"), ("waiting", "asc")] {
            let mut expected: Vec<&Value> = all.iter().collect();
            match (sort, order) {
                ("name", _) => expected.reverse(),
                (_, "asc") => expected.sort_by_key(|tube| rank(tube, sort)),
                _ => expected.sort_by_key(|tube| !rank(tube, sort)),
            }
            for fixed in [0, 499, 500, 501, 1000, TUBES / 2, TUBES - 499, TUBES, TUBES + 1, usize::MAX] {
                let offset = fixed.min(u32::MAX as usize);
                let limit = 1 + random.below(500);
                let page: Vec<&&Value> = expected.iter().skip(offset).take(limit).collect();
                let query = format!("tubes?sort={sort}&order={order}&offset={offset}&limit={limit}");
                let found = bench.ask(&get(&query)).json();
                assert_eq!(
                    (&found["matched"], found["tubes"].as_array().map(Vec::len)),
                    (&json!(TUBES + 1), Some(page.len())),
                    "seed {seed}: {query}"
                );
                assert_eq!(found["tubes"], json!(page), "seed {seed}: {query}");
            }
        }
    }
}

#[test]
fn a_list_ends_while_tubes_come_go_and_change_their_places() {
    const TUBES: usize = 5000;
    let (mut server, http, client) = stepped(writable());
    server.load(client, &tubes(TUBES, 0));
    let mut random = Random::new(1);
    for sort in ["name", "ready"] {
        for offset in [0, 800, 2500] {
            let query = format!("tubes?limit=500&sort={sort}&offset={offset}");
            server.send(http, &get(&query));
            let mut turns = 0;
            while server.is_busy() {
                server.turn();
                turns += 1;
                assert!(turns < 200, "{query}");
                for at in 0..20 {
                    let tube = random.below(TUBES);
                    let put = format!("use t{tube}\r\n{}use default\r\n", client::put(0, 0, "x"));
                    server.send(client, put.as_bytes());
                    if at < 4 {
                        server.send(client, format!("flush-tube t{}\r\n", random.below(TUBES)).as_bytes());
                    }
                }
            }
            let list = server.response(http).expect("the list is complete").json();
            let shown = list["tubes"].as_array().expect("a list");
            let names: BTreeSet<&str> = shown.iter().filter_map(|tube| tube["name"].as_str()).collect();
            assert_eq!(names.len(), shown.len(), "{query}: a tube is shown once");
            assert!(shown.len() > 300, "{query}: {} tubes", shown.len());
        }
    }
    server.server.check();
}

/// Each tube that is there all the time is in one of the pages, whatever becomes of others between the requests.
#[test]
fn pages_after_a_name_miss_no_tube_while_others_end() {
    for order in ["asc", "desc"] {
        let mut bench = HttpInMemory::new(writable(), Cut::Whole);
        for number in 0..2000 {
            bench.command(&format!("use t{number:04}\r\n{}", client::put(0, 0, "x")));
        }
        bench.command("use default\r\n");
        let (mut after, mut seen, mut ended) = (String::new(), Vec::new(), 0);
        loop {
            let page = bench.ask(&get(&format!("tubes?limit=100&order={order}{after}"))).json();
            let tubes = page["tubes"].as_array().expect("a list");
            let Some(last) = tubes.last() else { break };
            after = format!("&after={}", last["name"].as_str().expect("a name"));
            seen.extend(tubes.iter().map(|tube| tube["name"].as_str().expect("a name").to_owned()));
            // Half of those that were shown end.
            for name in &seen[seen.len() - tubes.len()..] {
                if name.ends_with(['0', '2', '4', '6', '8']) {
                    bench.command(&format!("flush-tube {name}\r\n"));
                    ended += 1;
                }
            }
        }
        assert_eq!((seen.len(), ended), (2001, 1000), "{order}");
        assert!(seen.is_sorted_by(|one, next| (one < next) == (order == "asc")), "{order}");
    }
}

#[test]
fn an_offset_takes_no_memory() {
    const TUBES: usize = 20_000;
    const LISTS: usize = 60;
    // With a limit, memory is counted in every iteration.
    let mut server = Stepped::new(Config { max_memory_bytes: Some(1 << 30), ..writable() });
    let client = server.open();
    server.load(client, &tubes(TUBES, 200));
    let https: Vec<usize> = (0..LISTS).map(|_| server.open_http()).collect();
    let before = server.server.memory_bytes();
    let mut most = 0;
    for offset in [TUBES as u32 - 100, u32::MAX - 1] {
        for &http in &https {
            server.send(http, &get(&format!("tubes?offset={offset}&limit=100")));
        }
        while server.is_busy() {
            server.turn();
            most = most.max(server.server.memory_bytes() - before);
        }
    }
    assert!(https.iter().all(|&http| server.received(http).ends_with(b"]}\r\n0\r\n\r\n")));
    let each = most / LISTS as u64;
    assert!(each < 200 * 1024, "{each} bytes for each list");
}

#[test]
fn lists_are_refused_at_the_memory_limit_but_for_one() {
    let config = Config { max_memory_bytes: Some(4 << 20), ..writable() };
    let mut bench = HttpInMemory::new(config, Cut::Whole);
    make_tubes(&mut bench, 600, 8, &mut Random::new(1));
    fill(&mut bench);
    let list = get("tubes?limit=500&offset=4294967294");
    assert_eq!(bench.ask(&list).json()["matched"], 601, "one is made at the limit, too");
    let other = bench.server.open_http(PeerKind::Loopback);
    bench.server.block(other, true);
    bench.server.send(other, &get("tubes?limit=500"));
    assert_eq!(bench.ask(&list).error(), (507, "out-of-memory".to_owned()));
    assert_eq!(bench.ask(&get("server")).status, 200);
    let head = [b"HEAD".as_slice(), &list[3..]].concat();
    assert_eq!(bench.ask(&head).status, 200);
    bench.server.block(other, false);
    assert_eq!(bench.ask(&list).status, 200, "the other list is complete");
    bench.server.block(other, true);
    bench.server.send(other, &get("tubes?limit=500"));
    bench.server.close(other);
    assert_eq!(bench.ask(&list).status, 200, "the other list has ended with its connection");
}

#[test]
fn pages_that_are_not_read_take_little_memory_at_the_limit() {
    const READERS: usize = 50;
    let config = Config { max_memory_bytes: Some(8 << 20), ..writable() };
    let mut bench = HttpInMemory::new(config, Cut::Whole);
    make_tubes(&mut bench, 600, 100, &mut Random::new(1));
    let readers: Vec<usize> = (0..READERS).map(|_| bench.server.open_http(PeerKind::Loopback)).collect();
    fill(&mut bench);
    let before = bench.server.memory_bytes();
    for &reader in &readers {
        bench.server.block(reader, true);
        bench.server.send(reader, &page("/metrics"));
    }
    let each = (bench.server.memory_bytes() - before) / READERS as u64;
    assert!(each < 48 * 1024, "{each} bytes each");
    for reader in readers {
        bench.server.block(reader, false);
        let Received::Bytes(mut bytes) = bench.server.receive(reader, Patience::Quiet) else {
            panic!("there is a page")
        };
        let page = Response::take(&mut bytes, true).expect("the page is complete");
        assert!(page.text().contains("\nbeanring_tubes_not_shown 0\n"));
    }
}
