//! Our rules against the published ones, for tensors of several sizes. Invariant: both get the same
//! traces and the same bytes of the device; a thousand traces come from one seed.
//!
//! Tier: quick, since it takes 1 s.

use tightfit::id::EntityRef;
use tightfit::units::Bytes;
use tightfit_engine::residency::{Access, GraphKey, Phase, Residency, Settings, TensorId};

const TRACES: usize = 1000;
/// Iterations before the ones that count, and number of those that count.
const SETTLING: usize = 6;
const COUNTED: usize = 24;

struct Trace {
    sizes: Vec<u64>,
    order: Vec<usize>,
    capacity: u64,
}

/// A whole number below `bound` (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
fn below(state: &mut u64, bound: u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (word ^ (word >> 31)) % bound
}

fn trace(state: &mut u64) -> Trace {
    let tensors = 4 + below(state, 9) as usize;
    let sizes: Vec<u64> = (0..tensors).map(|_| 1 + below(state, 8)).collect();
    let (largest, sum) = (*sizes.iter().max().unwrap(), sizes.iter().sum::<u64>());
    let mut order: Vec<usize> =
        (0..6 + below(state, 25)).map(|_| below(state, tensors as u64) as usize).collect();
    // Every other trace is a pass forward and one back.
    if below(state, 2) == 0 {
        order = (0..tensors).chain((0..tensors).rev()).collect();
    }
    let capacity = largest + below(state, sum - largest);
    Trace { sizes, order, capacity }
}

/// Bytes in both directions when steady, if every access writes.
fn volume(trace: &Trace, settings: Settings) -> u64 {
    let sizes = trace.sizes.iter().copied().map(Bytes);
    let mut residency = Residency::new(settings, sizes).unwrap();
    let mut total = 0;
    for iteration in 0..SETTLING + COUNTED {
        residency.begin(GraphKey(0)).unwrap();
        for &tensor in &trace.order {
            let tensors = [TensorId::new(tensor)];
            let access = Access { reads: &[], writes: &tensors };
            residency.acquire(access).unwrap();
            residency.release(access, Phase::Forward, Bytes::ZERO).unwrap();
        }
        let figures = residency.end().unwrap();
        total += if iteration < SETTLING { 0 } else { figures.volume().0 };
    }
    total
}

struct Ratios {
    mean: f64,
    worst: f64,
    worse: usize,
}

/// `slots` returns the slots that our rules have for a capacity, which is their limit in any case.
fn ratios(slots: impl Fn(u64) -> u64, prefetch: u64) -> Ratios {
    let mut state = 1;
    let (mut sum, mut worst, mut worse) = (0.0, 0.0f64, 0);
    for _ in 0..TRACES {
        let trace = trace(&mut state);
        let published = Settings {
            warm_up_non_model: 0.0,
            steady_capacity: 1.0,
            ..Settings::published(Bytes(1), 1000, Bytes(trace.capacity))
        };
        let region = Settings::region(Bytes(1), slots(trace.capacity) as u32);
        let ours =
            Settings { capacity: Bytes(trace.capacity), prefetch: Bytes(prefetch), ..region };
        let (theirs, ours) = (volume(&trace, published), volume(&trace, ours));
        let ratio = if theirs == ours { 1.0 } else { ours as f64 / theirs as f64 };
        sum += ratio;
        worst = worst.max(ratio);
        worse += usize::from(ratio > 1.0);
    }
    Ratios { mean: sum / TRACES as f64, worst, worse }
}

fn check(what: &str, slots: impl Fn(u64) -> u64, prefetch: u64) {
    let Ratios { mean, worst, worse } = ratios(slots, prefetch);
    println!(
        "{what}, {prefetch} bytes ahead: bytes moved in the mean {mean:.3} of the published \
         policy's, {worst:.3} in the worst of {TRACES} traces; more than it in {worse}"
    );
    assert!(mean <= 1.0);
}

#[test]
fn fewer_bytes_than_the_published_policy() {
    check("room for every run of chunks", |_| 1000, 0);
    check("room for every run of chunks", |_| 1000, 8);
    check("no slot beyond the limit", |capacity| capacity, 0);
    check("no slot beyond the limit", |capacity| capacity, 8);
}
