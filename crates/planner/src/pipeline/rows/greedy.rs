//! A list scheduler: each rank performs whatever is ready, as long as it holds no more activations
//! than its cap. Invariant: no rank ever waits while it could perform an action that does not
//! exceed its cap; and no cap makes the ranks wait for each other forever.
//!
//! First parts of backward passes come first, then forward passes, those of later stages before
//! those of earlier ones, then second parts of backward passes, the oldest first. A forward pass
//! leaves memory for one micro-batch of each later stage of its rank, so that the oldest
//! micro-batch can always go on.

use std::collections::VecDeque;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::id::{MicroBatchId, RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::simulate::{StageCost, begins};
use crate::pipeline::validate::Made;
use crate::units::{Bytes, Seconds};

/// Seconds below which a difference between two times does not count.
const TICK: f64 = 1e-12;

/// Rows for stages that cost the same, with memory for one micro-batch for each rank.
pub(super) fn of_equal_stages(
    placement: PrimaryMap<StageId, RankId>,
    ranks: u32,
    micro_batches: u32,
) -> Rows {
    let chunks = placement.len() as u64 / u64::from(ranks);
    let cost = StageCost {
        forward: Seconds(1.0),
        input_gradient: Seconds(1.0),
        weight_gradient: Seconds(1.0),
        activations: Bytes(1),
        kept: Bytes(1),
        ..StageCost::default()
    };
    let costs = SecondaryMap::with_default(cost);
    greedy(placement, micro_batches, &costs, Bytes(u64::from(ranks) * chunks))
}

/// The state of a rank while rows are made.
#[derive(Clone, Default)]
struct Worker {
    /// Its stages, the last one first.
    stages: Vec<StageId>,
    row: Vec<Action>,
    free: f64,
    held: Bytes,
    /// Second parts of backward passes that are yet to come.
    put_off: VecDeque<(StageId, MicroBatchId)>,
}

/// Rows for stages of these costs, in which no rank holds more activations than `cap`; a cap too
/// small for one micro-batch of each stage of a rank is raised to that.
pub fn greedy(
    placement: PrimaryMap<StageId, RankId>,
    micro_batches: u32,
    costs: &SecondaryMap<StageId, StageCost>,
    cap: Bytes,
) -> Rows {
    let ranks = placement.values().map(|rank| rank.as_u32() + 1).max().unwrap_or(0);
    let mut workers: PrimaryMap<RankId, Worker> = (0..ranks).map(|_| Worker::default()).collect();
    for (stage, &rank) in &placement {
        workers[rank].stages.insert(0, stage);
    }
    let empty = (0..ranks).map(|_| Vec::new()).collect();
    let mut rows = Rows { placement, rows: empty, micro_batches };
    let mut next: SecondaryMap<StageId, [u32; 2]> = SecondaryMap::new();
    let mut made: Made<Seconds> = Made::new();
    let mut left = rows.placement.len() as u64 * u64::from(micro_batches) * 3;
    let mut now = 0.0;
    while left > 0 {
        // The next time at which something changes.
        let mut later = f64::INFINITY;
        for rank in (0..ranks).map(RankId::from_u32) {
            let worker = &workers[rank];
            if worker.free > now + TICK {
                later = later.min(worker.free);
                continue;
            }
            let mut pick = None;
            for pass in [Pass::InputGradient, Pass::Forward] {
                let of_pass = usize::from(pass == Pass::Forward);
                for &stage in &worker.stages {
                    let number = next[stage][of_pass];
                    if pick.is_some() || number >= micro_batches {
                        continue;
                    }
                    let action =
                        Action { stage, pass, micro_batch: MicroBatchId::from_u32(number) };
                    if pass == Pass::Forward && !has_room(worker, stage, costs, cap) {
                        continue;
                    }
                    match begins(&rows, costs, action, &made, 0.0) {
                        Some(start) if start <= now + TICK => pick = Some(action),
                        Some(start) => later = later.min(start),
                        None => {}
                    }
                }
            }
            let worker = &mut workers[rank];
            let action = pick.or_else(|| {
                let (stage, micro_batch) = worker.put_off.pop_front()?;
                Some(Action { stage, pass: Pass::WeightGradient, micro_batch })
            });
            let Some(action) = action else { continue };
            let Action { stage, pass, micro_batch } = action;
            let cost = costs[stage];
            let seconds = match pass {
                Pass::Forward => {
                    next[stage][1] += 1;
                    worker.held += cost.activations;
                    cost.forward
                }
                Pass::InputGradient | Pass::Backward => {
                    next[stage][0] += 1;
                    let kept = cost.kept.min(cost.activations);
                    worker.held = worker.held.saturating_sub(cost.activations - kept);
                    worker.put_off.push_back((stage, micro_batch));
                    cost.input_gradient
                }
                Pass::WeightGradient => {
                    let kept = cost.kept.min(cost.activations);
                    worker.held = worker.held.saturating_sub(kept);
                    cost.weight_gradient
                }
            };
            worker.free = now + seconds.0;
            worker.row.push(action);
            made.insert(action, Seconds(worker.free));
            left -= 1;
            later = later.min(worker.free);
        }
        // Everything that is left waits for something that ends later, or for nothing.
        now = if later.is_finite() { later.max(now) } else { now };
    }
    rows.rows = workers.into_iter().map(|(_, worker)| worker.row).collect();
    rows
}

/// Whether a rank may begin another micro-batch in one of its stages.
fn has_room(
    worker: &Worker,
    stage: StageId,
    costs: &SecondaryMap<StageId, StageCost>,
    cap: Bytes,
) -> bool {
    let of = |least: StageId| -> Bytes {
        let later = worker.stages.iter().filter(|&&other| other >= least);
        later.map(|&other| costs[other].activations).sum()
    };
    worker.held + of(stage) <= cap.max(of(StageId::from_u32(0)))
}
