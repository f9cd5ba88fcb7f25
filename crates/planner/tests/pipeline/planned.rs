//! The stage planner against brute force: every cut and every set of recomputed layers.
//!
//! Tier: quick with a part of the cases, 3 s; full with all of them.

use proptest::prelude::*;
use tightfit::id::{SecondaryMap, StageId};
use tightfit::machine::Machine;
use tightfit::pipeline::stages::{
    Devices, LayerCost, evaluate, front, in_time, layer_costs, plan_stages, recompute,
};
use tightfit::pipeline::{Pass, PipelineSchedule, Rows, StageCost, layers, simulate};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus::{graph, step};

/// Everything about one choice: what each stage holds, and when everything is over.
struct Choice<'a> {
    layers: &'a [LayerCost],
    ends: Vec<usize>,
    recomputed: u32,
}

impl Choice<'_> {
    fn stage(&self, stage: usize) -> std::ops::Range<usize> {
        let begin = if stage == 0 { 0 } else { self.ends[stage - 1] };
        begin..self.ends[stage]
    }

    fn is_recomputed(&self, layer: usize) -> bool {
        self.recomputed >> layer & 1 == 1
    }

    /// Forward and backward time of a stage.
    fn times(&self, stage: usize) -> (f64, f64) {
        let (mut forward, mut backward) = (0.0, 0.0);
        for index in self.stage(stage) {
            let layer = &self.layers[index];
            forward += layer.forward.0;
            backward += layer.input_gradient.0 + layer.weight_gradient.0;
            backward += if self.is_recomputed(index) { layer.forward.0 } else { 0.0 };
        }
        (forward, backward)
    }

    fn bytes(&self, stage: usize, in_flight: u64) -> u64 {
        let first = self.stage(stage).start;
        let mut kept = if first > 0 { self.layers[first].entering.0 } else { 0 };
        let (mut held, mut working) = (0, 0);
        for index in self.stage(stage) {
            let layer = &self.layers[index];
            let again = self.is_recomputed(index);
            held += layer.held.0;
            kept += if again { layer.boundary.0 } else { layer.activations.0 };
            let own = if again { layer.activations.0 } else { 0 };
            working = working.max(layer.transient.0 + own);
        }
        held + in_flight * kept + working
    }

    fn path_bound(&self, stages: usize, micro_batches: u32) -> f64 {
        let (mut before, mut bound) = (0.0, 0.0f64);
        for stage in 0..stages {
            let (forward, backward) = self.times(stage);
            bound = bound.max(before + f64::from(micro_batches) * (forward + backward));
            before += forward + backward;
        }
        bound
    }

    fn makespan(&self, rows: &Rows) -> f64 {
        let mut costs: SecondaryMap<StageId, StageCost> = SecondaryMap::new();
        for (index, stage) in rows.placement.keys().enumerate() {
            let (forward, backward) = self.times(index);
            costs[stage].forward = Seconds(forward);
            costs[stage].input_gradient = Seconds(backward);
        }
        simulate(rows, &costs).unwrap().makespan.0
    }
}

/// All choices of ends and recomputed layers.
fn choices(layers: &[LayerCost], stages: usize) -> impl Iterator<Item = Choice<'_>> {
    let count = layers.len();
    let cuts = (0u32..1 << (count - 1)).filter(move |cut| cut.count_ones() as usize + 1 == stages);
    cuts.flat_map(move |cut| {
        let mut ends: Vec<usize> =
            (0..count - 1).filter(|&at| cut >> at & 1 == 1).map(|at| at + 1).collect();
        ends.push(count);
        (0u32..1 << count).map(move |recomputed| Choice { layers, ends: ends.clone(), recomputed })
    })
}

fn layer() -> impl Strategy<Value = LayerCost> {
    (1u32..5, 0u32..5, 0u32..5, 1u64..7, 4u64..13, 0u64..4, 0u64..3, 0u64..3).prop_map(
        |(forward, input, weight, held, activations, boundary, entering, transient)| LayerCost {
            forward: Seconds(forward.into()),
            input_gradient: Seconds(input.into()),
            weight_gradient: Seconds(weight.into()),
            held: Bytes(held),
            activations: Bytes(activations),
            boundary: Bytes(boundary),
            entering: Bytes(entering),
            transient: Bytes(transient),
        },
    )
}

fn devices(ranks: u32, budget: u64) -> Devices {
    let (bandwidth, latency) = (f64::INFINITY, Seconds(0.0));
    Devices { ranks, budget: Bytes(budget), bandwidth, latency }
}

/// No stage before the first waits for its gradients: everything that it does backwards is done
/// when its weights' gradients are due.
#[test]
fn the_first_stage_makes_no_gradient_for_others() {
    let second = Seconds(1.0);
    let cost = LayerCost {
        forward: second,
        input_gradient: second,
        weight_gradient: second,
        ..LayerCost::default()
    };
    let layers = [cost; 4];
    let rows = PipelineSchedule::ZbH1.rows(2, 4).unwrap();
    let plan = evaluate(&layers, &devices(2, 1), ("zb-h1", &rows), &[2, 4]).unwrap();
    let times = in_time(&layers, &devices(2, 1), &plan);
    for done in times.ranks.values().flatten() {
        let expected = match (done.action.stage.as_u32(), done.action.pass) {
            (0, Pass::InputGradient) => 0.0,
            (0, Pass::WeightGradient) => 4.0,
            (0, Pass::Backward) | (1, Pass::Backward) => 4.0,
            _ => 2.0,
        };
        assert_eq!(done.end.0 - done.start.0, expected, "{:?}", done.action);
    }
    assert!(times.ranks.values().flatten().any(|done| done.action.pass == Pass::WeightGradient));
}

proptest! {
    #![proptest_config(tightfit_testing::config(256))]

    #[test]
    fn the_front_begins_with_the_least_path_bound(
        layers in prop::collection::vec(layer(), 3..8),
        ranks in 1u32..4,
        micro_batches in 1u32..9,
        budget in 20u64..120,
    ) {
        let rows = PipelineSchedule::OneFOneB.rows(ranks, micro_batches).unwrap();
        let in_flight: Vec<u64> =
            (0..ranks).map(|rank| u64::from(micro_batches.min(ranks - rank))).collect();
        let fits = |choice: &Choice<'_>| {
            (0..ranks as usize).all(|stage| choice.bytes(stage, in_flight[stage]) <= budget)
        };
        let (mut bound, mut fastest) = (f64::INFINITY, f64::INFINITY);
        for choice in choices(&layers, ranks as usize).filter(fits) {
            bound = bound.min(choice.path_bound(ranks as usize, micro_batches));
            fastest = fastest.min(choice.makespan(&rows));
        }
        let found = front(&layers, &in_flight, micro_batches, Bytes(budget));
        let ours = found.first().map_or(f64::INFINITY, |front| front.bound.0);
        prop_assert!(ours == bound || (ours - bound).abs() < 1e-9, "{ours} {bound}");
        for front in &found {
            let recomputed = front.recomputed.iter().enumerate();
            let recomputed = recomputed.map(|(layer, &is)| u32::from(is) << layer).sum();
            let choice = Choice { layers: &layers, ends: front.ends.clone(), recomputed };
            prop_assert!(fits(&choice));
            let own = choice.path_bound(ranks as usize, micro_batches);
            prop_assert!((own - front.bound.0).abs() < 1e-9);
        }
        let schedules = [PipelineSchedule::OneFOneB];
        let devices = devices(ranks, budget);
        let plans = plan_stages(&layers, &devices, micro_batches, &schedules, &|| false).unwrap();
        let planned = plans.first().map_or(f64::INFINITY, |plan| plan.makespan.0);
        prop_assert_eq!(planned.is_finite(), fastest.is_finite());
        if fastest.is_finite() {
            prop_assert!(planned >= fastest - 1e-9, "{planned} {fastest}");
            prop_assert!(planned <= 1.07 * fastest, "{planned} {fastest}");
        }
    }

    #[test]
    fn nothing_cheaper_fits_a_rank(
        layers in prop::collection::vec((layer(), 1u64..5), 1..8),
        held in 0u64..20,
        budget in 10u64..150,
    ) {
        let mut best = f64::INFINITY;
        for chosen in 0u32..1 << layers.len() {
            let is = |index: usize| chosen >> index & 1 == 1;
            let (mut bytes, mut working, mut seconds) = (held, 0, 0.0);
            for (index, (layer, in_flight)) in layers.iter().enumerate() {
                let kept = if is(index) { layer.boundary } else { layer.activations };
                bytes += in_flight * kept.0;
                let own = if is(index) { layer.activations.0 } else { 0 };
                working = working.max(layer.transient.0 + own);
                seconds += if is(index) { layer.forward.0 } else { 0.0 };
            }
            if bytes + working <= budget {
                best = f64::min(best, seconds);
            }
        }
        let found = recompute(&layers, Bytes(held), Bytes(budget));
        let ours = found.map_or(f64::INFINITY, |found| found.seconds.0);
        prop_assert!(ours == best || (ours - best).abs() < 1e-9, "{ours} {best}");
    }

    #[test]
    fn plans_of_every_order_fit(
        layers in prop::collection::vec(layer(), 8..14),
        budget in 60u64..400,
    ) {
        let all = PipelineSchedule::ALL.map(|(schedule, _)| schedule);
        let devices = devices(4, budget);
        for plan in plan_stages(&layers, &devices, 8, &all, &|| false).unwrap() {
            prop_assert!(plan.peaks.values().all(|&peak| peak <= devices.budget));
            prop_assert_eq!(plan.ends.last(), Some(&layers.len()));
            // Bytes that a rank holds, counted action by action.
            for (rank, row) in &plan.rows.rows {
                let stages = plan.rows.stages_of(rank);
                let range = |stage: StageId| {
                    let number = stage.as_u32() as usize;
                    let begin = if number == 0 { 0 } else { plan.ends[number - 1] };
                    begin..plan.ends[number]
                };
                let own = || stages.iter().flat_map(|&stage| range(stage));
                let held: u64 = own().map(|layer| layers[layer].held.0).sum();
                let working = own().map(|layer| {
                    let again = plan.recomputed[layer];
                    let own = if again { layers[layer].activations.0 } else { 0 };
                    layers[layer].transient.0 + own
                });
                let working = working.max().unwrap_or(0);
                let (mut now, mut most) = (0i64, 0);
                for action in row {
                    let begin = range(action.stage).start;
                    let entering = if begin > 0 { layers[begin].entering.0 } else { 0 };
                    let kept = range(action.stage).map(|layer| {
                        let LayerCost { activations, boundary, .. } = layers[layer];
                        let again = plan.recomputed[layer];
                        if again { boundary.min(activations).0 } else { activations.0 }
                    });
                    let kept = (kept.sum::<u64>() + entering) as i64;
                    now += match action.pass {
                        tightfit::pipeline::Pass::Forward => kept,
                        pass if pass.makes_weight_gradients() => -kept,
                        _ => 0,
                    };
                    most = most.max(now);
                }
                prop_assert_eq!(plan.peaks[rank], Bytes(held + most as u64 + working));
            }
        }
    }
}

#[test]
fn layers_of_a_step_account_for_its_bytes() {
    let graph = step("gpt-nano");
    let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
    let layers = layers(&graph, &profile, 4).unwrap();
    let costs = layer_costs(&graph, &profile, &layers, None).unwrap();
    let total: f64 = costs.iter().map(|cost| cost.seconds().0).sum();
    let whole = profile.total(&graph.compute_nodes()).0;
    assert!((0.8..=1.0).contains(&(total / whole)), "all but updates: {total} of {whole}");
    let held: Bytes = costs.iter().map(|cost| cost.held).sum();
    assert!(held >= graph.static_bytes(), "{held} {}", graph.static_bytes());
    assert!(costs[1..].iter().all(|cost| cost.entering > Bytes::ZERO));
    assert_eq!(costs[0].entering, Bytes::ZERO);
}

/// If devices are large enough nothing is recomputed; on smaller ones something is, and on much
/// smaller ones there is no plan. All forward passes before all backward passes hold most.
#[test]
fn budgets_decide() {
    let graph = graph("llama_1b_b2_s2048");
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let layers = layers(&graph, &profile, 8).unwrap();
    let costs = layer_costs(&graph, &profile, &layers, Some(16.0)).unwrap();
    let plan = |budget: u64, schedules: &[PipelineSchedule]| {
        let devices = Devices { bandwidth: 5e10, ..devices(8, budget << 30) };
        plan_stages(&costs, &devices, 16, schedules, &|| false).unwrap()
    };
    let (mut last, mut recomputes) = (0.0, 0);
    for budget in (13..60).rev() {
        let best = &plan(budget, &[PipelineSchedule::GPipe])[0];
        assert!(best.makespan.0 >= last * 0.99, "a smaller budget is no faster: {budget}");
        last = best.makespan.0;
        recomputes += usize::from(best.recomputed.contains(&true));
    }
    assert!((10..47).contains(&recomputes), "{recomputes}");
    let both = [PipelineSchedule::OneFOneB, PipelineSchedule::ZbV];
    // The head alone needs more.
    assert!(plan(10, &both).is_empty());
    let large = &plan(80, &both)[0];
    assert!(!large.recomputed.contains(&true));
    let devices = devices(8, 80 << 30);
    let again = evaluate(&costs, &devices, (&large.schedule, &large.rows), &large.ends).unwrap();
    assert!(again.makespan.0 <= large.makespan.0, "a faster link is no slower");
}
