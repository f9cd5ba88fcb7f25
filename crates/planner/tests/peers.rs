//! The peer planners on the corpus. Invariant: each one stays within the budget or refuses with a plan that it reached;
//! what one costs is printed on demand, never asserted.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod corpus;
mod oracle;

use std::time::Instant;

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::{self, Planner};
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
