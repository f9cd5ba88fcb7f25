//! Gradient accumulation: the graph of several micro-batches computes the step of each, and one
//! update of their means.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use tightfit::graph::{Graph, GraphBuilder, Node, NodeSpec, Phase, ValueSpec, write};
use tightfit::id::{MicroBatchId, NodeId, ValueId};
use tightfit::pipeline::{PipelineError, accumulate, name_of};
use tightfit::tensor::DType;
use tightfit::units::Bytes;
use tightfit::unplanned;

use crate::fixtures::corpus::{profile, step};
use crate::fixtures::generator::{Kind, recipes};

use crate::fixtures::symbolic::{evaluate, left, number, scaled, sum};

/// The results of a step: its outputs, and what stays from step to step, by name.
pub type Left = (Vec<u64>, BTreeMap<String, u64>);

fn is_update(node: &Node) -> bool {
    node.phase == Phase::Optimizer
}

/// By the definition: the step of each micro-batch in turn, starting from the state that the one
/// before it left; then the updates, which read the means of what the micro-batches made. The
/// caller says which nodes are updates.
pub fn by_definition(
    graph: &Graph,
    micro_batches: u32,
    is_update: &dyn Fn(NodeId) -> bool,
) -> Left {
    let of_update = |value: ValueId| is_update(graph.values()[value].producer);
    let stays = |value: ValueId| graph.is_persistent(graph.values()[value].storage);
    let mut state: BTreeMap<String, u64> = graph
        .nodes()
        .values()
        .filter(|node| node.phase.is_persistent())
        .map(|node| (node.name.clone(), number(&node.name)))
        .collect();
    let mut sums: BTreeMap<ValueId, u64> = BTreeMap::new();
    let mut last: BTreeMap<ValueId, u64> = BTreeMap::new();
    let run = |state: &BTreeMap<String, u64>, k, given: &dyn Fn(ValueId) -> Option<u64>| {
        let leaf = |node: &Node| match node.phase.is_persistent() {
            true => state[&node.name],
            false => number(name_of(&node.name, MicroBatchId::from_u32(k))),
        };
        evaluate(graph, &|_| k, &leaf, given)
    };
    for k in 0..micro_batches {
        let made = run(&state, k, &|_| None);
        state = left(graph, &made, &|id| !is_update(id), &|node| state[&node.name]);
        for value in graph.values().keys().filter(|&value| !of_update(value)) {
            last.insert(value, made[value]);
            let sum = sums.get(&value).map_or(made[value], |&so_far| sum(so_far, made[value]));
            sums.insert(value, sum);
        }
    }
    let mean = |value: ValueId| match micro_batches {
        1 => sums[&value],
        _ => scaled(sums[&value], 1.0 / f64::from(micro_batches)),
    };
    let is_leaf =
        |value: ValueId| graph.nodes()[graph.values()[value].producer].phase.is_persistent();
    let of_passes = |value: ValueId| match (of_update(value) || is_leaf(value), stays(value)) {
        (true, _) => None,
        (false, true) => Some(last[&value]),
        (false, false) => Some(mean(value)),
    };
    let made = run(&state, 0, &of_passes);
    let outputs = graph.outputs().iter().map(|&output| made[output]).collect();
    (outputs, left(graph, &made, is_update, &|node| state[&node.name]))
}

/// The same with the nodes of the optimizer as the updates.
fn by_updates(graph: &Graph, micro_batches: u32) -> Left {
    by_definition(graph, micro_batches, &|id| is_update(&graph.nodes()[id]))
}

/// By the graph of all micro-batches.
fn by_graph(graph: &Graph) -> Left {
    let leaf = |node: &Node| number(&node.name);
    let made = evaluate(graph, &|node| node.micro_batch.as_u32(), &leaf, &|_| None);
    let outputs = graph.outputs().iter().map(|&output| made[output]).collect();
    (outputs, left(graph, &made, &|_| true, &leaf))
}

#[test]
fn steps_of_the_corpus_are_accumulated() {
    for name in ["gpt-nano", "gpt-nano-dropout", "mlp-digits"] {
        let graph = step(name);
        assert!(accumulate(&graph, 1).unwrap() == graph, "{name}: one micro-batch is the step");
        for micro_batches in [2, 3, 8] {
            let whole = accumulate(&graph, micro_batches).unwrap();
            assert_eq!(by_graph(&whole), by_updates(&graph, micro_batches), "{name}");
            let read = tightfit::graph::read(write(&whole).to_string().as_bytes()).unwrap();
            assert!(read == whole, "{name}: its file is read as it was written");
        }
    }
}

#[test]
fn gradients_of_planning_graphs_are_accumulated() {
    for name in ["mobilenet_v3_large_b64", "llama_1b_b2_s2048"] {
        let graph = crate::fixtures::corpus::graph(name);
        let whole = accumulate(&graph, 2).unwrap();
        assert_eq!(by_graph(&whole), by_updates(&graph, 2), "{name}");
    }
}

proptest! {
    #![proptest_config(tightfit_testing::config(256))]

    #[test]
    fn the_graph_computes_what_the_definition_says(
        recipe in recipes(6),
        micro_batches in 2u32..5,
    ) {
        let graph = recipe.graph();
        match accumulate(&graph, micro_batches) {
            Ok(whole) => prop_assert_eq!(by_graph(&whole), by_updates(&graph, micro_batches)),
            // Outputs of one micro-batch alone; nodes after the updates, and what was written into
            // a buffer in another shape than its own.
            Err(PipelineError::NoMean { .. }) => {
                prop_assert!(!recipe.kept.is_empty() || recipe.late_metric);
            }
            Err(PipelineError::OfAnother { .. }) => {
                let writes = recipe.layers.iter().any(|layer| layer.kind == Kind::Overwrite);
                prop_assert!(recipe.epilogue || writes);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

/// Between two micro-batches only sums are held: the peak grows by no more than these and the
/// waiting batches.
#[test]
fn micro_batches_take_turns() {
    let graph = step("gpt-nano");
    let peak = |graph: &Graph| unplanned(graph, &profile(graph)).unwrap().timeline().peak;
    let gradients: Bytes = graph
        .nodes()
        .values()
        .filter(|node| is_update(node))
        .map(|node| graph.values()[node.inputs[1]].tensor.bytes())
        .sum();
    let batch: Bytes = graph
        .placeholder_storages()
        .filter(|&(node, _)| graph.nodes()[node].phase == Phase::Input)
        .map(|(_, storage)| graph.storages()[storage])
        .sum();
    let one = peak(&graph);
    for micro_batches in [2, 8] {
        let several = peak(&accumulate(&graph, micro_batches).unwrap());
        let waiting = Bytes(batch.0 * u64::from(micro_batches - 1));
        assert!(several <= one + gradients + waiting, "{several} and {one} and {gradients}");
    }
}

fn refused(graph: &Graph, micro_batches: u32, expected: Expect) {
    expected.assert_eq(&accumulate(graph, micro_batches).unwrap_err().to_string());
}

/// One call, whose result is not read.
fn unread_step() -> Graph {
    let mut builder = GraphBuilder::new("unread");
    let storage = builder.storage(Bytes(4));
    let spec = NodeSpec::new("unread", "test.norm", Phase::Forward);
    builder.node(spec, &[Some(ValueSpec::contiguous(&[1], DType::F32, storage))]);
    builder.build().unwrap()
}

#[test]
fn what_has_no_mean_is_refused() {
    let graph = step("gpt-nano");
    refused(&graph, 0, expect!["an update needs at least one micro-batch"]);
    refused(
        &graph,
        u32::MAX,
        expect![
            "4294967295 micro-batches of 282 nodes are more than the 1048576 nodes that a graph \
             may have; take fewer, of more rows each"
        ],
    );
    refused(
        &unread_step(),
        1 << 17,
        expect![
            "131072 micro-batches are more than the 65536 that a plan can number; take fewer, of \
             more rows each"
        ],
    );
    refused(
        &unread_step(),
        2,
        expect![
            "the step has neither outputs nor updates, so there is nothing to be made of several \
             micro-batches"
        ],
    );
    let with_output = |name: &str| {
        let mut builder = GraphBuilder::from_graph(&graph);
        let node = graph.node_named(name).unwrap();
        builder.output(graph.nodes()[node].outputs[0].unwrap());
        builder.build().unwrap()
    };
    refused(
        &with_output("embedding"),
        2,
        expect![
            "`embedding` makes f32 [4, 64, 64] in each micro-batch, and a reader of the outputs \
             reads it: only gradients and scalars of floating-point numbers have a mean over \
             micro-batches"
        ],
    );
    refused(
        &with_output("arange"),
        2,
        expect![
            "`arange` makes i64 [64] in each micro-batch, and a reader of the outputs reads it: \
             only gradients and scalars of floating-point numbers have a mean over \
             micro-batches"
        ],
    );
}

#[test]
fn a_node_after_the_updates_is_refused() {
    let mut builder = GraphBuilder::from_graph(&step("mlp-digits"));
    let graph = step("mlp-digits");
    let update = graph.nodes().values().find(|node| is_update(node)).unwrap();
    let updated = update.outputs[0].unwrap();
    let storage = builder.storage(Bytes(4));
    let spec =
        NodeSpec { inputs: vec![updated], ..NodeSpec::new("after", "test.norm", Phase::Forward) };
    builder.node(spec, &[Some(ValueSpec::contiguous(&[], DType::F32, storage))]);
    refused(
        &builder.build().unwrap(),
        2,
        expect![
            "`after` of one micro-batch reads what `adamw_layers_0_weight` makes, which is not \
             there for every micro-batch, or not in this form"
        ],
    );
}
