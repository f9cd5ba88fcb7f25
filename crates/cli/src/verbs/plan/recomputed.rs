//! What a plan recomputes, node by node. Invariant: rows are those of the checked timeline, the
//! largest savings first; JSON has all of them.

use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::timeline::{Recomputed, Timeline};

/// A row for each node that runs again.
pub fn recomputed_json(graph: &Graph, timeline: &Timeline) -> Vec<Value> {
    let row = |row: Recomputed| {
        let node = &graph.nodes()[row.node];
        json!({
            "node": node.name,
            "op": node.op,
            "module": graph.module_of(row.node),
            "times": row.again.times,
            "saved_bytes": row.saved,
            "seconds": row.again.seconds,
        })
    };
    timeline.recomputed().into_iter().map(row).collect()
}

/// A table of the `top` largest savings.
pub fn print_recomputed(graph: &Graph, timeline: &Timeline, top: usize) {
    let rows = timeline.recomputed();
    if rows.is_empty() {
        return println!("\nnothing is recomputed");
    }
    println!("\nrecomputed, the {} largest savings of {}:", top.min(rows.len()), rows.len());
    println!(
        "{:<24} {:>11} {:>6} {:>9} {:<32} module",
        "node", "saved", "times", "ms again", "operator"
    );
    for row in rows.into_iter().take(top) {
        let node = &graph.nodes()[row.node];
        println!(
            "{:<24} {:>11} {:>6} {:>9.3} {:<32} {}",
            node.name,
            row.saved.to_string(),
            row.again.times,
            row.again.seconds.0 * 1e3,
            node.op,
            graph.module_of(row.node)
        );
    }
}
