//! The base: what the process takes before slab and packing. Invariant: it follows from the graph's
//! size, the threads and what the process already held when it began, never from how much memory
//! happens to be held, so that every command reports the same base for a step.

use std::sync::OnceLock;

use tightfit::graph::Graph;
use tightfit::units::Bytes;

/// Pages of the program and its libraries, the heap's initial size, and tables of fixed size.
/// Without optimization the program's code is several times as large.
const PROGRAM: Bytes = Bytes(if cfg!(debug_assertions) { 24 << 20 } else { 35 << 18 });
/// Least bytes of program and tables together: for a graph of few nodes, the search for a plan
/// takes more than their tables do later.
const LEAST: Bytes = Bytes(39 << 18);
/// Bytes that a worker's stack grows to.
const STACK: Bytes = Bytes(96 << 10);
/// Bytes per node for graph, costs, schedule, timeline and kernels, in both graphs of a step.
const NODE: Bytes = Bytes(2 << 10);
/// Usual bytes of text per node: its own names and its share of the modules'.
const TEXT: u64 = 256;
/// Bytes held for each byte of text beyond that: in both graphs of a step, while they are read and
/// as keys of tables.
const COPIES: u64 = 5;
/// Bytes of a module's path besides its text.
const PATH: u64 = 24;
/// Bytes that a process of the program alone holds when it begins.
const ENTERED: Bytes = Bytes(6 << 20);
/// A host program's memory is rounded up to this, so that it is the same in each of its processes.
const HOST: u64 = 4 << 20;

static HOST_HOLDS: OnceLock<Bytes> = OnceLock::new();

/// Records what the process held when the program began. If the program runs inside another one,
/// such as an interpreter, that is part of the base. Only the first call has an effect.
pub fn begins_with(entered: Option<Bytes>) {
    let beyond = entered.map_or(0, |entered| entered.0.saturating_sub(ENTERED.0));
    let _ = HOST_HOLDS.set(Bytes(beyond.next_multiple_of(HOST)));
}

/// Whether the process is the program's own: it called [`begins_with`].
pub fn is_program() -> bool {
    HOST_HOLDS.get().is_some()
}

/// What the process takes to train a step on this many threads, before slab and packing.
pub(crate) fn base(graph: &Graph, threads: u32) -> Bytes {
    let host = HOST_HOLDS.get().copied().unwrap_or(Bytes::ZERO);
    let nodes = graph.nodes().len() as u64;
    let unusual = text(graph).saturating_sub(nodes * TEXT);
    let tables = Bytes(nodes * NODE.0 + unusual * COPIES);
    (PROGRAM + tables).max(LEAST) + host + Bytes(u64::from(threads) * STACK.0)
}

/// Bytes of names and of modules' paths.
fn text(graph: &Graph) -> u64 {
    let nodes = graph.nodes().values().map(|node| (node.name.len() + node.op.len()) as u64);
    let modules = graph.modules().values().map(|path| path.len() as u64 + PATH);
    nodes.sum::<u64>() + modules.sum::<u64>()
}
