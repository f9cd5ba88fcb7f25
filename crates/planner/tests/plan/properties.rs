//! Laws that hold for every graph, budget, planner and machine. Invariant: a law here is asserted
//! for all cases of the generator, or is not here.
//!
//! Tier: quick with a part of the cases, 14 s; full with all of them.

use std::collections::BTreeMap;
use std::io::Write;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use tightfit::analysis::{Sequence, access_profile, liveness, passes};
use tightfit::check::check;
use tightfit::graph::{self, Graph};
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::plan::published::capuchin::{Rule, explain};
use tightfit::plan::{self, Binding, Instance, PlanError, Planner, Retention, Retentions};
use tightfit::profile::Profile;
use tightfit::schedule::{self, ALIGNMENT, Instruction, Lowering, Residents, Schedule, lower};
use tightfit::units::Bytes;
use tightfit::{FitError, Goal, Request};

use crate::fixtures::{generator, oracle};

const MOST_LAYERS: usize = 24;

/// All but the one that accepts small steps only; it is compared with the oracle in `peers.rs`.
fn planners() -> impl Iterator<Item = Planner> {
    Planner::ALL
        .into_iter()
        .map(|(planner, _)| planner)
        .filter(|&planner| planner != Planner::Exact)
}

/// Planners that compare plans, and so never give a slower one for more memory. The others observe
/// the budget as they walk along the step: what they decide early for more memory may turn out
/// worse; a search is monotone along one frontier.
fn comparing_planners() -> impl Iterator<Item = Planner> {
    planners().filter(|planner| ![Planner::Xla, Planner::Dtr, Planner::Auto].contains(planner))
}

/// Budgets on both sides of what can be reached.
fn budgets(graph: &Graph, profile: &Profile) -> Vec<Bytes> {
    let unplanned = tightfit::unplanned(graph, profile).unwrap().schedule().slab.0;
    [1.05, 1.0, 0.93, 0.85, 0.75, 0.6, 0.0]
        .map(|part| Bytes((unplanned as f64 * part) as u64))
        .to_vec()
}

fn fit(
    graph: &Graph,
    profile: &Profile,
    budget: Bytes,
    planner: Planner,
) -> Result<tightfit::Fitted, FitError> {
    tightfit::fit(
        graph,
        profile,
        &Request {
            goal: Goal::Within(budget),
            planner,
            effort: tightfit::effort::Effort::work(1, 3_000),
            ..Request::default()
        },
    )
}

fn smallest(
    graph: &Graph,
    profile: &Profile,
    planner: Planner,
    residents: &Residents,
) -> tightfit::Fitted {
    let effort = tightfit::effort::Effort::work(1, 3_000);
    tightfit::fit(graph, profile, &Request { goal: Goal::Smallest, planner, residents, effort })
        .unwrap()
}

/// Checks everything that a fitted schedule promises.
fn keeps_its_promises(
    graph: &Graph,
    profile: &Profile,
    budget: Bytes,
    fitted: &tightfit::Fitted,
) -> Result<(), TestCaseError> {
    let schedule = fitted.schedule();
    prop_assert_eq!(&check(graph, profile, schedule, budget).unwrap(), fitted.timeline());
    prop_assert!(fitted.timeline().peak <= schedule.slab && schedule.slab <= budget);
    prop_assert!(fitted.timeline().high_water <= schedule.slab);
    prop_assert!(
        schedule.buffers.values().all(|buffer| buffer.address % ALIGNMENT == 0),
        "an address is not aligned"
    );

    let runs = schedule.runs();
    let cost = oracle::replay(graph, profile, &runs).map_err(TestCaseError::fail)?;
    prop_assert_eq!(fitted.timeline().peak, Bytes(cost.peak));
    prop_assert!((fitted.timeline().seconds.0 - cost.seconds).abs() <= 1e-9 * cost.seconds);

    let text = schedule::write(graph, schedule).to_string();
    prop_assert_eq!(&schedule::read(graph, text.as_bytes()).unwrap(), schedule);
    Ok(())
}

proptest! {
    #![proptest_config(tightfit_testing::config(15))]

    #[test]
    fn every_schedule_keeps_its_promises(graph in generator::graphs(MOST_LAYERS)) {
        for profile in generator::profiles(&graph) {
            for planner in planners() {
                for budget in budgets(&graph, &profile) {
                    match fit(&graph, &profile, budget, planner) {
                        Ok(fitted) => keeps_its_promises(&graph, &profile, budget, &fitted)?,
                        Err(FitError::Plan(PlanError::Infeasible(proof))) => {
                            prop_assert_eq!(proof.budget, budget);
                            let reached = proof.reached;
                            prop_assert!(proof.needed <= reached && budget < reached, "{}", proof);
                            // What the proof calls feasible is feasible.
                            let fitted = fit(&graph, &profile, reached, planner);
                            prop_assert!(
                                fitted.is_ok(),
                                "{} bytes were said to be reached: {}",
                                reached.0,
                                fitted.unwrap_err()
                            );
                        }
                        Err(error) => prop_assert!(false, "{planner:?}: {error}"),
                    }
                }
            }
        }
    }

    #[test]
    fn the_smallest_slab_can_be_asked_for(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            for planner in planners() {
                let smallest = smallest(&graph, &profile, planner, &Residents::default());
                keeps_its_promises(&graph, &profile, smallest.schedule().slab, &smallest)?;
                let again = fit(&graph, &profile, smallest.schedule().slab, planner);
                prop_assert!(again.is_ok(), "{planner:?}: {} bytes", smallest.schedule().slab.0);
                let slower = again.unwrap().timeline().seconds > smallest.timeline().seconds;
                prop_assert!(
                    !slower || comparing_planners().all(|other| other != planner),
                    "{planner:?} is slower than its own smallest plan"
                );
            }
        }
    }

    #[test]
    fn the_unplanned_peak_is_that_of_plain_liveness(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let plain = profile.clone().without_reuse();
            let cost =
                oracle::replay(&graph, &plain, &graph.compute_nodes())
                    .map_err(TestCaseError::fail)?;
            let unplanned = tightfit::unplanned(&graph, &profile).unwrap();
            prop_assert_eq!(unplanned.timeline().peak, Bytes(cost.peak));
        }
    }

    #[test]
    fn the_base_order_is_legal_and_never_raises_the_peak(
        recipe in generator::recipes(MOST_LAYERS),
    ) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let program = oracle::replay(&graph, &profile, &graph.compute_nodes())
                .map_err(TestCaseError::fail)?;
            let base = oracle::replay(&graph, &profile, &plan::base_order(&graph, &profile))
                .map_err(TestCaseError::fail)?;
            prop_assert!(base.peak <= program.peak);
        }
    }

    #[test]
    fn a_graph_survives_its_file(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        let text = graph::write(&graph).to_string();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        for bytes in [text.as_bytes(), &packed.finish().unwrap()] {
            let again = graph::read(bytes).unwrap();
            prop_assert_eq!(&again, &graph);
            prop_assert_eq!(again.hash(), graph.hash());
        }
    }

    #[test]
    fn more_memory_is_never_slower(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let instance = Instance::new(&graph, &profile, &order);
            for planner in comparing_planners() {
                // Every plan that the planner has, from the fastest to the smallest.
                let (mut budget, mut before) = (Bytes::LIMIT, 0.0);
                while let Ok(plan) = plan::plan(instance, budget, planner) {
                    let step = plan::simulate(&graph, &profile, &plan.sequence);
                    prop_assert!(step.seconds.0 >= before * (1.0 - 1e-9), "{planner:?}: {} under \
                        {}, {before} under less", step.seconds.0, budget.0);
                    before = step.seconds.0;
                    let Some(less) = step.curve.peak.0.checked_sub(1) else { break };
                    budget = Bytes(less);
                }
            }
        }
    }

    #[test]
    fn a_proof_names_everything_that_is_alive(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            for planner in planners() {
                let order = plan::base_order(&graph, &profile);
                let instance = Instance::new(&graph, &profile, &order);
                let Err(PlanError::Infeasible(proof)) =
                    plan::plan(instance, Bytes::ZERO, planner)
                else {
                    prop_assert_eq!(graph.static_bytes(), Bytes::ZERO);
                    continue;
                };
                let alive: Bytes = proof.live.iter().map(|tensor| tensor.bytes).sum();
                prop_assert_eq!(alive, proof.reached, "{}", proof);
                let runs = proof.plan.runs();
                prop_assert_eq!(proof.binding.is_some(), !runs.is_empty());
                prop_assert!(proof.binding.iter().all(|binding| runs.contains(&binding.node)));
            }
        }
    }

    #[test]
    fn whatever_is_dropped_the_sequence_is_legal(
        recipe in generator::recipes(MOST_LAYERS),
        drops in prop::collection::vec(0u8..4, 64),
    ) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            let runs = plan::rematerialize(&graph, &order, &dropped(&graph, &drops));
            let cost = oracle::replay(&graph, &profile, &runs).map_err(TestCaseError::fail)?;
            let plan = Instance::new(&graph, &profile, &order).plan(Planner::None, &runs);
            prop_assert_eq!(plan.peak, Bytes(cost.peak));
            for at in 0..runs.len() {
                prop_assert!(!runs_in_vain(&graph, &runs, at), "step {at}, `{}`, is made again \
                    for no reader", graph.nodes()[runs[at]].name);
            }
            let task = Lowering::to(Goal::Within(Bytes::LIMIT));
            let schedule = lower(&graph, &profile, &plan, &task);
            let timeline = check(&graph, &profile, &schedule, schedule.slab);
            prop_assert!(timeline.is_ok(), "{}", timeline.unwrap_err());
            prop_assert_eq!(timeline.unwrap().peak, Bytes(cost.peak));
        }
    }

    #[test]
    fn published_plans_are_legal(recipe in generator::recipes(MOST_LAYERS), need in 0u64..4000) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let order = graph.compute_nodes();
            let instance = Instance::new(&graph, &profile, &order);
            let rule = Rule::Published { need: Bytes(need) };
            let published = explain(instance, rule, None);
            oracle::replay(&graph, &profile, &published.runs).map_err(TestCaseError::fail)?;
            prop_assert_eq!(published.choices.len(), published.ends.len());
            let saved: u64 =
                published.choices.iter().map(|choice| bytes_made(&graph, choice.node)).sum();
            let last = published.choices.last();
            let remaining = last.map_or(need, |last| last.remaining.unwrap().0);
            prop_assert_eq!(remaining, need.saturating_sub(saved));
            prop_assert!(
                saved >= need || published.choices.len() == published.candidates.len()
            );
            // The profile finds the same accesses if nodes run in the pass that they are marked
            // with.
            let passes = passes(&graph, &order);
            let is_marked = graph.nodes().iter().all(|(id, node)| node.phase == passes[id]);
            let curve = plan::simulate(&graph, &profile, &Sequence::from(&order)).curve;
            let accesses = access_profile(&graph, &profile, &order, &curve, None);
            for row in published.candidates.iter().filter(|_| is_marked) {
                let access = &accesses[row.node];
                prop_assert_eq!(access.last_forward_access, Some(row.last_forward_access));
                prop_assert_eq!(access.first_backward_access, Some(row.first_backward_access));
            }
            for (rank, &node) in order.iter().enumerate() {
                let access = &accesses[node];
                prop_assert_eq!(access.rank, Some(rank as u32));
                prop_assert_eq!(access.active, curve.held[rank]);
            }
        }
    }

    #[test]
    fn names_do_not_matter(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        let renamed = generator::renamed(&graph);
        let machine = Machine::unmeasured_cpu(2);
        let (profile, renamed_profile) =
            (Profile::new(&graph, &machine), Profile::new(&renamed, &machine));
        for planner in planners() {
            for budget in budgets(&graph, &profile) {
                let fitted = fit(&graph, &profile, budget, planner);
                match (fitted, fit(&renamed, &renamed_profile, budget, planner)) {
                    (Ok(a), Ok(b)) => {
                        let hash = graph.hash().to_string();
                        prop_assert_eq!(a.timeline(), b.timeline());
                        let renamed = Schedule { graph: hash, ..b.schedule().clone() };
                        prop_assert_eq!(a.schedule(), &renamed);
                    }
                    (
                        Err(FitError::Plan(PlanError::Infeasible(a))),
                        Err(FitError::Plan(PlanError::Infeasible(b))),
                    ) => {
                        prop_assert_eq!((a.needed, a.reached), (b.needed, b.reached));
                        let node = |binding: &Option<Binding>| Some(binding.as_ref()?.node);
                        prop_assert_eq!((node(&a.binding), a.plan), (node(&b.binding), b.plan));
                    }
                    (a, b) => prop_assert!(false, "{a:?} {b:?}"),
                }
            }
        }
    }

    #[test]
    fn planning_twice_gives_the_same(recipe in generator::recipes(MOST_LAYERS)) {
        let (graph, again) = (recipe.graph(), recipe.graph());
        prop_assert_eq!(&graph, &again);
        let profiles = generator::profiles(&graph).into_iter();
        for (profile, same) in profiles.zip(generator::profiles(&again)) {
            for planner in planners() {
                for budget in budgets(&graph, &profile) {
                    let a = fit(&graph, &profile, budget, planner);
                    let b = fit(&again, &same, budget, planner);
                    prop_assert_eq!(format!("{a:?}"), format!("{b:?}"));
                }
            }
        }
    }

    #[test]
    fn residents_stay_where_they_are(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let first = smallest(&graph, &profile, Planner::Auto, &Residents::default());
            let residents = Residents::of(&graph, first.schedule());
            let second = smallest(&graph, &profile, Planner::None, &residents);
            let again = Residents::of(&graph, second.schedule());
            prop_assert_eq!(again.addresses, residents.addresses.clone());
            let persistent = |node| graph.nodes()[node].phase.is_persistent();
            for &(node, buffer) in &second.schedule().placeholders {
                let address = second.schedule().buffers[buffer].address;
                prop_assert!(persistent(node) || address >= residents.end);
            }
        }
    }
}

/// A decision for each node, from a few numbers.
fn dropped(graph: &Graph, drops: &[u8]) -> Retentions {
    let mut table = Retentions::new();
    for (node, &drop) in graph.nodes().keys().zip(drops.iter().cycle()) {
        table[node] = [
            Retention::Save,
            Retention::Recompute,
            Retention::RecomputeEachUse,
            Retention::Checkpoint,
        ][usize::from(drop)];
    }
    table
}

/// A recomputation whose outputs are not read before they are made again; what is kept is read
/// where it was before.
fn runs_in_vain(graph: &Graph, runs: &[NodeId], at: usize) -> bool {
    let made: Vec<_> =
        graph.fresh(runs[at]).iter().filter(|&&storage| !graph.is_kept(storage)).collect();
    let until = runs[at + 1..]
        .iter()
        .position(|&node| node == runs[at])
        .map_or(runs.len(), |after| at + 1 + after);
    let is_read = || {
        runs[at + 1..until]
            .iter()
            .any(|&node| made.iter().any(|storage| graph.reads(node).contains(storage)))
    };
    runs[..at].contains(&runs[at]) && !is_read()
}

/// Bytes that are freed when what a node makes is dropped.
fn bytes_made(graph: &Graph, node: NodeId) -> u64 {
    graph
        .fresh(node)
        .iter()
        .filter(|&&storage| !graph.is_kept(storage))
        .map(|&storage| graph.storages()[storage].0)
        .sum()
}

/// The laws are worth only what the generator covers: each of these must happen in a few hundred
/// graphs.
#[test]
fn the_generator_reaches_what_the_laws_are_about() {
    let mut runner = TestRunner::new(tightfit_testing::config(1));
    let recipes = generator::recipes(MOST_LAYERS);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut see = |what: &'static str, happened: bool| {
        *seen.entry(what).or_default() += usize::from(happened)
    };
    for _ in 0..300 {
        let graph = recipes.new_tree(&mut runner).unwrap().current().graph();
        for profile in generator::profiles(&graph) {
            let order = plan::base_order(&graph, &profile);
            see("an update moves up", order != graph.compute_nodes());
            let smallest = tightfit::fit(
                &graph,
                &profile,
                &Request {
                    goal: Goal::Smallest,
                    planner: Planner::Auto,
                    effort: tightfit::effort::Effort::work(1, 3_000),
                    ..Request::default()
                },
            )
            .unwrap();
            let again: Vec<NodeId> =
                smallest.schedule().instructions.iter().filter_map(recomputed).collect();
            see("recomputation lowers the peak", !again.is_empty());
            see(
                "random numbers are drawn again",
                again.iter().any(|&node| graph.nodes()[node].random),
            );
            let everything = plan::rematerialize(&graph, &order, &dropped(&graph, &[2]));
            let again: Vec<NodeId> = everything
                .iter()
                .enumerate()
                .filter(|(i, node)| everything[..*i].contains(node))
                .map(|(_, node)| *node)
                .collect();
            see(
                "a node runs three times",
                again.iter().any(|node| again.iter().filter(|other| *other == node).count() > 1),
            );
            see(
                "one output is kept, its sibling is made again",
                again.iter().any(|&node| graph.fresh(node).iter().any(|&s| graph.is_kept(s))),
            );
            see(
                "what is made again reads a view",
                again.iter().any(|&node| reads_view(&graph, node)),
            );
            see(
                "addresses cost more than bytes",
                smallest.schedule().slab > smallest.timeline().peak + Bytes(10 * ALIGNMENT),
            );
            let lives = liveness(&graph, &profile, &Sequence::from(&order));
            see(
                "an output takes over its input",
                lives.intervals.values().any(|life| life.in_place_of.is_some()),
            );
            see(
                "an activation is written in place",
                graph.compute_nodes().iter().any(|&node| {
                    graph.nodes()[node].phase.is_forward() && graph.nodes()[node].mutates
                }),
            );
            see(
                "an output is of no use",
                graph.nodes().values().any(|node| node.outputs.contains(&None)),
            );
            see(
                "a value is strided",
                graph.values().values().any(|value| !value.tensor.contiguous),
            );
        }
    }
    println!("{seen:#?}");
    assert!(seen.values().all(|&count| count > 0), "{seen:#?}");
}

fn recomputed(instruction: &Instruction) -> Option<NodeId> {
    match instruction {
        Instruction::Recompute(call) => Some(call.node),
        _ => None,
    }
}

fn reads_view(graph: &Graph, node: NodeId) -> bool {
    graph.nodes()[node].inputs.iter().any(|&value| graph.is_view(graph.values()[value].producer))
}
