//! Modules that may be checkpointed, and how much the chosen ones discard. Invariant: the seconds
//! of a module are convex in the bytes that it discards, so taking the cheapest bytes first is
//! optimal for given modules.

use crate::analysis::modules::{ModuleIndex, ModuleInfo, ModuleStats};
use crate::units::{Bytes, Seconds};

/// A module that may be checkpointed.
pub struct CheckpointCandidate {
    /// The module.
    pub module: ModuleIndex,
    /// Its place in the forward post-order.
    pub position: usize,
    /// The most that it may discard: the activations that its forward pass leaves.
    pub most: Bytes,
    /// Seconds that checkpointing it costs even if it discards nothing that it would keep.
    pub fixed: f64,
    /// By increasing rate.
    pub pieces: Vec<Piece>,
}

/// Bytes that may be discarded at one rate.
#[derive(Clone, Copy)]
pub struct Piece {
    pub bytes: f64,
    /// Seconds per byte.
    pub rate: f64,
}

/// All modules that are not leaves, that leave something and that are `allowed`.
pub fn candidates(
    info: &ModuleInfo,
    allowed: impl Fn(ModuleIndex) -> bool,
) -> Vec<CheckpointCandidate> {
    let modules = info
        .modules()
        .iter()
        .filter(|(_, stats)| !stats.is_leaf && stats.forward_activations > Bytes::ZERO);
    let modules = modules.filter(|&(module, _)| allowed(module));
    modules
        .map(|(module, stats)| {
            let most = stats.forward_activations.0 as f64;
            let cost = |discarded: f64| recompute(stats, discarded).0;
            // The curve is the highest of its lines and of 0, and bends where that changes.
            let lines = stats
                .tradeoff
                .segments
                .iter()
                .map(|segment| (segment.slope, segment.intercept))
                .chain([(0.0, 0.0)]);
            let made = made(stats).0 as f64;
            let bytes =
                bends(lines.collect()).into_iter().map(|ratio| ratio * made - (made - most));
            let mut bends: Vec<f64> =
                bytes.filter(|&bytes| bytes > 0.0 && bytes < most).chain([0.0, most]).collect();
            bends.sort_by(f64::total_cmp);
            bends.dedup();
            let mut pieces: Vec<Piece> = Vec::new();
            for ends in bends.windows(2) {
                let (bytes, rate) =
                    (ends[1] - ends[0], (cost(ends[1]) - cost(ends[0])) / (ends[1] - ends[0]));
                match pieces.last_mut() {
                    // A line that meets others below the curve does not bend it.
                    Some(last) if rate <= last.rate + 1e-9 * last.rate.abs() => {
                        let both = last.bytes + bytes;
                        let rate = (last.bytes * last.rate + bytes * rate) / both;
                        *last = Piece { bytes: both, rate };
                    }
                    _ => pieces.push(Piece { bytes, rate }),
                }
            }
            CheckpointCandidate {
                module,
                position: info.forward_post_position(module),
                most: stats.forward_activations,
                fixed: cost(0.0),
                pieces,
            }
        })
        .collect()
}

/// Where the highest of several lines, given by slope and intercept, changes; increasing.
fn bends(mut lines: Vec<(f64, f64)>) -> Vec<f64> {
    lines.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    lines.dedup_by(|lower, line| lower.0 == line.0);
    let mut highest: Vec<(f64, f64)> = Vec::new();
    let mut bends: Vec<f64> = Vec::new();
    for (slope, intercept) in lines {
        while let Some(&(flatter, higher)) = highest.last() {
            let meets = (higher - intercept) / (slope - flatter);
            if bends.last().is_none_or(|&before| before < meets) {
                bends.push(meets);
                break;
            }
            highest.pop();
            bends.pop();
        }
        highest.push((slope, intercept));
    }
    bends
}

/// What each of the chosen modules discards, so that with `persistent` bytes in addition the budget
/// holds wherever that is possible, and in the least time.
///
/// Whatever bytes a module needs may be discarded by all that end before it, so needs are nested:
/// met one after the other, each with the cheapest bytes left, they are met in the least total
/// time.
pub fn fill(
    info: &ModuleInfo,
    chosen: &[&CheckpointCandidate],
    persistent: impl Fn(ModuleIndex) -> Bytes,
    budget: Bytes,
) -> Vec<(ModuleIndex, Bytes)> {
    let mut discarded = vec![0.0; chosen.len()];
    // Next piece of each module, and how much of it is left.
    let mut left: Vec<(usize, f64)> = chosen
        .iter()
        .map(|unit| (0, unit.pieces.first().map_or(0.0, |piece| piece.bytes)))
        .collect();
    for &module in info.forward_post_order() {
        let (stats, position) = (&info.modules()[module], info.forward_post_position(module));
        let held = persistent(module) + stats.total_activations + stats.activation_gradients;
        let before: Vec<usize> =
            (0..chosen.len()).filter(|&at| chosen[at].position < position).collect();
        let mut short = held.saturating_sub(budget).0 as f64
            - before.iter().map(|&at| discarded[at]).sum::<f64>();
        while short > 0.0 {
            let rate = |at: usize| chosen[at].pieces.get(left[at].0).map(|piece| piece.rate);
            let open = before.iter().filter_map(|&at| rate(at).map(|rate| (rate, at)));
            let Some((_, at)) = open.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            let taken = short.min(left[at].1);
            discarded[at] += taken;
            short -= taken;
            left[at].1 -= taken;
            if left[at].1 <= 0.0 {
                left[at] = (
                    left[at].0 + 1,
                    chosen[at].pieces.get(left[at].0 + 1).map_or(0.0, |piece| piece.bytes),
                );
            }
        }
    }
    let whole = |(unit, &bytes): (&&CheckpointCandidate, &f64)| {
        (unit.module, Bytes(bytes.ceil() as u64).min(unit.most))
    };
    chosen.iter().zip(&discarded).map(whole).collect()
}

/// A module that recomputes.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointedUnit {
    /// The module.
    pub module: ModuleIndex,
    /// Share of its checkpointing bytes that is not kept.
    pub discard_ratio: f64,
    /// Activations that are not held between its forward and its backward pass.
    pub discarded: Bytes,
    /// Seconds of recomputing them.
    pub recompute: Seconds,
}

/// Units with what they discard; a module that discards nothing is not a unit.
pub fn units(info: &ModuleInfo, discards: &[(ModuleIndex, Bytes)]) -> Vec<CheckpointedUnit> {
    let discards = discards.iter().filter(|&&(_, discarded)| discarded > Bytes::ZERO);
    let mut units: Vec<CheckpointedUnit> = discards
        .map(|&(module, discarded)| {
            let stats = &info.modules()[module];
            let recompute = recompute(stats, discarded.0 as f64);
            CheckpointedUnit {
                module,
                discard_ratio: discard_ratio(stats, discarded.0 as f64),
                discarded,
                recompute,
            }
        })
        .collect();
    units.sort_by_key(|unit| unit.module);
    units
}

/// Seconds of recomputation if `discarded` bytes of a module's activations are not kept: its
/// checkpointing seconds times the largest of its curve's segments at the discard ratio, or zero if
/// that is negative.
fn recompute(stats: &ModuleStats, discarded: f64) -> Seconds {
    let ratio = discard_ratio(stats, discarded);
    let shares =
        stats.tradeoff.segments.iter().map(|segment| segment.slope * ratio + segment.intercept);
    Seconds(stats.checkpointing_seconds.0 * shares.fold(0.0, f64::max))
}

/// What operators make beyond what the module keeps anyway is discarded first, which frees nothing.
fn discard_ratio(stats: &ModuleStats, discarded: f64) -> f64 {
    let all = made(stats).0 as f64;
    if all == 0.0 { 0.0 } else { (all - stats.forward_activations.0 as f64 + discarded) / all }
}

/// Bytes that a module's operators make, kept or not; at least what it keeps.
fn made(stats: &ModuleStats) -> Bytes {
    stats.checkpointing_bytes.max(stats.forward_activations)
}
