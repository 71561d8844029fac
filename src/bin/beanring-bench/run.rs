//! A run of one workload: connect, prepare, measure, clean up.

use std::cell::Cell;
use std::rc::Rc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::args::{Amount, Args, Workload};
use crate::body::{Bodies, Random};
use crate::connection::{Line, Part};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::meter::{Meter, Sent};
use crate::net::{Stream, Target, Transport, connect};
use crate::pace::{Clock, Pace, Supply};
use crate::phase::{Measured, Phase, Progress, Task, Tasks};
use crate::proc::{Memory, Process};
use crate::redis::List;
use crate::report::{Extra, IdleCost, Report, Row};
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
        let run = Run::<T>::new(&args, workload, found, process, &interrupt, sent.clone());
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
async fn find<T: Transport>(args: &Args, workload: Workload) -> Result<Target, Failure> {
    #[cfg(feature = "tls")]
    crate::net::tls::resume(workload == Workload::Resume);
    let addr = args.addr_for(workload);
    let targets = Target::resolve(addr).map_err(|error| Failure::Address(addr.to_owned(), error))?;
    let mut failure = Failure::Connect(addr.to_owned(), std::io::ErrorKind::AddrNotAvailable.into());
    for target in targets {
        match connect::<T>(&target).await {
            Ok(stream) => {
                stream.shutdown();
                return Ok(target);
            }
            Err(error) => failure = Failure::Connect(target.to_string(), error),
        }
    }
    Err(failure)
}

/// A workload that is running.
struct Run<'a, T: Transport> {
    args: &'a Args,
    workload: Workload,
    target: Target,
    process: Option<Process>,
    interrupt: &'a Interrupt,
    setup: Setup<'a>,
    clock: Clock,
    closing: Rc<Cell<bool>>,
    /// Connections that are not part of the load, and consumers. None may end before the load.
    beside: Tasks,
    streams: Vec<Rc<T::Stream>>,
    extra: Extra,
}

impl<'a, T: Transport> Run<'a, T> {
    fn new(
        args: &'a Args,
        workload: Workload,
        target: Target,
        process: Option<Process>,
        interrupt: &'a Interrupt,
        sent: Rc<Sent>,
    ) -> Run<'a, T> {
        let bodies = Rc::new(Bodies::for_put(args.body as usize, args.ttr, args.seed));
        Run {
            args,
            workload,
            target,
            process,
            interrupt,
            setup: Setup { args, workload, names: Names::unique(), bodies, sent },
            clock: Clock::start(),
            closing: Rc::default(),
            beside: Tasks::new(),
            streams: Vec::new(),
            extra: Extra::default(),
        }
    }

    async fn conduct(mut self) -> Result<Vec<Row>, Failure> {
        self.keep_company().await?;
        let measured = match self.workload {
            Workload::RedisPush | Workload::RedisCycle => self.redis().await,
            Workload::Delivery => self.delivery().await,
            Workload::FillDrain => self.fill_and_drain().await,
            Workload::Put => self.alone(Watches::Nothing, |_| Flow::Put).await,
            Workload::Cycle => self.alone(Watches::ItsOwn, |_| Flow::Cycle).await,
            Workload::Handshake | Workload::Resume => self.greet().await,
            Workload::Touch => self.alone(Watches::Nothing, Flow::Touch).await,
        };
        let measured = measured?;
        self.take_away().await?;
        let row = |(name, measured): (String, Measured)| Row::new(self.args, name, &measured, self.extra);
        Ok(measured.into_iter().map(row).collect())
    }

    /// Opens the idle and the waiting connections.
    async fn keep_company(&mut self) -> Result<(), Failure> {
        let before = self.memory()?;
        for _ in 0..self.args.idle {
            let stream = self.connect().await?;
            self.beside.spawn_local(attend(stream, self.closing.clone()));
        }
        if let (Some(before), true) = (before, self.args.idle > 0) {
            tokio::time::sleep(IDLE_SETTLE).await;
            let after = self.memory()?.expect("it was there before");
            self.extra.idle = Some(IdleCost::new(before, after, self.args.idle));
        }
        for _ in 0..self.args.waiting {
            let stream = self.connect().await?;
            self.setup.wait(&stream).await?;
            self.beside.spawn_local(attend(stream, self.closing.clone()));
        }
        Ok(())
    }

    /// Opens connections that each complete what they begin.
    async fn alone(
        &mut self,
        watches: Watches,
        flow: impl Fn(Vec<u64>) -> Flow,
    ) -> Result<Vec<(String, Measured)>, Failure> {
        let mut prepared = Vec::new();
        for index in 0..self.args.connections as usize {
            let stream = self.connect().await?;
            let held = self.setup.prepare(&stream, index, watches).await?;
            prepared.push((stream, flow(held)));
        }
        let phase = self.phase(prepared.len(), prepared.len());
        let mut tasks = Tasks::new();
        for (index, (stream, flow)) in prepared.into_iter().enumerate() {
            let script = self.jobs(flow, index);
            tasks.spawn_local(self.line(&phase, index, stream, script, Part::Alone).work());
        }
        let name = self.workload.name();
        Ok(vec![(name.clone(), self.measure(&name, phase, tasks).await?)])
    }

    /// Opens connections one after the other on each of several lanes.
    async fn greet(&mut self) -> Result<Vec<(String, Measured)>, Failure> {
        let count = self.args.connections as usize;
        let phase = self.phase(count, count);
        let mut tasks = Tasks::new();
        for index in 0..count {
            let Pace::Closed(supply) = &phase.pace else { unreachable!("checked") };
            let greeter = Greeter {
                index,
                target: self.target.clone(),
                supply: supply.clone(),
                meter: phase.meter.clone(),
                clock: self.clock,
            };
            tasks.spawn_local(greeter.work::<T>());
        }
        let name = self.workload.name();
        #[cfg(feature = "tls")]
        let before = crate::net::tls::handshakes();
        let measured = self.measure(&name, phase, tasks).await?;
        #[cfg(feature = "tls")]
        {
            self.extra.handshakes = Some(crate::net::tls::handshakes().since(before));
        }
        Ok(vec![(name, measured)])
    }

    async fn redis(&mut self) -> Result<Vec<(String, Measured)>, Failure> {
        let count = self.args.connections as usize;
        let phase = self.phase(count, count);
        let mut tasks = Tasks::new();
        for index in 0..count {
            let stream = self.connect().await?;
            let key = self.setup.names.job_tube(index % self.args.tubes as usize);
            let pops = self.workload == Workload::RedisCycle;
            let body_bytes = self.args.body as usize;
            let script = List::new(index, &key, body_bytes, self.args.seed, pops, self.setup.sent.clone());
            tasks.spawn_local(self.line(&phase, index, stream, script, Part::Alone).work());
        }
        let name = self.workload.name();
        Ok(vec![(name.clone(), self.measure(&name, phase, tasks).await?)])
    }

    async fn delivery(&mut self) -> Result<Vec<(String, Measured)>, Failure> {
        let producers = self.args.connections as usize;
        let consumers = self.args.consumers.unwrap_or(self.args.connections) as usize;
        let mut consuming = Vec::new();
        for index in 0..consumers {
            let stream = self.connect().await?;
            self.setup.prepare(&stream, index, Watches::All).await?;
            consuming.push(stream);
        }
        let mut producing = Vec::new();
        for index in 0..producers {
            let stream = self.connect().await?;
            self.setup.prepare(&stream, index, Watches::Nothing).await?;
            producing.push(stream);
        }
        let phase = self.phase(producers, consumers);
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
        let name = self.workload.name();
        Ok(vec![(name.clone(), self.measure(&name, phase, tasks).await?)])
    }

    async fn fill_and_drain(&mut self) -> Result<Vec<(String, Measured)>, Failure> {
        let connections = self.args.connections as usize;
        let mut streams = Vec::new();
        for index in 0..connections {
            let stream = self.connect().await?;
            self.setup.prepare(&stream, index, Watches::ItsOwn).await?;
            streams.push(stream);
        }
        let mut measured = Vec::new();
        for (name, flow) in [("fill", (|| Flow::Put) as fn() -> Flow), ("drain", || Flow::Drain)] {
            let phase = self.phase(connections, connections);
            let mut tasks = Tasks::new();
            for (index, stream) in streams.iter().enumerate() {
                let script = self.jobs(flow(), index);
                let mut line = self.line(&phase, index, stream.clone(), script, Part::Alone);
                line.pace = Pace::Closed(Supply::new(self.share(index)));
                tasks.spawn_local(line.work());
            }
            measured.push((name.to_owned(), self.measure(name, phase, tasks).await?));
            if self.interrupt.came() {
                break;
            }
        }
        Ok(measured)
    }

    /// Returns the jobs that connection `index` puts in advance. It drains as many, from the same tube.
    fn share(&self, index: usize) -> u64 {
        let Amount::Count(count) = self.args.amount(Workload::FillDrain) else { unreachable!("checked") };
        let connections = u64::from(self.args.connections);
        count / connections + u64::from((index as u64) < count % connections)
    }

    fn phase(&self, begin: usize, sample: usize) -> Phase {
        let bounded = self.workload.piles_up() && self.args.count.is_none();
        let task = Task {
            amount: self.args.amount(self.workload),
            warm_up: self.args.warm_up(self.workload),
            rate: self.args.rate,
            limit: if bounded { self.args.queue_jobs_max() } else { u64::MAX },
            patience: self.args.timeout,
        };
        Phase::new(task, self.clock, begin, sample)
    }

    async fn measure(&mut self, name: &str, phase: Phase, tasks: Tasks) -> Result<Measured, Failure> {
        let progress = Progress::new(name);
        phase.conduct(tasks, &mut self.beside, self.process, self.interrupt, progress).await
    }

    fn line<P: Script>(
        &self,
        phase: &Phase,
        index: usize,
        stream: Rc<T::Stream>,
        script: P,
        part: Part,
    ) -> Line<T::Stream, P> {
        let receives = !matches!(self.workload, Workload::Put | Workload::Touch | Workload::RedisPush);
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
        let random = Random::new(self.args.seed.wrapping_add(index as u64));
        let setup = &self.setup;
        let spread = setup.names.spread(self.args);
        Jobs::new(flow, index, setup.bodies.clone(), setup.sent.clone(), spread, random)
    }

    async fn connect(&mut self) -> Result<Rc<T::Stream>, Failure> {
        let connected = connect::<T>(&self.target).await;
        let stream = connected.map_err(|error| Failure::Connect(self.target.to_string(), error))?;
        let stream = Rc::new(stream);
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

/// Opens connections, one after the other.
struct Greeter {
    index: usize,
    target: Target,
    supply: Rc<Supply>,
    meter: Rc<Meter>,
    clock: Clock,
}

impl Greeter {
    /// The server closes each connection, so that the ports in TIME_WAIT are not those that the next connections need.
    async fn work<T: Transport>(self) -> Result<(), Failure> {
        while self.supply.take() {
            let start_ns = self.clock.now_ns();
            self.meter.begun(start_ns, 0);
            let connected = connect::<T>(&self.target).await;
            let stream = connected.map_err(|error| Failure::Connect(self.target.to_string(), error))?;
            stream.write_all(b"quit\r\n".to_vec()).await.0.map_err(Failure::Broken)?;
            // Redis says +OK before.
            while stream.read(Vec::with_capacity(64)).await.0.map_err(Failure::Broken)? > 0 {}
            self.meter.settled();
            self.meter.replied(1);
            self.meter.done(self.index, start_ns, self.clock.now_ns());
        }
        Ok(())
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
    let (soft, allowed) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit can be read");
    if soft >= needed {
        return Ok(());
    }
    setrlimit(Resource::RLIMIT_NOFILE, needed.min(allowed), allowed).expect("soft within hard");
    if allowed < needed { Err(Failure::Descriptors { needed, allowed }) } else { Ok(()) }
}
