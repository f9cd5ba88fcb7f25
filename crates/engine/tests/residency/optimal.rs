//! Our rules against brute force, for blocks of one size. Invariant: the oracle tries every choice
//! of evictions at every access, and knows nothing of next uses.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tightfit::id::EntityRef;
use tightfit::units::Bytes;
use tightfit_engine::residency::{Access, GraphKey, Phase, Residency, Settings, TensorId};

/// A step that repeats: for each access a set of blocks, as bits, and how many fit on the device.
#[derive(Clone, Debug)]
struct Trace {
    blocks: usize,
    accesses: Vec<(u32, u32)>,
}

fn traces() -> impl Strategy<Value = Trace> {
    (2..=5usize).prop_flat_map(|blocks| {
        let access = (1..1u32 << blocks, 0..=blocks as u32, 0..4u32).prop_map(move |drawn| {
            let (set, room, shape) = drawn;
            // Mostly one block at a time.
            let set = if shape > 0 { set & set.wrapping_neg() } else { set };
            (set, room.max(set.count_ones()))
        });
        let fixed = proptest::bool::ANY;
        (proptest::collection::vec(access, 1..=9), fixed).prop_map(move |(accesses, fixed)| {
            let most = accesses.iter().map(|&(set, _)| set.count_ones()).max().unwrap_or(1);
            let room = accesses[0].1.max(most);
            let same = |(set, own)| (set, if fixed { room } else { own });
            Trace { blocks, accesses: accesses.into_iter().map(same).collect() }
        })
    })
}

/// The cost of a block that is loaded, and of one that is evicted.
#[derive(Clone, Copy)]
struct Cost {
    load: u32,
    eviction: u32,
}

/// The least cost of an iteration from a set on the device to each set.
fn oracle(trace: &Trace, start: u32, cost: Cost) -> BTreeMap<u32, u32> {
    let mut least = BTreeMap::from([(start, 0)]);
    for &(set, room) in &trace.accesses {
        let mut next: BTreeMap<u32, u32> = BTreeMap::new();
        for (&before, &spent) in &least {
            let evictable = before & !set;
            let loads = (set & !before).count_ones() * cost.load;
            for kept in (0..=evictable).filter(|kept| kept & !evictable == 0) {
                if (kept | set).count_ones() <= room {
                    let evicted = (evictable & !kept).count_ones() * cost.eviction;
                    let total = spent + loads + evicted;
                    let best = next.entry(kept | set).or_insert(total);
                    *best = total.min(*best);
                }
            }
        }
        least = next;
    }
    least
}

/// The least mean cost of an iteration in the long run, as numerator and denominator (Karp, "A
/// characterization of the minimum cycle mean in a digraph", Discrete Mathematics 23, 1978).
fn least_mean(trace: &Trace, cost: Cost) -> (u32, u32) {
    let sets = 1usize << trace.blocks;
    let edges: Vec<_> = (0..sets).map(|set| oracle(trace, set as u32, cost)).collect();
    let mut walks = vec![vec![Some(0); sets]];
    for length in 0..sets {
        let mut next: Vec<Option<u32>> = vec![None; sets];
        for (from, reached) in edges.iter().enumerate() {
            let Some(spent) = walks[length][from] else { continue };
            for (&to, &edge) in reached {
                let total = spent + edge;
                let best = next[to as usize].get_or_insert(total);
                *best = total.min(*best);
            }
        }
        walks.push(next);
    }
    let is_less = |a: (i64, i64), b: (i64, i64)| a.0 * b.1 < b.0 * a.1;
    let mut least: Option<(i64, i64)> = None;
    for (set, total) in walks[sets].iter().enumerate() {
        let Some(total) = total else { continue };
        let shorter = (0..sets).filter_map(|length| {
            let walk = i64::from(walks[length][set]?);
            Some((i64::from(*total) - walk, (sets - length) as i64))
        });
        let most = shorter.reduce(|a, b| if is_less(a, b) { b } else { a }).unwrap();
        if least.is_none_or(|found| is_less(most, found)) {
            least = Some(most);
        }
    }
    let (total, iterations) = least.unwrap();
    (total as u32, iterations as u32)
}

/// A run of the trace: tensors of one byte in chunks of one byte, and non-model bytes that leave
/// the space that the trace says.
struct Run<'a> {
    trace: &'a Trace,
    residency: Residency,
    writes: bool,
}

impl<'a> Run<'a> {
    fn new(trace: &'a Trace, prefetch: u64, writes: bool) -> Run<'a> {
        let settings = Settings {
            prefetch: Bytes(prefetch),
            ..Settings::region(Bytes(1), trace.blocks as u32)
        };
        let residency = Residency::new(settings, vec![Bytes(1); trace.blocks]).unwrap();
        Run { trace, residency, writes }
    }

    /// Bytes to the device and to the host.
    fn iteration(&mut self) -> (u32, u32) {
        self.residency.begin(GraphKey(7)).unwrap();
        for &(set, room) in &self.trace.accesses {
            let tensors: Vec<TensorId> = tensors(set).collect();
            let access = if self.writes {
                Access { reads: &[], writes: &tensors }
            } else {
                Access { reads: &tensors, writes: &[] }
            };
            self.residency.acquire(access).unwrap();
            assert!(tensors.iter().all(|&tensor| self.residency.address(tensor).is_some()));
            let non_model = Bytes(self.trace.blocks as u64 - u64::from(room));
            self.residency.release(access, Phase::Forward, non_model).unwrap();
        }
        let figures = self.residency.end().unwrap();
        (figures.to_device.0 as u32, figures.to_host.0 as u32)
    }

    fn on_device(&self) -> u32 {
        let there = |&block: &usize| self.residency.address(TensorId::new(block)).is_some();
        (0..self.trace.blocks).filter(there).map(|block| 1 << block).sum()
    }

    /// The mean of (bytes to the device, bytes to the host) once the layouts repeat, as sums and
    /// the number of iterations.
    fn steady(&mut self) -> (u32, u32, u32) {
        self.iteration();
        let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
        let mut sums = vec![(0, 0)];
        for iteration in 0.. {
            if let Some(&first) = seen.get(&self.on_device()) {
                let (last, first_sums) = (sums[iteration as usize], sums[first as usize]);
                return (last.0 - first_sums.0, last.1 - first_sums.1, iteration - first);
            }
            seen.insert(self.on_device(), iteration);
            let (to_device, to_host) = self.iteration();
            let (before, _) = (sums[iteration as usize], ());
            sums.push((before.0 + to_device, before.1 + to_host));
        }
        unreachable!()
    }
}

fn tensors(set: u32) -> impl Iterator<Item = TensorId> {
    (0..u32::BITS).filter(move |bit| set >> bit & 1 == 1).map(|bit| TensorId::new(bit as usize))
}

proptest! {
    #![proptest_config(tightfit_testing::config(400))]

    /// From the layout that the warm-up leaves, no policy brings fewer bytes in any number of
    /// iterations; blocks brought ahead and not used yet do not count.
    #[test]
    fn bytes_to_the_device_are_the_fewest(trace in traces(), prefetch in 0..4u64) {
        let mut run = Run::new(&trace, prefetch, false);
        run.iteration();
        let loads = Cost { load: 1, eviction: 0 };
        let mut least = BTreeMap::from([(run.on_device(), 0)]);
        let (mut brought, mut to_host) = (0, 0);
        for _ in 0..8 {
            let mut next: BTreeMap<u32, u32> = BTreeMap::new();
            for (&start, &spent) in &least {
                for (set, cost) in oracle(&trace, start, loads) {
                    let best = next.entry(set).or_insert(spent + cost);
                    *best = (spent + cost).min(*best);
                }
            }
            least = next;
            let (to_device, written) = run.iteration();
            (brought, to_host) = (brought + to_device, to_host + written);
            let ahead = run.residency.ahead().0 as u32;
            prop_assert_eq!(brought - ahead, *least.values().min().unwrap());
        }
        prop_assert_eq!(to_host, 0, "what is never written to is dropped");
    }

    /// In the periodic steady state the mean is that of the best cycle of layouts: in bytes to the
    /// device, and, if every access writes, in bytes of both directions.
    #[test]
    fn the_steady_state_is_the_best_cycle(trace in traces(), writes in proptest::bool::ANY) {
        let (to_device, to_host, iterations) = Run::new(&trace, 0, writes).steady();
        let cost = Cost { load: 1, eviction: u32::from(writes) };
        let (total, best_iterations) = least_mean(&trace, cost);
        prop_assert_eq!((to_device + to_host) * best_iterations, total * iterations);
        prop_assert_eq!(to_host, if writes { to_device } else { 0 });
    }
}

/// One of the shapes for which the best cycle is longer than an iteration: three blocks in turn
/// with space for two miss every second access.
#[test]
fn the_best_cycle_may_take_several_iterations() {
    let trace = Trace { blocks: 3, accesses: vec![(1, 2), (2, 2), (4, 2)] };
    assert_eq!(Run::new(&trace, 0, false).steady(), (3, 0, 2));
    assert_eq!(Run::new(&trace, 0, true).steady(), (3, 3, 2));
}
