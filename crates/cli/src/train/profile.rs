//! Where the time of a run went. Invariant: operators, not nodes, and each beside its prediction.

use std::collections::BTreeMap;

use tightfit::graph::Graph;
use tightfit::profile::Profile;
use tightfit_engine::Timings;

use crate::output::Printed;

/// Milliseconds a step by operator, largest first.
pub fn show(graph: &Graph, profile: &Profile, measured: &Timings) -> Printed {
    let mut rows: BTreeMap<&str, (f64, f64, u64)> = BTreeMap::new();
    for (&node, timings) in &measured.nodes {
        let row = rows.entry(&graph.nodes()[node].op).or_default();
        *row = (
            row.0 + timings.seconds,
            row.1 + profile.seconds[node].0 * timings.runs as f64,
            row.2 + timings.runs,
        );
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let steps = measured.steps.len().max(1) as f64;
    say!("{:<64} {:>6} {:>10} {:>10}", "operator", "calls", "ms", "predicted")?;
    for (op, (seconds, predicted, calls)) in rows {
        say!(
            "{op:<64} {:>6.0} {:>10.2} {:>10.2}",
            calls as f64 / steps,
            seconds / steps * 1e3,
            predicted / steps * 1e3
        )?;
    }
    Ok(())
}
