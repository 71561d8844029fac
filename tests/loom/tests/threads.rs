//! The event loop and its I/O threads, without what the kernel does for them. Each model names the code of the server whose order of
//! steps it repeats.

use beanring_loom::channel::{Receiver, Sender, channel};
use beanring_loom::io::uring::requests::RawCompletion;
use beanring_loom::mailbox::Mailbox;
use beanring_loom::sleep_flag::SleepFlag;
use beanring_loom::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use loom::model::Builder;
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// How often a thread is interrupted where it would not have waited. More are rarely needed for an error, and take much longer.
const PREEMPTIONS_MAX: usize = 3;

/// A thread's ring: it ends a wait with each write to the eventfd of the thread's `Sleeper`.
#[derive(Default)]
struct Ring {
    flag: SleepFlag,
    wakes: Mutex<u32>,
    has_woken: Condvar,
}

impl Ring {
    /// `Sleeper::wake`.
    fn wake(&self) {
        if self.flag.take() {
            *self.wakes.lock().expect("no thread panics") += 1;
            self.has_woken.notify_one();
        }
    }

    /// Prepares to sleep, sleeps unless there is work, and ends the sleep: the steps of `IoThread::sleep` and of
    /// `KernelRings::enter_beside_threads`. Loom fails if no thread can go on.
    fn sleep_unless(&self, has_work: impl FnOnce() -> bool) {
        self.flag.prepare();
        if !has_work() {
            let mut wakes = self.wakes.lock().expect("no thread panics");
            while *wakes == 0 {
                wakes = self.has_woken.wait(wakes).expect("no thread panics");
            }
            *wakes = 0;
        }
        self.flag.rise();
    }
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    // LOOM_MAX_PREEMPTIONS asks for another number.
    builder.preemption_bound.get_or_insert(PREEMPTIONS_MAX);
    builder.check(model);
}

fn completion(number: u32) -> RawCompletion {
    RawCompletion { word: number.into(), result: -(number as i32), flags: !number }
}

/// Pushes completions as `IoThread::pass_on` does: as many as there is room for, and then shows them. Calls `shown` after that.
fn pass_on(sender: &mut Sender, numbers: &mut dyn Iterator<Item = u32>, mut shown: impl FnMut()) {
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        while sender.has_room()
            && let Some(number) = numbers.next()
        {
            sender.push(completion(number));
        }
        if sender.publish() {
            shown();
        } else {
            // The pause of a thread whose channel is full.
            thread::yield_now();
        }
    }
}

/// Takes what there is, and returns the slots as `ThreadRing::show` does. The completions are those that come next.
fn take(receiver: &mut Receiver, next: &mut u32) {
    while let Some(taken) = receiver.next() {
        assert_eq!(taken, completion(*next));
        *next += 1;
    }
    receiver.release();
}

#[test]
fn completions_arrive_once_whole_and_in_order() {
    for (capacity, count) in [(1, 3), (2, 4), (4, 4)] {
        check(move || {
            let (mut sender, mut receiver) = channel(capacity);
            let thread = thread::spawn(move || pass_on(&mut sender, &mut (0..count), || ()));
            let mut next = 0;
            while next < count {
                take(&mut receiver, &mut next);
                thread::yield_now();
            }
            thread.join().expect("the thread does not panic");
            assert!(receiver.is_empty());
        });
    }
}

#[test]
fn positions_that_are_shown_one_by_one_wrap_around() {
    check(|| {
        let (mut sender, mut receiver) = channel(2);
        let thread = thread::spawn(move || {
            for number in 0..4 {
                pass_on(&mut sender, &mut std::iter::once(number), || ());
            }
        });
        let mut next = 0;
        while next < 4 {
            if let Some(taken) = receiver.next() {
                assert_eq!(taken, completion(next));
                next += 1;
                receiver.release();
            } else {
                thread::yield_now();
            }
        }
        thread.join().expect("the thread does not panic");
    });
}

#[test]
fn completions_outlive_the_thread_that_has_shown_them() {
    check(|| {
        let (mut sender, mut receiver) = channel(4);
        let thread = thread::spawn(move || {
            pass_on(&mut sender, &mut (0..2), || ());
            sender.push(completion(2));
        });
        let mut next = 0;
        take(&mut receiver, &mut next);
        thread.join().expect("the thread does not panic");
        take(&mut receiver, &mut next);
        assert_eq!(next, 2, "the third was not shown");
    });
}

#[test]
fn a_thread_whose_event_loop_is_gone_finds_no_room() {
    check(|| {
        let (mut sender, mut receiver) = channel(2);
        let thread = thread::spawn(move || {
            let mut pushed = 0;
            while sender.has_room() {
                sender.push(completion(pushed));
                sender.publish();
                pushed += 1;
            }
            assert!((2..=4).contains(&pushed), "{pushed}");
        });
        take(&mut receiver, &mut 0);
        drop(receiver);
        thread.join().expect("the thread does not panic");
    });
}

/// An event loop that sleeps whenever it finds nothing, and threads that pass on so many completions each.
fn sleep_until_all_is_taken(capacity: u32, counts: &[u32]) {
    let event_loop = Arc::new(Ring::default());
    let mut ends = Vec::new();
    for &count in counts {
        let (mut sender, receiver) = channel(capacity);
        let event_loop = event_loop.clone();
        thread::spawn(move || pass_on(&mut sender, &mut (0..count), || event_loop.wake()));
        ends.push((receiver, 0));
    }
    loop {
        ends.iter_mut().for_each(|(receiver, next)| take(receiver, next));
        if ends.iter().map(|(_, next)| next).eq(counts) {
            return;
        }
        event_loop.sleep_unless(|| ends.iter_mut().any(|(receiver, _)| !receiver.is_empty()));
    }
}

#[test]
fn an_event_loop_that_sleeps_gets_more_completions_than_have_room() {
    check(|| sleep_until_all_is_taken(1, &[3]));
}

#[test]
fn an_event_loop_that_sleeps_is_woken_by_either_thread() {
    check(|| sleep_until_all_is_taken(1, &[1, 1]));
}

/// What the event loop and an I/O thread share: `Shared` in `io_thread.rs`.
#[derive(Default)]
struct Shared {
    ring: Ring,
    made: AtomicU32,
    stops: AtomicBool,
    failure: AtomicU32,
    registration: Mailbox,
}

#[test]
fn a_thread_that_sleeps_submits_every_request_before_it_ends() {
    const REQUESTS: u32 = 2;
    check(|| {
        let shared = Arc::new(Shared::default());
        let its = shared.clone();
        // `IoThread::serve`.
        let thread = thread::spawn(move || {
            let mut submitted = 0;
            loop {
                let is_stopping = its.stops.load(Ordering::Acquire);
                let made = its.made.load(Ordering::Acquire);
                if made != submitted || is_stopping {
                    submitted = made;
                } else {
                    its.ring.sleep_unless(|| {
                        its.made.load(Ordering::Acquire) != submitted || its.stops.load(Ordering::Relaxed)
                    });
                }
                if is_stopping {
                    return submitted;
                }
            }
        });
        for made in 1..=REQUESTS {
            // `ThreadRing::show`.
            shared.made.store(made, Ordering::Release);
            shared.ring.wake();
        }
        // `Threads::end`.
        shared.stops.store(true, Ordering::Release);
        shared.ring.wake();
        assert_eq!(thread.join().expect("the thread does not panic"), REQUESTS);
    });
}

#[test]
fn an_event_loop_that_sleeps_learns_that_a_thread_has_failed() {
    check(|| {
        let event_loop = Arc::new(Ring::default());
        let shared = Arc::new(Shared::default());
        let (its, its_event_loop) = (shared.clone(), event_loop.clone());
        // `IoThread::fail`.
        thread::spawn(move || {
            its.failure.store(1, Ordering::Relaxed);
            its_event_loop.wake();
        });
        // `Threads::show`, and `Threads::have_news` before a sleep.
        let has_failed = || shared.failure.load(Ordering::Relaxed) != 0;
        while !has_failed() {
            event_loop.sleep_unless(has_failed);
        }
    });
}

#[test]
fn buffers_are_registered_once_each_by_a_thread_that_sleeps() {
    const BUFFERS: u16 = 2;
    let memory = |number: u16| {
        let address = std::ptr::without_provenance_mut(4096 * (usize::from(number) + 1));
        std::ptr::NonNull::slice_from_raw_parts(std::ptr::NonNull::new(address).expect("it is not null"), 64)
    };
    check(move || {
        let event_loop = Arc::new(Ring::default());
        let shared = Arc::new(Shared::default());
        let (mut sender, mut receiver) = channel(1);
        let (its, its_event_loop) = (shared.clone(), event_loop.clone());
        // `IoThread::register`.
        let thread = thread::spawn(move || {
            for _ in 0..BUFFERS {
                let (number, place) = loop {
                    match its.registration.get().filter(|_| sender.has_room()) {
                        Some(requested) => break requested,
                        // The pause of a thread whose channel is full.
                        None if its.registration.is_full() => thread::yield_now(),
                        None => its.ring.sleep_unless(|| its.registration.is_full()),
                    }
                };
                assert_eq!((place.addr(), place.len()), (memory(number).addr().get(), 64));
                sender.push(completion(number.into()));
                its.registration.clear();
                sender.publish();
                its_event_loop.wake();
            }
        });
        // `Threads::register`, again as soon as the mailbox is empty.
        let (mut requested, mut next) = (0, 0);
        while next < u32::from(BUFFERS) {
            if requested < BUFFERS && !shared.registration.is_full() {
                // SAFETY: nothing uses the memory.
                unsafe { shared.registration.put(requested, memory(requested)) };
                shared.ring.wake();
                requested += 1;
            }
            take(&mut receiver, &mut next);
            if requested < BUFFERS {
                thread::yield_now();
            } else if next < requested.into() {
                event_loop.sleep_unless(|| !receiver.is_empty());
            }
        }
        thread.join().expect("the thread does not panic");
        assert!(!shared.registration.is_full());
    });
}
