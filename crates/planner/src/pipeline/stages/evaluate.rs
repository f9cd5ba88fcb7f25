//! A cut of a given order, made to fit and simulated. Invariant: what a rank is said to hold is the
//! most that it holds at any action of its row.

use std::collections::BTreeSet;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::id::{RankId, StageId};
use crate::pipeline::action::{Action, Rows};
use crate::pipeline::simulate::{StageCost, simulate};
use crate::pipeline::stages::recompute::{Recomputed, recompute};
use crate::pipeline::stages::{Devices, LayerCost, StagePlan};
use crate::units::{Bytes, Seconds};

/// The plan whose stages end behind these layers; `None` where it does not fit, whatever is
/// recomputed.
pub fn evaluate(
    layers: &[LayerCost],
    devices: &Devices,
    (name, rows): (&str, &Rows),
    ends: &[usize],
) -> Option<StagePlan> {
    let begins: Vec<usize> = std::iter::once(0).chain(ends.iter().copied()).collect();
    let range = |stage: StageId| begins[stage.as_u32() as usize]..ends[stage.as_u32() as usize];
    let mut recomputed = vec![false; layers.len()];
    let mut peaks: PrimaryMap<RankId, Bytes> = PrimaryMap::new();
    for (rank, row) in &rows.rows {
        let stages = rows.stages_of(rank);
        let own: Vec<usize> = stages.iter().flat_map(|&stage| range(stage)).collect();
        let held: Bytes = own.iter().map(|&layer| layers[layer].held).sum();
        let (chosen, peak) = fit(layers, devices.budget, (row, &stages), held, &range)?;
        own.iter().zip(chosen.layers).for_each(|(&layer, is)| recomputed[layer] = is);
        peaks.push(peak);
    }
    let mut costs: SecondaryMap<StageId, StageCost> = SecondaryMap::new();
    for stage in rows.placement.keys() {
        let sum = |part: fn(&LayerCost) -> Seconds| range(stage).map(|l| part(&layers[l])).sum();
        let again = range(stage).filter(|&layer| recomputed[layer]);
        let again: Seconds = again.map(|layer| layers[layer].forward).sum();
        let input: Seconds = sum(|layer| layer.input_gradient);
        let sent = layers.get(ends[stage.as_u32() as usize]).map_or(Bytes::ZERO, |l| l.entering);
        costs[stage] = StageCost {
            forward: sum(|layer| layer.forward),
            input_gradient: again + input,
            weight_gradient: sum(|layer| layer.weight_gradient),
            transfer: devices.transfer(sent),
            ..StageCost::default()
        };
    }
    let simulated = simulate(rows, &costs).ok()?;
    Some(StagePlan {
        schedule: name.to_string(),
        rows: rows.clone(),
        ends: ends.to_vec(),
        recomputed,
        makespan: simulated.makespan,
        bubble: simulated.bubble(),
        peaks,
    })
}

/// What a rank with several stages recomputes, and its peak.
///
/// What its stages hold changes from action to action. The action at which most is held where
/// nothing is recomputed decides, unless with that the rank does not fit at another one; then each
/// stage counts as often as it ever does.
fn fit(
    layers: &[LayerCost],
    budget: Bytes,
    (row, stages): (&[Action], &[StageId]),
    held: Bytes,
    range: &impl Fn(StageId) -> std::ops::Range<usize>,
) -> Option<(Recomputed, Bytes)> {
    let moments = in_flight(row, stages);
    let entering = |stage: StageId| {
        let first = range(stage).next().filter(|&first| first > 0);
        first.map_or(0, |first| layers[first].entering.0)
    };
    let kept = |stage: StageId, recomputed: &mut dyn Iterator<Item = bool>| -> u64 {
        let own = range(stage).zip(recomputed);
        entering(stage) + own.map(|(layer, is)| layers[layer].kept(is).0).sum::<u64>()
    };
    let peak = |chosen: &Recomputed| {
        let mut left = chosen.layers.iter().copied();
        let each: Vec<u64> = stages.iter().map(|&stage| kept(stage, &mut left)).collect();
        let of = |counts: &Vec<u64>| counts.iter().zip(&each).map(|(n, bytes)| n * bytes).sum();
        let most: u64 = moments.iter().map(of).max().unwrap_or(0);
        let working = stages.iter().flat_map(|&stage| range(stage)).zip(&chosen.layers);
        let working = working.map(|(layer, &is)| layers[layer].working(is)).max();
        held + Bytes(most) + working.unwrap_or(Bytes::ZERO)
    };
    let solve = |counts: &[u64]| {
        let received: u64 = stages.iter().zip(counts).map(|(&s, n)| n * entering(s)).sum();
        let all = stages
            .iter()
            .zip(counts)
            .flat_map(|(&stage, &count)| range(stage).map(move |layer| (layers[layer], count)));
        recompute(&all.collect::<Vec<_>>(), held + Bytes(received), budget)
    };
    let nothing = |stage: StageId| kept(stage, &mut std::iter::repeat(false));
    let all: Vec<u64> = stages.iter().map(|&stage| nothing(stage)).collect();
    let weight = |counts: &&Vec<u64>| counts.iter().zip(&all).map(|(n, b)| n * b).sum::<u64>();
    let worst = moments.iter().max_by_key(weight)?;
    let often: Vec<u64> = (0..stages.len())
        .map(|index| moments.iter().map(|counts| counts[index]).max().unwrap_or(0))
        .collect();
    for counts in [worst, &often] {
        let Some(chosen) = solve(counts) else { continue };
        let peak = peak(&chosen);
        if peak <= budget {
            return Some((chosen, peak));
        }
    }
    None
}

/// Of how many micro-batches a rank holds the activations of each of its stages: the moments that
/// no other one exceeds.
fn in_flight(row: &[Action], stages: &[StageId]) -> Vec<Vec<u64>> {
    let mut now = vec![0u64; stages.len()];
    let mut seen: BTreeSet<Vec<u64>> = BTreeSet::new();
    for action in row {
        let Some(index) = stages.iter().position(|&stage| stage == action.stage) else { continue };
        match action.pass {
            crate::pipeline::action::Pass::Forward => now[index] += 1,
            pass if pass.makes_weight_gradients() => now[index] = now[index].saturating_sub(1),
            _ => {}
        }
        seen.insert(now.clone());
    }
    let exceeds = |a: &Vec<u64>, b: &Vec<u64>| a != b && a.iter().zip(b).all(|(a, b)| a >= b);
    let most = seen.iter().filter(|counts| !seen.iter().any(|other| exceeds(other, counts)));
    most.cloned().collect()
}

/// The most micro-batches of which a stage that is alone on its rank holds activations.
pub(super) fn most_in_flight(rows: &Rows, stage: StageId) -> u64 {
    let row = &rows.rows[rows.placement[stage]];
    in_flight(row, &[stage]).first().map_or(0, |counts| counts[0])
}
