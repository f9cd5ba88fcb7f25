//! The meaning of a decision about a node, case by case: the resulting sequence, written as node
//! names. Invariant: each test shows one rule of `plan::rematerialize` or of a peer, on the
//! smallest graph that shows it.
//!
//! Tier: quick, since it takes less than a second.

use std::collections::HashMap;

use expect_test::{Expect, expect};
use tightfit::effort::{Effort, Meter};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{StorageId, ValueId};
use tightfit::machine::Machine;
use tightfit::plan::{self, Instance, PlanError, Planner, Retention, Retentions};
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};

/// Nodes as `name: inputs`, forward ones before `|`, backward ones after it. `x` and `w` are
/// parameters. A name with `!` writes the storage of its first input, one with `*` outlives the
/// step, `s1+s2` is one node with two outputs.
fn graph(text: &str) -> Graph {
    let mut builder = GraphBuilder::new("case");
    let mut values: HashMap<String, (ValueId, StorageId)> = HashMap::new();
    let spec = |storage| Some(ValueSpec::contiguous(&[100], DType::U8, storage));
    for name in ["x", "w"] {
        let storage = builder.storage(Bytes(100));
        let value =
            builder.node(NodeSpec::new(name, "placeholder", Phase::Parameter), &[spec(storage)])[0];
        values.insert(name.to_string(), (value, storage));
    }
    let (forward, backward) = text.split_once('|').unwrap();
    for (phase, part) in [(Phase::Forward, forward), (Phase::Backward, backward)] {
        for node in part.split(';').map(str::trim).filter(|node| !node.is_empty()) {
            let (name, inputs) = node.split_once(':').unwrap();
            let mut call = NodeSpec::new(name.trim_end_matches(['!', '*']), "test.node", phase);
            call.seconds = Some(Seconds(1.0));
            let inputs: Vec<(ValueId, StorageId)> =
                inputs.split_whitespace().map(|input| values[input]).collect();
            call.inputs = inputs.iter().map(|(value, _)| *value).collect();
            call.mutates = name.ends_with('!');
            let module = name.split_once('.').map(|(unit, _)| format!("h.{unit}"));
            call.module = module.map_or(call.module, |module| builder.module(module));
            let names: Vec<&str> = name.trim_end_matches(['!', '*']).split('+').collect();
            let storages: Vec<StorageId> = names
                .iter()
                .map(|_| if call.mutates { inputs[0].1 } else { builder.storage(Bytes(100)) })
                .collect();
            let made = builder
                .node(call, &storages.iter().map(|&storage| spec(storage)).collect::<Vec<_>>());
            for ((output, value), storage) in names.into_iter().zip(made).zip(storages) {
                values.insert(output.to_string(), (value, storage));
                if name.ends_with('*') {
                    builder.output(value);
                }
            }
        }
    }
    builder.build().unwrap()
}

fn check(text: &str, decisions: &[(&str, Retention)], expected: Expect) {
    let graph = graph(text);
    let mut retentions = Retentions::new();
    for (name, retention) in decisions {
        retentions[graph.node_named(name).unwrap()] = *retention;
    }
    expected.assert_eq(&names(
        &graph,
        &plan::rematerialize(&graph, &graph.compute_nodes(), &retentions),
    ));
}

fn names(graph: &Graph, runs: &[tightfit::id::NodeId]) -> String {
    runs.iter().map(|&node| graph.nodes()[node].name.as_str()).collect::<Vec<_>>().join(" ")
}

const CHAIN: &str = "a: x; b: a; c: b | gc: c; gb: gc b; ga: gb a";

#[test]
fn what_is_held_is_not_made_again() {
    check(CHAIN, &[], expect!["a b c gc gb ga"]);
}

#[test]
fn dropped_nodes_are_made_again_before_their_first_backward_access() {
    check(CHAIN, &[("b", Retention::Recompute)], expect!["a b c gc b gb ga"]);
}

#[test]
fn a_kept_source_stays_from_then_on() {
    check(
        CHAIN,
        &[("b", Retention::Recompute), ("c", Retention::Recompute)],
        expect!["a b c b c gc gb ga"],
    );
}

#[test]
fn a_source_that_goes_at_once_is_made_again_for_its_own_access() {
    check(
        CHAIN,
        &[("b", Retention::RecomputeEachUse), ("c", Retention::Recompute)],
        expect!["a b c b c gc b gb ga"],
    );
}

#[test]
fn a_source_that_the_access_itself_reads_stays() {
    check(
        "a: x; b: a; c: b | gc: c b; gb: gc b",
        &[("b", Retention::RecomputeEachUse), ("c", Retention::Recompute)],
        expect!["a b c a b c gc gb"],
    );
}

#[test]
fn what_no_backward_node_reads_is_made_again_for_whoever_needs_it() {
    check(
        "t: x; p: t; q: t | gq: q; gp: gq p",
        &[("p", Retention::Recompute), ("q", Retention::Recompute)],
        expect!["t p q t q gq t p gp"],
    );
}

#[test]
fn a_diamond_is_made_once() {
    check(
        "a: x; b: a; c: a; d: b c | gd: d; ga: gd a",
        &[("a", Retention::Recompute), ("d", Retention::Recompute)],
        expect!["a b c d a b c d gd ga"],
    );
}

#[test]
fn both_outputs_of_a_node_come_from_one_run() {
    check(
        "a: x; s+t: a; u: s t | gu: u; gt: gu t; gs: gt s",
        &[("s+t", Retention::Recompute)],
        expect!["a s+t u gu a s+t gt gs"],
    );
}

#[test]
fn what_outlives_the_step_is_never_made_again() {
    check(
        "a: x; b*: a; c: b | gc: c; gb: gc b",
        &[("b", Retention::Recompute), ("c", Retention::Recompute)],
        expect!["a b c c gc gb"],
    );
}

#[test]
fn what_is_written_in_place_is_never_made_again() {
    check(
        "a: x; b!: a x; c: b | gc: c; gb: gc b",
        &[("a", Retention::Recompute), ("b", Retention::Recompute), ("c", Retention::Recompute)],
        expect!["a b c gc gb"],
    );
}

#[test]
fn nothing_is_made_again_from_what_was_overwritten() {
    check(
        "a: x w; b: a | gb: b; w2!: w gb; ga: w2 a",
        &[("a", Retention::Recompute), ("b", Retention::Recompute)],
        expect!["a b a b gb w2 ga"],
    );
    check(
        "a: x w; b: a | gb: x; w2!: w gb; ga: w2 a b",
        &[("a", Retention::Recompute), ("b", Retention::Recompute)],
        expect!["a b gb w2 b ga"],
    );
}

/// Nine units make three segments: their borders stay, and so does all of the last one.
#[test]
fn chen_keeps_the_borders_of_the_square_root_of_the_units() {
    let unit = |i: usize| {
        format!(
            "{i}.a: {}; {i}.b: {i}.a;",
            if i == 0 { "x".to_string() } else { format!("{}.b", i - 1) }
        )
    };
    let forward: String = (0..9).map(unit).collect();
    let backward: String = (0..9)
        .rev()
        .map(|i| {
            format!(
                "g{i}: {i}.a {i}.b {};",
                if i == 8 { "8.b".to_string() } else { format!("g{}", i + 1) }
            )
        })
        .collect();
    let graph = graph(&format!("{forward} | {}", backward.replace("8.b 8.b", "8.b")));
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let effort = Effort::default();
    let (order, mut meter) = (graph.compute_nodes(), Meter::new(&effort));
    let plan =
        plan::smallest(Instance::new(&graph, &profile, &order), Planner::Chen, &mut meter).unwrap();
    expect![
        "0.a 0.b 1.a 1.b 2.a 2.b 3.a 3.b 4.a 4.b 5.a 5.b 6.a 6.b 7.a 7.b 8.a 8.b g8 g7 g6 3.a \
        3.b 4.a 4.b 5.a g5 g4 g3 0.a 0.b 1.a 1.b 2.a g2 g1 g0"
    ]
    .assert_eq(&names(&graph, &plan.runs()));
}

/// The sequence that a planner makes of a graph under a budget, or the lowest one that it reaches.
fn plans(text: &str, planner: Planner, budget: u64, expected: Expect) {
    let graph = graph(text);
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let found = match plan::plan(
        Instance::new(&graph, &profile, &graph.compute_nodes()),
        Bytes(budget),
        planner,
    ) {
        Ok(plan) => names(&graph, &plan.runs()),
        Err(PlanError::Infeasible(proof)) => format!("reaches {}", proof.reached.0),
        Err(error) => error.to_string(),
    };
    expected.assert_eq(&found);
}

/// Four layers of 100 bytes and a second each, over 200 bytes of parameters; gd holds a b c d gd,
/// so the peak is 700.
const LAYERS: &str =
    "0.a: x; 1.b: 0.a; 2.c: 1.b; 3.d: 2.c | gd: 3.d; gc: gd 2.c; gb: gc 1.b; ga: gb 0.a";

/// When gd runs, a, b and c free 100 bytes each; the first one is chosen, and runs again just
/// before its use.
#[test]
fn xla_takes_the_first_of_those_that_free_most() {
    plans(LAYERS, Planner::Xla, 600, expect!["0.a 1.b 2.c 3.d gd gc gb 0.a ga"]);
}

/// When d runs, a is stalest; when gd runs, b is. For gb both come back, and a, which b was made
/// from, has to be dropped again.
#[test]
fn dtr_evicts_what_is_stale_and_makes_it_again_from_its_sources() {
    plans(LAYERS, Planner::Dtr, 600, expect!["0.a 1.b 2.c 3.d gd gc gb 0.a ga"]);
    plans(LAYERS, Planner::Dtr, 500, expect!["0.a 1.b 2.c 3.d gd gc 0.a 1.b gb 0.a ga"]);
}

/// What is not saved comes back before its first use, and so do its sources: all of them when gd
/// runs, at the peak.
#[test]
fn a_knapsack_does_not_see_the_peak() {
    plans(LAYERS, Planner::Knapsack, 600, expect!["reaches 700"]);
}

/// The chain's optimum: one block runs twice, then two.
#[test]
fn rotor_repeats_as_few_blocks_as_the_memory_allows() {
    plans(LAYERS, Planner::Rotor, 600, expect!["0.a 1.b 2.c 3.d gd gc 1.b gb ga"]);
    plans(LAYERS, Planner::Rotor, 500, expect!["0.a 1.b 2.c 3.d gd gc 0.a 1.b gb 0.a ga"]);
}

#[test]
fn exact_repeats_as_few_nodes_as_the_memory_allows() {
    plans(LAYERS, Planner::Exact, 600, expect!["0.a 1.b 2.c 3.d gd gc 1.b gb ga"]);
    plans(LAYERS, Planner::Exact, 500, expect!["0.a 1.b 2.c 3.d gd gc 0.a 1.b gb 0.a ga"]);
    plans(LAYERS, Planner::Exact, 400, expect!["reaches 500"]);
}

/// The readers of a storage may run again until it is overwritten, even right before the node that
/// overwrites it: until then, `b` and `c` occupy its memory.
#[test]
fn a_node_runs_again_right_in_front_of_what_overwrites_its_source() {
    let text = "a: w; u: a; b+c: u; d: b c | v!: w a d";
    for planner in [Planner::Auto, Planner::Exact] {
        plans(text, planner, 500, expect!["a u b+c d a v"]);
        plans(text, planner, 499, expect!["reaches 500"]);
    }
}
