//! The peer planners on the corpus. Invariant: each one stays within the budget or refuses with a plan that it reached;
//! what one costs is printed on demand, never asserted.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod corpus;
mod generator;
mod oracle;

use std::time::Instant;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{self, PlanError, Planner};
use tightfit::profile::Profile;
use tightfit::units::Bytes;

const GRAPHS: [&str; 7] = [
    "gpt2_small_b8_s512",
    "gpt2_medium_b4_s1024",
    "llama_1b_b2_s2048",
    "bert_base_drop_b16_s512",
    "resnet50_b32",
    "vit_b16_b32",
    "mobilenet_v3_large_b64",
];

const PEERS: [Planner; 6] = [Planner::Chen, Planner::Capuchin, Planner::Xla, Planner::Dtr, Planner::Knapsack, Planner::Rotor];

/// Static bytes and `share` of what the unplanned peak adds to them.
fn budget(graph: &Graph, peak: Bytes, share: f64) -> Bytes {
    let resting = graph.static_bytes();
    resting + Bytes(((peak - resting).0 as f64 * share) as u64)
}

#[test]
fn every_peer_meets_its_budget_or_proves_why_not() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        let order = plan::early_updates(&graph, &profile);
        let unplanned = plan::simulate(&graph, &profile, &order);
        for planner in [Planner::Xla, Planner::Dtr, Planner::Knapsack, Planner::Rotor] {
            for share in [0.9, 0.65] {
                let budget = budget(&graph, unplanned.curve.peak, share);
                match plan::plan(&graph, &profile, &order, budget, planner) {
                    Ok(plan) => {
                        assert!(plan::simulate(&graph, &profile, &plan.steps).curve.peak <= budget, "{name} {planner:?}");
                        oracle::replay(&graph, &profile, &plan.steps).unwrap_or_else(|error| panic!("{name} {planner:?}: {error}"));
                    }
                    Err(PlanError::Infeasible(proof)) => {
                        assert!(share < 0.7, "{name} {planner:?} at {share}: {proof}");
                        assert!(proof.needed <= budget || proof.reached > budget, "{name} {planner:?}");
                        assert!(plan::plan(&graph, &profile, &order, proof.reached, planner).is_ok(), "{name} {planner:?}");
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
    let order = plan::early_updates(&graph, &profile);
    let error = plan::plan(&graph, &profile, &order, Bytes(1), Planner::Exact).unwrap_err();
    assert!(matches!(error, PlanError::TooLarge { nodes, most: 80 } if nodes == order.len()), "{error}");
}

/// Equal but for plans that repeat a node twice, or out of program order, in front of one node: those the program does
/// not know, and the oracle does.
#[test]
fn exact_is_as_good_as_the_oracle() {
    let mut runner = TestRunner::new(generator::config(1));
    let recipes = generator::recipes(5);
    let (mut equal, mut worse) = (0, 0);
    while equal + worse < 150 {
        let graph = recipes.new_tree(&mut runner).unwrap().current().graph();
        if graph.program().len() > 14 || graph.storages().len() > 64 {
            continue;
        }
        for profile in generator::profiles(&graph) {
            let order = graph.program();
            let frontier = oracle::frontier(&graph, &profile, &order);
            if frontier.len() < 2 {
                continue;
            }
            for point in &frontier {
                match plan::plan(&graph, &profile, &order, Bytes(point.peak), Planner::Exact) {
                    Ok(plan) => {
                        let cost = oracle::replay(&graph, &profile, &plan.steps).unwrap();
                        assert!(cost.peak <= point.peak && cost.seconds >= point.seconds * (1.0 - 1e-9), "{cost:?} against {point:?}");
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
    assert!(worse * 50 <= equal, "{equal} equal, {worse} worse");
}

/// `cargo test -p tightfit --release --test peers -- --ignored --nocapture`
#[test]
#[ignore = "prints a table"]
fn overheads_and_times() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        let profile = Profile::new(&graph, &Machine::preset("a100-80gb").unwrap());
        let order = plan::early_updates(&graph, &profile);
        let unplanned = plan::simulate(&graph, &profile, &order);
        println!("{name}, {} nodes: overhead in % (milliseconds of planning)", order.len());
        for planner in PEERS {
            print!("{:>9}", planner.name());
            for share in [0.9, 0.8, 0.7, 0.6, 0.5, 0.4] {
                let budget = budget(&graph, unplanned.curve.peak, share);
                let start = Instant::now();
                let plan = plan::plan(&graph, &profile, &order, budget, planner);
                let milliseconds = start.elapsed().as_secs_f64() * 1e3;
                match plan {
                    Ok(plan) => {
                        let step = plan::simulate(&graph, &profile, &plan.steps);
                        print!("  {:7.2} ({milliseconds:4.0})", (step.seconds.0 / unplanned.seconds.0 - 1.0) * 100.0);
                    }
                    Err(_) => print!("        – ({milliseconds:4.0})"),
                }
            }
            println!();
        }
    }
}
