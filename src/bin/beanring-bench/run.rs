//! A run of one workload: connect, prepare, measure, clean up.

use std::cell::Cell;
use std::rc::Rc;

use beanring::io::descriptors::raise_limit;

use crate::args::{Amount, Args, Workload};
use crate::body::Bodies;
use crate::connection::{Line, Part};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::meter::Sent;
use crate::net::{ServerAddress, Stream, Transport, connect};
use crate::pace::{Clock, Pace, Supply};
use crate::phase::{Phase, Task, Tasks};
use crate::proc::{Memory, Process};
use crate::redis::List;
use crate::report::{IdleCost, Report, Row};
use crate::script::{Flow, Jobs, Script};
use crate::setup::{Names, Setup, Watches};

/// Descriptors that are not connections.
const DESCRIPTORS_SPARE: u64 = 64;

/// Time for the server to register idle connections before its memory is read.
const IDLE_SETTLE: std::time::Duration = std::time::Duration::from_millis(100);

/// Runs every workload in turn.
pub async fn run<T: Transport>(args: Args) -> Result<Report, Failure> {
    allow_descriptors(&args)?;
    let interrupt = Interrupt::listen();
    let process = args.pid.map(Process::open).transpose()?;
    let sent = Rc::<Sent>::default();
    let mut rows = Vec::new();
    let mut target = None;
    // A slow minute of the machine affects all workloads rather than all rounds of one.
    for &workload in (0..args.rounds).flat_map(|_| &args.workloads) {
        let found = find::<T>(&args, workload).await?;
        let bodies = Rc::new(Bodies::for_put(args.body as usize));
        let run = Run::<T> {
            args: &args,
            workload,
            target: found,
            process,
            interrupt: &interrupt,
            setup: Setup { args: &args, names: Names::unique(), bodies, sent: sent.clone() },
            clock: Clock::start(),
            closing: Rc::default(),
            beside: Tasks::new(),
            streams: Vec::new(),
            idle: None,
        };
        target = Some(run.target.to_string());
        rows.extend(run.conduct().await?);
        if interrupt.came() {
            break;
        }
    }
    let target = target.expect("there is a workload at least");
    Ok(Report::new(&args, target, T::NAME, rows, &sent, interrupt.came()))
}

/// Returns the first address at which a server replies.
async fn find<T: Transport>(args: &Args, workload: Workload) -> Result<ServerAddress, Failure> {
    #[cfg(feature = "tls")]
    crate::net::tls::resume(workload == Workload::Resume);
    let addr = args.addr_for(workload);
    let targets = ServerAddress::resolve(addr).map_err(|error| Failure::Address(addr.to_owned(), error))?;
    let mut failure = Failure::Connect(addr.to_owned(), std::io::ErrorKind::AddrNotAvailable.into());
    for target in targets {
        match connect::<T>(&target).await {
            Ok(stream) => {
                stream.shutdown();
                return Ok(target);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// A workload that is running.
struct Run<'a, T: Transport> {
    args: &'a Args,
    workload: Workload,
    target: ServerAddress,
    process: Option<Process>,
    interrupt: &'a Interrupt,
    setup: Setup<'a>,
    clock: Clock,
    closing: Rc<Cell<bool>>,
    /// Connections that are not part of the load, and consumers. None may end before the load.
    beside: Tasks,
    streams: Vec<Rc<T::Stream>>,
    idle: Option<IdleCost>,
}

impl<T: Transport> Run<'_, T> {
    async fn conduct(mut self) -> Result<Vec<Row>, Failure> {
        self.keep_company().await?;
        let (phase, tasks) = match self.workload {
            Workload::RedisPush | Workload::RedisCycle => self.redis().await?,
            Workload::Delivery => self.delivery().await?,
            Workload::FillDrain => return self.fill_and_drain().await,
            Workload::Put => self.alone(Watches::Nothing, Flow::Put).await?,
            Workload::Cycle => self.alone(Watches::ItsOwn, Flow::Cycle).await?,
            Workload::Handshake | Workload::Resume => self.greet(),
        };
        let row = self.measure(&self.workload.name(), phase, tasks).await?;
        self.take_away().await?;
        Ok(vec![row])
    }

    /// Opens the idle connections.
    async fn keep_company(&mut self) -> Result<(), Failure> {
        let before = self.memory()?;
        for _ in 0..self.args.idle {
            let stream = self.connect().await?;
            self.beside.spawn_local(attend(stream, self.closing.clone()));
        }
        if let (Some(before), true) = (before, self.args.idle > 0) {
            tokio::time::sleep(IDLE_SETTLE).await;
            let after = self.memory()?.expect("it was there before");
            self.idle = Some(IdleCost::new(before, after, self.args.idle));
        }
        Ok(())
    }

    /// Opens connections and prepares each.
    async fn prepared(&mut self, count: u32, watches: Watches) -> Result<Vec<Rc<T::Stream>>, Failure> {
        let mut prepared = Vec::new();
        for index in 0..count as usize {
            let stream = self.connect().await?;
            self.setup.prepare(&stream, index, watches).await?;
            prepared.push(stream);
        }
        Ok(prepared)
    }

    /// Opens connections that each complete what they begin.
    async fn alone(&mut self, watches: Watches, flow: Flow) -> Result<(Phase, Tasks), Failure> {
        let prepared = self.prepared(self.args.connections, watches).await?;
        let phase = self.phase(prepared.len());
        let mut tasks = Tasks::new();
        for (index, stream) in prepared.into_iter().enumerate() {
            let script = self.jobs(flow, index);
            tasks.spawn_local(self.line(&phase, index, stream, script, Part::Alone).work());
        }
        Ok((phase, tasks))
    }

    /// Opens connections one after the other on each of several lanes. The server closes each, so that the ports in TIME_WAIT
    /// are not those that the next connections need.
    fn greet(&self) -> (Phase, Tasks) {
        let count = self.args.connections as usize;
        let phase = self.phase(count);
        let Pace::Closed(supply) = &phase.pace else { unreachable!("checked") };
        let mut tasks = Tasks::new();
        for index in 0..count {
            let (target, clock) = (self.target.clone(), self.clock);
            let (supply, meter) = (supply.clone(), phase.meter.clone());
            tasks.spawn_local(async move {
                while supply.take() {
                    let start_ns = clock.now_ns();
                    meter.begun(start_ns, 0);
                    let stream = connect::<T>(&target).await?;
                    stream.write_all(b"quit\r\n".to_vec()).await.0.map_err(Failure::Broken)?;
                    // Redis says +OK before.
                    while stream.read(Vec::with_capacity(64)).await.0.map_err(Failure::Broken)? > 0 {}
                    meter.settled();
                    meter.replies.update(|count| count + 1);
                    meter.done(index, start_ns, clock.now_ns());
                }
                Ok(())
            });
        }
        (phase, tasks)
    }

    async fn redis(&mut self) -> Result<(Phase, Tasks), Failure> {
        let count = self.args.connections as usize;
        let phase = self.phase(count);
        let mut tasks = Tasks::new();
        for index in 0..count {
            let stream = self.connect().await?;
            let key = self.setup.names.job_tube(index % self.args.tubes as usize);
            let pops = self.workload == Workload::RedisCycle;
            let script = List::new(index, &key, self.args.body as usize, pops, self.setup.sent.clone());
            tasks.spawn_local(self.line(&phase, index, stream, script, Part::Alone).work());
        }
        Ok((phase, tasks))
    }

    async fn delivery(&mut self) -> Result<(Phase, Tasks), Failure> {
        let consumers = self.args.consumers.unwrap_or(self.args.connections);
        let consuming = self.prepared(consumers, Watches::All).await?;
        let producing = self.prepared(self.args.connections, Watches::Nothing).await?;
        let phase = self.phase(consuming.len());
        for (index, stream) in consuming.into_iter().enumerate() {
            let script = self.jobs(Flow::Consume, index);
            let mut line = self.line(&phase, index, stream, script, Part::Consumer(phase.lanes.clone()));
            line.depth = 1;
            line.pace = Pace::Closed(Supply::new(u64::MAX));
            self.beside.spawn_local(line.work());
        }
        let window = if self.args.rate.is_some() { u64::MAX } else { u64::from(self.args.depth) };
        let mut tasks = Tasks::new();
        for (index, stream) in producing.into_iter().enumerate() {
            let script = self.jobs(Flow::Produce, index);
            tasks.spawn_local(self.line(&phase, index, stream, script, Part::Producer { window }).work());
        }
        Ok((phase, tasks))
    }

    async fn fill_and_drain(mut self) -> Result<Vec<Row>, Failure> {
        let prepared = self.prepared(self.args.connections, Watches::ItsOwn).await?;
        let mut rows = Vec::new();
        for (name, flow) in [("fill", Flow::Put), ("drain", Flow::Drain)] {
            let phase = self.phase(prepared.len());
            let mut tasks = Tasks::new();
            for (index, stream) in prepared.iter().enumerate() {
                let script = self.jobs(flow, index);
                let mut line = self.line(&phase, index, stream.clone(), script, Part::Alone);
                line.pace = Pace::Closed(Supply::new(self.share(index)));
                tasks.spawn_local(line.work());
            }
            rows.push(self.measure(name, phase, tasks).await?);
            if self.interrupt.came() {
                break;
            }
        }
        self.take_away().await?;
        Ok(rows)
    }

    /// Returns the jobs that connection `index` puts in advance. It drains as many, from the same tube.
    fn share(&self, index: usize) -> u64 {
        let Amount::Count(count) = self.args.amount(Workload::FillDrain) else { unreachable!("checked") };
        let connections = u64::from(self.args.connections);
        count / connections + u64::from((index as u64) < count % connections)
    }

    /// Prepares a phase in which the operations of `sample` connections are counted.
    fn phase(&self, sample: usize) -> Phase {
        let bounded = self.workload.piles_up() && self.args.count.is_none();
        let task = Task {
            amount: self.args.amount(self.workload),
            warm_up: self.args.warm_up(self.workload),
            rate: self.args.rate,
            limit: if bounded { self.args.queue_jobs_max() } else { u64::MAX },
            patience: self.args.timeout,
        };
        Phase::new(task, self.clock, self.args.connections as usize, sample)
    }

    async fn measure(&mut self, name: &str, phase: Phase, tasks: Tasks) -> Result<Row, Failure> {
        #[cfg(feature = "tls")]
        crate::net::tls::take_handshakes();
        let measured = phase.conduct(tasks, &mut self.beside, self.process, self.interrupt, name).await?;
        #[cfg(feature = "tls")]
        let handshakes = matches!(self.workload, Workload::Handshake | Workload::Resume)
            .then(crate::net::tls::take_handshakes);
        #[cfg(not(feature = "tls"))]
        let handshakes = None;
        Ok(Row::new(self.args, name, &measured, self.idle, handshakes))
    }

    fn line<P: Script>(
        &self,
        phase: &Phase,
        index: usize,
        stream: Rc<T::Stream>,
        script: P,
        part: Part,
    ) -> Line<T::Stream, P> {
        let receives = !matches!(self.workload, Workload::Put | Workload::RedisPush);
        Line {
            index,
            stream,
            script,
            pace: phase.pace.clone(),
            depth: self.args.depth as usize,
            lanes: phase.lanes.clone(),
            part,
            body_bytes: if receives { self.args.body as usize } else { 0 },
            meter: phase.meter.clone(),
            clock: self.clock,
            closing: self.closing.clone(),
        }
    }

    fn jobs(&self, flow: Flow, index: usize) -> Jobs {
        let setup = &self.setup;
        Jobs::new(flow, index, setup.bodies.clone(), setup.sent.clone(), setup.names.spread(self.args))
    }

    async fn connect(&mut self) -> Result<Rc<T::Stream>, Failure> {
        let stream = Rc::new(connect::<T>(&self.target).await?);
        self.streams.push(stream.clone());
        Ok(stream)
    }

    /// Closes every connection, then deletes what the run has left in the server.
    async fn take_away(&mut self) -> Result<(), Failure> {
        self.closing.set(true);
        self.streams.drain(..).for_each(|stream| stream.shutdown());
        while let Some(ended) = self.beside.join_next().await {
            ended.expect("connections do not panic")?;
        }
        if self.args.no_cleanup {
            return Ok(());
        }
        if self.workload.is_redis() {
            return self.setup.clean_up_redis::<T>(&self.target).await;
        }
        let left = self.setup.clean_up::<T>(&self.target).await?;
        if left > 0 {
            eprintln!("beanring-bench: {left} tubes (beanring-bench.*) could not be emptied");
        }
        Ok(())
    }

    fn memory(&self) -> Result<Option<Memory>, Failure> {
        self.process.map(Process::memory).transpose()
    }
}

/// Keeps a connection open on which nothing should arrive until the end of the run.
async fn attend<S: Stream>(stream: Rc<S>, closing: Rc<Cell<bool>>) -> Result<(), Failure> {
    let (result, bytes) = stream.read(Vec::with_capacity(16)).await;
    match result {
        Ok(0) | Err(_) if closing.get() => Ok(()),
        Ok(0) => Err(Failure::Closed),
        Ok(_) => Err(Failure::nonsense(crate::meter::Command::Reserve, &bytes)),
        Err(error) => Err(Failure::Broken(error)),
    }
}

/// Raises the soft limit of descriptors as far as the connections need.
fn allow_descriptors(args: &Args) -> Result<(), Failure> {
    let needed = u64::from(args.connections_max()) + DESCRIPTORS_SPARE;
    let allowed = raise_limit().expect("the limit can be read, and the soft one raised");
    if allowed < needed { Err(Failure::Descriptors { needed, allowed }) } else { Ok(()) }
}
