//! When the ranks of a pipeline perform their actions, and how much each of them holds. Invariant:
//! an action begins as soon as its rank has finished the actions before it in the row and its
//! inputs have arrived, and never before.
//!
//! A rank holds the activations of a stage for a micro-batch from the beginning of its forward pass
//! to the end of the pass that makes its weights' gradients; `kept` says how much of them is left
//! once the gradients of its inputs are made.

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::id::{RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::validate::{Made, RowsError, needs, validate};
use crate::units::{Bytes, Seconds};

/// The costs of a stage for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCost {
    /// Time of the forward pass.
    pub forward: Seconds,
    /// Time of the part of the backward pass that the stage before waits for.
    pub input_gradient: Seconds,
    /// Time of the rest of the backward pass.
    pub weight_gradient: Seconds,
    /// Time that activations take to the rank of the next stage, and gradients from there.
    pub transfer: Seconds,
    /// Bytes that the forward pass leaves for the backward pass.
    pub activations: Bytes,
    /// The part of these that is left for the weights' gradients.
    pub kept: Bytes,
}

impl StageCost {
    fn of(&self, pass: Pass) -> Seconds {
        match pass {
            Pass::Forward => self.forward,
            Pass::Backward => self.input_gradient + self.weight_gradient,
            Pass::InputGradient => self.input_gradient,
            Pass::WeightGradient => self.weight_gradient,
        }
    }
}

/// An action and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Performed {
    /// The action.
    pub action: Action,
    /// When it begins.
    pub start: Seconds,
    /// When it ends.
    pub end: Seconds,
}

/// A pipeline in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// The actions of each rank with their times.
    pub ranks: PrimaryMap<RankId, Vec<Performed>>,
    /// The time from the first beginning to the last end.
    pub makespan: Seconds,
    /// The most bytes of activations that each rank holds at once.
    pub peaks: PrimaryMap<RankId, Bytes>,
}

impl Simulated {
    /// The share of the ranks' time in which they do nothing.
    pub fn bubble(&self) -> f64 {
        let all = self.ranks.values().flatten().map(|done| done.end.0 - done.start.0);
        let (busy, time) = (all.sum::<f64>(), self.makespan.0 * self.ranks.len() as f64);
        if time > 0.0 { 1.0 - busy / time } else { 0.0 }
    }

    /// The time from the first beginning to the last end of the rank that takes longest: the cost
    /// of an update if the ranks are not made to begin together.
    pub fn longest_row(&self) -> Seconds {
        let span = |row: &Vec<Performed>| match (row.first(), row.last()) {
            (Some(first), Some(last)) => last.end.0 - first.start.0,
            _ => 0.0,
        };
        Seconds(self.ranks.values().map(span).fold(0.0, f64::max))
    }
}

/// Performs valid rows, with these costs for the stages.
///
/// # Errors
/// [`RowsError`] if the rows are invalid.
pub fn simulate(
    rows: &Rows,
    costs: &SecondaryMap<StageId, StageCost>,
) -> Result<Simulated, RowsError> {
    validate(rows, true)?;
    Ok(perform(rows, costs))
}

/// The same for rows known to be valid.
pub(super) fn perform(rows: &Rows, costs: &SecondaryMap<StageId, StageCost>) -> Simulated {
    let mut made: Made<Seconds> = Made::new();
    let mut ranks: PrimaryMap<RankId, Vec<Performed>> =
        rows.rows.values().map(|row| Vec::with_capacity(row.len())).collect();
    let mut left: usize = rows.rows.values().map(Vec::len).sum();
    while left > 0 {
        for (rank, row) in &rows.rows {
            let done = &mut ranks[rank];
            while let Some(&action) = row.get(done.len()) {
                let free = done.last().map_or(0.0, |last| last.end.0);
                let Some(start) = begins(rows, costs, action, &made, free) else { break };
                let end = Seconds(start + costs[action.stage].of(action.pass).0);
                done.push(Performed { action, start: Seconds(start), end });
                made.insert(action, end);
                left -= 1;
            }
        }
    }
    let ends = ranks.values().filter_map(|row| row.last()).map(|last| last.end.0);
    let makespan = Seconds(ends.fold(0.0, f64::max));
    let peaks = rows.rows.values().map(|row| peak(row, costs)).collect();
    Simulated { ranks, makespan, peaks }
}

/// When an action begins on a rank that is free from then on; `None` if its inputs do not exist
/// yet.
pub(super) fn begins(
    rows: &Rows,
    costs: &SecondaryMap<StageId, StageCost>,
    action: Action,
    made: &Made<Seconds>,
    free: f64,
) -> Option<f64> {
    let mut start = free;
    for (is_other, need) in needs(rows.placement.len(), action) {
        let mut there = made.get(need)?.0;
        if is_other && rows.placement[need.stage] != rows.placement[action.stage] {
            // Gradients cross the same border as activations, in the other direction.
            there += costs[need.stage.min(action.stage)].transfer.0;
        }
        start = start.max(there);
    }
    Some(start)
}

/// The most bytes of activations that a row holds at once.
fn peak(row: &[Action], costs: &SecondaryMap<StageId, StageCost>) -> Bytes {
    let (mut held, mut most) = (Bytes::ZERO, Bytes::ZERO);
    for action in row {
        let StageCost { activations, kept, .. } = costs[action.stage];
        match action.pass {
            Pass::Forward => held += activations,
            Pass::Backward => held = held.saturating_sub(activations),
            Pass::InputGradient => held = held.saturating_sub(activations.saturating_sub(kept)),
            Pass::WeightGradient => held = held.saturating_sub(kept.min(activations)),
        }
        most = most.max(held);
    }
    most
}
