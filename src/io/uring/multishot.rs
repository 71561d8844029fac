//! Shows whether the running kernel loses the last of many wake-ups of a multishot request (docs/internals/IO.md).
//!
//! Thread A has a ring and is busy while thread B makes a burst of wake-ups. B makes the last wake-up at the moment at which A
//! has nearly processed the burst. Each attempt adjusts that moment.

#![allow(unsafe_code)]

use std::env;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use nix::sys::socket::{Backlog, MsgFlags, accept, listen, recv, send};

use super::buffers::Buffers;
use beanring_testkit::random::Random;

const TRIES: usize = 3_000;

/// After this time without a completion none follows.
const QUIET: Timespec = Timespec::new().nsec(50_000_000);

/// The messages of the first thread to the second, besides a delay in nanoseconds.
const WAIT: u64 = u64::MAX;
const GO_ON: u64 = u64::MAX - 1;
const END: u64 = u64::MAX - 2;

/// What the second thread does, and the ring is to report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Connect,
    Send,
}

struct Setting {
    ring: IoUring,
    buffers: Buffers,
    work: Work,
    /// The listener, or the receiving end of the connection.
    fd: OwnedFd,
}

#[test]
#[ignore = "shows what the kernel does, not what the server does: see docs/internals/IO.md"]
fn the_last_of_many_wakeups() {
    for burst in [100, 200] {
        for (work, transport) in [(Work::Connect, "UNIX"), (Work::Send, "UNIX"), (Work::Send, "TCP")] {
            let lost = if transport == "UNIX" { lost(work, unix(), burst) } else { lost(work, tcp(), burst) };
            println!("{work:?} over {transport}, after {burst} others: {lost} of {TRIES} were lost");
        }
    }
}

/// Returns a listener, and a function that connects to it.
fn unix() -> (OwnedFd, impl Fn() -> OwnedFd + Send + 'static) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = env::temp_dir().join(format!("beanring-multishot-{}-{number}.sock", std::process::id()));
    let listener = UnixListener::bind(&path).expect("the path is free");
    listen(&listener, Backlog::MAXALLOWABLE).expect("the backlog is set");
    (listener.into(), move || UnixStream::connect(&path).expect("the server accepts connections").into())
}

fn tcp() -> (OwnedFd, impl Fn() -> OwnedFd + Send + 'static) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the listener is bound");
    let connect = move || {
        let stream = TcpStream::connect(address).expect("the server accepts connections");
        stream.set_nodelay(true).expect("the connection is open");
        stream.into()
    };
    (listener.into(), connect)
}

/// Returns how often the last wake-up was lost.
fn lost(
    work: Work,
    (listener, connect): (OwnedFd, impl Fn() -> OwnedFd + Send + 'static),
    burst: usize,
) -> usize {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_cqsize(4096);
    let ring: IoUring = builder.build(64).expect("the kernel grants a ring");
    let buffers = Buffers::register(&ring.submitter()).expect("the buffers are registered");
    let (client, fd) = match work {
        Work::Connect => (None, listener),
        Work::Send => (Some(connect()), own(accept(listener.as_raw_fd()).expect("one has come"))),
    };
    let go = Arc::new(AtomicU64::new(WAIT));
    let begun = go.clone();
    let (done, made) = channel();
    let wakes = move || match &client {
        Some(client) => {
            send(client.as_raw_fd(), b".", MsgFlags::empty()).expect("the byte is sent");
            None
        }
        None => Some(connect()),
    };
    let maker = thread::spawn(move || make_wakeups(burst, wakes, &begun, &done));
    let mut setting = Setting { ring, buffers, work, fd };
    setting.arm();
    let mut random = Random::new(burst as u64);
    let (mut delay, mut lost) = (Duration::from_micros(100), 0);
    for tried in 1..=TRIES {
        made.recv().expect("the burst is made");
        go.store(delay.as_nanos() as u64, Ordering::Release);
        let (is_early, is_lost) = setting.take(burst + 1, &made);
        lost += usize::from(is_lost);
        go.store(if tried == TRIES { END } else { GO_ON }, Ordering::Release);
        let step = Duration::from_nanos(random.below(delay.as_nanos() as usize / 16 + 200) as u64);
        delay = if is_early { delay + step } else { delay.saturating_sub(step) };
    }
    maker.join().expect("the thread does not panic");
    lost
}

/// Makes a burst, and the last wake-up after a delay, until the first thread sends [`END`].
fn make_wakeups(burst: usize, wake: impl Fn() -> Option<OwnedFd>, begun: &AtomicU64, done: &Sender<()>) {
    loop {
        let _clients: Vec<_> = (0..burst).map(|_| wake()).collect();
        done.send(()).expect("the other thread waits");
        let delay = Duration::from_nanos(next_message(begun));
        let started = Instant::now();
        while started.elapsed() < delay {
            std::hint::spin_loop();
        }
        let _last = wake();
        done.send(()).expect("the other thread waits");
        if next_message(begun) == END {
            return;
        }
    }
}

/// Waits for the next message of the first thread. It spins, since any other wait takes longer than the moment in question.
fn next_message(number: &AtomicU64) -> u64 {
    loop {
        match number.swap(WAIT, Ordering::Acquire) {
            WAIT => std::hint::spin_loop(),
            number => return number,
        }
    }
}

impl Setting {
    fn arm(&mut self) {
        let fd = Fd(self.fd.as_raw_fd());
        let entry = match self.work {
            Work::Connect => opcode::AcceptMulti::new(fd).build(),
            Work::Send => opcode::RecvMulti::new(fd, 0).build(),
        };
        // SAFETY: it refers only to registered buffers, which are never unmapped.
        unsafe { self.ring.submission().push(&entry) }.expect("the queue is empty");
        self.ring.submit().expect("the ring works");
    }

    /// Takes `count` connections or bytes. Returns whether all came at once, and whether the last wake-up was lost.
    fn take(&mut self, count: usize, made: &Receiver<()>) -> (bool, bool) {
        let (mut taken, mut rounds, mut is_made) = (0, 0, false);
        while taken < count {
            // It fails after the time-out.
            let _ = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&QUIET));
            let completions: Vec<_> = self.ring.completion().collect();
            rounds += 1;
            taken += completions.iter().map(|completion| self.take_one(completion)).sum::<usize>();
            if completions.is_empty() && std::mem::replace(&mut is_made, true) {
                self.take_by_hand();
                return (false, true);
            } else if completions.is_empty() {
                made.recv().expect("the last is made");
            }
        }
        if !is_made {
            made.recv().expect("the last is made");
        }
        (rounds == 1, false)
    }

    fn take_one(&mut self, completion: &cqueue::Entry) -> usize {
        let (result, flags) = (completion.result(), completion.flags());
        if let Some(id) = cqueue::buffer_select(flags) {
            self.buffers.give_back(id);
            self.buffers.show();
        }
        if !cqueue::more(flags) {
            self.arm();
        }
        match self.work {
            Work::Connect if result >= 0 => {
                drop(own(result));
                1
            }
            Work::Send if result > 0 => result as usize,
            _ => 0,
        }
    }

    fn take_by_hand(&self) {
        match self.work {
            Work::Connect => drop(accept(self.fd.as_raw_fd()).map(own)),
            Work::Send => drop(recv(self.fd.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT)),
        }
    }
}

fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel has just created it, and nothing else knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
