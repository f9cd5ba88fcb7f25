//! The layers that a rank recomputes. Invariant: of all sets of its layers whose recomputation
//! makes the rank fit, the one that takes least time, at a resolution of 1/2048 of the budget.
//!
//! The rank holds `held` bytes once; for each micro-batch in flight what every layer keeps, or only
//! its boundary if it is recomputed; and once the most that a layer needs while it runs, which
//! includes everything that it recomputes. That maximum is tried in turn; the bytes left for the
//! micro-batches then give a knapsack, solved by dynamic programming over (bytes, time).

use crate::pipeline::stages::LayerCost;
use crate::units::{Bytes, Seconds};

/// Number of different sums of bytes.
const STEPS: u64 = 2048;

/// A choice of layers to recompute.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputed {
    /// For each layer, whether it is recomputed.
    pub layers: Vec<bool>,
    /// The time that it takes, for one micro-batch.
    pub seconds: Seconds,
}

/// A sum of what some of the first layers keep.
#[derive(Clone, Copy)]
struct Sum {
    /// In steps.
    kept: u64,
    seconds: f64,
    /// The last layer that is recomputed, among the choices.
    choice: Option<usize>,
}

/// The layers that a rank recomputes, given the number of micro-batches in flight for each; `None`
/// if nothing makes them fit.
pub fn recompute(layers: &[(LayerCost, u64)], held: Bytes, budget: Bytes) -> Option<Recomputed> {
    let both = |&(layer, _): &(LayerCost, u64)| [layer.working(false), layer.working(true)];
    let mut most: Vec<Bytes> = layers.iter().flat_map(both).collect();
    let least = layers.iter().map(|(layer, _)| layer.transient).max().unwrap_or(Bytes::ZERO);
    most.retain(|&working| working >= least);
    most.push(least);
    most.sort_unstable();
    most.dedup();
    let mut best: Option<Recomputed> = None;
    for working in most {
        let Some(room) = budget.0.checked_sub(held.0).and_then(|rest| rest.checked_sub(working.0))
        else {
            break;
        };
        let found = knapsack(layers, working, room);
        if let Some(found) = found
            && best.as_ref().is_none_or(|best| found.seconds < best.seconds)
        {
            best = Some(found);
        }
    }
    best
}

/// The same if a layer may need this much while it runs, and all of them may keep `room`.
fn knapsack(layers: &[(LayerCost, u64)], working: Bytes, room: u64) -> Option<Recomputed> {
    let step = room.div_ceil(STEPS).max(1);
    let room = room / step;
    // A set of layers is a list: the last one, and the set before it.
    let mut choices: Vec<(usize, Option<usize>)> = Vec::new();
    let mut sums = vec![Sum { kept: 0, seconds: 0.0, choice: None }];
    for (index, &(layer, in_flight)) in layers.iter().enumerate() {
        let steps = |is_recomputed: bool| {
            layer.kept(is_recomputed).0.saturating_mul(in_flight).div_ceil(step)
        };
        let mut next = Vec::with_capacity(2 * sums.len());
        for sum in &sums {
            next.push(Sum { kept: sum.kept.saturating_add(steps(false)), ..*sum });
            if layer.working(true) <= working && steps(true) < steps(false) {
                choices.push((index, sum.choice));
                next.push(Sum {
                    kept: sum.kept.saturating_add(steps(true)),
                    seconds: sum.seconds + layer.forward.0,
                    choice: Some(choices.len() - 1),
                });
            }
        }
        next.retain(|sum| sum.kept <= room);
        next.sort_by(|a, b| a.kept.cmp(&b.kept).then(a.seconds.total_cmp(&b.seconds)));
        sums.clear();
        let mut fastest = f64::INFINITY;
        for sum in next {
            if sum.seconds < fastest {
                fastest = sum.seconds;
                sums.push(sum);
            }
        }
    }
    let best = sums.into_iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let mut recomputed = vec![false; layers.len()];
    let mut choice = best.choice;
    while let Some(at) = choice {
        recomputed[choices[at].0] = true;
        choice = choices[at].1;
    }
    Some(Recomputed { layers: recomputed, seconds: Seconds(best.seconds) })
}
