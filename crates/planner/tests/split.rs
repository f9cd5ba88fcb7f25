//! The loss in chunks of rows.
//!
//! Tier: quick, 3 s.

use std::collections::BTreeMap;

use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec, read, write_file};
use tightfit::split::{SplitError, split};
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::fixtures::corpus;

/// Graphs with their rows and classes.
const HEADS: [(&str, u64, u64); 3] = [
    ("graphs/cuda/gpt2_small_b8_s512.json.gz", 8 * 512, 50257),
    ("graphs/cuda/llama_1b_b2_s2048.json.gz", 2 * 2048, 128_256),
    ("steps/gpt-small/train.json.gz", 8 * 256, 256),
];

fn graph_of(file: &str) -> Graph {
    read(&std::fs::read(corpus::path(file)).unwrap()).unwrap()
}

#[test]
fn no_tensor_has_all_rows_and_all_classes_afterwards() {
    for (name, rows, classes) in HEADS {
        let graph = graph_of(name);
        let made = split(&graph, 8).unwrap();
        let elements = |graph: &Graph| {
            let sizes = graph.values().values().map(|value| value.tensor.elements());
            sizes.filter(|&elements| elements == rows * classes).count()
        };
        assert!(elements(&graph) >= 4, "{name}");
        assert_eq!(elements(&made), 0, "{name}");
        assert_eq!(read(&write_file(&made, true)).unwrap(), made, "{name}");
    }
}

/// Products cost as many operations as before, results and what stays are as they were, and so are
/// the names of all calls that are not of the loss.
#[test]
fn all_else_is_as_it_was() {
    for (name, ..) in HEADS {
        let graph = graph_of(name);
        let made = split(&graph, 4).unwrap();
        let operations =
            |graph: &Graph| -> u64 { graph.nodes().values().map(|node| node.flops.0).sum() };
        assert_eq!(operations(&graph), operations(&made), "{name}");
        assert_eq!(graph.static_bytes(), made.static_bytes(), "{name}");
        assert_eq!(graph.output_names(), made.output_names(), "{name}");
        let results = |graph: &Graph| -> Vec<(Vec<u64>, Bytes)> {
            let of = |value| {
                let value = &graph.values()[value];
                (value.tensor.shape.clone(), graph.storages()[value.storage])
            };
            graph.outputs().iter().map(|&value| of(value)).collect()
        };
        assert_eq!(results(&graph), results(&made), "{name}");
        let of_phase = |graph: &Graph, phase: Phase| -> BTreeMap<String, String> {
            let nodes = graph.nodes().values().filter(|node| node.phase == phase);
            nodes.map(|node| (node.name.clone(), node.op.clone())).collect()
        };
        for phase in [Phase::Parameter, Phase::State, Phase::Input, Phase::Optimizer] {
            assert_eq!(of_phase(&graph, phase), of_phase(&made, phase), "{name}");
        }
    }
}

#[test]
fn a_chunk_is_differentiated_by_its_own_calls() {
    let graph = graph_of("steps/gpt-small/train.json.gz");
    let made = split(&graph, 4).unwrap();
    for chunk in 0..4 {
        for (backward, forward) in
            [("_log_softmax_backward_data", "_log_softmax"), ("mm_1", "mm"), ("mm_2", "mm")]
        {
            let named = |name: &str| made.node_named(&format!("{name}.chunk{chunk}")).unwrap();
            let node = &made.nodes()[named(backward)];
            assert_eq!(node.differentiates, Some(named(forward)), "{}", node.name);
        }
    }
}

#[test]
fn one_chunk_is_the_step_itself_and_small_losses_have_no_more() {
    let graph = graph_of("steps/gpt-small/train.json.gz");
    assert_eq!(split(&graph, 1).unwrap(), graph);
    // Chunks have 256 rows or more.
    assert_eq!(split(&graph, 8).unwrap(), split(&graph, 1000).unwrap());
    let small = graph_of("steps/gpt-nano/train.json.gz");
    assert_eq!(split(&small, 2).unwrap_err(), SplitError::Few { rows: 256 });
}

#[test]
fn losses_of_other_forms_are_refused_by_name() {
    let refused = |graph: &Graph| split(graph, 4).unwrap_err().to_string();
    let biased = refused(&graph_of("graphs/cuda/bert_base_b16_s512.json.gz"));
    assert!(biased.contains("makes logits of more than a product"), "{biased}");
    let graph = graph_of("steps/gpt-small/train.json.gz");
    let logits = graph.nodes().values().find(|node| node.name == "mm").unwrap();
    let mut builder = GraphBuilder::from_graph(&graph);
    builder.output(logits.outputs[0].unwrap());
    let shown = refused(&builder.build().unwrap());
    assert!(shown.contains("node `mm` makes a result of the step for all rows"), "{shown}");
    let evaluation = graph_of("steps/mlp-digits/eval.json.gz");
    assert!(split(&evaluation, 4).is_err());
}

#[test]
fn how_many_targets_count_may_be_a_result_and_one_loss_alone_reads_the_logits() {
    let graph = graph_of("steps/gpt-small/train.json.gz");
    let loss = graph.node_named("nll_loss_forward").unwrap();
    let node = &graph.nodes()[loss];
    let mut builder = GraphBuilder::from_graph(&graph);
    builder.output(node.outputs[1].unwrap());
    let made = split(&builder.build().unwrap(), 4).unwrap();
    assert_eq!(made.outputs().len(), graph.outputs().len() + 1);
    let mut builder = GraphBuilder::from_graph(&graph);
    let storages = [builder.storage(Bytes(4)), builder.storage(Bytes(4))];
    let outputs = storages.map(|storage| Some(ValueSpec::contiguous(&[], DType::F32, storage)));
    builder.node(NodeSpec { name: "again".to_string(), ..NodeSpec::from(node) }, &outputs);
    let said = split(&builder.build().unwrap(), 4).unwrap_err().to_string();
    assert!(said.contains("node `again` is another loss"), "{said}");
}
