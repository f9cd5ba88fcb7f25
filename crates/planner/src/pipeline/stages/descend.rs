//! Improves cuts step by step. Invariant: the result is never slower than the start.

use crate::pipeline::action::Rows;
use crate::pipeline::layers::best_cuts;
use crate::pipeline::stages::evaluate::most_in_flight;
use crate::pipeline::stages::front::front;
use crate::pipeline::stages::{Devices, LayerCost, StagePlan};

/// Cuts of the front that are tried.
const FRONT: usize = 8;

/// Cuts to start from: those of the front if each rank has one stage, and those whose stages take
/// the same time, or hold the same.
pub fn starts(layers: &[LayerCost], devices: &Devices, rows: &Rows) -> Vec<Vec<usize>> {
    let stages = rows.placement.len();
    if layers.len() < stages {
        return Vec::new();
    }
    let mut starts = Vec::new();
    if stages == rows.rows.len() {
        let in_flight: Vec<u64> =
            rows.placement.keys().map(|stage| most_in_flight(rows, stage)).collect();
        let found = front(layers, &in_flight, rows.micro_batches, devices.budget);
        starts.extend(found.into_iter().take(FRONT).map(|front| front.ends));
    }
    let time = |layer: &LayerCost| layer.seconds().0;
    let memory = |layer: &LayerCost| (layer.held + layer.boundary).0 as f64;
    for weight in [&time as &dyn Fn(&LayerCost) -> f64, &memory] {
        let mut until = vec![0.0];
        for layer in layers {
            until.push(until[until.len() - 1] + weight(layer));
        }
        let cost = |from: usize, to: usize| Some(until[to] - until[from]);
        let cuts = best_cuts(layers.len(), stages, f64::max, &cost);
        starts.extend(cuts.map(|(_, cuts)| cuts[1..].to_vec()));
    }
    starts.sort();
    starts.dedup();
    starts
}

/// Moves the border that helps most by one layer, until none helps.
pub fn descend(
    layers: usize,
    ends: Vec<usize>,
    plan: &dyn Fn(&[usize]) -> Option<StagePlan>,
) -> Option<StagePlan> {
    let mut best = plan(&ends)?;
    loop {
        let mut better: Option<StagePlan> = None;
        for border in 0..best.ends.len() - 1 {
            for later in [false, true] {
                let mut ends = best.ends.clone();
                ends[border] = if later { ends[border] + 1 } else { ends[border] - 1 };
                let begin = border.checked_sub(1).map_or(0, |before| ends[before]);
                if ends[border] <= begin || ends[border] >= ends[border + 1] {
                    continue;
                }
                debug_assert!(ends[border] < layers);
                let least = better.as_ref().unwrap_or(&best).makespan.0;
                if let Some(found) = plan(&ends).filter(|found| found.makespan.0 < least) {
                    better = Some(found);
                }
            }
        }
        match better {
            Some(found) => best = found,
            None => return Some(best),
        }
    }
}
