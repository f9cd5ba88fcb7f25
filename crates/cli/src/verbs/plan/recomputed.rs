//! What a plan recomputes, node by node. Invariant: rows are those of the checked timeline, the
//! largest savings first; JSON has all of them.

use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::timeline::Recomputed;

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
pub fn print_recomputed(graph: &Graph, rows: &[Recomputed], top: usize) {
    if rows.is_empty() {
        return println!("\nnothing is recomputed");
    }
    println!("\nrecomputed, the {} largest savings of {}:", top.min(rows.len()), rows.len());
    println!(
        "{:<24} {:>11} {:>6} {:>9} {:<32} module",
        "node", "saved", "times", "ms again", "operator"
    );
    for row in rows.iter().take(top) {
        let node = &graph.nodes()[row.node];
        let line = format!(
            "{:<24} {:>11} {:>6} {:>9.3} {:<32} {}",
            node.name,
            row.saved.to_string(),
            row.again.times,
            row.again.seconds.0 * 1e3,
            node.op,
            graph.module_of(row.node)
        );
        println!("{}", line.trim_end());
    }
}
