//! Tradeoff curves against brute force: all sets of operators of small modules. Invariant: what a
//! curve promises is compared with what really has to run again, computed node by node.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tightfit::analysis::modules::{
    Group, Groups, ModuleIndex, Segment, Tradeoff, TradeoffCurve, groups, measure, tradeoff,
};
use tightfit::analysis::{Dataflow, dataflow, passes};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, StorageId};
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::{corpus, generator};

const ROUNDING: f64 = 1e-9;

/// The segments at a discard ratio.
fn segments(curve: &TradeoffCurve, ratio: f64) -> f64 {
    curve
        .segments
        .iter()
        .map(|segment| segment.slope * ratio + segment.intercept)
        .fold(0.0, f64::max)
}

/// Every set of groups: bytes and seconds.
fn sets(operators: &Groups) -> Vec<(u64, f64)> {
    let groups = &operators.groups;
    let of = |set: u32| {
        groups
            .iter()
            .enumerate()
            .filter(move |(index, _)| set >> index & 1 == 1)
            .map(|(_, group)| group)
    };
    let sum = |set| {
        (
            of(set).map(|group| group.bytes.0).sum(),
            operators.always.0 + of(set).map(|group| group.seconds.0).sum::<f64>(),
        )
    };
    (0..1 << groups.len()).map(sum).collect()
}

/// Laws of a curve and all sets of its groups.
fn is_exact(operators: &Groups) {
    let Tradeoff { bytes, seconds, curve } = tradeoff(operators);
    if bytes == Bytes::ZERO {
        assert!(operators.groups.iter().all(|group| group.bytes == Bytes::ZERO));
        return;
    }
    let share = |(discarded, time): (u64, f64)| {
        let time = if seconds.0 > 0.0 { time / seconds.0 } else { 0.0 };
        (discarded as f64 / bytes.0 as f64, time)
    };
    let sets: Vec<(f64, f64)> = sets(operators).into_iter().map(share).collect();
    let close =
        |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() < ROUNDING && (a.1 - b.1).abs() < ROUNDING;

    // Reached points: every point is a set, and segments meet the points where they begin and end.
    assert!(
        curve.points.iter().all(|&point| sets.iter().any(|&set| close(set, point))),
        "{curve:?}"
    );
    assert_eq!((curve.breakpoints[0], *curve.breakpoints.last().unwrap()), (0.0, 1.0));
    // Except where steep segments were replaced, which is the last thousandth at most.
    let steep = curve.segments.last().unwrap().slope == 1e3;
    let exact = if steep { curve.breakpoints[curve.breakpoints.len() - 2] } else { 1.0 };
    assert!(exact >= 0.999 - ROUNDING, "{curve:?}");
    for &at in curve.breakpoints.iter().filter(|&&at| at < exact || at == 1.0) {
        let (ratio, time) = curve.realised(at).unwrap();
        assert!(close((ratio, time), (at, segments(&curve, at))), "{at}: {curve:?}");
    }
    // A lower bound: no set lies below the segments.
    for &(ratio, time) in sets.iter().filter(|set| set.0 <= exact) {
        assert!(time >= segments(&curve, ratio) - ROUNDING, "({ratio}, {time}) below {curve:?}");
    }
    // An upper bound: discarding at least a ratio takes no more than the next point does.
    for &(ratio, _) in &sets {
        let cheapest =
            sets.iter().filter(|set| set.0 >= ratio).map(|set| set.1).fold(f64::INFINITY, f64::min);
        let (discarded, time) = curve.realised(ratio).unwrap();
        assert!(discarded >= ratio && time >= cheapest - ROUNDING, "{ratio}: {curve:?}");
    }
    // Both are at most one group apart, and the curve is convex.
    let dearest = operators.groups.iter().map(|group| group.seconds.0).fold(0.0, f64::max)
        / seconds.0.max(f64::MIN_POSITIVE);
    for ratio in (0..=100).map(|step| f64::from(step) / 100.0).filter(|&ratio| ratio <= exact) {
        let gap = curve.realised(ratio).unwrap().1 - segments(&curve, ratio);
        assert!((-ROUNDING..=dearest + ROUNDING).contains(&gap), "{ratio}: {gap}, {curve:?}");
    }
    assert!(
        curve.segments.windows(2).all(|pair| pair[0].slope <= pair[1].slope * (1.0 + ROUNDING)),
        "{curve:?}"
    );
}

fn group(bytes: u64, microseconds: u64) -> Group {
    Group { nodes: vec![], bytes: Bytes(bytes), seconds: Seconds(microseconds as f64 / 1e6) }
}

fn any_operators() -> impl Strategy<Value = Groups> {
    // Few sizes, so that equal operators are common; sometimes a few bytes that take long.
    let group = prop_oneof![
        4 => (1u64..5, 0u64..5).prop_map(|(bytes, time)| group(bytes << 20, time)),
        1 => (1u64..9, 0u64..5000).prop_map(|(bytes, time)| group(bytes, time)),
    ];
    (prop::collection::vec(group, 0..9), 0u64..3)
        .prop_map(|(groups, always)| Groups { groups, always: Seconds(always as f64 / 1e6) })
}

proptest! {
    #![proptest_config(tightfit_testing::config(500))]

    #[test]
    fn curves_are_exact_where_they_are_relied_on(operators in any_operators()) {
        is_exact(&operators);
    }
}

/// Nodes below a module that run forward and update nothing.
fn forward_nodes(graph: &Graph, module: &str) -> Vec<NodeId> {
    let program = graph.compute_nodes();
    let phases = passes(graph, &program);
    let below =
        |path: &str| module.is_empty() || path == module || path.starts_with(&format!("{module}."));
    let of_model = |storage: &StorageId| {
        graph.producer(*storage).is_some_and(|maker| graph.nodes()[maker].phase.is_persistent())
    };
    let is_part = |&id: &NodeId| {
        phases[id].is_forward()
            && below(graph.module_of(id))
            && !graph.mutated(id).iter().any(of_model)
    };
    program.into_iter().filter(is_part).collect()
}

/// What really runs again if the nodes in `discarded` keep nothing: whatever is needed to have all
/// that the backward pass reads of this module, from what exists then.
fn runs_again(
    graph: &Graph,
    flow: &Dataflow,
    module: ModuleIndex,
    forward: &[NodeId],
    discarded: &BTreeSet<NodeId>,
) -> BTreeSet<NodeId> {
    let program = graph.compute_nodes();
    let phases = passes(graph, &program);
    let read_by_backward = |storage: StorageId| {
        program
            .iter()
            .any(|&id| phases[id] == Phase::Backward && graph.reads(id).contains(&storage))
    };
    let leaves = |storage: StorageId| {
        let outside = |&id: &NodeId| {
            (phases[id].is_forward()
                && !flow.tree.contains(module, flow.tree.of(graph.nodes()[id].module)))
                || phases[id] == Phase::Loss
        };
        let by_loss = graph.producer(storage).is_some_and(|maker| phases[maker] == Phase::Loss);
        graph.is_kept(storage)
            || by_loss
            || program.iter().any(|id| outside(id) && graph.reads(*id).contains(&storage))
    };
    let mut again = BTreeSet::new();
    let mut needed: Vec<StorageId> = discarded
        .iter()
        .flat_map(|&id| graph.fresh(id))
        .copied()
        .filter(|&storage| !leaves(storage) && read_by_backward(storage))
        .collect();
    while let Some(storage) = needed.pop() {
        let Some(maker) = graph.producer(storage).filter(|maker| forward.contains(maker)) else {
            continue;
        };
        let there =
            if leaves(storage) { read_by_backward(storage) } else { !discarded.contains(&maker) };
        if there {
            continue;
        }
        // The node that makes it, and the nodes that write into it.
        for &id in forward.iter().filter(|&&id| id == maker || graph.mutated(id).contains(&storage))
        {
            if again.insert(id) {
                needed.extend(graph.reads(id));
            }
        }
    }
    again
}

/// A curve promises no less than what has to run again, whatever is discarded.
fn is_enough(graph: &Graph, profile: &Profile) -> usize {
    let flow = dataflow(graph, profile);
    let mut modules = 0;
    for (module, branch) in flow.tree.branches() {
        let forward = forward_nodes(graph, &branch.path);
        let Some(operators) = groups(graph, profile, &flow, module, &forward) else { continue };
        if operators.groups.len() > 7 {
            continue;
        }
        is_exact(&operators);
        let random = |group: &&Group| group.nodes.iter().any(|&id| graph.nodes()[id].random);
        assert!(
            operators.groups.iter().filter(random).count() <= 1,
            "`{}`: random nodes go together",
            branch.path
        );
        for set in 0u32..1 << operators.groups.len() {
            let chosen = || {
                operators
                    .groups
                    .iter()
                    .enumerate()
                    .filter(|(index, _)| set >> index & 1 == 1)
                    .map(|(_, group)| group)
            };
            let discarded: BTreeSet<NodeId> =
                chosen().flat_map(|group| group.nodes.iter().copied()).collect();
            let again = runs_again(graph, &flow, module, &forward, &discarded);
            let needed: f64 = again.iter().map(|&id| profile.seconds[id].0).sum();
            let promised = operators.always.0 + chosen().map(|group| group.seconds.0).sum::<f64>();
            assert!(
                needed <= promised + 1e-12,
                "`{}`: {needed} > {promised} for {discarded:?}, again {again:?}",
                branch.path
            );
        }
        modules += usize::from(!operators.groups.is_empty());
    }
    modules
}

proptest! {
    #![proptest_config(tightfit_testing::config(120))]

    #[test]
    fn no_more_runs_again_than_a_curve_promises(recipe in generator::recipes(10)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            is_enough(&graph, &profile);
        }
    }
}

#[test]
fn what_reads_something_overwritten_cannot_run_again() {
    // `a` reads what the root makes; if the root then overwrites it, the output of `a` can be made
    // only once.
    for overwritten in [false, true] {
        let mut builder = GraphBuilder::new("overwritten");
        let (inner, storages) =
            (builder.module("a.in"), [0; 3].map(|_| builder.storage(Bytes(64))));
        let tensor =
            |index: usize| [Some(ValueSpec::contiguous(&[64], DType::U8, storages[index]))];
        let made = builder.node(NodeSpec::new("made", "op", Phase::Forward), &tensor(0))[0];
        let reads = NodeSpec {
            inputs: vec![made],
            module: inner,
            ..NodeSpec::new("reads", "op", Phase::Forward)
        };
        let saved = builder.node(reads, &tensor(1))[0];
        if overwritten {
            builder.node(
                NodeSpec {
                    inputs: vec![made],
                    mutates: true,
                    ..NodeSpec::new("writes", "op_", Phase::Forward)
                },
                &tensor(0),
            );
        }
        let gradient = builder.node(
            NodeSpec { inputs: vec![saved], ..NodeSpec::new("backward", "op", Phase::Backward) },
            &tensor(2),
        )[0];
        builder.output(gradient);
        let graph = builder.build().unwrap();
        let info = measure(&graph, &generator::profiles(&graph)[0]).unwrap();
        let module = &info.modules()[info.find("overwritten.a").unwrap()];
        assert_eq!((module.is_leaf, module.forward_activations), (overwritten, Bytes(64)));
        assert_eq!(module.checkpointing_bytes, if overwritten { Bytes(0) } else { Bytes(64) });
    }
}

#[test]
fn whoever_writes_into_an_output_runs_again_with_its_maker() {
    // The step returns what `made` makes and `writes` writes into; the backward pass does not read
    // it, so it does not exist for `reads` to run again.
    let mut builder = GraphBuilder::new("written");
    let storages = [0; 3].map(|_| builder.storage(Bytes(64)));
    let tensor = |index: usize| [Some(ValueSpec::contiguous(&[64], DType::U8, storages[index]))];
    let made = builder.node(NodeSpec::new("made", "op", Phase::Forward), &tensor(0))[0];
    let writes = NodeSpec {
        inputs: vec![made],
        mutates: true,
        ..NodeSpec::new("writes", "op_", Phase::Forward)
    };
    let written = builder.node(writes, &tensor(0))[0];
    let reads = NodeSpec { inputs: vec![written], ..NodeSpec::new("reads", "op", Phase::Forward) };
    let saved = builder.node(reads, &tensor(1))[0];
    let backward =
        NodeSpec { inputs: vec![saved], ..NodeSpec::new("backward", "op", Phase::Backward) };
    let gradient = builder.node(backward, &tensor(2))[0];
    builder.output(written);
    builder.output(gradient);
    let graph = builder.build().unwrap();
    for profile in generator::profiles(&graph) {
        let flow = dataflow(&graph, &profile);
        let forward = forward_nodes(&graph, "");
        let module = flow.tree.branches().iter().next().unwrap().0;
        let operators = groups(&graph, &profile, &flow, module, &forward).unwrap();
        let again: f64 = forward[..2].iter().map(|&id| profile.seconds[id].0).sum();
        assert_eq!((operators.always, operators.groups.len()), (Seconds(again), 1));
    }
}

#[test]
fn attention_and_perceptron_of_a_small_model() {
    let graph = tightfit::graph::read(
        &std::fs::read(corpus::path("steps/gpt-nano-dropout/train.json.gz")).unwrap(),
    )
    .unwrap();
    let [profile, _] = generator::profiles(&graph);
    assert!(is_enough(&graph, &profile) >= 10, "modules with something to discard");
}

#[test]
fn a_chain_by_hand() {
    // 4 MiB in 1 µs, twice; 1 MiB in 3 µs; 2 bytes in 2 µs; 1 µs in any case. In total 9 MiB + 2
    // bytes, 8 + 0 µs.
    let groups = vec![group(4 << 20, 1), group(1 << 20, 3), group(4 << 20, 1), group(2, 2)];
    let Tradeoff { bytes, seconds, curve } = tradeoff(&Groups { groups, always: Seconds(1e-6) });
    assert_eq!((bytes, (seconds.0 * 1e6).round()), (Bytes((9 << 20) + 2), 8.0));
    let whole = ((9 << 20) + 2) as f64;
    let ratio = |bytes: u64| bytes as f64 / whole;
    // The two bytes would make a slope of a million; it becomes a thousand, from where that line
    // meets the segment before.
    assert_eq!((curve.breakpoints.len(), curve.breakpoints[1]), (4, ratio(8 << 20)));
    assert!(
        (curve.breakpoints[2] - (1.0 - 0.25 / 1000.0)).abs() < 1e-5,
        "2 of 8 µs at a slope of a thousand"
    );
    assert_eq!(curve.segments[2], Segment { slope: 1e3, intercept: -999.0 });
    let times: Vec<f64> =
        curve.points.iter().map(|&(_, time)| (time * 8.0 * 1e6).round() / 1e6).collect();
    assert_eq!(times, [1.0, 2.0, 3.0, 6.0, 8.0]);
    assert_eq!(curve.realised(0.3), Some(curve.points[1]));
    assert_eq!(curve.realised(1.1), None);
}
