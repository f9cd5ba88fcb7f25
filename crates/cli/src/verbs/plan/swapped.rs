//! What a plan swaps, tensor by tensor. Invariant: rows are those of the checked timeline, the
//! longest free time first; JSON has all of them.

use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::timeline::Swapped;
use tightfit::units::Seconds;

use crate::output;
use crate::table::{Cell, Table};

const HEADS: [&str; 9] = [
    "tensor",
    "size",
    "ms free",
    "ms idle",
    "ms moving",
    "ms waiting",
    "last access",
    "in-trigger",
    "next access",
];

/// The columns in a line of usual width.
const USUAL_HEADS: [&str; 6] =
    ["tensor", "size", "ms free", "ms waiting", "in-trigger", "next access"];

/// A row for each return to the device.
pub fn swapped_json(graph: &Graph, rows: &[Swapped]) -> Vec<Value> {
    let name = |node: Option<NodeId>| node.map(|node| &graph.nodes()[node].name);
    let row = |row: &Swapped| {
        json!({
            "node": name(Some(row.node)),
            "module": graph.module_of(row.node),
            "bytes": row.bytes,
            "last_access": name(row.last_access),
            "in_trigger": name(row.in_trigger),
            "next_access": name(row.next_access),
            "idle_seconds": row.idle,
            "out_seconds": row.out,
            "back_seconds": row.back,
            "free_seconds": row.free(),
            "stall_seconds": row.stall,
        })
    };
    rows.iter().map(row).collect()
}

/// A table of the `top` longest free times.
pub fn print_swapped(graph: &Graph, rows: &[Swapped], top: usize) -> output::Printed {
    if rows.is_empty() {
        return Ok(());
    }
    say!("\nswapped, the {} longest free times of {}:", top.min(rows.len()), rows.len())?;
    let named = |node: Option<NodeId>, none: &str| match node {
        Some(node) => Cell::name(&graph.nodes()[node].name),
        None => Cell::word(none),
    };
    let cells = rows.iter().take(top).map(|row| {
        let moving = row.out.unwrap_or(Seconds(0.0)) + row.back;
        vec![
            named(Some(row.node), ""),
            Cell::bytes(row.bytes),
            Cell::milliseconds(row.free()),
            Cell::milliseconds(row.idle),
            Cell::milliseconds(moving),
            Cell::milliseconds(row.stall),
            named(row.last_access, ""),
            named(row.in_trigger, "(start)"),
            named(row.next_access, "(end)"),
        ]
    });
    Table::new(&HEADS, cells.collect()).usually(&USUAL_HEADS).print(usize::MAX)
}
