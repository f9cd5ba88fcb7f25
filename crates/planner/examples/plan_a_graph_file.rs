//! Plans the graph of a file at three budgets and prints a table. Invariant: every figure of a row
//! comes from the checker, the bound or the refusal; none is the planner's own claim.
//!
//! ```text
//! cargo run --release --example plan_a_graph_file [GRAPH]
//! ```

use std::error::Error;

use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::{FittedPoint, Request, frontier, graph, unplanned};

/// The graph of the corpus that is used if none is named.
const DEFAULT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpus/graphs/gpt2_small_b8_s512.json.gz");
/// The budgets, in percent of what the step takes if nothing is recomputed, in increasing order.
const PERCENT: [u64; 3] = [40, 60, 80];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| DEFAULT.to_string());
    let graph = graph::read(&std::fs::read(&path)?)?;
    let profile = Profile::new(&graph, &Machine::preset("a100-80gb")?);
    let whole = unplanned(&graph, &profile)?;
    let (peak, seconds) = (whole.timeline().peak, whole.timeline().seconds);
    println!("{}: {} nodes, {peak}, {:.2} ms", graph.name(), graph.nodes().len(), seconds.0 * 1e3);

    let budgets = PERCENT.map(|percent| Bytes((peak.0 as f64 * percent as f64 / 100.0) as u64));
    println!("      budget        peak  recomputed  slower  at least");
    for point in frontier(&graph, &profile, &budgets, None, &Request::default()) {
        let FittedPoint { budget, result, .. } = point;
        let fitted = match result {
            Ok(fitted) => fitted,
            Err(error) => match error.infeasible() {
                Some(proof) => {
                    println!("{budget:>12}  refused; {} would do", proof.reached);
                    continue;
                }
                None => return Err(error.into()),
            },
        };
        let slower = |other: f64| format!("{:.1} %", (other / seconds.0 - 1.0) * 100.0);
        println!(
            "{budget:>12}{:>12}{:>12}{:>8}{:>10}",
            fitted.timeline().peak,
            fitted.schedule().recomputed(),
            slower(fitted.timeline().seconds.0),
            fitted.bound().map_or("-".to_string(), |bound| slower(bound.seconds.0)),
        );
    }
    Ok(())
}
