//! Makes a cut of a given order fit, and simulates it. Invariant: the bytes reported for a rank are
//! the most that it holds at any action of its row.

use std::collections::BTreeSet;
use std::ops::Range;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::id::{RankId, StageId};
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::simulate::{Simulated, StageCost, perform};
use crate::pipeline::stages::recompute::{Recomputed, recompute};
use crate::pipeline::stages::{Devices, LayerCost, StagePlan};
use crate::units::{Bytes, Seconds};

/// The plan whose stages end after these layers, with the recomputation that takes least time;
/// `None` if it does not fit, whatever is recomputed. Rows are [valid](crate::pipeline::validate).
pub fn evaluate(
    layers: &[LayerCost],
    devices: &Devices,
    order: (&str, &Rows),
    ends: &[usize],
) -> Option<StagePlan> {
    let rows = order.1;
    let cut = Cut { layers, ends };
    let mut recomputed = vec![false; layers.len()];
    for (rank, row) in &rows.rows {
        let stages = rows.stages_of(rank);
        let chosen = cut.fit(devices.budget, row, &stages)?;
        let own = stages.iter().flat_map(|&stage| cut.range(stage));
        own.zip(chosen.layers).for_each(|(layer, is)| recomputed[layer] = is);
    }
    price(layers, devices, order, ends, &recomputed)
}

/// The times at which each rank of a plan performs its actions.
pub fn in_time(layers: &[LayerCost], devices: &Devices, plan: &StagePlan) -> Simulated {
    let cut = Cut { layers, ends: &plan.ends };
    perform(&plan.rows, &cut.costs(devices, &plan.rows, &plan.recomputed))
}

/// The plan that recomputes these layers; `None` if it does not fit. Rows are
/// [valid](crate::pipeline::validate).
pub fn price(
    layers: &[LayerCost],
    devices: &Devices,
    (name, rows): (&str, &Rows),
    ends: &[usize],
    recomputed: &[bool],
) -> Option<StagePlan> {
    let cut = Cut { layers, ends };
    let mut peaks: PrimaryMap<RankId, Bytes> = PrimaryMap::new();
    for (rank, row) in &rows.rows {
        let peak = cut.peak(row, &rows.stages_of(rank), recomputed);
        if peak > devices.budget {
            return None;
        }
        peaks.push(peak);
    }
    let costs = cut.costs(devices, rows, recomputed);
    let simulated = perform(rows, &costs);
    Some(StagePlan {
        schedule: name.to_string(),
        rows: rows.clone(),
        ends: ends.to_vec(),
        recomputed: recomputed.to_vec(),
        makespan: simulated.makespan,
        bubble: simulated.bubble(),
        peaks,
    })
}

/// Layers cut into stages.
#[derive(Clone, Copy)]
struct Cut<'a> {
    layers: &'a [LayerCost],
    ends: &'a [usize],
}

impl Cut<'_> {
    /// The costs of its stages.
    fn costs(
        &self,
        devices: &Devices,
        rows: &Rows,
        recomputed: &[bool],
    ) -> SecondaryMap<StageId, StageCost> {
        let mut costs: SecondaryMap<StageId, StageCost> = SecondaryMap::new();
        for stage in rows.placement.keys() {
            let range = || self.range(stage);
            let sum =
                |part: fn(&LayerCost) -> Seconds| range().map(|l| part(&self.layers[l])).sum();
            let again = range().filter(|&layer| recomputed[layer]);
            let again: Seconds = again.map(|layer| self.layers[layer].forward).sum();
            let input: Seconds = sum(|layer| layer.input_gradient);
            let weights: Seconds = sum(|layer| layer.weight_gradient);
            let sent = self.layers.get(range().end).map_or(Bytes::ZERO, |layer| layer.entering);
            // No stage waits for the first one's input gradients.
            let (input_gradient, weight_gradient) = match range().start {
                0 => (Seconds(0.0), again + input + weights),
                _ => (again + input, weights),
            };
            costs[stage] = StageCost {
                forward: sum(|layer| layer.forward),
                input_gradient,
                weight_gradient,
                transfer: devices.transfer(sent),
                ..StageCost::default()
            };
        }
        costs
    }

    /// The layers of a stage.
    fn range(&self, stage: StageId) -> Range<usize> {
        let number = stage.as_u32() as usize;
        number.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[number]
    }

    /// Bytes that a stage receives for a micro-batch.
    fn entering(&self, stage: StageId) -> u64 {
        let first = self.range(stage).start;
        if first > 0 { self.layers[first].entering.0 } else { 0 }
    }

    /// Bytes that a stage holds for a micro-batch.
    fn kept(&self, stage: StageId, recomputed: &dyn Fn(usize) -> bool) -> u64 {
        let own = self.range(stage).map(|layer| self.layers[layer].kept(recomputed(layer)).0);
        self.entering(stage) + own.sum::<u64>()
    }

    /// The most bytes that a rank holds.
    fn peak(&self, row: &[Action], stages: &[StageId], recomputed: &[bool]) -> Bytes {
        let each: Vec<u64> =
            stages.iter().map(|&stage| self.kept(stage, &|layer| recomputed[layer])).collect();
        let of = |counts: &Vec<u64>| counts.iter().zip(&each).map(|(n, bytes)| n * bytes).sum();
        let most: u64 = in_flight(row, stages).iter().map(of).max().unwrap_or(0);
        let own = || stages.iter().flat_map(|&stage| self.range(stage));
        let held: Bytes = own().map(|layer| self.layers[layer].held).sum();
        let working = own().map(|layer| self.layers[layer].working(recomputed[layer])).max();
        held + Bytes(most) + working.unwrap_or(Bytes::ZERO)
    }

    /// The layers that a rank with several stages recomputes.
    ///
    /// What its stages hold changes from action to action. The choice is made for the action at
    /// which most is held if nothing is recomputed, unless the rank then does not fit at another
    /// one; in that case each stage counts with its largest number of micro-batches.
    fn fit(&self, budget: Bytes, row: &[Action], stages: &[StageId]) -> Option<Recomputed> {
        let moments = in_flight(row, stages);
        let own: Vec<usize> = stages.iter().flat_map(|&stage| self.range(stage)).collect();
        let held: Bytes = own.iter().map(|&layer| self.layers[layer].held).sum();
        let all: Vec<u64> = stages.iter().map(|&stage| self.kept(stage, &|_| false)).collect();
        let weight = |counts: &&Vec<u64>| counts.iter().zip(&all).map(|(n, b)| n * b).sum::<u64>();
        let worst = moments.iter().max_by_key(weight)?;
        let often: Vec<u64> = (0..stages.len())
            .map(|index| moments.iter().map(|counts| counts[index]).max().unwrap_or(0))
            .collect();
        [worst, &often].into_iter().find_map(|counts| {
            let received = stages.iter().zip(counts).map(|(&stage, n)| n * self.entering(stage));
            let in_flight = stages.iter().zip(counts).flat_map(|(&stage, &count)| {
                self.range(stage).map(move |layer| (self.layers[layer], count))
            });
            let in_flight: Vec<(LayerCost, u64)> = in_flight.collect();
            let chosen = recompute(&in_flight, held + Bytes(received.sum()), budget)?;
            let mut recomputed = vec![false; self.layers.len()];
            own.iter().zip(&chosen.layers).for_each(|(&layer, &is)| recomputed[layer] = is);
            (self.peak(row, stages, &recomputed) <= budget).then_some(chosen)
        })
    }
}

/// The number of micro-batches whose activations a rank holds for each of its stages: the moments
/// that no other one exceeds.
fn in_flight(row: &[Action], stages: &[StageId]) -> Vec<Vec<u64>> {
    let mut now = vec![0u64; stages.len()];
    let mut seen: BTreeSet<Vec<u64>> = BTreeSet::new();
    for action in row {
        let Some(index) = stages.iter().position(|&stage| stage == action.stage) else { continue };
        match action.pass {
            Pass::Forward => now[index] += 1,
            pass if pass.makes_weight_gradients() => now[index] = now[index].saturating_sub(1),
            _ => {}
        }
        seen.insert(now.clone());
    }
    let exceeds = |a: &Vec<u64>, b: &Vec<u64>| a != b && a.iter().zip(b).all(|(a, b)| a >= b);
    let most = seen.iter().filter(|counts| !seen.iter().any(|other| exceeds(other, counts)));
    most.cloned().collect()
}

/// The most micro-batches whose activations are held by a stage that is alone on its rank.
pub(super) fn most_in_flight(rows: &Rows, stage: StageId) -> u64 {
    let row = &rows.rows[rows.placement[stage]];
    in_flight(row, &[stage]).first().map_or(0, |counts| counts[0])
}
