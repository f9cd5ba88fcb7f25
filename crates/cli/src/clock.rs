//! Clocks of searches. Invariant: none goes back, and each shows infinity once the program was
//! asked to end.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tightfit::units::Seconds;

use crate::interrupt;

/// How many seconds may pass in one of the patient clock, on a processor that is never free.
const MOST: u32 = 4;

/// The most of the time between two looks that counts without any processor time: a process that
/// was stopped for a while loses nothing.
const LONGEST: Duration = Duration::from_millis(250);

/// Time between two looks at a thread's processor time: a system call each.
const BETWEEN_LOOKS: Duration = Duration::from_millis(1);

/// Time since the program's first call of this function.
pub fn wall() -> Seconds {
    unless_interrupted(now())
}

/// The processor time of a search, for the default deadline: on a busy machine a search gets more
/// time, but no more than four times as much.
pub fn patient() -> Seconds {
    unless_interrupted(Patient::look())
}

fn unless_interrupted(time: Duration) -> Seconds {
    if interrupt::raised() { Seconds(f64::INFINITY) } else { Seconds(time.as_secs_f64()) }
}

fn now() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed()
}

/// The patient clock. It advances by the processor time of a thread that looks at it: of several
/// threads, by that of the one that gets the most. So it neither stands still while a thread waits
/// for another one, nor counts what threads do that never look.
struct Patient;

/// What a thread saw when it last looked.
#[derive(Clone, Copy)]
struct Seen {
    wall: Duration,
    processor: Duration,
    shown: Duration,
}

/// What the clock shows, and when it last advanced.
struct Shown {
    time: Duration,
    wall: Duration,
}

impl Shown {
    /// Advances to what is shown after a thread's progress since it last looked: never faster than
    /// the wall's clock, nor slower than a fraction of it.
    fn advance(&mut self, before: Seen, wall: Duration, processor: Duration) -> Duration {
        let passed = wall.saturating_sub(before.wall);
        let least = passed.min(LONGEST) / MOST;
        let own = processor.saturating_sub(before.processor).clamp(least, passed);
        let most = self.time + wall.saturating_sub(self.wall);
        self.time = (before.shown + own).min(most).max(self.time);
        self.wall = self.wall.max(wall);
        self.time
    }
}

impl Patient {
    fn look() -> Duration {
        thread_local! { static SEEN: Cell<Option<Seen>> = const { Cell::new(None) } }
        static SHOWN: Mutex<Shown> =
            Mutex::new(Shown { time: Duration::ZERO, wall: Duration::ZERO });
        // The same, for threads that have just looked.
        static NANOSECONDS: AtomicU64 = AtomicU64::new(0);
        let wall = now();
        let before = SEEN.get();
        if before.is_some_and(|seen| wall.saturating_sub(seen.wall) < BETWEEN_LOOKS) {
            return Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed));
        }
        let processor = processor_time().unwrap_or(wall);
        let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = before.unwrap_or(Seen { wall, processor, shown: shown.time });
        let time = shown.advance(before, wall, processor);
        NANOSECONDS.store(time.as_nanos() as u64, Ordering::Relaxed);
        SEEN.set(Some(Seen { wall, processor, shown: time }));
        time
    }
}

/// Processor time of this thread; absent where the system does not say.
#[cfg(unix)]
fn processor_time() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Processor time of this thread; absent where the system does not say.
#[cfg(not(unix))]
fn processor_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// What the clock shows, in milliseconds, after threads have looked one after another: each at
    /// the wall's time and with its own processor time.
    fn shown(looks: &[(usize, u32, u32)]) -> Vec<u128> {
        let mut clock = Shown { time: Duration::ZERO, wall: Duration::ZERO };
        let mut seen = [None; 2];
        let look = |&(thread, wall, processor): &(usize, u32, u32)| {
            let (wall, processor) = (MS * wall, MS * processor);
            let before = seen[thread].unwrap_or(Seen { wall, processor, shown: clock.time });
            let time = clock.advance(before, wall, processor);
            seen[thread] = Some(Seen { wall, processor, shown: time });
            time.as_millis()
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn a_thread_that_has_a_processor_sees_the_wall_s_time() {
        assert_eq!(shown(&[(0, 0, 0), (0, 8, 8), (0, 20, 20)]), [0, 8, 20]);
    }

    #[test]
    fn a_thread_that_shares_one_sees_less_but_not_less_than_a_fraction() {
        assert_eq!(shown(&[(0, 0, 0), (0, 8, 4), (0, 16, 4), (0, 24, 4)]), [0, 4, 6, 8]);
    }

    #[test]
    fn of_two_threads_the_faster_one_counts_once() {
        let both = [(0, 0, 0), (1, 0, 0), (0, 8, 8), (1, 8, 8), (0, 16, 16), (1, 16, 8)];
        assert_eq!(shown(&both), [0, 0, 8, 8, 16, 16]);
    }

    #[test]
    fn what_a_thread_did_while_it_did_not_look_makes_the_clock_jump_for_nobody() {
        let long = [(1, 0, 0), (0, 900, 0), (0, 908, 2), (1, 909, 909)];
        assert_eq!(shown(&long)[2..], [2, 3]);
    }

    #[test]
    fn a_stop_of_the_process_hardly_counts() {
        assert_eq!(shown(&[(0, 0, 0), (0, 8, 8), (0, 6_008, 8), (0, 6_016, 16)]), [0, 8, 70, 78]);
    }

    #[test]
    fn neither_clock_goes_back() {
        for clock in [wall, patient] {
            let times: Vec<Seconds> = (0..10_000).map(|_| clock()).collect();
            assert!(times.is_sorted());
        }
    }
}
