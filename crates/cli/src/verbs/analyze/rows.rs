//! The rows that tables show: nodes, operators, modules. Invariant: each is read off the facts.

use tightfit::analysis::{Figures, Operator};
use tightfit::id::NodeId;
use tightfit::plan::LiveTensor;
use tightfit::units::Bytes;

use super::facts::Facts;
use crate::table::{Cell, Table};

const NODES: [&str; 10] =
    ["node", "pass", "rank", "until", "output", "saved", "held", "ms", "idle ms", "module"];

const USUAL_OF_NODES: [&str; 6] = ["node", "pass", "output", "held", "ms", "module"];

const TENSORS: [&str; 4] = ["size", "phase", "tensor", "module"];

const OPERATORS: [&str; 11] = [
    "operator", "bwd", "fwd_flop", "bwd_flop", "fwd ms", "bwd ms", "fwd_in", "fwd_tmp", "fwd_out",
    "bwd_tmp", "bwd_out",
];

const USUAL_OF_OPERATORS: [&str; 6] =
    ["operator", "fwd_flop", "fwd ms", "bwd ms", "fwd_in", "fwd_out"];

const MODULES: [&str; 10] = [
    "module",
    "nodes",
    "parameters",
    "fwd_in",
    "fwd_tmp",
    "fwd_out",
    "bwd_tmp",
    "bwd_out",
    "fwd ms",
    "bwd ms",
];

const USUAL_OF_MODULES: [&str; 7] =
    ["module", "parameters", "fwd_in", "fwd_tmp", "fwd_out", "fwd ms", "bwd ms"];

/// What the usual columns of nodes mean.
pub const USUAL_NODE_LEGEND: &str = "held: while the node runs";

/// What the columns of nodes mean.
pub const NODE_LEGEND: &str = "\
until: rank of the last use; saved: of the output, for the backward pass; held: while the node \
runs; idle: from the last access in the forward pass to the first one after it";

/// What the figures of a module or an operator mean.
pub const FIGURE_LEGEND: &str = "\
fwd_in, fwd_tmp, fwd_out: saved for the backward pass, and made outside, used within, handed on; \
bwd_tmp: temporaries \
of the backward pass at their most; bwd_out: gradients that leave; all at \
the border of";

/// Every requested node, placeholders and views too, in program order.
pub fn nodes(facts: &Facts) -> Table {
    let nodes = facts.graph.nodes().keys().filter(|&node| facts.is_shown(node));
    Table::new(&NODES, nodes.map(|node| self::node(facts, node)).collect()).usually(&USUAL_OF_NODES)
}

fn node(facts: &Facts, node: NodeId) -> Vec<Cell> {
    let row = &facts.access[node];
    let saved = facts.flow.saved_by(&facts.graph, node);
    let saved: Bytes = saved.map(|storage| facts.graph.storages()[storage]).sum();
    vec![
        Cell::name(facts.name(node)),
        Cell::word(facts.flow.pass(node).name()),
        Cell::rank(row.rank),
        Cell::rank(row.life.map(|life| life.death)),
        Cell::bytes(row.output),
        Cell::bytes(saved),
        Cell::bytes(row.active).marked(row.in_peak_interval),
        Cell::milliseconds(row.seconds),
        row.idle.map_or_else(Cell::nothing, Cell::milliseconds),
        Cell::path(facts.module(node)),
    ]
}

/// Tensors that are alive.
pub fn tensors(live: &[LiveTensor]) -> Table {
    let rows = live.iter().map(|tensor| {
        vec![
            Cell::bytes(tensor.bytes),
            Cell::word(tensor.phase),
            Cell::name(&tensor.name),
            Cell::path(&tensor.module),
        ]
    });
    Table::new(&TENSORS, rows.collect())
}

/// Every requested operator, with the backward nodes that differentiate it.
pub fn operators(facts: &Facts) -> Table {
    let operators = facts.operators.iter().filter(|operator| facts.is_shown(operator.node));
    Table::new(&OPERATORS, operators.map(|operator| self::operator(facts, operator)).collect())
        .usually(&USUAL_OF_OPERATORS)
}

fn operator(facts: &Facts, operator: &Operator) -> Vec<Cell> {
    let alone = &operator.alone;
    let mut row = vec![
        Cell::name(facts.name(operator.node)),
        Cell::count(operator.backward.len()),
        Cell::flops(alone.fwd_flop),
        Cell::flops(alone.bwd_flop),
        Cell::milliseconds(operator.fwd_seconds),
        Cell::milliseconds(operator.bwd_seconds),
    ];
    row.extend(saved_and_made(alone));
    row
}

/// Every requested module, down to `depth` levels, in forward pre-order.
pub fn modules(facts: &Facts, depth: usize) -> Table {
    let rows = facts.modules(depth).map(|module| {
        let figures = &facts.flow.modules[module];
        let mut row = vec![
            Cell::path(&facts.flow.tree.branches()[module].path),
            Cell::count(figures.work.nodes as usize),
            Cell::bytes(facts.parameters.bytes[module]),
        ];
        row.extend(saved_and_made(&figures.alone));
        row.extend([figures.work.forward, figures.work.backward].map(Cell::milliseconds));
        row
    });
    Table::new(&MODULES, rows.collect()).usually(&USUAL_OF_MODULES)
}

fn saved_and_made(figures: &Figures) -> [Cell; 5] {
    let Figures { fwd_mem_in, fwd_mem_tmp, fwd_mem_out, bwd_mem_tmp, bwd_mem_out, .. } = *figures;
    [fwd_mem_in, fwd_mem_tmp, fwd_mem_out, bwd_mem_tmp, bwd_mem_out].map(Cell::bytes)
}
