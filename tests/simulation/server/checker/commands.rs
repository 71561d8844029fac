//! Single commands and what the model answers to them.

use beanring::protocol::command::Command;
use beanring::protocol::reply::Reply;
use beanring::queue::{JobAwaited, JobMoved, MoveRefusal, Released};
use beanring::time::Seconds;
use beanring_testkit::naive::{Conn, Name, Tags, Value, number_of_key, number_of_tube};

use super::super::names::name_of;
use super::super::report;
use super::{Checker, Expected};

impl Checker {
    pub(super) fn command(&mut self, client: usize, command: Command<'_>) {
        let conn = client as Conn;
        let model = &mut self.model;
        let done = |is_done: bool, reply: Reply<'static>| if is_done { reply } else { Reply::NotFound };
        let reply = match command {
            Command::Put { args, tags } => return self.put(client, args, tags.map(Tags::of)),
            Command::PutBatch { count } => return self.begin_batch(client, count),
            Command::Reserve => return self.reserve(client, None),
            Command::ReserveWithTimeout { seconds } => {
                return self.reserve(client, Some(seconds.span()));
            }
            Command::ReserveBatch { count, seconds } => {
                return self.reserve_batch(client, count, seconds.map(Seconds::span));
            }
            Command::ReserveJob(id) => {
                let is_done = model.reserve_job(conn, id.0);
                return self.job_or_not(client, is_done.then_some(id.0), "RESERVED");
            }
            Command::Peek(id) => {
                let found = model.jobs.iter().any(|job| job.id == id.0).then_some(id.0);
                return self.job_or_not(client, found, "FOUND");
            }
            Command::PeekReady => {
                let found = model.peek_ready(conn);
                return self.job_or_not(client, found, "FOUND");
            }
            Command::PeekDelayed => {
                let found = model.peek_delayed(conn);
                return self.job_or_not(client, found, "FOUND");
            }
            Command::PeekBuried => {
                let found = model.peek_buried(conn);
                return self.job_or_not(client, found, "FOUND");
            }
            Command::PeekReserved => {
                let found = model.peek_reserved(conn);
                return self.job_or_not(client, found, "FOUND");
            }
            Command::Delete(id) => done(model.delete(conn, id.0), Reply::Deleted),
            Command::Release { id, pri, delay } => match model.release(conn, id.0, pri, delay) {
                Released::Done => Reply::Released,
                Released::Buried => Reply::Buried,
                Released::NotFound => Reply::NotFound,
            },
            Command::TubeConfig { tube, rule: Some(rule) } => {
                let value = Value::of(rule.value(), number_of_tube);
                model.set_rule(number_of_tube(tube), rule.key(), value);
                Reply::Configured
            }
            Command::Bury { id, pri } => done(model.bury(conn, id.0, pri), Reply::Buried),
            Command::Touch(id) => done(model.touch(conn, id.0), Reply::Touched),
            Command::Kick { bound } => Reply::Kicked(model.kick(conn, bound).into()),
            Command::FlushTube(tube) => {
                let work = model.begin_flush(number_of_tube(tube));
                return self.begin_bulk(client, work);
            }
            Command::FlushKeys(tube) => Reply::Flushed(model.flush_keys(number_of_tube(tube)).into()),
            Command::DeleteBatch(ids) => {
                let ids: Vec<u64> = ids.iter().map(|id| id.0).collect();
                let (deleted, not_found) = model.delete_batch(conn, &ids);
                Reply::DeletedBatch { deleted, not_found }
            }
            Command::WaitJob { id, seconds } => match model.wait_job(conn, id.0, seconds.span()) {
                JobAwaited::NotFound => Reply::NotFound,
                JobAwaited::Buried => Reply::Buried,
                JobAwaited::TimedOut => Reply::TimedOut,
                JobAwaited::Waiting if self.clients[client].input_ending => return self.end_wait(client),
                JobAwaited::Waiting => return,
            },
            Command::JobNote { id, bytes } => return self.begin_note(client, id.0, bytes),
            Command::CancelReserve => Reply::NotWaiting,
            Command::ReserveMode(mode) => {
                model.set_mode(conn, mode);
                Reply::UsingMode(mode)
            }
            Command::MoveJob { id, tube } => match model.move_job(id.0, number_of_tube(tube)) {
                JobMoved::Done => Reply::Moved,
                JobMoved::NotFound => Reply::NotFound,
                JobMoved::Refused(MoveRefusal::KeyExists) => Reply::NotMoved,
                JobMoved::Refused(_) => Reply::OutOfMemory,
            },
            Command::MoveJobs { from, state, to, bound } => {
                let work = model.begin_move(number_of_tube(from), state, number_of_tube(to), bound);
                return self.begin_bulk(client, work);
            }
            Command::KickJob(id) => done(model.kick_job(id.0), Reply::KickedJob),
            Command::PauseTube { tube: None, .. } => Reply::BadFormat,
            Command::PauseTube { tube: Some(tube), seconds } => {
                done(model.pause(number_of_tube(tube), seconds.span()), Reply::Paused)
            }
            Command::Use(tube) => {
                model.use_tube(conn, number_of_tube(tube));
                Reply::Using(tube)
            }
            Command::Watch(tube) | Command::WatchWeighted { tube, .. } => {
                Reply::Watching(model.watch(conn, number_of_tube(tube)))
            }
            Command::Ignore(tube) => {
                model.ignore(conn, number_of_tube(tube)).map_or(Reply::NotIgnored, Reply::Watching)
            }
            Command::Drain => {
                self.totals.draining = true;
                Reply::DrainBegun
            }
            Command::Undrain => {
                self.totals.draining = false;
                Reply::NotDraining
            }
            Command::Quit => {
                let record = &mut self.clients[client];
                (record.has_quit, record.says_quit) = (true, true);
                return;
            }
            report => return self.report(client, report),
        };
        self.answer(client, reply);
    }

    fn report(&mut self, client: usize, command: Command<'_>) {
        let model = &self.model;
        let names = |tubes: &[Name]| {
            let items: String = tubes.iter().map(|&tube| format!("- {}\n", name_of(tube))).collect();
            format!("OK {}\r\n---\n{items}\r\n", items.len() + 4).into_bytes()
        };
        let record = model.get(client as Conn);
        let answer = match command {
            Command::Stats => Expected::Data(report::stats(model, &self.totals)),
            Command::StatsJob(id) => match model.jobs.iter().find(|job| job.id == id.0) {
                Some(job) => Expected::Data(report::job(model, &self.totals, job)),
                None => Expected::Line(b"NOT_FOUND\r\n".to_vec()),
            },
            Command::StatsTube(name) => {
                let number = number_of_tube(name);
                match model.tubes.iter().find(|tube| tube.name == number) {
                    Some(tube) => Expected::Data(report::tube(model, &self.totals, tube)),
                    None => Expected::Line(b"NOT_FOUND\r\n".to_vec()),
                }
            }
            Command::StatsGroup(name) => {
                let number = number_of_key(name);
                let not_found = || Expected::Line(b"NOT_FOUND\r\n".to_vec());
                report::group(model, number).map_or_else(not_found, Expected::Data)
            }
            Command::TubeConfig { tube, .. } => Expected::Line(report::rules(model, number_of_tube(tube))),
            Command::ListTubeUsed => {
                Expected::Line(format!("USING {}\r\n", name_of(record.used)).into_bytes())
            }
            Command::ListTubes => {
                let tubes: Vec<_> = model.tubes.iter().map(|tube| tube.name).collect();
                Expected::Line(names(&tubes))
            }
            Command::ListTubesWatched => Expected::Line(names(&record.watched)),
            Command::ListJobs { tube, state, after, limit } => {
                let size_of = |id: u64| self.bodies[&id].len() - 2;
                match report::page(
                    model,
                    &self.totals,
                    number_of_tube(tube),
                    state,
                    (after.0, limit),
                    size_of,
                ) {
                    Some(lines) => Expected::Line(lines),
                    None => Expected::Line(b"NOT_FOUND\r\n".to_vec()),
                }
            }
            other => unreachable!("{other:?} is no report"),
        };
        self.push(client, answer);
    }
}
