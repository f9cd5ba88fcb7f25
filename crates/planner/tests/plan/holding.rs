//! Plans that bound the bytes held, and nodes that draw from the running generator. Invariant: the
//! bytes that a plan holds are judged by the replay, which shares no code with planners or checker.
//!
//! Tier: quick with a part of the cases, 2 s; full with all of them.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use tightfit::analysis::{Move, Sequence};
use tightfit::effort::Effort;
use tightfit::graph::{self, Graph};
use tightfit::id::{NodeId, StorageId};
use tightfit::machine::Machine;
use tightfit::plan::{Planner, RewriteError, Rewritten, rewrite, simulate};
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{Goal, Held, HoldRequest, hold};

use crate::fixtures::generator::dag::{self, Freedoms};
use crate::fixtures::moves::with_host;
use crate::fixtures::{generator, oracle};

const MOST_LAYERS: usize = 16;

/// The same step, with random nodes drawing from the running generator, and every third forward
/// node as well.
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
        let of = |goal| {
            let effort = Effort::work(1, 3_000);
            hold(graph, profile, &HoldRequest { goal, planner, may_move: None, effort })
        };
        let least = of(Goal::Smallest).unwrap();
        prop_assert_eq!(least.timeline().peak, least.budget());
        for part in [1.0, 0.9, 0.75, 0.5] {
            let room = unplanned.peak.saturating_sub(least.budget().0);
            let budget = least.budget() + Bytes((room as f64 * part) as u64);
            let held = match of(Goal::Within(budget)) {
                Ok(held) => held,
                // Only the budget planner finds the budget that it reached again.
                Err(error) => {
                    prop_assert!(planner != Planner::Auto, "{error}");
                    continue;
                }
            };
            let runs = held.sequence().runs();
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

/// Two of three storages may be away.
fn may_move(storage: StorageId) -> bool {
    !storage.as_u32().is_multiple_of(3)
}

/// The promises of a plan that moves what it holds.
fn moves_what_it_may(
    graph: &Graph,
    machine: &Machine,
    held: &Held,
    budget: Bytes,
) -> Result<(), TestCaseError> {
    let profile = Profile::new(graph, machine);
    prop_assert!(held.timeline().peak <= budget);
    prop_assert!(held.sequence().moves().iter().all(|next| may_move(next.storage)));
    prop_assert!(held.schedule().crossing().is_empty());
    let rewritten = rewrite(graph, &profile, held.sequence());
    let Rewritten { graph: rewritten, moves: moved } = match rewritten {
        Err(RewriteError::Shown { .. }) => return Ok(()),
        rewritten => rewritten.map_err(|error| TestCaseError::fail(error.to_string()))?,
    };
    // By its own nodes, the rewritten graph holds what the plan holds.
    let runs = rewritten.compute_nodes();
    let position = |before: NodeId| runs.partition_point(|&node| node < before) as u32;
    let own: Vec<Move> = moved
        .iter()
        .map(|next| Move {
            before: position(next.before),
            storage: next.storage,
            motion: next.motion,
        })
        .collect();
    let profile_of = Profile::new(&rewritten, machine);
    let own = simulate(&rewritten, &profile_of, &Sequence::with_moves(&runs, &own));
    prop_assert_eq!(own.curve.peak, simulate(graph, &profile, held.sequence()).curve.peak);
    Ok(())
}

proptest! {
    #![proptest_config(tightfit_testing::config(40))]

    /// With a tier: within the budget, only what may be there is in the tier, and a refusal is
    /// true.
    #[test]
    fn with_a_tier_what_may_move_does(
        graph in generator::graphs(MOST_LAYERS),
        part in 0.0..1.0f64,
    ) {
        let graph = streaming(&graph);
        for machine in generator::machines() {
            let machine = with_host(machine, 1e6, 1);
            let profile = Profile::new(&graph, &machine);
            let within = |goal| {
                let effort = Effort::work(1, 3_000);
                let may_move: Option<&dyn Fn(StorageId) -> bool> = Some(&may_move);
                let request = HoldRequest { goal, may_move, effort, ..HoldRequest::default() };
                hold(&graph, &profile, &request)
            };
            let least = within(Goal::Smallest).unwrap();
            moves_what_it_may(&graph, &machine, &least, least.budget())?;
            let unplanned = oracle::replay(&graph, &profile, &graph.compute_nodes());
            let unplanned = unplanned.map_err(TestCaseError::fail)?;
            let room = unplanned.peak.saturating_sub(least.budget().0) as f64;
            let budget = least.budget() + Bytes((room * part) as u64);
            let held = within(Goal::Within(budget)).unwrap();
            moves_what_it_may(&graph, &machine, &held, budget)?;
            let (bound, seconds) = (held.bound().unwrap().seconds, held.timeline().seconds);
            prop_assert!(bound.0 <= seconds.0 * (1.0 + 1e-9));
            let refused = within(Goal::Within(Bytes(1))).unwrap_err();
            let proof = refused.infeasible().unwrap();
            prop_assert!(within(Goal::Within(proof.reached)).is_ok());
        }
    }

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

    /// A refusal names the bytes that are needed and a budget that suffices, and that budget does.
    #[test]
    fn a_refusal_is_true(recipe in generator::recipes(MOST_LAYERS)) {
        let graph = streaming(&recipe.graph());
        let [profile, _] = generator::profiles(&graph);
        let within = |bytes| {
            let (goal, effort) = (Goal::Within(bytes), Effort::work(1, 3_000));
            hold(&graph, &profile, &HoldRequest { goal, effort, ..HoldRequest::default() })
        };
        let refused = within(Bytes(1)).unwrap_err();
        let proof = refused.infeasible().unwrap();
        prop_assert!(Bytes(1) < proof.needed && proof.needed <= proof.reached);
        prop_assert!(within(proof.reached).is_ok());
        prop_assert!(within(proof.needed.saturating_sub(Bytes(1))).is_err());
    }
}
