//! Plans that bound the bytes held, and nodes that draw from the running generator. Invariant: what
//! a plan holds is judged by the replay, which shares no code with planners or checker.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tightfit::effort::Effort;
use tightfit::graph::{self, Graph};
use tightfit::id::NodeId;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{Goal, hold};

use crate::generator::dag::{self, Freedoms};
use crate::{generator, oracle};

const MOST_LAYERS: usize = 16;

/// The same step, whose random nodes draw from the running generator, and every third forward node
/// besides.
fn streaming(graph: &Graph) -> Graph {
    let mut document = graph::write(graph);
    let nodes = document["nodes"].as_array_mut().unwrap();
    for (index, node) in nodes.iter_mut().enumerate() {
        let node = node.as_object_mut().unwrap();
        let draws = index % 3 == 0 && node["phase"] == "forward" && !node.contains_key("mutates");
        if node.remove("seed_slot").is_some() || draws {
            node.insert("random".to_string(), true.into());
            node.insert("stream".to_string(), true.into());
        }
    }
    graph::read(document.to_string().as_bytes()).unwrap()
}

/// The nodes of a sequence that draw from the running generator, by their first runs.
fn draws(graph: &Graph, runs: &[NodeId]) -> Vec<NodeId> {
    let mut drew: Vec<NodeId> = Vec::new();
    for &node in runs {
        if graph.nodes()[node].stream && !drew.contains(&node) {
            drew.push(node);
        }
    }
    drew
}

fn keeps_its_promises(graph: &Graph, profile: &Profile) -> Result<(), TestCaseError> {
    let all = graph.compute_nodes();
    let unplanned = oracle::replay(graph, profile, &all).map_err(TestCaseError::fail)?;
    let planners = [Planner::Auto, Planner::Xla, Planner::Dtr, Planner::Capuchin, Planner::Chen];
    for planner in planners {
        let effort = Effort::work(1, 3_000);
        let least = hold(graph, profile, Goal::Smallest, planner, &effort).unwrap();
        prop_assert_eq!(least.timeline().peak, least.budget());
        for part in [1.0, 0.9, 0.75, 0.5] {
            let room = unplanned.peak.saturating_sub(least.budget().0);
            let budget = least.budget() + Bytes((room as f64 * part) as u64);
            let held = match hold(graph, profile, Goal::Within(budget), planner, &effort) {
                Ok(held) => held,
                // Only the budget planner comes back to what it reached.
                Err(error) => {
                    prop_assert!(planner != Planner::Auto, "{error}");
                    continue;
                }
            };
            let runs = held.runs();
            let cost = oracle::replay(graph, profile, &runs).map_err(TestCaseError::fail)?;
            prop_assert!(cost.peak <= budget.0, "{planner:?} holds {} of {budget}", cost.peak);
            prop_assert_eq!(Bytes(cost.peak), held.timeline().peak);
            prop_assert_eq!(draws(graph, &runs), draws(graph, &all));
            if let Some(bound) = held.bound() {
                prop_assert!(bound.seconds.0 <= cost.seconds * (1.0 + 1e-9));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(generator::config(40))]

    #[test]
    fn held_bytes_stay_within_the_budget_and_draws_in_order(
        graph in generator::graphs(MOST_LAYERS),
    ) {
        let graph = streaming(&graph);
        for profile in generator::profiles(&graph) {
            keeps_its_promises(&graph, &profile)?;
        }
    }

    #[test]
    fn the_same_in_graphs_of_no_particular_shape(seed in any::<u64>()) {
        let graph = dag::graph(seed, 14, Freedoms { writes: true, uneven: true });
        let graph = streaming(&generator::with_reuse(&graph));
        for profile in generator::profiles(&graph) {
            keeps_its_promises(&graph, &profile)?;
        }
    }

    /// A refusal names what is needed and what would do, and what would do does.
    #[test]
    fn a_refusal_is_true(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = streaming(&recipe.graph());
        let [profile, _] = generator::profiles(&graph);
        let effort = Effort::work(1, 3_000);
        let within = |bytes| hold(&graph, &profile, Goal::Within(bytes), Planner::Auto, &effort);
        let refused = within(Bytes(1)).unwrap_err();
        let proof = refused.infeasible().unwrap();
        prop_assert!(Bytes(1) < proof.needed && proof.needed <= proof.reached);
        prop_assert!(within(proof.reached).is_ok());
        prop_assert!(within(proof.needed.saturating_sub(Bytes(1))).is_err());
    }
}
