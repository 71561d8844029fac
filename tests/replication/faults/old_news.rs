//! A leader that another one has superseded without its knowledge. What it still says must not be older than what its successor has
//! acknowledged: [`Plot`] has the successor delete jobs while clients of the old leader ask for them.

use std::net::{SocketAddr, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beanring::io::replica::init;
use beanring_testkit::client::Client;
use beanring_testkit::http_client::{self, HttpClient};
use beanring_testkit::postgres::{Cluster, Programs};
use beanring_testkit::stream::Stream;
use beanring_testkit::wait;

use super::link::SlowLink;
use super::place::ask_pid;
use super::run::variable;
use crate::node::Node;
use crate::site::parse;

/// What clients of the old leader ask again and again, with `ID` and `KEY` for the job that its successor deletes. As long as that is
/// there, none of them changes anything: an append would tell the old leader that it is one.
const QUESTIONS: [&str; 8] = [
    "peek ID\r\n",
    "peek-ready\r\n",
    "stats-job ID\r\n",
    "put 0 0 60 1 idp:KEY\r\nx\r\n",
    "put-batch 1\r\nput 0 0 60 1 idp:KEY\r\nx\r\n",
    "list-jobs default ready\r\n",
    // A wait that is over at once: the job is neither deleted nor buried.
    "wait-job ID 0\r\n",
    OVER_HTTP,
];

/// The same question by a request of the HTTP API.
const OVER_HTTP: &str = "GET jobs/ID";

/// How long clients go on to ask after the deletion.
const ASKED_LATER: Duration = Duration::from_millis(300);

/// A leader that is superseded is so within this time.
const SUPERSEDED_WITHIN: Duration = Duration::from_secs(2);

/// Two servers, each behind a link of its own.
struct Plot {
    _cluster: Cluster,
    links: [SlowLink; 2],
    nodes: [Node; 2],
}

/// What a client was told, and when it had asked.
struct Answer {
    asked_at: Instant,
    text: String,
}

impl Answer {
    /// Asks. None if the connection is closed.
    fn to(ask: &mut dyn FnMut() -> Option<String>) -> Option<Self> {
        let asked_at = Instant::now();
        Some(Self { asked_at, text: ask()? })
    }
}

/// A leader that connects again soon keeps its lock. So there are up to this many rounds until one is superseded.
const ROUNDS_MAX: usize = 20;

impl Plot {
    fn new(what: &str, round_trip: Duration, lease: &str) -> Option<Self> {
        let programs = Programs::find().inspect_err(|why| println!("skipped: {what}, because {why}")).ok()?;
        let cluster = Cluster::shared(&programs);
        let port = cluster.primary.port();
        let links = [(); 2].map(|()| SlowLink::new(port, round_trip));
        init(&parse(&cluster.primary.url_with(&cluster.primary.host()))).expect("the user owns the database");
        let nodes = [0, 1].map(|at: usize| {
            let url = cluster.primary.url_with(&links[at].address.to_string());
            let mut node = Node::new(&url, &["--lease", lease], None);
            node.start();
            node
        });
        let mut plot = Self { _cluster: cluster, links, nodes };
        plot.nodes.iter_mut().for_each(|node| _ = node.serves("use default\r\n", "USING default"));
        Some(plot)
    }

    /// Waits until one server leads and both serve clients. Returns its number.
    fn leader(&self) -> usize {
        let mut leader = None;
        wait::until("both servers name one leader", || {
            let pids = self.nodes.each_ref().map(|node| ask_pid(node.address));
            leader = self.nodes.iter().position(|node| node.pid() == pids[0]);
            pids[0].is_some() && pids[0] == pids[1]
        });
        leader.expect("a server has this process id")
    }

    /// Puts a job by the server that leads. Returns the number of that, and the id of the job.
    fn put(&self, key: &str) -> (usize, u64) {
        let mut put = None;
        wait::until("the leader has the job", || {
            let leader = self.leader();
            let Some(mut client) = connect(self.nodes[leader].address) else { return false };
            // What an earlier round has left would be ready first.
            client.send("flush-tube default\r\n");
            if client.reply().is_none() {
                return false;
            }
            client.send(&format!("put 0 0 60 1 idp:{key}\r\nx\r\n"));
            let reply =
                client.reply().filter(|_| ask_pid(self.nodes[leader].address) == self.nodes[leader].pid());
            let id = reply.and_then(|(line, _)| line.split(' ').nth(1)?.parse().ok());
            put = id.map(|id| (leader, id));
            put.is_some()
        });
        put.expect("it was put")
    }

    /// Has `supersede` give the queue another leader, which deletes a job. Returns how many answers the old leader has given after the
    /// deletion, each of which must know of it; none if it still leads.
    fn play(&self, round: usize, supersede: impl FnOnce(&SlowLink)) -> Option<usize> {
        let key = format!("key-{round}");
        let (old, id) = self.put(&key);
        let (all_ask, is_over) = (Barrier::new(QUESTIONS.len() + 1), AtomicBool::new(false));
        let (answers, deleted_at) = thread::scope(|scope| {
            let askers = QUESTIONS.map(|question| {
                let question = question.replace("KEY", &key).replace("ID", &id.to_string());
                let (node, all_ask, is_over) = (&self.nodes[old], &all_ask, &is_over);
                let mut ask = asker(node, &question);
                scope.spawn(move || {
                    let first = Answer::to(&mut ask);
                    all_ask.wait();
                    first.into_iter().chain(ask_until(is_over, &mut ask)).collect::<Vec<_>>()
                })
            });
            all_ask.wait();
            supersede(&self.links[old]);
            let deleted_at = delete(&self.nodes[1 - old], id);
            thread::sleep(ASKED_LATER);
            is_over.store(true, Ordering::SeqCst);
            self.links[old].heal();
            (askers.map(|asker| asker.join().expect("it does not panic")), deleted_at)
        });
        let deleted_at = deleted_at?;
        let mut later = 0;
        for (question, answers) in QUESTIONS.iter().zip(answers) {
            let first = answers.first().map_or("", |answer| &*answer.text);
            assert!(tells_of(id, first), "{first:?} to {question:?} tells nothing of job {id}");
            for Answer { asked_at, text } in answers.into_iter().filter(|answer| answer.asked_at > deleted_at)
            {
                later += 1;
                let is_old = tells_of(id, &text);
                let late = asked_at - deleted_at;
                assert!(
                    !is_old,
                    "round {round}: {text:?} to {question:?}, {late:?} after the job was deleted"
                );
            }
        }
        Some(later)
    }

    fn play_all(&self, what: &str, supersede: impl Fn(&SlowLink)) -> usize {
        let (least, mut rounds) = (variable("OLD_NEWS", 2), 0);
        let mut played: Vec<usize> = Vec::new();
        while rounds < least || played.is_empty() && rounds < ROUNDS_MAX {
            played.extend(self.play(rounds, &supersede));
            rounds += 1;
        }
        let later: usize = played.iter().sum();
        println!(
            "{what}: {} of {rounds} leaders superseded; they gave {later} answers after that",
            played.len()
        );
        played.len()
    }
}

fn connect(address: SocketAddr) -> Option<Client> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_nodelay(true).expect("a socket option");
    Some(Client::new(Stream::Tcp(stream)))
}

/// Returns what asks a server a question, until it closes the connection.
fn asker(node: &Node, question: &str) -> Box<dyn FnMut() -> Option<String> + Send> {
    if let Some(target) = question.strip_prefix("GET ") {
        let (mut client, request) = (HttpClient::tcp(node.http), http_client::get(target));
        return Box::new(move || client.try_ask(&request).map(|response| response.status.to_string()));
    }
    let mut client = connect(node.address).expect("it listens");
    let question = question.to_owned();
    Box::new(move || {
        client.send(&question);
        let (line, data) = client.reply()?;
        let is_batch = line.starts_with("INSERTED_BATCH ");
        let data = if is_batch { client.line()? } else { data };
        Some(format!("{line}\n{data}"))
    })
}

/// Whether an answer says that the job is there.
fn tells_of(id: u64, answer: &str) -> bool {
    let (line, data) = answer.split_once('\n').unwrap_or((answer, ""));
    let names_it =
        [line, data].iter().any(|text| text.contains(&format!(" {id} ")) && !text.ends_with("DELETED"));
    let lists_it = data.contains(&format!("id: {id}\n")) || data.contains(&format!("id: {id},"));
    names_it || lists_it || matches!(line, "TIMED_OUT" | "200")
}

/// Asks again and again, until the connection is closed.
fn ask_until(is_over: &AtomicBool, ask: &mut dyn FnMut() -> Option<String>) -> Vec<Answer> {
    let mut answers = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let Some(answer) = Answer::to(ask) else { break };
        answers.push(answer);
    }
    answers
}

/// Deletes a job, if this server comes to lead. Returns when it has said so.
fn delete(node: &Node, id: u64) -> Option<Instant> {
    let began = Instant::now();
    while node.metric("replication_leader") != Some(1.0) {
        if began.elapsed() > SUPERSEDED_WITHIN {
            return None;
        }
    }
    let mut client = connect(node.address).expect("it leads");
    client.expect(&format!("delete {id}\r\n"), "DELETED");
    Some(Instant::now())
}

/// PostgreSQL frees the lock of a leader when its session ends for any reason. The leader learns of that later, and has to connect.
#[test]
fn a_leader_whose_sessions_are_ended_tells_no_old_news() {
    for round_trip in [2, 6, 10] {
        let name = format!("sessions ended at {round_trip} ms of round trip");
        let Some(plot) = Plot::new(&name, Duration::from_millis(round_trip), "3") else { return };
        let superseded = plot.play_all(&name, SlowLink::end_sessions);
        assert!(superseded > 0 || round_trip < 10, "no leader was superseded");
    }
}

/// Only the database notices that the link is cut: the leader believes in its lease for some time.
#[test]
fn a_leader_that_is_cut_from_its_database_tells_no_old_news() {
    let name = "cut from the database";
    let Some(plot) = Plot::new(name, Duration::from_millis(2), "20") else { return };
    assert!(plot.play_all(name, SlowLink::cut) > 0, "no leader was superseded");
}
