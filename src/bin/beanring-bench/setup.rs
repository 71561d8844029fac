//! Prepares connections for a load: tubes used and watched. Cleans up afterwards.

use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::args::{Args, TubeBy};
use crate::body::Bodies;
use crate::failure::Failure;
use crate::meter::{Command, Sent};
use crate::net::{ServerAddress, Stream, Transport, connect};
use crate::scan::Reply;
use crate::script::Spread;
use crate::talk::ProtocolState;

/// Prefix of every tube and list of this program.
const PREFIX: &str = "beanring-bench";

/// The server drops a tube a moment after its last user has left, so the check is repeated.
const CLEANUP_ROUNDS_IDLE_MAX: u32 = 100;
const CLEANUP_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Tubes that one connection watches for the clean-up: a reserve may cost the server time for each of them.
const CLEANUP_TUBES: usize = 128;

/// Jobs that the clean-up reserves and deletes at a time.
const CLEANUP_BATCH: usize = 64;

/// The tubes of one run, which no other client uses.
#[derive(Clone)]
pub struct Names(Rc<str>);

impl Names {
    /// Chooses names that no other run has.
    pub fn unique() -> Names {
        let ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        Names(format!("{PREFIX}.{}.{ns:x}.", std::process::id()).into())
    }

    pub fn job_tube(&self, number: usize) -> String {
        format!("{}t{number}", self.0)
    }

    /// Returns the tubes to choose from for each job, if they are random.
    pub fn spread(&self, args: &Args) -> Option<Spread> {
        (args.tube_by == TubeBy::Job)
            .then(|| Spread { prefix: format!("{}t", self.0).into(), tubes: args.tubes as usize })
    }

    fn own<'a>(&self, list: &'a [u8]) -> Vec<&'a str> {
        let names = list.split(|&byte| byte == b'\n').filter_map(|line| line.strip_prefix(b"- "));
        names.filter_map(|name| str::from_utf8(name).ok()).filter(|name| name.starts_with(&*self.0)).collect()
    }
}

/// Which tubes a connection watches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watches {
    /// None of the run's tubes: it does not reserve.
    Nothing,
    /// The tube that it uses, or all tubes if each job has a random one.
    ItsOwn,
    /// All tubes.
    All,
}

/// Prepares the connections of one run.
pub struct Setup<'a> {
    pub args: &'a Args,
    pub names: Names,
    pub bodies: Rc<Bodies>,
    /// The run's counter of commands.
    pub sent: Rc<Sent>,
}

impl Setup<'_> {
    /// Prepares connection `index`.
    pub async fn prepare<S: Stream>(
        &self,
        stream: &Rc<S>,
        index: usize,
        watches: Watches,
    ) -> Result<(), Failure> {
        let mut talk = self.talk(stream);
        let own = self.names.job_tube(index % self.args.tubes as usize);
        let watched = match (watches, self.args.tube_by) {
            (Watches::Nothing, _) => Vec::new(),
            (Watches::ItsOwn, TubeBy::Connection) => vec![own.clone()],
            (Watches::ItsOwn, TubeBy::Job) | (Watches::All, _) => {
                (0..self.args.tubes as usize).map(|number| self.names.job_tube(number)).collect()
            }
        };
        if !watched.is_empty() {
            watch(&mut talk, &watched).await?;
        }
        talk.ask(Command::Use, format!("use {own}\r\n"), |reply| reply == Reply::Using).await
    }

    /// Deletes the remaining jobs of the run's tubes, and waits until the tubes are gone. Returns how many are not.
    pub async fn clean_up<T: Transport>(&self, target: &ServerAddress) -> Result<usize, Failure> {
        let mut idle_rounds = 0;
        loop {
            let stream = Rc::new(connect::<T>(target).await?);
            let mut talk = self.talk(&stream);
            let mut left = Vec::new();
            let mut count = 0;
            talk.ask(Command::ListTubes, "list-tubes\r\n", |reply| {
                let Reply::Ok(list) = reply else { return false };
                let own = self.names.own(list);
                count = own.len();
                left.extend(own.into_iter().take(CLEANUP_TUBES).map(str::to_owned));
                true
            })
            .await?;
            if count == 0 || idle_rounds == CLEANUP_ROUNDS_IDLE_MAX {
                return Ok(count);
            }
            let deleted = self.drain(&mut talk, &left).await?;
            stream.shutdown();
            idle_rounds = if deleted > 0 { 0 } else { idle_rounds + 1 };
            tokio::time::sleep(CLEANUP_PAUSE).await;
        }
    }

    async fn drain<S: Stream>(
        &self,
        talk: &mut ProtocolState<S>,
        tubes: &[String],
    ) -> Result<usize, Failure> {
        watch(talk, tubes).await?;
        let mut deleted = 0;
        loop {
            let mut ids = Vec::with_capacity(CLEANUP_BATCH);
            let lines = (0..CLEANUP_BATCH).map(|_| b"reserve-with-timeout 0\r\n".to_vec());
            talk.ask_all(Command::ReserveWithTimeout, lines, |reply| match reply {
                Reply::Reserved { id, .. } => {
                    ids.push(id);
                    true
                }
                other => other == Reply::Word("TIMED_OUT"),
            })
            .await?;
            let deletes = ids.iter().map(|id| format!("delete {id}\r\n").into_bytes());
            talk.ask_all(Command::Delete, deletes, |reply| reply == Reply::Word("DELETED")).await?;
            deleted += ids.len();
            if ids.len() < CLEANUP_BATCH {
                return Ok(deleted);
            }
        }
    }

    /// Unlinks the lists of the run.
    pub async fn clean_up_redis<T: Transport>(&self, target: &ServerAddress) -> Result<(), Failure> {
        let stream = Rc::new(connect::<T>(target).await?);
        let mut talk = self.talk(&stream);
        for number in 0..self.args.tubes as usize {
            let key = self.names.job_tube(number);
            let line = format!("*2\r\n$6\r\nUNLINK\r\n${}\r\n{key}\r\n", key.len());
            talk.ask_line(Command::Unlink, line.into_bytes(), b":").await?;
        }
        Ok(())
    }

    fn talk<S: Stream>(&self, stream: &Rc<S>) -> ProtocolState<S> {
        ProtocolState::new(stream.clone(), self.sent.clone(), self.args.timeout)
    }
}

/// Watches these tubes and no others.
async fn watch<S: Stream>(talk: &mut ProtocolState<S>, tubes: &[String]) -> Result<(), Failure> {
    let lines = tubes.iter().map(|name| format!("watch {name}\r\n").into_bytes());
    talk.ask_all(Command::Watch, lines, |reply| reply == Reply::Watching).await?;
    talk.ask(Command::Ignore, "ignore default\r\n", |reply| reply == Reply::Watching).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tubes_of_this_run_are_cleaned_up() {
        let names = Names("beanring-bench.7.ab.".into());
        let list = b"---\n- default\n- beanring-bench.7.ab.t0\n- beanring-bench.7.abc.t0\n- \"x\"\n\
            - beanring-bench.7.ab.t1\n";
        assert_eq!(names.own(list), ["beanring-bench.7.ab.t0", "beanring-bench.7.ab.t1"]);
    }
}
