//! What one client does beside a load.

use beanring_testkit::measured::Iterations;

use crate::talk::{Talk, put, put_batch, rules};
use crate::world::{BATCH, TUBE, World};

/// Ids of any length that fit into the line of a `delete-batch`.
const IDS: usize = 250;

/// The longest such line, without its CR LF.
const LINE_BYTES: usize = 2046;

/// Commands of one kind that are sent at once.
const PIPELINED: usize = 200;

pub struct Trigger {
    pub name: &'static str,
    pub run: fn(&mut World) -> Iterations,
}

const fn trigger(name: &'static str, run: fn(&mut World) -> Iterations) -> Trigger {
    Trigger { name, run }
}

/// What leaves the load as it is, or nearly so.
pub const TRIGGERS: &[Trigger] = &[
    trigger("put", |world| {
        let mut ids = Vec::new();
        let cost = world.measure(|world| ids = world.actor.expect(&put(0, ""), "INSERTED"));
        delete(world, &ids);
        cost
    }),
    trigger("put-batch 1000", |world| batch(world, |_| String::new())),
    trigger("put-batch 1000, con of one key", |world| batch(world, |_| " con:trigger:500".to_owned())),
    trigger("put-batch 1000, con of 1000 keys", |world| batch(world, |at| format!(" con:k{at}:1000"))),
    trigger("put-batch 1000, grp of one group", |world| batch(world, |_| " grp:trigger".to_owned())),
    trigger("put-batch 1000, aft of the group", |world| batch(world, |_| " aft:group".to_owned())),
    trigger("put-batch 1000, aft of 1000 groups", |world| batch(world, |at| format!(" aft:g{at}"))),
    trigger("put-batch 1000, idp", |world| batch(world, |at| format!(" idp:t{at}"))),
    trigger("delete", |world| {
        let ids = world.put_many(1, 100_000);
        expect(world, &format!("delete {}\r\n", ids[0]), "DELETED")
    }),
    trigger("delete-batch 250", |world| {
        let ids = world.put_many(IDS, 100_000);
        expect(world, &delete_batch(&ids), "DELETED_BATCH")
    }),
    LONGEST_DELETE_BATCH,
    trigger("kick 1000", |world| {
        let ids = world.put_many(BATCH, 100_000);
        let cost = expect(world, "kick 1000\r\n", "KICKED");
        delete(world, &ids);
        cost
    }),
    trigger("kick-job 200 times", |world| {
        let ids = world.put_many(PIPELINED, 100_000);
        let cost = pipeline(world, |at| format!("kick-job {}\r\n", ids[at]));
        delete(world, &ids);
        cost
    }),
    trigger("reserve-with-timeout 0", |world| reserve(world, "reserve-with-timeout 0\r\n")),
    trigger("reserve-batch 1000", |world| reserve(world, "reserve-batch 1000\r\n")),
    trigger("reserve-batch 1000 0", |world| reserve(world, "reserve-batch 1000 0\r\n")),
    trigger("reserve-with-timeout 0, 200 times", |world| {
        let mut reserved = Vec::new();
        let cost = world.measure(|world| {
            world.actor.send(&"reserve-with-timeout 0\r\n".repeat(PIPELINED));
            reserved = (0..PIPELINED).flat_map(|_| world.actor.reply().1).collect();
        });
        release(world, &reserved);
        cost
    }),
    trigger("reserve-job, touch, release", |world| {
        one_job(world, |id| format!("reserve-job {id}\r\ntouch {id}\r\nrelease {id} 0 0\r\n"))
    }),
    trigger("reserve-job, bury, kick-job", |world| {
        one_job(world, |id| format!("reserve-job {id}\r\nbury {id} 0\r\nkick-job {id}\r\n"))
    }),
    trigger("release and reserve-job of 1000", |world| {
        let ids = world.put_many(BATCH, 100_000);
        let mut text: String = ids.iter().map(|id| format!("reserve-job {id}\r\n")).collect();
        text.extend(ids.iter().map(|id| format!("release {id} 0 0\r\n")));
        let cost = world.measure(|world| send_and_read(&mut world.actor, &text, 2 * BATCH));
        delete(world, &ids);
        cost
    }),
    trigger("move-jobs 1000 to the tube", |world| {
        let ids = put_aside(world);
        let cost = expect(world, &format!("move-jobs aside ready {TUBE} 1000\r\n"), "MOVED");
        delete(world, &ids);
        cost
    }),
    trigger("move-jobs 1000 away and back", |world| {
        let names = [(TUBE, "aside"), ("aside", TUBE)];
        ask_all(world, names.map(|(from, to)| format!("move-jobs {from} ready {to} 1000\r\n")))
    }),
    trigger("flush-tube of 1000 jobs", |world| {
        put_aside(world);
        expect(world, "flush-tube aside\r\n", "FLUSHED")
    }),
    trigger("list-jobs ready", |world| ask(world, &format!("list-jobs {TUBE} ready 0 1000\r\n"))),
    trigger("list-jobs delayed", |world| ask(world, &format!("list-jobs {TUBE} delayed 0 1000\r\n"))),
    trigger("list-jobs reserved", |world| ask(world, &format!("list-jobs {TUBE} reserved 0 1000\r\n"))),
    trigger("stats, 200 times", |world| pipeline(world, |_| "stats\r\n".to_owned())),
    trigger("stats-tube", |world| ask(world, &format!("stats-tube {TUBE}\r\n"))),
    trigger("stats-tube, 200 times", |world| pipeline(world, |_| format!("stats-tube {TUBE}\r\n"))),
    trigger("stats-job", |world| {
        let id = world.jobs.last().copied().unwrap_or(1);
        ask(world, &format!("stats-job {id}\r\n"))
    }),
    trigger("stats-group", |world| ask(world, "stats-group group\r\n")),
    trigger("list-schedules", |world| ask(world, "list-schedules 1000\r\n")),
    trigger("schedule-stats", |world| ask(world, "schedule-stats s7\r\n")),
    trigger("list-tubes", |world| ask(world, "list-tubes\r\n")),
    trigger("list-tubes-watched", |world| ask(world, "list-tubes-watched\r\n")),
    trigger("peek-ready, 200 times", |world| pipeline(world, |_| "peek-ready\r\n".to_owned())),
    trigger("peek-delayed, 200 times", |world| pipeline(world, |_| "peek-delayed\r\n".to_owned())),
    trigger("peek-buried, 200 times", |world| pipeline(world, |_| "peek-buried\r\n".to_owned())),
    trigger("peek-reserved, 200 times", |world| pipeline(world, |_| "peek-reserved\r\n".to_owned())),
    trigger("pause-tube and its end", |world| {
        ask_all(world, [100, 0].map(|seconds| format!("pause-tube {TUBE} {seconds}\r\n")))
    }),
    trigger("tube-config", |world| {
        let set = rules(1_000_000).chain([("dead-letter", "dead".to_owned())]);
        let both = set.flat_map(|(key, value)| [(key, value), (key, "0".to_owned())]);
        ask_all(world, both.map(|(key, value)| format!("tube-config {TUBE} {key} {value}\r\n")))
    }),
    trigger("watch and ignore, 200 times", |world| {
        pipeline(world, |at| format!("{} another\r\n", if at % 2 == 0 { "watch" } else { "ignore" }))
    }),
    trigger("use, 200 times", |world| {
        pipeline(world, |at| {
            if at + 1 == PIPELINED { format!("use {TUBE}\r\n") } else { format!("use other{at}\r\n") }
        })
    }),
    trigger("reserve-mode weighted-fair", |world| {
        world.measure(|world| {
            let mut client = world.worker();
            client.expect("reserve-mode weighted-fair\r\n", "USING");
            client.ask("reserve-with-timeout 0\r\n");
        })
    }),
    trigger("wait-job, delete", |world| {
        let ids = world.put_many(1, 100_000);
        let mut client = world.worker();
        client.send(&format!("wait-job {} 100000\r\n", ids[0]));
        world.measure(|world| {
            world.actor.ask(&format!("delete {}\r\n", ids[0]));
            client.reply();
        })
    }),
    trigger("reserve by another client, cancel-reserve", |world| {
        let mut client = world.connect();
        client.expect("watch nothing\r\n", "WATCHING");
        world.measure(|_| {
            client.send("reserve\r\ncancel-reserve\r\n");
            client.reply();
            client.reply();
        })
    }),
    trigger("connect, watch, reserve, leave", |world| {
        world.measure(|world| {
            let mut client = world.worker();
            client.ask("reserve-with-timeout 0\r\n");
        })
    }),
    trigger("100 connections come and go", |world| {
        world.measure(|world| {
            let clients: Vec<Talk> = (0..100).map(|_| world.connect()).collect();
            drop(clients);
        })
    }),
    trigger("GET /metrics", |world| get(world, "GET", "/metrics")),
    trigger("HEAD /metrics", |world| get(world, "HEAD", "/metrics")),
    trigger("GET /readyz", |world| get(world, "GET", "/readyz")),
    trigger("GET /api/v1/server", |world| get(world, "GET", "/api/v1/server")),
    trigger("GET /api/v1/tubes", |world| get(world, "GET", "/api/v1/tubes")),
    trigger("GET /api/v1/tubes, sorted", |world| {
        get(world, "GET", "/api/v1/tubes?sort=ready&order=desc&offset=1000&limit=500")
    }),
    trigger("GET /api/v1/tubes, far offset", |world| {
        get(world, "GET", "/api/v1/tubes?sort=waiting&offset=4294967294")
    }),
    trigger("GET /api/v1/tubes, filtered", |world| get(world, "GET", "/api/v1/tubes?filter=zzz")),
    trigger("HEAD /api/v1/tubes, sorted", |world| get(world, "HEAD", "/api/v1/tubes?sort=ready&limit=500")),
    trigger("GET /api/v1/tubes/TUBE", |world| get(world, "GET", "/api/v1/tubes/load")),
    trigger("GET /api/v1/tubes/TUBE/jobs", |world| get(world, "GET", "/api/v1/tubes/load/jobs?limit=500")),
    trigger("GET /api/v1/tubes/TUBE/next/ready", |world| get(world, "GET", "/api/v1/tubes/load/next/ready")),
    trigger("GET /api/v1/groups/GROUP", |world| get(world, "GET", "/api/v1/groups/group")),
];

/// What ends the load. One server has only one of them.
pub const ENDS: &[Trigger] = &[
    trigger("put-batch 1000 that raises limits", |world| batch(world, |at| format!(" con:k{at}:1000"))),
    LONGEST_DELETE_BATCH,
    trigger("flush-tube of the load", |world| ask(world, &format!("flush-tube {TUBE}\r\n"))),
    trigger("kick of the load", |world| ask(world, &format!("kick {}\r\n", u32::MAX))),
    trigger("move-jobs of the load", |world| {
        ask(world, &format!("move-jobs {TUBE} ready aside {}\r\n", u32::MAX))
    }),
    trigger("the clients of the load leave", |world| world.measure(|world| world.clients.clear())),
    trigger("the actor leaves", |world| {
        world.measure(|world| {
            let other = world.connect();
            drop(std::mem::replace(&mut world.actor, other));
        })
    }),
    trigger("delete-batch 250 of the load, repeated", |world| {
        let jobs = std::mem::take(&mut world.jobs);
        let text: String = jobs.chunks(IDS).take(40).map(delete_batch).collect();
        let replies = jobs.chunks(IDS).take(40).len();
        world.measure(|world| send_and_read(&mut world.actor, &text, replies))
    }),
];

const LONGEST_DELETE_BATCH: Trigger = trigger("the longest delete-batch of the load", |world| {
    let line = longest_delete_batch(&mut world.jobs);
    ask(world, &line)
});

/// What ends by itself.
pub const TIME: Trigger = trigger("time passes", |world| world.measure(|world| world.await_end()));

fn ask(world: &mut World, command: &str) -> Iterations {
    expect(world, command, "")
}

fn ask_all(world: &mut World, commands: impl IntoIterator<Item = String>) -> Iterations {
    world.measure(|world| commands.into_iter().for_each(|command| drop(world.actor.ask(&command))))
}

fn expect(world: &mut World, command: &str, reply: &str) -> Iterations {
    world.measure(|world| drop(world.actor.expect(command, reply)))
}

/// Puts jobs into another tube.
fn put_aside(world: &mut World) -> Vec<u64> {
    world.helper.expect("use aside\r\n", "USING");
    let ids = world.put_many(BATCH, 0);
    world.helper.expect(&format!("use {TUBE}\r\n"), "USING");
    ids
}

fn get(world: &mut World, method: &str, path: &str) -> Iterations {
    world.measure(|world| {
        world.http(method, path);
    })
}

/// Puts a batch of jobs with tags.
fn batch(world: &mut World, tags: impl Fn(usize) -> String) -> Iterations {
    let command = put_batch((0..BATCH).map(|at| put(0, &tags(at))));
    let mut ids = Vec::new();
    let cost = world.measure(|world| ids = world.actor.expect(&command, "INSERTED_BATCH"));
    delete(world, &ids);
    cost
}

/// Reserves, and releases afterwards.
fn reserve(world: &mut World, command: &str) -> Iterations {
    let mut reserved = Vec::new();
    let cost = world.measure(|world| reserved = world.actor.ask(command).1);
    release(world, &reserved);
    cost
}

/// Sends three commands about a delayed job.
fn one_job(world: &mut World, commands: impl Fn(u64) -> String) -> Iterations {
    let ids = world.put_many(1, 100_000);
    let text = commands(ids[0]);
    let cost = world.measure(|world| send_and_read(&mut world.actor, &text, 3));
    delete(world, &ids);
    cost
}

fn pipeline(world: &mut World, command: impl Fn(usize) -> String) -> Iterations {
    let text: String = (0..PIPELINED).map(command).collect();
    world.measure(|world| send_and_read(&mut world.actor, &text, PIPELINED))
}

/// Sends commands in pieces whose replies fit into the buffers of the sockets.
fn send_and_read(client: &mut Talk, commands: &str, replies: usize) {
    client.send(commands);
    (0..replies).for_each(|_| drop(client.reply()));
}

fn delete_batch(ids: &[u64]) -> String {
    let ids: String = ids.iter().map(|id| format!(" {id}")).collect();
    format!("delete-batch{ids}\r\n")
}

/// Takes as many ids as fit into a line.
fn longest_delete_batch(ids: &mut Vec<u64>) -> String {
    let mut line = "delete-batch".to_owned();
    let mut taken = 0;
    for id in ids.iter() {
        let word = format!(" {id}");
        if line.len() + word.len() > LINE_BYTES {
            break;
        }
        line += &word;
        taken += 1;
    }
    ids.drain(..taken);
    line + "\r\n"
}

/// Deletes jobs, unless a client of the load has them now.
fn delete(world: &mut World, ids: &[u64]) {
    world.actor.expect_all(ids.chunks(IDS).map(delete_batch), "DELETED_BATCH");
}

fn release(world: &mut World, ids: &[u64]) {
    world.actor.expect_all(ids.iter().map(|id| format!("release {id} 0 0\r\n")), "RELEASED");
}
