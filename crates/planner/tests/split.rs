//! The loss in chunks of rows, and the gradient of a table in chunks of columns.
//!
//! Tier: quick, 3 s.

use std::collections::{BTreeMap, BTreeSet};

use tightfit::graph::{Graph, GraphBuilder, Node, NodeSpec, Phase, ValueSpec, read, write_file};
use tightfit::id::ValueId;
use tightfit::split::{Parts, SplitError, Sums, parts_of, split};
use tightfit::tensor::{Argument, DType, TensorType};
use tightfit::units::Bytes;

use crate::fixtures::corpus;

/// Graphs with their rows and classes.
const HEADS: [(&str, u64, u64); 7] = [
    ("graphs/gpt2_small_b8_s512.json.gz", 8 * 512, 50257),
    ("graphs/gpt2_medium_b4_s1024.json.gz", 4 * 1024, 50257),
    ("graphs/llama_1b_b2_s2048.json.gz", 2 * 2048, 128_256),
    ("graphs/bert_base_drop_b16_s512.json.gz", 16 * 512, 30522),
    ("graphs/cuda/gpt2_small_b8_s512.json.gz", 8 * 512, 50257),
    ("graphs/cuda/llama_1b_b2_s2048.json.gz", 2 * 2048, 128_256),
    ("steps/gpt-small/train.json.gz", 8 * 256, 256),
];

fn totals(chunks: u64) -> Parts {
    Parts::with_totals(chunks)
}

fn graph_of(file: &str) -> Graph {
    read(&std::fs::read(corpus::path(file)).unwrap()).unwrap()
}

#[test]
fn no_tensor_has_all_rows_and_all_classes_afterwards() {
    for (name, rows, classes) in HEADS {
        let graph = graph_of(name);
        let made = split(&graph, totals(8)).unwrap();
        let elements = |graph: &Graph| {
            let sizes = graph.values().values().map(|value| value.tensor.elements());
            sizes.filter(|&elements| elements == rows * classes).count()
        };
        assert!(elements(&graph) >= 4, "{name}");
        assert_eq!(elements(&made), 0, "{name}");
        assert_eq!(read(&write_file(&made, true)).unwrap(), made, "{name}");
    }
}

/// With sums at once, one tensor has: what they read, whose rows each chunk writes.
#[test]
fn what_sums_read_at_once_is_written_in_parts() {
    for (name, rows, classes) in HEADS {
        let graph = graph_of(name);
        let made = split(&graph, Parts::of_loss(8)).unwrap();
        let wide = made.values().values().filter(|it| it.tensor.elements() == rows * classes);
        let makers: BTreeSet<&str> = wide.map(|it| &*made.nodes()[it.producer].op).collect();
        let written = ["aten.empty.memory_format", "aten.slice_scatter.default"];
        let shown = ["aten.permute.default", "aten.t.default", "aten.view.default"];
        let known = |op: &&str| written.contains(op) || shown.contains(op);
        assert!(makers.iter().all(known), "{name}: {makers:?}");
        assert!(written.iter().all(|op| makers.contains(op)), "{name}: {makers:?}");
        assert_eq!(read(&write_file(&made, true)).unwrap(), made, "{name}");
    }
}

/// A step whose passes a barrier separates.
fn compiled() -> Graph {
    graph_of("cases/compiled_words.json.gz")
}

/// The number of the chunk that a node is of.
fn chunk_of(name: &str) -> Option<&str> {
    name.rsplit_once(".chunk").map(|(_, number)| number)
}

/// All chunks of the forward pass come before a barrier, all of the backward pass after it, and
/// each reads what its own forward pass made.
#[test]
fn chunks_of_both_passes_are_on_their_sides_of_a_barrier() {
    let graph = compiled();
    for parts in [totals(8), Parts::of_loss(8)] {
        let made = split(&graph, parts).unwrap();
        let barrier = made.node_named("barrier").unwrap();
        let mut seen = 0;
        for (id, node) in made.nodes() {
            let Some(number) = chunk_of(&node.name) else { continue };
            assert_eq!(id < barrier, node.phase.is_forward(), "{}", node.name);
            for &input in &node.inputs {
                let source = &made.nodes()[made.values()[input].producer];
                let other = chunk_of(&source.name).filter(|_| source.phase.is_forward());
                assert!(other.is_none_or(|other| other == number), "{}", node.name);
                seen += usize::from(other.is_some() && barrier < id);
            }
        }
        // The logarithms, twice: the losses of all rows and their sum have one gradient.
        assert!(seen >= 16, "{seen}");
        let products = |graph: &Graph, forward: bool| {
            let of_pass =
                |node: &&Node| node.op == "aten.mm.default" && node.phase.is_forward() == forward;
            graph.nodes().values().filter(of_pass).count()
        };
        assert_eq!(products(&made, true), products(&graph, true) + 7);
        assert_eq!(read(&write_file(&made, true)).unwrap(), made);
    }
}

/// Logits that are a result exist for all rows, and the backward pass reads some of them.
#[test]
fn what_the_forward_pass_returns_is_read_in_parts() {
    let graph = compiled();
    let logits = graph.node_named("mm").unwrap();
    let mut builder = GraphBuilder::from_graph(&graph);
    builder.output(graph.nodes()[logits].outputs[0].unwrap());
    let names = graph.output_names().unwrap().iter().cloned();
    builder.output_names(names.chain(["logits".to_string()]).collect());
    let made = split(&builder.build().unwrap(), Parts::of_loss(4)).unwrap();
    let barrier = made.node_named("barrier").unwrap();
    assert!(made.node_named("mm").is_some() && made.node_named("mm.chunk0").is_none());
    // The gradient needs the logarithms of a chunk, and they are made of its logits.
    let reads = |name: &str| {
        let node = &made.nodes()[made.node_named(name).unwrap()];
        made.nodes()[made.values()[node.inputs[0]].producer].op.clone()
    };
    assert_eq!(reads("_log_softmax.chunk3"), "aten.slice.Tensor");
    let late =
        made.nodes().iter().filter(|(id, node)| barrier < *id && node.op.contains("log_soft"));
    assert_eq!(late.count(), 4);
}

/// Room for a tensor that is written in parts holds nothing: the parts make it whole, one after the
/// other, before anything else reads it.
#[test]
fn parts_make_a_tensor_whole_before_it_is_read() {
    for (name, ..) in HEADS {
        for chunks in [2, 3, 16] {
            let made = split(&graph_of(name), Parts::of_loss(chunks)).unwrap();
            let rooms = made.nodes().values().filter(|node| node.op == "aten.empty.memory_format");
            let mut found = 0;
            for room in rooms {
                let (mut whole, mut end) = (room.outputs[0].unwrap(), 0);
                loop {
                    let mut readers =
                        made.nodes().values().filter(|node| node.inputs.contains(&whole));
                    let part = readers.next().unwrap();
                    assert!(readers.next().is_none(), "{name}: `{}` is read", part.name);
                    assert_eq!(part.op, "aten.slice_scatter.default", "{name}");
                    let [Argument::Value(into), _, Argument::Int(dim), from, to] = &part.args[..]
                    else {
                        panic!("{name}: `{}`", part.name)
                    };
                    assert_eq!((*into, from), (whole, &Argument::Int(end)), "{name}");
                    let Argument::Int(to) = to else { panic!("{name}: `{}`", part.name) };
                    (whole, end) = (part.outputs[0].unwrap(), *to);
                    let extent = made.values()[whole].tensor.shape[*dim as usize];
                    if end as u64 == extent {
                        break;
                    }
                }
                found += 1;
            }
            assert!(found > 0, "{name}");
        }
    }
}

/// The gradient of a table is added up in float32, for some columns at a time.
#[test]
fn the_gradient_of_a_table_is_made_by_columns() {
    for name in ["gpt2_small_b8_s512", "llama_1b_b2_s2048"] {
        let graph = graph_of(&format!("graphs/{name}.json.gz"));
        let table = graph.nodes().values().find(|node| node.phase == Phase::Parameter).unwrap();
        let elements = graph.values()[table.outputs[0].unwrap()].tensor.elements();
        let whole = |graph: &Graph| {
            let of_its_size =
                |tensor: &TensorType| tensor.dtype == DType::F32 && tensor.elements() == elements;
            graph.values().values().filter(|value| of_its_size(&value.tensor)).count()
        };
        assert!(whole(&graph) >= 2, "{name}");
        assert_eq!(whole(&split(&graph, Parts::of_loss(8)).unwrap()), 0);
    }
}

/// Products cost as many operations as before, results and what stays are as they were, and so are
/// the names of all calls that are not of the loss.
#[test]
fn all_else_is_as_it_was() {
    for (name, ..) in HEADS {
        let graph = graph_of(name);
        let made = split(&graph, totals(4)).unwrap();
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
    let made = split(&graph, totals(4)).unwrap();
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
    assert_eq!(split(&graph, totals(1)).unwrap(), graph);
    // Chunks have 256 rows or more.
    assert_eq!(split(&graph, totals(8)).unwrap(), split(&graph, totals(1000)).unwrap());
    let small = graph_of("steps/gpt-nano/train.json.gz");
    assert_eq!(
        split(&small, totals(2)).unwrap_err(),
        SplitError::Few { rows: 256, block: 256, least: 16 }
    );
}

#[test]
fn losses_of_other_forms_are_refused_by_name() {
    let graph = graph_of("steps/gpt-small/train.json.gz");
    let text = String::from_utf8(write_file(&graph, false)).unwrap();
    let other = text.replace("aten._log_softmax_backward_data.default", "other.gradient.default");
    let refused = split(&read(other.as_bytes()).unwrap(), totals(4)).unwrap_err().to_string();
    let why = "node `_log_softmax_backward_data` is not known to compute each row by itself";
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn logits_that_are_a_result_exist_for_all_rows() {
    let graph = graph_of("steps/gpt-small/train.json.gz");
    let logits = graph.nodes()[graph.node_named("mm").unwrap()].outputs[0].unwrap();
    let mut builder = GraphBuilder::from_graph(&graph);
    builder.output(logits);
    let made = split(&builder.build().unwrap(), totals(4)).unwrap();
    let chunk = &made.nodes()[made.node_named("mm.chunk0").unwrap()];
    assert!(made.node_named("mm").is_some() && chunk.op == "aten.slice.Tensor");
    assert!(made.node_named("_log_softmax.chunk3").is_some());
}

#[test]
fn how_many_targets_count_may_be_a_result_and_other_losses_may_read_the_logits() {
    let graph = graph_of("steps/gpt-small/train.json.gz");
    let loss = graph.node_named("nll_loss_forward").unwrap();
    let node = &graph.nodes()[loss];
    let mut builder = GraphBuilder::from_graph(&graph);
    builder.output(node.outputs[1].unwrap());
    let made = split(&builder.build().unwrap(), totals(4)).unwrap();
    assert_eq!(made.outputs().len(), graph.outputs().len() + 1);
    let graph = graph_of("steps/gpt-small/eval.json.gz");
    let node = &graph.nodes()[graph.node_named("nll_loss_forward").unwrap()];
    let mut builder = GraphBuilder::from_graph(&graph);
    let storages = [builder.storage(Bytes(4)), builder.storage(Bytes(4))];
    let outputs = storages.map(|storage| Some(ValueSpec::contiguous(&[], DType::F32, storage)));
    builder.node(NodeSpec { name: "again".to_string(), ..NodeSpec::from(node) }, &outputs);
    let again = split(&builder.build().unwrap(), totals(4)).unwrap();
    assert!(again.node_named("again").is_some());
}

/// Hidden units of MLPs exist for some tokens at a time, but for what sums read at once, and the
/// step stays what it was.
#[test]
fn what_layers_do_not_keep_is_made_in_parts() {
    let both = totals(8).and_layers(4);
    for (name, parts, rows, hidden) in [
        ("gpt2_small_b8_s512", both, 4096, 3072),
        ("llama_1b_b2_s2048", both, 4096, 8192),
        ("vit_b16_b32", Parts::of_layers(4), 6304, 3072),
    ] {
        let graph = graph_of(&format!("graphs/{name}.json.gz"));
        let made = split(&graph, parts).unwrap();
        assert_eq!(parts_of(&made), Parts { sums: Sums::AtOnce, ..parts }, "{name}");
        let wide = |graph: &Graph| -> BTreeSet<String> {
            let is_wide = |shape: &[u64]| {
                shape.last() == Some(&hidden) && shape.iter().product::<u64>() == rows * hidden
            };
            let values = graph.values().values().filter(|value| is_wide(&value.tensor.shape));
            let makers = values.map(|value| graph.nodes()[value.producer].op.clone());
            makers.filter(|op| op != "aten.view.default").collect()
        };
        assert!(wide(&graph).contains("aten.mul.Tensor"), "{name}");
        let written = ["aten.empty.memory_format", "aten.slice_scatter.default"];
        assert_eq!(wide(&made), written.map(String::from).into(), "{name}");
        let operations =
            |graph: &Graph| -> u64 { graph.nodes().values().map(|node| node.flops.0).sum() };
        assert_eq!(operations(&graph), operations(&made), "{name}");
        assert_eq!(graph.static_bytes(), made.static_bytes(), "{name}");
        assert_eq!(graph.output_names(), made.output_names(), "{name}");
        assert_eq!(read(&write_file(&made, true)).unwrap(), made, "{name}");
    }
    let convolutions = graph_of("graphs/resnet50_b32.json.gz");
    assert_eq!(split(&convolutions, Parts::of_layers(4)), Err(SplitError::NoLayer));
}

/// A product of `rows` rows, its positive part, and another product; the first one has this name.
fn layer(rows: u64, name: &str) -> Graph {
    let mut builder = GraphBuilder::new("layer");
    let mut add = |name: &str, op: &str, phase, inputs: &[ValueId], shape: [u64; 2]| {
        let spec = NodeSpec {
            inputs: inputs.to_vec(),
            args: inputs.iter().map(|&value| Argument::Value(value)).collect(),
            ..NodeSpec::new(name, op, phase)
        };
        let storage = builder.storage(Bytes(shape[0] * shape[1] * 4));
        builder.node(spec, &[Some(ValueSpec::contiguous(&shape, DType::F32, storage))])[0]
    };
    let input = add("x", "placeholder", Phase::Input, &[], [rows, 16]);
    let weights = [
        add("up", "placeholder", Phase::Buffer, &[], [16, 64]),
        add("down", "placeholder", Phase::Buffer, &[], [64, 16]),
    ];
    let wide = add(name, "aten.mm.default", Phase::Forward, &[input, weights[0]], [rows, 64]);
    let positive = add("relu", "aten.relu.default", Phase::Forward, &[wide], [rows, 64]);
    let made = add("mm", "aten.mm.default", Phase::Forward, &[positive, weights[1]], [rows, 16]);
    builder.output(made);
    builder.build().unwrap()
}

#[test]
fn what_has_no_rows_is_not_divided() {
    let parts = Parts::of_layers(4);
    assert_eq!(parts_of(&split(&layer(1024, "hidden"), parts).unwrap()), parts);
    assert_eq!(split(&layer(0, "hidden"), parts), Err(SplitError::NoLayer));
    assert!(matches!(split(&layer(200, "hidden"), parts), Err(SplitError::Few { block: 256, .. })));
}

#[test]
fn names_of_the_step_are_no_chunks() {
    let made = split(&layer(1024, "hidden.part7.chunk41"), Parts::of_layers(2)).unwrap();
    assert_eq!(parts_of(&made), Parts::of_layers(2));
}
