//! What a standby leaves to its leader, though it has the same configuration and gets the same signals.

use beanring::server::{Config, Effect, Event, Server, ServerRole, Service};
use beanring::time::{Seconds, Span, Time};
use beanring::values::schedules::{ConfiguredSchedule, Missed, Plan};
use beanring::values::tube_name::TubeName;
use beanring::values::when::When;
use beanring::wal::replica::Request;
use beanring::wal::{LogReply, LogRequest};
use beanring_testkit::config::config;

use super::chunks::replica_config;
use super::database::{Node, reply_to};

const STEP: Span = Span::from_millis(100);

/// Servers whose job log is in one database. The first one that starts leads.
struct Site {
    node: Node,
    now: Time,
    servers: [Option<Server>; 2],
    /// The watches of the servers, which end with the session of the leader.
    watches: [Vec<Request>; 2],
}

fn name() -> TubeName<'static> {
    TubeName::new(b"mail").expect("a name")
}

/// A server whose configuration has a schedule of each second.
fn configuration() -> Config {
    let when = When::parse("every:1", Time::ZERO).expect("a time");
    let plan = Plan {
        when,
        pri: 0,
        delay: Seconds::whole(0),
        ttr: Seconds::whole(60),
        missed: Missed::All,
        overlaps: true,
    };
    let schedule = ConfiguredSchedule {
        name: "mail".to_owned(),
        tube: "mail".to_owned(),
        plan,
        body: b"x\r\n".to_vec(),
    };
    Config { schedules: vec![schedule], ..config(1000) }
}

impl Site {
    fn new() -> Self {
        let now = Time::from_nanos(1_000_000_000_000);
        let mut site =
            Self { node: Node::new(false), now, servers: [None, None], watches: Default::default() };
        for host in 0..2 {
            let replica = replica_config(64 * 1024, 1 + host as u64);
            site.servers[host] = Some(Server::with_replica(configuration(), replica, now));
            site.pass(Span::from_secs(1));
        }
        assert_eq!(site.server(0).status().role, ServerRole::Serving);
        assert_ne!(site.server(1).status().role, ServerRole::Serving);
        site
    }

    fn server(&self, host: usize) -> &Server {
        self.servers[host].as_ref().expect("it runs")
    }

    fn turn(&mut self, host: usize) {
        let Some(server) = &mut self.servers[host] else { return };
        server.turn(self.now);
        let mut replies = Vec::new();
        while let Some(effect) = server.poll_effect() {
            if !matches!(effect, Effect::Log) {
                continue;
            }
            while let Some(LogRequest::Database(request)) = server.poll_log_request(self.now) {
                if let Request::Watch(_) = *request {
                    self.watches[host].push(*request);
                    continue;
                }
                replies.push(self.node.execute((host, 0), &request).reply);
                while self.node.unreplicated() > 0 {
                    self.node.replicate_one();
                }
            }
        }
        let node = &self.node;
        self.watches[host].retain(|request| {
            let Request::Watch(term) = request else { unreachable!("only watches are kept") };
            let is_over = node.is_unlocked(*term);
            if is_over {
                replies.push(reply_to(request, Ok(())));
            }
            !is_over
        });
        for reply in replies {
            server.handle(self.now, Event::Log(LogReply::Database(Box::new(reply))));
        }
    }

    fn pass(&mut self, span: Span) {
        let until = self.now + span;
        while self.now < until {
            self.now = self.now + STEP;
            for host in [0, 1] {
                (0..4).for_each(|_| self.turn(host));
            }
        }
    }

    fn tell(&mut self, host: usize, event: Event<'_>) {
        self.servers[host].as_mut().expect("it runs").handle(self.now, event);
    }

    fn set_clock(&mut self, host: usize, system: Time) {
        self.tell(host, Event::SystemClock(system));
    }

    /// The leader is gone, and its session.
    fn end_leader(&mut self) {
        self.servers[0] = None;
        self.node.locks.clear();
    }

    /// Its runs, and the jobs that it has.
    fn runs(&self, host: usize) -> (u64, usize) {
        let engine = self.server(host).engine();
        let schedule = engine.schedule(name()).expect("it has the schedule");
        (schedule.progress.runs, engine.jobs().len())
    }
}

#[test]
fn a_standby_runs_no_schedule_and_goes_on_where_the_leader_was() {
    let mut site = Site::new();
    site.pass(Span::from_secs(5));
    let (runs, jobs) = site.runs(0);
    assert!((5..=7).contains(&runs) && jobs as u64 == runs, "{runs} runs, {jobs} jobs");
    let standby = site.server(1).engine();
    assert_eq!(standby.schedule_counts().1.runs, 0, "a standby runs no schedule");
    assert_eq!(site.runs(1), (runs, jobs), "a standby has what the leader has recorded");
    site.end_leader();
    site.pass(Span::from_secs(20));
    assert_eq!(site.server(1).status().role, ServerRole::Serving);
    let (later, jobs) = site.runs(1);
    assert!(
        (later - runs).abs_diff(20) <= 1 && jobs as u64 == later,
        "{runs} runs, then {later}; {jobs} jobs"
    );
}

#[test]
fn the_clock_of_a_standby_that_is_set_back_starts_no_schedule() {
    let mut site = Site::new();
    site.pass(Span::from_secs(2));
    site.set_clock(1, site.now);
    site.set_clock(1, site.now + Span::from_secs(300));
    site.pass(Span::from_secs(2));
    site.set_clock(1, site.now);
    site.pass(Span::from_secs(60));
    assert_eq!(site.server(1).engine().schedule_counts().1.runs, 0, "a standby runs no schedule");
    assert_eq!(site.runs(1), site.runs(0));
}

#[test]
fn a_standby_does_not_drain() {
    let mut site = Site::new();
    for (host, drains) in [(1, false), (0, true)] {
        site.tell(host, Event::Drain);
        assert_eq!(site.server(host).status().is_draining, drains);
    }
    site.end_leader();
    site.pass(Span::from_secs(20));
    let status = site.server(1).status();
    assert!(status.role == ServerRole::Serving && !status.is_draining, "{status:?}");
}

/// The signal comes while the claim is under way: the program ends only when its server is settled.
#[test]
fn a_standby_that_was_told_to_stop_leaves_after_its_claim() {
    let mut site = Site::new();
    site.tell(1, Event::Stop);
    site.end_leader();
    let mut has_led = false;
    for _ in 0..200 {
        site.pass(STEP);
        has_led |= site.server(1).status().role == ServerRole::Serving;
    }
    assert!(has_led, "its claim is acknowledged");
    assert!(site.server(1).status().is_settled, "it leaves");
}
