//! Steps divided into stages: the graphs of the ranks together compute the step, in any order in
//! which they wait for each other.
//!
//! Tier: quick with a part of the cases, 2 s; full with all of them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tightfit::graph::{Graph, GraphError, Phase};
use tightfit::id::{NodeId, PrimaryMap, RankId, SecondaryMap, StageId, ValueId};
use tightfit::machine::Machine;
use tightfit::operator::Operator;
use tightfit::pipeline::{
    Division, Leeway, PipelineError, PipelineSchedule, Ranks, Role, Rows, StageCost, cut_evenly,
    greedy, layers, ranks, validate,
};
use tightfit::profile::Profile;
use tightfit::tensor::Argument;
use tightfit::units::{Bytes, Seconds};

use crate::fixtures::corpus::{graph, step};
use crate::fixtures::generator::{Kind, recipes};
use crate::pipeline::accumulation::{Left, by_definition};

use crate::fixtures::symbolic::{left, made_by, number, output_of};

/// A rank while its graph is executed.
struct Running<'a> {
    graph: &'a Graph,
    nodes: Vec<NodeId>,
    done: usize,
    values: SecondaryMap<ValueId, u64>,
}

/// Executes all graphs, each node as soon as what it waits for exists; returns what that leaves.
///
/// # Panics
/// If ranks wait for each other, or a message is sent or received twice, or is never received.
fn execute(ranks: &Ranks) -> Left {
    let mut sent: BTreeMap<i64, u64> = BTreeMap::new();
    let mut received: BTreeSet<i64> = BTreeSet::new();
    let mut posted: BTreeSet<i64> = BTreeSet::new();
    let mut running: Vec<Running<'_>> = ranks
        .graphs
        .values()
        .map(|graph| Running {
            graph,
            nodes: graph.nodes().keys().collect(),
            done: 0,
            values: SecondaryMap::new(),
        })
        .collect();
    loop {
        let before: usize = running.iter().map(|rank| rank.done).sum();
        for Running { graph, nodes, done, values } in &mut running {
            while let Some(&id) = nodes.get(*done) {
                let node = &graph.nodes()[id];
                let message = match node.args.get(1) {
                    Some(&Argument::Int(message)) => message,
                    _ => -1,
                };
                let first = node.outputs.first().copied().flatten();
                match node.operator {
                    Some(Operator::Send) => {
                        let what = values[node.inputs[0]];
                        assert!(sent.insert(message, what).is_none(), "{} twice", node.name);
                        values[first.unwrap()] = what;
                    }
                    Some(Operator::Post) => {
                        assert!(posted.insert(message), "{} twice", node.name);
                        assert!(!received.contains(&message), "{} late", node.name);
                        values[first.unwrap()] = values[node.inputs[0]];
                    }
                    Some(Operator::Receive) => {
                        let Some(&what) = sent.get(&message) else { break };
                        assert!(received.insert(message), "{} twice", node.name);
                        values[first.unwrap()] = what;
                    }
                    Some(Operator::Sent) => {
                        if !received.contains(&message) {
                            break;
                        }
                    }
                    _ => {
                        let is_leaf = node.phase.is_placeholder();
                        let made = match is_leaf {
                            true => number(&node.name),
                            false => made_by(node, node.micro_batch.as_u32(), &|v| values[v]),
                        };
                        for (position, output) in node.outputs.iter().enumerate() {
                            let Some(output) = *output else { continue };
                            values[output] = if is_leaf { made } else { output_of(made, position) };
                        }
                    }
                }
                *done += 1;
            }
        }
        if running.iter().map(|rank| rank.done).sum::<usize>() == before {
            break;
        }
    }
    for (rank, Running { graph, nodes, done, .. }) in running.iter().enumerate() {
        let waits = nodes.get(*done).map(|&id| &graph.nodes()[id].name);
        assert_eq!(waits, None, "rank {rank} waits for ever");
    }
    assert_eq!(sent.len(), received.len());
    assert_eq!(sent.len(), ranks.messages.len());
    // Each output is made by one rank, and keeps its place among those of that rank.
    let mut outputs: BTreeMap<u64, usize> = BTreeMap::new();
    let mut state: BTreeMap<String, u64> = BTreeMap::new();
    for Running { graph, values, .. } in &running {
        for &output in graph.outputs() {
            *outputs.entry(values[output]).or_default() += 1;
        }
        let leaf = |node: &tightfit::graph::Node| number(&node.name);
        for (name, what) in left(graph, values, &|_| true, &leaf) {
            let other = *state.entry(name.clone()).or_insert(what);
            assert_eq!(other, what, "ranks disagree about {name}");
        }
    }
    let all = outputs.into_iter().flat_map(|(what, count)| std::iter::repeat_n(what, count));
    (all.collect(), state)
}

/// The ranks of a divided step, whose results are checked against the definition.
pub fn divided(
    graph: &Graph,
    of_forward: &SecondaryMap<NodeId, StageId>,
    rows: &Rows,
) -> Result<Ranks, PipelineError> {
    let division = Division::new(graph, of_forward)?;
    let ranks = ranks(&division, rows, Leeway::NONE)?;
    for (id, node) in graph.nodes() {
        if division.roles[id] == Role::Update && node.phase != Phase::Optimizer {
            assert_eq!((node.op.as_str(), node.phase), ("aten.add.Tensor", Phase::Backward));
        }
    }
    // With receivers that announce early where messages are to be put.
    let posted = tightfit::pipeline::ranks(&division, rows, Leeway { ahead: 1, behind: 2 })?;
    let is_update = |id: NodeId| division.roles[id] == Role::Update;
    let (mut outputs, state) = by_definition(graph, rows.micro_batches, &is_update);
    outputs.sort_unstable();
    for left in [execute(&ranks), execute(&posted)] {
        // Gradients that are summed in another order are different.
        if validate(rows, false).is_ok() {
            assert_eq!(left, (outputs.clone(), state.clone()));
        }
    }
    Ok(ranks)
}

/// Forward nodes divided into stages of equally many nodes.
fn evenly(graph: &Graph, stages: u32) -> SecondaryMap<NodeId, StageId> {
    let forward: Vec<NodeId> =
        graph.nodes().keys().filter(|&id| graph.nodes()[id].phase.is_forward()).collect();
    let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    for (index, &id) in forward.iter().enumerate() {
        let stage = index as u64 * u64::from(stages) / forward.len() as u64;
        of_forward[id] = StageId::from_u32(stage as u32);
    }
    of_forward
}

#[test]
fn steps_of_the_corpus_are_divided() {
    for name in ["gpt-nano", "gpt-nano-dropout", "mlp-digits"] {
        let graph = step(name);
        for (schedule, of) in PipelineSchedule::ALL {
            for (ranks, micro_batches) in [(1, 1), (1, 3), (2, 1), (2, 4), (4, 8)] {
                let rows = schedule.rows(ranks, micro_batches).unwrap();
                let stages = rows.placement.len() as u32;
                let divided = divided(&graph, &evenly(&graph, stages), &rows)
                    .unwrap_or_else(|error| panic!("{name}, {of}: {error}"));
                assert_eq!(ranks == 1, divided.messages.is_empty(), "{name}, {of}");
            }
        }
    }
}

/// Exporters put what a forward pass writes to statistics at its end, after the last stage.
#[test]
fn statistics_are_written_where_they_are_read() {
    for name in ["resnet50_b32", "mobilenet_v3_large_b64"] {
        let graph = graph(name);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        for schedule in [PipelineSchedule::OneFOneB, PipelineSchedule::ZbV] {
            let rows = schedule.rows(2, 4).unwrap();
            let stages = rows.placement.len();
            let layers = layers(&graph, &profile, 2 * stages).unwrap();
            let ranks = divided(&graph, &cut_evenly(&layers, stages).unwrap(), &rows).unwrap();
            let writes = |graph: &Graph| {
                let stays = |id: NodeId| graph.mutated(id).iter().any(|&s| graph.is_persistent(s));
                graph.nodes().keys().any(stays)
            };
            assert!(ranks.graphs.values().all(writes), "{name}");
        }
    }
}

proptest! {
    #![proptest_config(tightfit_testing::config(256))]

    #[test]
    fn ranks_compute_the_step_whatever_the_cut(
        recipe in recipes(6),
        cuts in prop::collection::vec(0usize..40, 0..4),
        placed in prop::collection::vec(0u32..3, 5),
        micro_batches in 1u32..4,
    ) {
        let graph = recipe.graph();
        let forward: Vec<NodeId> =
            graph.nodes().keys().filter(|&id| graph.nodes()[id].phase.is_forward()).collect();
        let mut cuts: Vec<usize> =
            cuts.into_iter().map(|cut| cut % forward.len().max(1)).collect();
        cuts.sort_unstable();
        let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
        for (index, &id) in forward.iter().enumerate() {
            let before = cuts.iter().filter(|&&cut| cut <= index).count();
            of_forward[id] = StageId::from_u32(before as u32);
        }
        let placement: PrimaryMap<StageId, RankId> =
            placed[..=cuts.len()].iter().map(|&rank| RankId::from_u32(rank)).collect();
        let cost = StageCost {
            forward: Seconds(1.0),
            input_gradient: Seconds(1.0),
            weight_gradient: Seconds(1.0),
            activations: Bytes(1),
            kept: Bytes(1),
            ..StageCost::default()
        };
        let costs = SecondaryMap::with_default(cost);
        let rows = greedy(placement, micro_batches, &costs, Bytes(u64::from(micro_batches)));
        match divided(&graph, &of_forward, &rows) {
            Ok(_)
            | Err(PipelineError::NoMean { .. })
            | Err(PipelineError::OfAnother { .. })
            | Err(PipelineError::TurnsBack { .. })
            | Err(PipelineError::Shared { .. }) => {}
            // A backward pass that reads a statistic which the next micro-batch has written, or two
            // tensors of which one lies in the other and which are both sent.
            Err(PipelineError::Graph(GraphError::ReadsOverwritten { .. })) => {
                let shares = [Kind::Track, Kind::Overwrite, Kind::FreshAndView];
                prop_assert!(recipe.layers.iter().any(|layer| shares.contains(&layer.kind)));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
