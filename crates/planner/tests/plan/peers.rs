//! The peer planners on the corpus, and the exact one against the oracle. Invariant: each one stays
//! within the budget or refuses with a plan that it reached; their cost is printed by `tightfit
//! bench planner`, never asserted.
//!
//! Tier: quick with a part of the cases, 2 s; full with all of them.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tightfit::Goal;
use tightfit::analysis::Sequence;
use tightfit::check::check;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{self, Instance, PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, lower};
use tightfit::units::Bytes;

use crate::fixtures::corpus::{self, GRAPHS};
use crate::fixtures::{generator, oracle};

/// Static bytes plus `share` of what the unplanned peak adds to them.
fn budget(graph: &Graph, peak: Bytes, share: f64) -> Bytes {
    let resting = graph.static_bytes();
    resting + Bytes(((peak - resting).0 as f64 * share) as u64)
}

#[test]
fn every_peer_meets_its_budget_or_proves_why_not() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        let order = plan::base_order(&graph, &profile);
        let instance = Instance::new(&graph, &profile, &order);
        let unplanned = plan::simulate(&graph, &profile, &Sequence::from(&order));
        for planner in [Planner::Xla, Planner::Dtr, Planner::Knapsack, Planner::Rotor] {
            for share in [0.9, 0.65] {
                let budget = budget(&graph, unplanned.curve.peak, share);
                match plan::plan(instance, budget, planner) {
                    Ok(plan) => {
                        let schedule = lower(
                            &graph,
                            &profile,
                            &plan,
                            &Lowering::to(Goal::Within(Bytes::LIMIT)),
                        );
                        let timeline = check(&graph, &profile, &schedule, schedule.slab).unwrap();
                        assert!(timeline.peak <= budget, "{name} {planner:?}");
                        assert_eq!(
                            timeline.peak,
                            plan::simulate(&graph, &profile, &plan.sequence).curve.peak
                        );
                    }
                    Err(PlanError::Infeasible(proof)) => {
                        assert!(share < 0.7, "{name} {planner:?} at {share}: {proof}");
                        assert!(
                            proof.needed <= budget || proof.reached > budget,
                            "{name} {planner:?}"
                        );
                        assert!(
                            plan::plan(instance, proof.reached, planner).is_ok(),
                            "{name} {planner:?}"
                        );
                    }
                    Err(error) => panic!("{name} {planner:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn exact_refuses_what_is_too_large_for_it() {
    let graph = corpus::graph("resnet50_b32");
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
    let order = plan::base_order(&graph, &profile);
    let instance = Instance::new(&graph, &profile, &order);
    let error = plan::plan(instance, Bytes(1), Planner::Exact).unwrap_err();
    assert!(
        matches!(error, PlanError::TooLarge { nodes, most: 80 } if nodes == order.len()),
        "{error}"
    );
}

/// Equal, except for plans that repeat a node twice, or out of program order, before one node: the
/// program does not know those, and the oracle does. A batch tensor that is not read is freed
/// before the first node on the oracle's board, and with it in a sequence of runs; such graphs are
/// left out.
#[test]
fn exact_is_as_good_as_the_oracle() {
    let mut runner = TestRunner::new(tightfit_testing::config(1));
    let recipes = generator::recipes(5);
    let (mut equal, mut worse) = (0, 0);
    while equal + worse < 400 {
        let graph = recipes.new_tree(&mut runner).unwrap().current().graph();
        let is_read = |storage| {
            graph.is_kept(storage)
                || graph.compute_nodes().iter().any(|&node| graph.reads(node).contains(&storage))
        };
        if graph.compute_nodes().len() > 14
            || graph.storages().len() > 64
            || !graph.placeholder_storages().all(|(_, s)| is_read(s))
        {
            continue;
        }
        for profile in generator::profiles(&graph) {
            let order = graph.compute_nodes();
            let instance = Instance::new(&graph, &profile, &order);
            let frontier = oracle::frontier(&graph, &profile, &order);
            if frontier.len() < 2 {
                continue;
            }
            for point in &frontier {
                match plan::plan(instance, Bytes(point.peak), Planner::Exact) {
                    Ok(plan) => {
                        let cost = oracle::replay(&graph, &profile, &plan.runs()).unwrap();
                        let schedule = lower(
                            &graph,
                            &profile,
                            &plan,
                            &Lowering::to(Goal::Within(Bytes::LIMIT)),
                        );
                        assert_eq!(
                            check(&graph, &profile, &schedule, schedule.slab).unwrap().peak,
                            Bytes(cost.peak)
                        );
                        assert!(
                            cost.peak <= point.peak && cost.seconds >= point.seconds * (1.0 - 1e-9),
                            "{cost:?} against {point:?}"
                        );
                        let same = cost.seconds <= point.seconds * (1.0 + 1e-9);
                        (equal, worse) = (equal + usize::from(same), worse + usize::from(!same));
                    }
                    Err(PlanError::Infeasible(proof)) => {
                        assert!(proof.reached > Bytes(point.peak));
                        worse += 1;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    println!("{equal} of {} budgets as fast as the oracle", equal + worse);
    assert!(worse * 100 <= equal, "{equal} equal, {worse} worse");
}
