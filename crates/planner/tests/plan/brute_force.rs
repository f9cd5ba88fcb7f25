//! Every planner that keeps the given order against the oracle, on graphs small enough for the
//! exact answer. Invariant: no planner ever claims more than is possible, and none is required to
//! be optimal: how far each one is from the frontier is printed, not asserted.
//!
//! Tier: quick with a part of the cases, 5 s; full with all of them.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::plan::{self, Instance, PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::units::Bytes;

use crate::fixtures::{generator, oracle};

/// The budget planner may move nodes, so it is compared with an oracle over all orders.
const PLANNERS: [Planner; 7] = [
    Planner::None,
    Planner::Chen,
    Planner::Capuchin,
    Planner::Xla,
    Planner::Dtr,
    Planner::Knapsack,
    Planner::Rotor,
];

/// Whether the oracle can visit every board of a graph.
fn is_small(graph: &Graph) -> bool {
    graph.compute_nodes().len() <= 30 && graph.storages().len() <= 64
}

/// Budgets that distinguish plans: from below what any planner reaches to the unplanned peak.
fn budgets(smallest: u64, unplanned: u64) -> Vec<u64> {
    let mut budgets: Vec<u64> = (0..=6)
        .map(|i| smallest + (unplanned - smallest) * i / 6)
        .chain([smallest.saturating_sub(1)])
        .collect();
    budgets.dedup();
    budgets
}

fn planners_obey_the_oracle(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
) -> Result<(), TestCaseError> {
    let frontier = oracle::frontier(graph, profile, order);
    let (unplanned, smallest) = (frontier[0].peak, frontier.last().unwrap().peak);
    for budget in budgets(smallest, unplanned.max(smallest)) {
        for planner in PLANNERS {
            match plan::plan(Instance::new(graph, profile, order), Bytes(budget), planner) {
                Ok(plan) => {
                    let cost = oracle::replay(graph, profile, &plan.runs())
                        .map_err(TestCaseError::fail)?;
                    prop_assert_eq!(
                        plan::simulate(graph, profile, &plan.sequence).curve.peak,
                        Bytes(cost.peak)
                    );
                    prop_assert!(
                        cost.peak <= budget,
                        "{planner:?} peaks at {} under {budget}",
                        cost.peak
                    );
                    let best = frontier.iter().find(|point| point.peak <= cost.peak);
                    prop_assert!(
                        best.is_some_and(|best| best.seconds <= cost.seconds * (1.0 + 1e-9)),
                        "{planner:?} {cost:?} beats {frontier:?}"
                    );
                }
                Err(PlanError::Infeasible(proof)) => {
                    prop_assert!(
                        proof.needed <= Bytes(smallest),
                        "{planner:?}: {} needed, {smallest} reached",
                        proof.needed.0
                    );
                    prop_assert!(proof.reached > Bytes(budget) && proof.reached >= Bytes(smallest));
                    let cost = oracle::replay(graph, profile, &proof.plan.runs())
                        .map_err(TestCaseError::fail)?;
                    prop_assert_eq!(Bytes(cost.peak), proof.reached);
                }
                Err(error) => prop_assert!(false, "{planner:?}: {error}"),
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(tightfit_testing::config(75))]

    #[test]
    fn no_planner_beats_the_oracle(graph in generator::graphs(10)) {
        prop_assume!(is_small(&graph));
        for profile in generator::profiles(&graph) {
            planners_obey_the_oracle(&graph, &profile, &graph.compute_nodes())?;
            planners_obey_the_oracle(&graph, &profile, &plan::base_order(&graph, &profile))?;
        }
    }
}
