//! The cuts with the least path bound. Invariant: for one stage on each rank, of all cuts and all
//! sets of recomputed layers that fit, those are returned that no other one beats both in the path
//! of one micro-batch and in the bound.
//!
//! ```text
//! T = max over stages s of  Σ over stages k before s of (f_k + b_k)  +  m (f_s + b_s)
//! ```
//!
//! where b includes recomputation: the first micro-batch has to get to stage s and back, and in
//! between that stage has to process all m.

use std::collections::BTreeMap;

use crate::pipeline::stages::LayerCost;
use crate::pipeline::stages::recompute::{Recomputed, recompute};
use crate::units::{Bytes, Seconds};

/// A cut that no other one beats.
#[derive(Clone, Debug, PartialEq)]
pub struct Front {
    /// One past the last layer of each stage.
    pub ends: Vec<usize>,
    /// Which layers are recomputed.
    pub recomputed: Vec<bool>,
    /// The time of one micro-batch through all stages and back.
    pub path: Seconds,
    /// The path bound.
    pub bound: Seconds,
}

/// Some cut of the first layers into the first stages.
#[derive(Clone, Copy)]
struct Label {
    path: f64,
    bound: f64,
    /// Where the last stage begins, and the label before it among those there.
    begin: usize,
    before: usize,
}

/// The cuts of layers into one stage for each entry of `in_flight`, the number of micro-batches
/// whose activations that stage holds at once; least bound first.
pub fn front(
    layers: &[LayerCost],
    in_flight: &[u64],
    micro_batches: u32,
    budget: Bytes,
) -> Vec<Front> {
    let (count, stages) = (layers.len(), in_flight.len());
    let mut known: BTreeMap<(u64, usize, usize), Option<Recomputed>> = BTreeMap::new();
    let mut stage = |in_flight: u64, begin: usize, end: usize| -> Option<Recomputed> {
        known
            .entry((in_flight, begin, end))
            .or_insert_with(|| recompute_stage(&layers[begin..end], begin > 0, in_flight, budget))
            .clone()
    };
    // By the number of layers: the labels with each number of stages over them.
    let mut labels: Vec<Vec<Vec<Label>>> = vec![vec![Vec::new(); count + 1]; stages + 1];
    labels[0][0].push(Label { path: 0.0, bound: 0.0, begin: 0, before: 0 });
    for (number, &in_flight) in in_flight.iter().enumerate() {
        let left = stages - number - 1;
        for begin in number..count {
            if labels[number][begin].is_empty() {
                continue;
            }
            let ends = if left == 0 { count..=count } else { begin + 1..=count - left.min(count) };
            for end in ends.filter(|&end| end > begin) {
                let Some(recomputed) = stage(in_flight, begin, end) else { continue };
                let own: Seconds = layers[begin..end].iter().map(LayerCost::seconds).sum();
                let own = own.0 + recomputed.seconds.0;
                for before in 0..labels[number][begin].len() {
                    let label = labels[number][begin][before];
                    let bound = label.bound.max(label.path + f64::from(micro_batches) * own);
                    let path = label.path + own;
                    labels[number + 1][end].push(Label { path, bound, begin, before });
                }
            }
        }
        labels[number + 1].iter_mut().for_each(unbeaten);
    }
    let mut fronts = Vec::new();
    for last in 0..labels[stages][count].len() {
        let Label { path, bound, .. } = labels[stages][count][last];
        let (mut ends, mut recomputed) = (Vec::new(), vec![false; count]);
        let (mut end, mut at) = (count, last);
        for number in (0..stages).rev() {
            let Label { begin, before, .. } = labels[number + 1][end][at];
            let chosen = stage(in_flight[number], begin, end).into_iter().flat_map(|r| r.layers);
            recomputed[begin..end].iter_mut().zip(chosen).for_each(|(to, from)| *to = from);
            ends.push(end);
            (end, at) = (begin, before);
        }
        ends.reverse();
        fronts.push(Front { ends, recomputed, path: Seconds(path), bound: Seconds(bound) });
    }
    fronts
}

/// The layers that one stage recomputes, given all of its rank's budget.
fn recompute_stage(
    layers: &[LayerCost],
    receives: bool,
    in_flight: u64,
    budget: Bytes,
) -> Option<Recomputed> {
    let held: Bytes = layers.iter().map(|layer| layer.held).sum();
    let entering = layers.first().filter(|_| receives).map_or(0, |layer| layer.entering.0);
    let held = held + Bytes(entering.saturating_mul(in_flight));
    let all: Vec<(LayerCost, u64)> = layers.iter().map(|&layer| (layer, in_flight)).collect();
    recompute(&all, held, budget)
}

/// Keeps the labels that no other beats in both, least bound first.
fn unbeaten(labels: &mut Vec<Label>) {
    labels.sort_by(|a, b| a.bound.total_cmp(&b.bound).then(a.path.total_cmp(&b.path)));
    let mut shortest = f64::INFINITY;
    labels.retain(|label| {
        let is_shorter = label.path < shortest;
        shortest = shortest.min(label.path);
        is_shorter
    });
}
