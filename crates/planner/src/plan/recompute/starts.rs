//! Where plans come from: a set of operators to run again, turned into events just in time. Invariant: nothing here
//! promises to fit; `repair` and `polish` follow.

use cranelift_entity::{EntityRef, SecondaryMap};

use super::problem::{OpId, Problem, Size};
use super::state::{Event, State};
use crate::graph::Graph;

/// Exactly the events that run each operator of `late` (in order) again in the first stage behind `instant` that reads
/// what it makes, reads of other recomputations included. Returns the peak.
pub fn just_in_time(state: &mut State, instant: OpId, late: &[OpId]) -> Size {
    state.set(&[]);
    for &op in late.iter().rev() {
        let stages = state.problem.ops[op].outputs.iter().filter_map(|&tensor| {
            let accesses = state.accesses(tensor);
            let next = accesses.partition_point(|access| access.stage <= instant.max(op));
            accesses[next..].iter().find(|access| !access.made).map(|access| access.stage)
        });
        if let Some(stage) = stages.min() {
            state.add(Event { stage, op });
        }
    }
    state.commit();
    state.peak()
}

/// Between a set that recomputes too little and one that fits: how much of the difference, in the given order of
/// preference, is enough. Leaves the least that fits (or, if even `large` does not, `large`) in the state.
pub fn interpolate(state: &mut State, instant: OpId, small: &[OpId], large: &[OpId], rank: impl Fn(OpId) -> f64, budget: Size) -> bool {
    let mut more: Vec<OpId> = large.iter().copied().filter(|op| small.binary_search(op).is_err()).collect();
    more.sort_by(|&a, &b| rank(a).total_cmp(&rank(b)).then(a.cmp(&b)));
    let mut make = |count: usize| {
        let mut set: Vec<OpId> = small.iter().chain(&more[..count]).copied().collect();
        set.sort_unstable();
        just_in_time(state, instant, &set)
    };
    let (mut low, mut high) = (0, more.len());
    if make(high) > budget {
        return false;
    }
    let step = (more.len() / 128).max(1);
    let mut shown = high;
    while high - low > step {
        let middle = low.midpoint(high);
        shown = middle;
        if make(middle) <= budget { high = middle } else { low = middle }
    }
    if shown != high {
        make(high);
    }
    true
}

/// Per-block checkpointing, a block being a module path up to its `depth`-th number: what one block makes and another
/// reads stays, everything else in the forward pass runs again.
pub fn per_block(graph: &Graph, problem: &Problem, depth: usize) -> Vec<OpId> {
    let mut block: SecondaryMap<OpId, &str> = SecondaryMap::new();
    for (id, op) in &problem.ops {
        block[id] = op.node.map_or("", |node| block_path(graph.module_of(node), depth));
    }
    let crosses = |id: OpId| {
        let readers = problem.ops[id].outputs.iter().flat_map(|&tensor| &problem.tensors[tensor].readers);
        readers.copied().any(|reader| problem.ops[reader].forward && block[reader] != block[id])
    };
    let inside = |&id: &OpId| problem.ops[id].forward && problem.ops[id].until > 0 && !block[id].is_empty() && !crosses(id);
    problem.ops.keys().skip(1).filter(inside).collect()
}

/// A module path up to its `depth`-th component that is or ends in a number (`h.3`, `layer_3`); empty if it has fewer.
fn block_path(path: &str, depth: usize) -> &str {
    let (mut seen, mut end) = (0, 0);
    for component in path.split('.') {
        end += component.len();
        let tail = component.rsplit('_').next().unwrap_or(component);
        if !tail.is_empty() && tail.bytes().all(|byte| byte.is_ascii_digit()) {
            seen += 1;
            if seen == depth {
                return &path[..end];
            }
        }
        end += 1;
    }
    ""
}

/// All forward operators that may run again, and the last stage of the forward pass.
pub fn forward(problem: &Problem) -> (Vec<OpId>, OpId) {
    let ops: Vec<OpId> = problem.ops.keys().skip(1).filter(|&id| problem.ops[id].forward && problem.ops[id].until > 0).collect();
    let end = problem.ops.keys().skip(1).find(|&id| !problem.ops[id].forward).map_or(problem.len() - 1, |id| id.index() - 1);
    (ops, OpId::at(end))
}

/// Picoseconds per byte of what an operator makes.
pub fn per_byte(problem: &Problem, op: OpId) -> f64 {
    let op = &problem.ops[op];
    op.cost as f64 / (1.0 + op.outputs.iter().map(|&tensor| problem.tensors[tensor].bytes).sum::<Size>() as f64)
}
