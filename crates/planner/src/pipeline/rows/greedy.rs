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

impl Worker {
    /// Whether the rank may begin another micro-batch in one of its stages.
    fn has_room(
        &self,
        stage: StageId,
        costs: &SecondaryMap<StageId, StageCost>,
        cap: Bytes,
    ) -> bool {
        let of = |least: StageId| -> Bytes {
            let later = self.stages.iter().filter(|&&other| other >= least);
            later.map(|&other| costs[other].activations).sum()
        };
        self.held + of(stage) <= cap.max(of(StageId::from_u32(0)))
    }
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
    let mut left = placement.len() as u64 * u64::from(micro_batches) * 3;
    let mut schedule = ListSchedule::new(placement, ranks, micro_batches, costs, cap);
    let mut now = 0.0;
    while left > 0 {
        // The next time at which something changes.
        let mut later = f64::INFINITY;
        for rank in (0..ranks).map(RankId::from_u32) {
            let free = schedule.workers[rank].free;
            if free > now + TICK {
                later = later.min(free);
            } else if let Some(action) = schedule.pick(rank, now, &mut later) {
                later = later.min(schedule.perform(rank, action, now));
                left -= 1;
            }
        }
        // Everything that is left waits for something that ends later, or for nothing.
        now = if later.is_finite() { later.max(now) } else { now };
    }
    schedule.rows()
}

/// Rows while they are made.
struct ListSchedule<'a> {
    costs: &'a SecondaryMap<StageId, StageCost>,
    cap: Bytes,
    /// Placement and micro-batches; the actions are with the workers.
    rows: Rows,
    workers: PrimaryMap<RankId, Worker>,
    /// The next micro-batch of each stage: of its backward pass, and of its forward pass.
    next: SecondaryMap<StageId, [u32; 2]>,
    /// When what was made so far is there.
    made: Made<Seconds>,
}

impl<'a> ListSchedule<'a> {
    fn new(
        placement: PrimaryMap<StageId, RankId>,
        ranks: u32,
        micro_batches: u32,
        costs: &'a SecondaryMap<StageId, StageCost>,
        cap: Bytes,
    ) -> ListSchedule<'a> {
        let mut workers: PrimaryMap<RankId, Worker> =
            (0..ranks).map(|_| Worker::default()).collect();
        for (stage, &rank) in &placement {
            workers[rank].stages.insert(0, stage);
        }
        let empty = (0..ranks).map(|_| Vec::new()).collect();
        ListSchedule {
            costs,
            cap,
            rows: Rows { placement, rows: empty, micro_batches },
            workers,
            next: SecondaryMap::new(),
            made: Made::new(),
        }
    }

    /// Takes what a free rank does next, if anything is ready; `later` is lowered to the time at
    /// which something will be.
    fn pick(&mut self, rank: RankId, now: f64, later: &mut f64) -> Option<Action> {
        let worker = &mut self.workers[rank];
        for pass in [Pass::InputGradient, Pass::Forward] {
            let of_pass = usize::from(pass == Pass::Forward);
            for &stage in &worker.stages {
                let number = self.next[stage][of_pass];
                if number >= self.rows.micro_batches {
                    continue;
                }
                let action = Action { stage, pass, micro_batch: MicroBatchId::from_u32(number) };
                if pass == Pass::Forward && !worker.has_room(stage, self.costs, self.cap) {
                    continue;
                }
                match begins(&self.rows, self.costs, action, &self.made, 0.0) {
                    Some(start) if start <= now + TICK => return Some(action),
                    Some(start) => *later = later.min(start),
                    None => {}
                }
            }
        }
        let (stage, micro_batch) = worker.put_off.pop_front()?;
        Some(Action { stage, pass: Pass::WeightGradient, micro_batch })
    }

    /// A rank begins an action now. Returns when it ends.
    fn perform(&mut self, rank: RankId, action: Action, now: f64) -> f64 {
        let (worker, Action { stage, pass, micro_batch }) = (&mut self.workers[rank], action);
        let cost = self.costs[stage];
        let kept = cost.kept.min(cost.activations);
        let seconds = match pass {
            Pass::Forward => {
                self.next[stage][1] += 1;
                worker.held += cost.activations;
                cost.forward
            }
            Pass::InputGradient | Pass::Backward => {
                self.next[stage][0] += 1;
                worker.held = worker.held.saturating_sub(cost.activations - kept);
                worker.put_off.push_back((stage, micro_batch));
                cost.input_gradient
            }
            Pass::WeightGradient => {
                worker.held = worker.held.saturating_sub(kept);
                cost.weight_gradient
            }
        };
        worker.free = now + seconds.0;
        worker.row.push(action);
        self.made.insert(action, Seconds(worker.free));
        worker.free
    }

    fn rows(self) -> Rows {
        let rows = self.workers.into_iter().map(|(_, worker)| worker.row).collect();
        Rows { rows, ..self.rows }
    }
}
