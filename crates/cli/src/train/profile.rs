//! Where the time of a run went. Invariant: each row is an operator, not a node, and its measured
//! time stands next to the predicted one.

use std::collections::BTreeMap;

use serde::Serialize;
use tightfit::graph::Graph;
use tightfit::profile::Profile;
use tightfit_engine::Timings;

use crate::output::Printed;
use crate::table::{Cell, Table};

/// What an operator took in a step, on average, and what was predicted.
#[derive(Serialize)]
pub struct Row<'a> {
    operator: &'a str,
    calls: f64,
    seconds: f64,
    predicted_seconds: f64,
}

/// A row for each operator, the slowest first.
pub fn rows<'a>(graph: &'a Graph, profile: &Profile, measured: &Timings) -> Vec<Row<'a>> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let steps = measured.steps.len().max(1) as f64;
    for (&node, timings) in &measured.nodes {
        let operator = graph.nodes()[node].op.as_str();
        let empty = Row { operator, calls: 0.0, seconds: 0.0, predicted_seconds: 0.0 };
        let row = rows.entry(operator).or_insert(empty);
        let calls = timings.runs as f64 / steps;
        row.calls += calls;
        row.seconds += timings.seconds / steps;
        row.predicted_seconds += profile.seconds[node].0 * calls;
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    rows
}

const HEADS: [&str; 4] = ["operator", "calls", "ms", "predicted"];

/// Prints the rows as a table.
pub fn show(rows: &[Row]) -> Printed {
    let rows = rows.iter().map(|&Row { operator, calls, seconds, predicted_seconds }| {
        vec![
            Cell::name(operator),
            Cell::figure(calls, format!("{calls:.0}")),
            Cell::figure(seconds, format!("{:.2}", seconds * 1e3)),
            Cell::figure(predicted_seconds, format!("{:.2}", predicted_seconds * 1e3)),
        ]
    });
    Table::new(&HEADS, rows.collect()).print(usize::MAX)
}
