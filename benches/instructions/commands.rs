//! Commands through the whole server, without a kernel, for `ci/instructions`, which counts their instructions.
//!
//! Prints a line for each measurement: its name, a tab, and the number of operations.

use beanring::values::ids::ConnId;
use beanring_testkit::bench::server::Rig;

/// Jobs of a measurement in one tube, so that the heaps have some depth.
const JOBS: usize = 1000;

/// Tubes of the measurements with many.
const TUBES: usize = 10_000;

/// Clients that watch all of these tubes.
const WATCHERS: usize = 64;

/// Commands per receive of the pipelined measurements.
const DEPTH: usize = 32;

/// What a connection sends in one receive.
type Input = (ConnId, String);

fn main() {
    let mut rig = Rig::new();
    let conn = rig.connect_to("tube");
    each_command(&mut rig, &[conn], JOBS, "1 tube");
    pipelined(&mut rig, conn, "1 tube");
    let mut rig = Rig::new();
    let conns: Vec<ConnId> = (0..TUBES).map(|tube| rig.connect_to(&format!("tube-{tube}"))).collect();
    each_command(&mut rig, &conns, TUBES, "10,000 tubes");
    pipelined(&mut rig, conns[0], "10,000 tubes");
    watching_all();
    let mut rig = Rig::durable();
    let conn = rig.connect_to("tube");
    each_command(&mut rig, &[conn], JOBS, "durable");
    pipelined(&mut rig, conn, "durable");
}

/// Measures each command alone, one per event-loop iteration, with the connections in turn.
fn each_command(rig: &mut Rig, conns: &[ConnId], jobs: usize, with: &str) {
    let on_each = |command: &dyn Fn(usize) -> String| -> Vec<Input> {
        (0..jobs).map(|job| (conns[job % conns.len()], command(job + 1))).collect()
    };
    measure(rig, &format!("put, {with}"), jobs, &on_each(&|_| put()), "INSERTED");
    measure(rig, &format!("reserve, {with}"), jobs, &on_each(&|_| "reserve\r\n".to_owned()), "RESERVED");
    measure(rig, &format!("touch, {with}"), jobs, &on_each(&|id| format!("touch {id}\r\n")), "TOUCHED");
    measure(rig, &format!("delete, {with}"), jobs, &on_each(&|id| format!("delete {id}\r\n")), "DELETED");
}

/// Measures puts, reserves and deletes with many commands in one receive.
fn pipelined(rig: &mut Rig, conn: ConnId, with: &str) {
    let first = next_id(rig, conn);
    let cycles = JOBS / DEPTH;
    let inputs: Vec<Input> = (0..cycles)
        .flat_map(|cycle| {
            let first = first + cycle * DEPTH;
            let deletes = (first..first + DEPTH).map(|id| format!("delete {id}\r\n")).collect();
            [put().repeat(DEPTH), "reserve\r\n".repeat(DEPTH), deletes]
        })
        .map(|input| (conn, input))
        .collect();
    measure(
        rig,
        &format!("put, reserve and delete, {DEPTH} in a receive, {with}"),
        cycles * DEPTH,
        &inputs,
        "",
    );
}

/// Measures clients that watch all tubes and put each job to another one. In each round all of them put, then all reserve, and
/// then all delete.
fn watching_all() {
    let mut rig = Rig::new();
    let conns: Vec<ConnId> = (0..WATCHERS).map(|_| rig.connect()).collect();
    for &conn in &conns {
        for tube in 0..TUBES {
            rig.turn(conn, format!("watch tube-{tube}\r\n").as_bytes());
        }
    }
    let rounds = TUBES / WATCHERS;
    let in_turn = |command: &dyn Fn(usize) -> String| -> Vec<Vec<Input>> {
        let round = |round| {
            let jobs = conns.iter().enumerate().map(move |(at, &conn)| (conn, round * WATCHERS + at));
            jobs.map(|(conn, job)| (conn, command(job))).collect()
        };
        (0..rounds).map(round).collect()
    };
    // The factor and the number of tubes are coprime, so that every job has a tube of its own, far from that of the one before.
    let puts = in_turn(&|job| format!("use tube-{}\r\n{}", job * 7919 % TUBES, put()));
    let reserves = in_turn(&|_| "reserve\r\n".to_owned());
    let deletes = in_turn(&|job| format!("delete {}\r\n", job + 1));
    let rounds = puts.into_iter().zip(reserves).zip(deletes);
    let inputs: Vec<Input> =
        rounds.flat_map(|((puts, reserves), deletes)| [puts, reserves, deletes]).flatten().collect();
    let name = format!("use, put, reserve and delete, {WATCHERS} clients watch 10,000 tubes");
    measure(&mut rig, &name, inputs.len() / 3, &inputs, "");
}

fn put() -> String {
    format!("put 1024 0 60 64\r\n{}\r\n", "x".repeat(64))
}

/// Puts and deletes a job. Returns the id after its own.
fn next_id(rig: &mut Rig, conn: ConnId) -> usize {
    let reply = String::from_utf8(rig.turn(conn, put().as_bytes()).to_vec()).expect("a reply is text");
    let id = reply.strip_prefix("INSERTED ").expect("the job is inserted").trim_end();
    assert_eq!(rig.turn(conn, format!("delete {id}\r\n").as_bytes()), b"DELETED\r\n");
    id.parse::<usize>().expect("an id is a number") + 1
}

/// Measures these inputs, and asserts that each is answered by `reply`.
fn measure(rig: &mut Rig, name: &str, operations: usize, inputs: &[Input], reply: &str) {
    counted(rig, inputs, reply);
    println!("{name}\t{operations}");
}

/// What valgrind counts, and nothing else. It finds this function by its name.
#[inline(never)]
fn counted(rig: &mut Rig, inputs: &[Input], reply: &str) {
    for (conn, input) in inputs {
        rig.expect(*conn, input.as_bytes(), reply.as_bytes());
    }
}
