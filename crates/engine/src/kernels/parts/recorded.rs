//! What each part of a kernel reads and writes, recorded in tests, and compared when the kernel
//! ends. Invariant: the recorder touches no tensor.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_RECORDED: AtomicBool = AtomicBool::new(false);

/// From now on, parts of kernels are recorded and compared.
pub fn start() {
    IS_RECORDED.store(true, Ordering::Relaxed);
}

/// The parts of one kernel.
#[derive(Default)]
pub struct Parts {
    touched: Mutex<Vec<(usize, Range)>>,
}

/// Bytes that were read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    start: usize,
    end: usize,
    is_written: bool,
}

impl Range {
    fn new<T>(first: *const T, elements: usize, is_written: bool) -> Range {
        let start = first.addr();
        Range { start, end: start + elements * size_of::<T>(), is_written }
    }
}

/// The most ranges that are recorded for one part; what it touches after that is not compared.
/// Strided tensors have one for each element.
const MOST: usize = 1 << 14;

thread_local! {
    /// What the part that runs in this thread has touched.
    static TOUCHED: RefCell<Option<Touched>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Touched {
    /// In the order of its accesses.
    ranges: Vec<Range>,
    /// Memory of the thread, which one part uses after another.
    scratch: Option<(usize, Range)>,
}

/// Records that the part that runs in this thread reads or writes elements.
pub fn touch<T>(first: *const T, elements: usize, is_written: bool) {
    if !IS_RECORDED.load(Ordering::Relaxed) {
        return;
    }
    let range = Range::new(first, elements, is_written);
    TOUCHED.with_borrow_mut(|touched| {
        let Some(Touched { ranges, scratch }) = touched.as_mut().filter(|_| elements > 0) else {
            return;
        };
        if scratch.is_some_and(|(_, own)| own.start <= range.start && range.end <= own.end) {
            return;
        }
        let full = ranges.len() >= MOST;
        match ranges.last_mut() {
            Some(last) if last.is_written == is_written && last.end == range.start => {
                last.end = range.end
            }
            Some(last) if *last == range => {}
            Some(_) | None if full => {}
            Some(_) | None => ranges.push(range),
        }
    });
}

/// Records that elements belong to a thread, by its number, whichever part it runs.
pub fn scratch<T>(first: *const T, elements: usize, thread: usize) {
    let range = Range::new(first, elements, true);
    TOUCHED.with_borrow_mut(|touched| {
        if let Some(touched) = touched {
            touched.scratch = Some((thread, range));
        }
    });
}

impl Parts {
    /// Runs a part.
    pub fn run<R>(&self, part: usize, body: impl FnOnce() -> R) -> R {
        if !IS_RECORDED.load(Ordering::Relaxed) {
            return body();
        }
        // While a part waits for others, its thread may run another one.
        let outer = TOUCHED.replace(Some(Touched::default()));
        let result = body();
        let Touched { ranges, scratch } = TOUCHED.replace(outer).unwrap_or_default();
        let mut touched = self.touched.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        touched.extend(ranges.into_iter().map(|range| (part, range)));
        touched.extend(scratch.map(|(thread, range)| (usize::MAX - thread, range)));
        result
    }

    /// Two parts of which one writes what the other touches, and the ranges.
    fn conflict(touched: &mut [(usize, Range)]) -> Option<[(usize, Range); 2]> {
        touched.sort_unstable_by_key(|&(_, range)| range);
        // Of the ranges that began before: the one that ends last, and the one that ends last of
        // another part; the same of the written ones.
        let mut ends: [Vec<(usize, Range)>; 2] = [Vec::new(), Vec::new()];
        for &(part, range) in touched.iter() {
            let against = if range.is_written { &ends[0] } else { &ends[1] };
            let other = against.iter().find(|(of, other)| *of != part && other.end > range.start);
            if let Some(&other) = other {
                return Some([other, (part, range)]);
            }
            for (slot, longest) in ends.iter_mut().enumerate() {
                if slot == 1 && !range.is_written {
                    continue;
                }
                longest.retain(|(of, other)| *of != part || other.end > range.end);
                if longest.iter().all(|(of, _)| *of != part) {
                    longest.push((part, range));
                }
                longest.sort_by_key(|(_, range)| std::cmp::Reverse(range.end));
                longest.truncate(2);
            }
        }
        None
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let touched = self.touched.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some([one, other]) = Parts::conflict(touched) {
            panic!("parts of a kernel touch the same bytes, and one writes: {one:?} and {other:?}");
        }
        // For an enclosing part, in which this kernel runs, all of it is one part's access.
        TOUCHED.with_borrow_mut(|outer| {
            if let Some(outer) = outer {
                outer.ranges.extend(touched.iter().map(|&(_, range)| range));
                outer.ranges.truncate(MOST);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflicts(touched: &[(usize, usize, usize, bool)]) -> bool {
        let range = |&(part, start, end, is_written)| (part, Range { start, end, is_written });
        let mut touched: Vec<(usize, Range)> = touched.iter().map(range).collect();
        Parts::conflict(&mut touched).is_some()
    }

    #[test]
    fn parts_may_read_the_same_and_write_side_by_side() {
        assert!(!conflicts(&[(0, 0, 8, false), (1, 0, 8, false), (0, 8, 12, true)]));
        assert!(!conflicts(&[(0, 0, 8, true), (1, 8, 16, true), (0, 0, 8, false)]));
    }

    #[test]
    fn what_one_part_writes_no_other_touches() {
        assert!(conflicts(&[(0, 0, 8, true), (1, 7, 9, false)]));
        assert!(conflicts(&[(0, 0, 8, false), (1, 7, 9, true)]));
        assert!(conflicts(&[(0, 0, 100, true), (1, 2, 3, false), (0, 4, 5, true)]));
        assert!(conflicts(&[
            (0, 0, 100, false),
            (1, 2, 3, false),
            (0, 4, 5, true),
            (1, 4, 5, true)
        ]));
    }

    #[test]
    fn what_is_found_agrees_with_every_pair() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..2_000 {
            let mut draw = || {
                let start = random.usize(0..20);
                let end = start + random.usize(1..6);
                (random.usize(0..3), start, end, random.bool())
            };
            let touched: Vec<_> = (0..6).map(|_| draw()).collect();
            let of_pair = |a: &(usize, usize, usize, bool), b: &(usize, usize, usize, bool)| {
                a.0 != b.0 && (a.3 || b.3) && a.1 < b.2 && b.1 < a.2
            };
            let is_any = touched.iter().any(|a| touched.iter().any(|b| of_pair(a, b)));
            assert_eq!(conflicts(&touched), is_any, "{touched:?}");
        }
    }

    #[test]
    fn what_parts_touch_is_compared() {
        start();
        let mut elements = [0u32; 8];
        let first = elements.as_mut_ptr();
        let run = |starts: [usize; 2]| {
            let parts = Parts::default();
            for (part, start) in starts.into_iter().enumerate() {
                parts.run(part, || touch(first.wrapping_add(start), 4, true));
            }
        };
        run([0, 4]);
        assert!(std::panic::catch_unwind(|| run([0, 3])).is_err());
    }

    #[test]
    fn scratch_belongs_to_its_thread() {
        start();
        let mut elements = [0u32; 8];
        let first = elements.as_mut_ptr();
        let run = |starts: [usize; 2], threads: [usize; 2]| {
            let parts = Parts::default();
            for (part, (start, thread)) in starts.into_iter().zip(threads).enumerate() {
                parts.run(part, || {
                    scratch(first.wrapping_add(start), 4, thread);
                    touch(first.wrapping_add(start), 4, true);
                });
            }
        };
        run([0, 0], [1, 1]);
        run([0, 4], [0, 1]);
        assert!(std::panic::catch_unwind(|| run([0, 3], [0, 1])).is_err());
    }
}
