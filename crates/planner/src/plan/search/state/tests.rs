//! The state compared with the simulation, on random walks over small random graphs. Invariant:
//! whatever is toggled, the state never promises less than what the plan really peaks at, and
//! undoing it leaves no trace.

use fastrand::Rng;

use crate::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use crate::id::{NodeId, StorageId, ValueId};
use crate::machine::Machine;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::order;
use crate::plan::search::state::problem::{OpId, Problem};
use crate::plan::search::state::runs::{rebase, sequence};
use crate::plan::search::state::{Event, State};
use crate::plan::{Instance, base_order, simulate};
use crate::profile::Profile;
use crate::tensor::{Argument, DType};
use crate::units::{Bytes, Seconds};

/// Up to `most` nodes with one to three outputs each: element-wise ones that may take over their
/// input, views, writes in place, outputs of the step, workspaces, a batch of which a part may be
/// unread.
fn graph(random: &mut Rng, most: usize) -> Graph {
    let mut builder = GraphBuilder::new("walk");
    let mut values: Vec<(ValueId, ValueSpec)> = Vec::new();
    let sizes = [4, 4, 4, 1, 0, 7];
    for (index, phase) in [Phase::Parameter, Phase::Input, Phase::Tangent].into_iter().enumerate() {
        let output = ValueSpec::contiguous(&[4], DType::U8, builder.storage(Bytes(4)));
        let ids = builder.node(
            NodeSpec::new(format!("placeholder_{index}"), "placeholder", phase),
            &[Some(output.clone())],
        );
        values.push((ids[0], output));
    }
    let count = random.usize(2..=most);
    for index in 0..count {
        let phase = if 2 * index < count { Phase::Forward } else { Phase::Backward };
        // More often a new one.
        let pick = |random: &mut Rng| {
            let reach = random.usize(1..=values.len().min(6));
            values[values.len() - 1 - random.usize(..reach)].clone()
        };
        let (id, from) = pick(random);
        let mut spec = NodeSpec::new(format!("node_{index}"), "test.node", phase);
        spec.inputs = vec![id];
        spec.seconds = Some(Seconds([0.0, 0.25, 1.0, 1.0, 3.0][random.usize(..5)]));
        spec.workspace = Bytes(random.u64(..3));
        let mut outputs = Vec::new();
        match random.usize(..8) {
            0 => outputs.push(from.clone()),
            1 => {
                spec.mutates = true;
                outputs.push(from.clone());
                values.retain(|(_, value)| value.storage != from.storage);
            }
            2..=4 => {
                spec.op = "aten.relu.default".to_string();
                spec.args = vec![Argument::Value(id)];
                outputs.push(ValueSpec {
                    storage: builder.storage(Bytes(from.shape[0])),
                    ..from.clone()
                });
            }
            _ => {
                for (other, _) in [pick(random), pick(random)] {
                    if !spec.inputs.contains(&other) {
                        spec.inputs.push(other);
                    }
                }
                for _ in 0..random.usize(1..4) {
                    let bytes = sizes[random.usize(..sizes.len())];
                    outputs.push(ValueSpec::contiguous(
                        &[bytes],
                        DType::U8,
                        builder.storage(Bytes(bytes)),
                    ));
                }
            }
        }
        let ids = builder.node(spec, &outputs.iter().cloned().map(Some).collect::<Vec<_>>());
        values.extend(ids.into_iter().zip(outputs));
    }
    values.iter().filter(|_| random.usize(..7) == 0).for_each(|(value, _)| builder.output(*value));
    builder.build().expect("the generator obeys the rules")
}

fn cost(profile: &Profile, runs: &[NodeId]) -> Picoseconds {
    runs.iter().map(|&node| Picoseconds::round_down(profile.seconds[node])).sum()
}

/// Whether there is a run that no other reads before the same operator runs again, or before the
/// step ends.
fn has_dead_run(problem: &Problem, state: &State) -> bool {
    let dead_event = state.events().into_iter().any(|event| state.is_dead(event));
    let dead_first = problem.ops.iter().any(|(id, op)| {
        let points: Vec<OpId> =
            state.events().iter().filter(|event| event.op == id).map(|event| event.point).collect();
        let read_before = |point: OpId| {
            op.outputs.iter().any(|&tensor| {
                state.accesses(tensor).iter().any(|a| a.point > id && a.point <= point && !a.made)
            })
        };
        points.first().is_some_and(|&point| !read_before(point))
    });
    dead_event || dead_first
}

/// Numbers of occurrences.
#[derive(Debug, Default)]
struct Tally {
    states: usize,
    /// No run is dead, so everything is exact.
    exact: usize,
    /// Planned again, recomputations change places.
    changed: usize,
    /// Of those, states in which that makes one of them needless.
    cheaper: usize,
    /// Of those, states in which that raises the peak.
    higher: usize,
}

/// Compares everything that the state says about its events with the simulation of the runs that
/// they stand for.
fn is_true(graph: &Graph, profile: &Profile, state: &mut State, tally: &mut Tally) {
    let problem = state.problem;
    let runs = sequence(problem, &state.events());
    let simulated = ByteCount::of(simulate(graph, profile, &(&runs).into()).curve.peak);
    let extra = cost(profile, &runs) - problem.total;
    assert!(
        state.peak() >= simulated,
        "the state peaks at {:?}, the plan at {simulated:?}",
        state.peak()
    );
    assert!(state.extra() >= extra, "the state costs {:?}, the plan {extra:?}", state.extra());
    let is_exact = !has_dead_run(problem, state);
    tally.states += 1;
    tally.exact += usize::from(is_exact);
    if is_exact {
        assert_eq!(state.peak(), simulated);
        assert_eq!(state.extra(), extra);
    }
    // A fresh state with the same events is the same state.
    let mut fresh = State::new(problem);
    fresh.set(&state.events());
    assert_eq!(
        (fresh.peak(), fresh.extra(), fresh.events(), fresh.len()),
        (state.peak(), state.extra(), state.events(), state.len())
    );
    // The order that the runs really have, planned again, gives the same runs, or cheaper ones:
    // recomputations between two first runs come in the new order of first runs, each once, so that
    // an earlier one may become useless.
    let (own, events) = rebase(Instance::new(graph, profile, &runs), &runs);
    let mut rebased = State::new(&own);
    rebased.set(&events);
    assert_eq!(rebased.events(), events, "an event is not allowed in its own order");
    let again = sequence(&own, &events);
    assert!(cost(profile, &again) <= cost(profile, &runs));
    if again == runs {
        assert_eq!((rebased.extra(), rebased.peak()), (extra, simulated));
    } else {
        tally.changed += 1;
        tally.cheaper += usize::from(cost(profile, &again) < cost(profile, &runs));
        tally.higher += usize::from(
            ByteCount::of(simulate(graph, profile, &(&again).into()).curve.peak) > simulated,
        );
    }
}

fn toggle(problem: &Problem, state: &mut State, random: &mut Rng) {
    let events = state.events();
    if events.is_empty() || random.usize(..3) > 0 {
        let mut op = || OpId::at(random.usize(..problem.len()));
        let (point, op) = (op(), op());
        state.add(Event { point: point.max(op), op: op.min(point) });
    } else {
        state.remove(events[random.usize(..events.len())]);
    }
}

#[test]
fn a_state_agrees_with_the_simulation_and_takes_back_what_was_tried() {
    let mut tally = Tally::default();
    for seed in 0..600 {
        let mut random = Rng::with_seed(seed);
        let graph = graph(&mut random, 14);
        for machine in [Machine::preset("a100-80gb").expect("a preset"), Machine::unmeasured_cpu(2)]
        {
            let profile = Profile::new(&graph, &machine);
            let orders = [
                graph.compute_nodes(),
                base_order(&graph, &profile),
                order::improved(&Problem::new(Instance::new(
                    &graph,
                    &profile,
                    &graph.compute_nodes(),
                ))),
            ];
            let problem = Problem::new(Instance::new(&graph, &profile, &orders[random.usize(..3)]));
            let mut state = State::new(&problem);
            is_true(&graph, &profile, &mut state, &mut tally);
            for _ in 0..20 {
                let before = (state.events(), state.peak(), state.extra(), state.len());
                let mark = state.mark();
                for _ in 0..random.usize(1..5) {
                    toggle(&problem, &mut state, &mut random);
                    if random.bool() {
                        state.peak();
                    }
                }
                is_true(&graph, &profile, &mut state, &mut tally);
                match random.usize(..4) {
                    0 => state.commit(),
                    1 => {
                        let mut kept = state.events();
                        kept.retain(|_| random.bool());
                        state.set(&kept);
                        is_true(&graph, &profile, &mut state, &mut tally);
                    }
                    2 => {}
                    _ => {
                        state.undo_to(mark);
                        assert_eq!(
                            (state.events(), state.peak(), state.extra(), state.len()),
                            before
                        );
                    }
                }
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.exact > 1000 && tally.states - tally.exact > 1000);
}

/// Right before the first run that overwrites what it reads, an operator may still run again.
#[test]
fn an_operator_may_run_again_until_what_it_reads_or_makes_is_overwritten() {
    let mut overwritten = 0;
    for seed in 0..200 {
        let graph = graph(&mut Rng::with_seed(seed), 14);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").expect("a preset"));
        let order = graph.compute_nodes();
        let problem = Problem::new(Instance::new(&graph, &profile, &order));
        let state = State::new(&problem);
        let may_run_again = problem.ops.iter().filter(|(_, op)| op.until > 0);
        for (id, op) in may_run_again {
            let Some(node) = op.node.filter(|_| !op.outputs.is_empty()) else { continue };
            let overwrites = |&later: &OpId| {
                let later = &graph.nodes()[problem.ops[later].node.expect("a node runs")];
                let mut written = later.outputs.iter().flatten();
                let is_touched = |storage: &StorageId| {
                    graph.reads(node).contains(storage) || graph.fresh(node).contains(storage)
                };
                later.mutates && written.any(|&it| is_touched(&graph.values()[it].storage))
            };
            let later: Vec<OpId> = problem.ops.keys().filter(|&other| other > id).collect();
            let last = later.iter().copied().find(overwrites);
            overwritten += usize::from(last.is_some());
            for point in later {
                let expected = last.is_none_or(|last| point <= last);
                assert_eq!(state.allows(Event { point, op: id }), expected, "{seed}: {id} {point}");
            }
        }
    }
    assert!(overwritten > 40, "{overwritten}");
}
