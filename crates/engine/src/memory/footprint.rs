//! The base: what the process takes before slab and packing. Invariant: it follows from the graph's
//! size, the threads and what the process already held when it began, never from how much memory
//! happens to be held, so that every verb says the same of a step.

use std::sync::OnceLock;

use tightfit::graph::Graph;
use tightfit::units::Bytes;

/// Pages of the program and its libraries, the heap's floor, and tables of fixed size. Without
/// optimization the program's code is several times as large.
const PROGRAM: Bytes = Bytes(if cfg!(debug_assertions) { 24 << 20 } else { 35 << 18 });
/// The least that program and tables come to: the search for a plan of few nodes takes more than
/// their tables do later.
const LEAST: Bytes = Bytes(39 << 18);
/// What a worker's stack comes to be.
const STACK: Bytes = Bytes(96 << 10);
/// Graph, costs, schedule, timeline and kernels of a node, of both graphs of a step.
const NODE: Bytes = Bytes(2 << 10);
/// Text that belongs to a node: its own names and what it shares of the modules'.
const TEXT: u64 = 256;
/// Of text beyond that, what is held for each byte: in both graphs of a step, while they are read
/// and as keys of tables.
const COPIES: u64 = 5;
/// What a path of a module takes beside its text.
const PATH: u64 = 24;
/// What a process of the program alone holds when it begins.
const ENTERED: Bytes = Bytes(6 << 20);
/// A host's memory counts in such pieces, so that it is the same in each of its processes.
const HOST: u64 = 4 << 20;

static HOST_HOLDS: OnceLock<Bytes> = OnceLock::new();

/// Says what the process held when the program began. Where the program runs inside another one,
/// such as an interpreter, that is part of the base; without effect when said again.
pub fn begins_with(entered: Option<Bytes>) {
    let beyond = entered.map_or(0, |entered| entered.0.saturating_sub(ENTERED.0));
    let _ = HOST_HOLDS.set(Bytes(beyond.next_multiple_of(HOST)));
}

/// The process is the program's own: it said what it [began with](begins_with).
pub fn is_program() -> bool {
    HOST_HOLDS.get().is_some()
}

/// What the process takes to train a step on so many threads, before slab and packing.
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
