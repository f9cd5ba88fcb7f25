//! Prints what each planner's plans cost on the planning graphs of the corpus, and how long planning took. Invariant:
//! every plan is re-simulated here; a budget is the static bytes and a share of what the unplanned peak adds to them.
//!
//! `cargo run --release -p tightfit --example peers`

use std::path::Path;
use std::time::Instant;

use tightfit::graph;
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

const PLANNERS: [Planner; 6] = [Planner::Chen, Planner::Capuchin, Planner::Xla, Planner::Dtr, Planner::Knapsack, Planner::Rotor];

const PERCENT: [u64; 6] = [90, 80, 70, 60, 50, 40];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/graphs");
    let machine = Machine::preset("a100-80gb")?;
    for name in GRAPHS {
        let graph = graph::read(&std::fs::read(corpus.join(format!("{name}.json.gz")))?)?;
        let profile = Profile::new(&graph, &machine);
        let order = plan::early_updates(&graph, &profile);
        let unplanned = plan::simulate(&graph, &profile, &order);
        let resting = graph.static_bytes();
        println!("{name}, {} nodes: overhead in % (milliseconds of planning) at {PERCENT:?} %", order.len());
        for planner in PLANNERS {
            print!("{:>9}", planner.name());
            for percent in PERCENT {
                let budget = resting + Bytes((unplanned.curve.peak - resting).0 / 100 * percent);
                let start = Instant::now();
                let plan = plan::plan(&graph, &profile, &order, budget, planner);
                let milliseconds = start.elapsed().as_secs_f64() * 1e3;
                match plan.map(|plan| plan::simulate(&graph, &profile, &plan.steps)) {
                    Ok(step) => print!("  {:6.2} ({milliseconds:3.0})", (step.seconds.0 / unplanned.seconds.0 - 1.0) * 100.0),
                    Err(_) => print!("       – ({milliseconds:3.0})"),
                }
            }
            println!();
        }
    }
    Ok(())
}
