//! The acceptance cases of Capuchin's swapping: free time, and the bytes held with and without what
//! is swapped. Invariant: the file says what is expected; nothing is recorded here.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::Value as Json;
use tightfit::analysis::{Motion, Move, Sequence, access_profile, held};
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{NodeId, ValueId};
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};
use tightfit::{Goal, Request, fit};

use crate::fixtures::corpus;
use crate::fixtures::moves::with_host;

fn case(id: &str) -> Json {
    let file = std::fs::read(corpus::path("cases/capuchin.json")).unwrap();
    let file: Json = serde_json::from_slice(&file).unwrap();
    let mut cases = file["cases"].as_array().unwrap().iter();
    cases.find(|case| case["id"] == id).unwrap().clone()
}

/// A step of nodes in the order given, each with the bytes that it makes and the nodes that it
/// reads.
struct Chain {
    builder: GraphBuilder,
    phase: Phase,
}

impl Chain {
    fn new() -> Chain {
        Chain { builder: GraphBuilder::new("case"), phase: Phase::Forward }
    }

    fn node(&mut self, name: &str, ms: f64, reads: &[ValueId], bytes: u64) -> ValueId {
        let mut spec = NodeSpec::new(name, "op", self.phase);
        spec.inputs = reads.to_vec();
        spec.seconds = Some(Seconds(ms / 1e3));
        let storage = self.builder.storage(Bytes(bytes));
        let value = ValueSpec::contiguous(&[bytes], DType::U8, storage);
        self.builder.node(spec, &[Some(value)])[0]
    }
}

fn named(graph: &Graph, name: &str) -> NodeId {
    graph.nodes().iter().find(|(_, node)| node.name == name).unwrap().0
}

#[test]
fn free_time_is_what_both_transfers_leave_of_the_idle_time() {
    let case = case("capuchin/idle_time");
    let (input, figure) = (&case["input"], |json: &Json| json.as_f64().unwrap());
    let last_forward = figure(&input["cumulative_ms"]["last_fw"]);
    let first_backward = figure(&input["cumulative_ms"]["first_bw"]);
    let own = figure(&input["run_time_first_bw"]);
    let swap = figure(&input["swap_time"]);
    let total = figure(&input["total_runtime"]);

    let mut chain = Chain::new();
    let made = chain.node("make", 1.0, &[], 6_000_000);
    let last = chain.node("last_fw", last_forward - 1.0, &[made], 1);
    let between = chain.node("between", first_backward - own - last_forward, &[last], 1);
    chain.phase = Phase::Backward;
    let first = chain.node("first_bw", own, &[made, between], 1);
    let rest = chain.node("rest", total - first_backward, &[first], 1);
    chain.builder.output(rest);
    let graph = chain.builder.build().unwrap();

    let mut machine = with_host(Machine::preset("a100-80gb").unwrap(), 6e6 / (swap / 1e3), 1);
    machine.hierarchy.lanes.values_mut().for_each(|lane| lane.link.latency = Seconds(0.0));
    let profile = Profile::new(&graph, &machine);
    let order = graph.compute_nodes();
    let curve = held(&graph, &profile, &Sequence::from(&order));
    let row = access_profile(&graph, &profile, &order, &curve, None)[named(&graph, "make")];
    let free = (row.idle.unwrap().0 - row.swap.unwrap().0) * 1e3;
    let expected = figure(&case["expected"]["free_time_joint_graph"]);
    assert!((free - expected).abs() < 1e-9, "{free} ms");
}

#[test]
fn what_is_swapped_is_held_between_its_accesses_only() {
    let case = case("capuchin/swap_mode_peak");
    let peaks: Vec<(String, u64)> = serde_json::from_value(case["input"]["nodes"].clone()).unwrap();
    let tensors = &case["input"]["intermediates"];
    let size = |name: &str| tensors[name]["memory_size"].as_u64().unwrap();

    let mut chain = Chain::new();
    let first = chain.node("f1", 1.0, &[], size("t1"));
    let second = chain.node("f2", 1.0, &[first], size("t2"));
    chain.node("f3", 1.0, &[second], 0);
    chain.node("sep", 1.0, &[], 0);
    chain.phase = Phase::Backward;
    chain.node("sep_bwd", 1.0, &[], 0);
    chain.node("b3", 1.0, &[second], 0);
    chain.node("b2", 1.0, &[first], 0);
    chain.node("b1", 1.0, &[], 0);
    let graph = chain.builder.build().unwrap();
    let order = graph.compute_nodes();
    let mut profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());

    // From the last access in the forward pass to the first one after it.
    let position = |name: &str| order.iter().position(|&node| node == named(&graph, name)).unwrap();
    let mut moves: Vec<Move> = Vec::new();
    for (tensor, maker) in [("t1", "f1"), ("t2", "f2")] {
        let storage = graph.fresh(named(&graph, maker))[0];
        let access = |key: &str| position(tensors[tensor][key].as_str().unwrap()) as u32;
        let (last, next) = (access("last_forward"), access("first_back"));
        moves.push(Move { before: last + 1, storage, motion: Motion::Offload });
        moves.push(Move { before: last + 1, storage, motion: Motion::Release });
        moves.push(Move { before: next, storage, motion: Motion::Prefetch });
    }
    moves.sort_by_key(|next| next.before);
    let swapped =
        |profile: &Profile| held(&graph, profile, &Sequence::with_moves(&order, &moves)).held;
    // The rest of what each node holds in swap mode is its workspace.
    let tensors_alone = swapped(&profile);
    for ((&node, (_, peak)), held) in order.iter().zip(&peaks).zip(tensors_alone) {
        profile.workspace[node] = Bytes(peak - held.0);
    }

    let in_swap_mode: Vec<u64> = swapped(&profile).iter().map(|bytes| bytes.0).collect();
    assert_eq!(in_swap_mode, peaks.iter().map(|&(_, peak)| peak).collect::<Vec<_>>());
    let expected = &case["expected"];
    let curve = held(&graph, &profile, &Sequence::from(&order));
    for (&node, held) in order.iter().zip(&curve.held) {
        let name = &graph.nodes()[node].name;
        assert_eq!(Some(held.0), expected["total_peak_mem"][name].as_u64(), "{name}");
    }
    assert_eq!(Some(curve.peak.0), expected["max_peak_mem"].as_u64());
    assert!(curve.above(Bytes(150)).is_empty());
    let above = curve.above(Bytes(140));
    assert_eq!(above.len(), 1);
    let name = |at: u32| graph.nodes()[order[at as usize]].name.as_str();
    assert_eq!(name(above[0].first), expected["peak_start_if_limit_140"]);
    assert_eq!(name(above[0].last + 1), expected["peak_end_if_limit_140"]);
}

/// Six activations of 100 MiB, made in 1.5 ms each; free time hides the swap of the first.
fn six_activations() -> (Graph, Profile) {
    const LAYERS: usize = 6;
    let mut chain = Chain::new();
    let mut made = vec![chain.node("x", 0.0, &[], MIB)];
    for layer in 0..LAYERS {
        made.push(chain.node(&format!("f{layer}"), 1.5, &[made[layer]], 100 * MIB));
    }
    let mut gradient = chain.node("loss", 1.0, &[made[LAYERS]], MIB);
    let loss = gradient;
    chain.phase = Phase::Backward;
    for layer in (0..LAYERS).rev() {
        gradient = chain.node(&format!("g{layer}"), 1.5, &[gradient, made[layer]], MIB);
    }
    chain.builder.output(loss);
    chain.builder.output(gradient);
    let graph = chain.builder.build().unwrap();
    let machine = with_host(Machine::preset("a100-80gb").unwrap(), 25e9, 1);
    let profile = Profile::new(&graph, &machine);
    (graph, profile)
}

const MIB: u64 = 1 << 20;

/// What is swapped stays swapped: only the rest is made again. The first of the rest suffices here.
#[test]
fn what_is_swapped_is_not_made_again() {
    let (graph, profile) = six_activations();
    let goal = Goal::Within(Bytes(410 * MIB));
    let request = Request { goal, planner: Planner::CapuchinSwap, ..Request::default() };
    let fitted = fit(&graph, &profile, &request).unwrap();
    let (schedule, timeline) = (fitted.schedule(), fitted.timeline());
    // The batch and the first activation.
    assert_eq!(schedule.moved(), [Bytes(101 * MIB); 2]);
    assert_eq!(schedule.recomputed(), 1);
    let whole = profile.total(&graph.compute_nodes());
    assert!((timeline.seconds.0 - whole.0 - 1.5e-3).abs() < 1e-9, "{}", timeline.seconds.0);
}

/// The smallest budget that a refusal names counts what is swapped, and can be met.
#[test]
fn a_refusal_names_what_the_hybrid_reaches() {
    let (graph, profile) = six_activations();
    let planned = |budget| {
        let goal = Goal::Within(budget);
        fit(
            &graph,
            &profile,
            &Request { goal, planner: Planner::CapuchinSwap, ..Request::default() },
        )
    };
    let refused = planned(Bytes(MIB)).unwrap_err();
    let named = refused.infeasible().expect("the budget is the reason").reached;
    let fitted = planned(named).unwrap();
    assert!(fitted.schedule().moved()[0] > Bytes::ZERO);
    let planner = Planner::Capuchin;
    let alone = fit(&graph, &profile, &Request { planner, ..Request::default() }).unwrap();
    assert!(named <= alone.schedule().slab, "{named}, without swaps {}", alone.schedule().slab);
}
