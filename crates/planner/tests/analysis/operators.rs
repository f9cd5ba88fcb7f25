//! Operators with the backward nodes that differentiate them. Invariant: in `alone`, one is judged
//! by the sets that `doc/theory/dataflow.md` defines; shares of all add up to the graph's figures.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use fastrand::Rng;
use proptest::prelude::*;
use tightfit::analysis::{Dataflow, Figures, Operator, dataflow, operators};
use tightfit::graph::{Graph, Phase, read, write};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};

use crate::analysis::dataflow_laws::Oracle;
use crate::fixtures::corpus::{self, GRAPHS, profile, step};
use crate::fixtures::generator;
use crate::fixtures::generator::dag::{self, Freedoms};

/// The graph with links from most of its backward nodes to some of the forward ones.
fn linked(graph: &Graph, seed: u64) -> Graph {
    let mut random = Rng::with_seed(seed);
    let mut file = write(graph);
    let mut forward: Vec<String> = Vec::new();
    for node in file["nodes"].as_array_mut().unwrap() {
        match node["phase"].as_str().unwrap() {
            "forward" | "loss" => forward.push(node["name"].as_str().unwrap().to_string()),
            "backward" if !forward.is_empty() && random.usize(..4) > 0 => {
                let reach = forward.len().min(3);
                node["differentiates"] =
                    forward[forward.len() - 1 - random.usize(..reach)].clone().into();
            }
            _ => {}
        }
    }
    read(file.to_string().as_bytes()).unwrap()
}

fn all(graph: &Graph, profile: &Profile) -> (Dataflow, Vec<Operator>) {
    let flow = dataflow(graph, profile);
    let operators = operators(graph, profile, &flow);
    (flow, operators)
}

/// Laws that hold for every step.
fn laws(graph: &Graph, profile: &Profile, name: &str) {
    let (flow, operators) = all(graph, profile);
    let heads: Vec<_> = operators.iter().map(|operator| operator.node).collect();
    let forward = graph.nodes().iter().filter(|(_, node)| node.phase.is_forward());
    assert_eq!(heads, forward.map(|(id, _)| id).collect::<Vec<_>>(), "{name}: one for each");

    let mut sum = Figures::default();
    let mut seconds = Seconds(0.0);
    for operator in &operators {
        sum += operator.share;
        seconds = seconds + operator.fwd_seconds + operator.bwd_seconds;
        let nodes = [&[operator.node], &operator.backward[..]].concat();
        let mut share = Figures::default();
        nodes.iter().for_each(|&node| share += flow.nodes[node]);
        assert_eq!(operator.share, share, "{name}: a share is that of its nodes");
        let bytes =
            |list: &[_]| list.iter().map(|&storage| graph.storages()[storage]).sum::<Bytes>();
        assert_eq!(
            [&operator.fwd_in, &operator.fwd_tmp, &operator.fwd_out].map(|list| bytes(list)),
            [operator.alone.fwd_mem_in, operator.alone.fwd_mem_tmp, operator.alone.fwd_mem_out],
            "{name}: figures are of what is listed"
        );
        assert_eq!(
            operator.alone.fwd_mem_tmp + operator.alone.fwd_mem_out,
            share.fwd_mem_tmp + share.fwd_mem_out,
            "{name}: what is saved"
        );
        assert!(operator.alone.bwd_mem_out >= share.bwd_mem_out, "{name}");
    }
    // Together with those that belong to no operator, nothing is lost and nothing counts twice.
    for (id, node) in graph.nodes() {
        if !node.phase.is_forward() && node.differentiates.is_none() {
            sum += flow.nodes[id];
            seconds = seconds + profile.seconds[id];
        }
    }
    assert_eq!(sum, flow.graph, "{name}: operators and the rest add up to the graph");
    let total = profile.total(&graph.compute_nodes());
    assert!((seconds.0 - total.0).abs() <= 1e-9 * total.0, "{name}: {seconds:?} {total:?}");
}

fn agree_with_the_oracle(graph: &Graph, profile: &Profile, name: &str) {
    let oracle = Oracle::new(graph);
    for operator in all(graph, profile).1 {
        let members = graph
            .nodes()
            .iter()
            .map(|(id, node)| id == operator.node || node.differentiates == Some(operator.node));
        let members: Vec<bool> = members.collect();
        let right = oracle.of(&|node| members[node], profile);
        let head = &graph.nodes()[operator.node].name;
        assert_eq!(operator.alone, right.figures, "{name} `{head}`");
        for (what, found, right) in [
            ("in", operator.fwd_in, right.saved_in),
            ("tmp", operator.fwd_tmp, right.saved_tmp),
            ("out", operator.fwd_out, right.saved_out),
        ] {
            let mut found = found;
            found.sort_unstable();
            assert_eq!(found, right, "{name} `{head}`: fwd_{what}");
        }
    }
}

#[test]
fn operators_of_exported_steps_equal_the_sets_of_their_definition() {
    for name in ["gpt-nano", "gpt-nano-dropout", "mlp-digits"] {
        let graph = step(name);
        assert!(graph.nodes().values().any(|node| node.differentiates.is_some()), "{name}");
        laws(&graph, &profile(&graph), name);
        agree_with_the_oracle(&graph, &profile(&graph), name);
    }
}

#[test]
fn where_nothing_is_linked_operators_are_forward_nodes() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        laws(&graph, &profile(&graph), name);
        let (flow, operators) = all(&graph, &profile(&graph));
        for operator in operators {
            assert!(operator.backward.is_empty() && operator.fwd_in.is_empty(), "{name}");
            assert_eq!(operator.share, flow.nodes[operator.node], "{name}");
        }
    }
}

#[test]
fn an_operator_knows_its_derivative() {
    // A linear layer: its input is saved for the gradient of its weight; the gradients of input,
    // weight and bias leave it, and tensors that are only transposed or reshaped in between do not
    // count.
    let graph = step("mlp-digits");
    let (_, operators) = all(&graph, &profile(&graph));
    let nodes = graph.nodes();
    let linear = operators.iter().filter(|operator| nodes[operator.node].op.contains("addmm"));
    for operator in linear {
        let call = |text: &str| {
            operator.backward.iter().filter(|&&node| nodes[node].op.contains(text)).count()
        };
        assert!(call("mm") >= 1 && call("sum") == 1, "{}", nodes[operator.node].name);
        let alone = operator.alone;
        assert!(alone.fwd_flop.0 > 0 && alone.bwd_flop.0 >= alone.fwd_flop.0);
        assert!(alone.fwd_mem_in > Bytes::ZERO && alone.bwd_mem_out > Bytes::ZERO);
        assert!(operator.bwd_seconds > Seconds(0.0));
    }
    let loss = operators.iter().filter(|operator| nodes[operator.node].phase == Phase::Loss);
    assert!(loss.clone().count() > 0 && loss.clone().all(|operator| operator.fwd_tmp.is_empty()));
}

proptest! {
    #![proptest_config(tightfit_testing::config(300))]

    #[test]
    fn random_steps(recipe in generator::recipes(24), seed in any::<u64>()) {
        let graph = linked(&recipe.graph(), seed);
        for profile in generator::profiles(&graph) {
            laws(&graph, &profile, "random");
            agree_with_the_oracle(&graph, &profile, "random");
        }
    }

    #[test]
    fn random_graphs(seed in any::<u64>(), writes: bool, uneven: bool) {
        let graph = linked(&dag::graph(seed, 30, Freedoms { writes, uneven }), seed);
        for profile in generator::profiles(&graph) {
            laws(&graph, &profile, "random");
            agree_with_the_oracle(&graph, &profile, "random");
        }
    }
}
