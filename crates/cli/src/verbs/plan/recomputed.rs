//! What a plan recomputes, node by node. Invariant: rows are those of the checked timeline, the
//! largest savings first; JSON has all of them.

use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::timeline::Recomputed;

use crate::output;
use crate::table::{Cell, Table};

const HEADS: [&str; 6] = ["node", "saved", "times", "ms again", "operator", "module"];

/// A row for each node that runs again.
pub fn recomputed_json(graph: &Graph, rows: &[Recomputed]) -> Vec<Value> {
    let row = |row: &Recomputed| {
        let node = &graph.nodes()[row.node];
        json!({
            "node": node.name,
            "op": node.op,
            "module": graph.module_of(row.node),
            "times": row.again.times,
            "saved_bytes": row.saved,
            "absent_bytes": row.absent,
            "seconds": row.again.seconds,
        })
    };
    rows.iter().map(row).collect()
}

/// A table of the `top` largest savings.
pub fn print_recomputed(graph: &Graph, rows: &[Recomputed], top: usize) -> output::Printed {
    if rows.is_empty() {
        return say!("\nnothing is recomputed");
    }
    say!("\nrecomputed, the {} largest savings of {}:", top.min(rows.len()), rows.len())?;
    let cells = rows.iter().take(top).map(|row| {
        let node = &graph.nodes()[row.node];
        vec![
            Cell::name(&node.name),
            Cell::bytes(row.saved),
            Cell::count(row.again.times as usize),
            Cell::milliseconds(row.again.seconds),
            Cell::name(&node.op),
            Cell::path(graph.module_of(row.node)),
        ]
    });
    Table::new(&HEADS, cells.collect()).print(usize::MAX)
}
