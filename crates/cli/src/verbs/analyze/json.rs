//! The facts as JSON. Invariant: every requested node of the graph has a row, whether it runs or
//! not; what does not apply is null.

use serde_json::{Value, json};
use tightfit::analysis::{Operator, PeakInterval};
use tightfit::id::{NodeId, StorageId};
use tightfit::plan::LiveTensor;
use tightfit::units::Bytes;

use super::facts::Facts;

/// Everything.
pub fn json(facts: &Facts, depth: usize) -> Value {
    let Facts { graph, flow, .. } = facts;
    let (curve, seconds) = (facts.curve(), facts.seconds());
    let at = facts.order.get(curve.at).copied();
    let nodes = graph.nodes().keys().filter(|&node| facts.is_shown(node));
    let operators = facts.operators.iter().filter(|operator| facts.is_shown(operator.node));
    let intervals = facts.intervals.iter().map(|row| interval(facts, row));
    json!({
        "graph": graph.name(),
        "machine": facts.machine.name,
        "peak_bytes": curve.peak,
        "static_bytes": graph.static_bytes(),
        "step_seconds": seconds,
        "peak_node": at.map(|node| facts.name(node)),
        "peak_module": at.map(|node| facts.module(node)),
        "budget_bytes": facts.limit.map(|limit| limit.budget),
        "base_bytes": facts.limit.map(|limit| limit.reserve.base),
        "packing_bytes": facts.limit.map(|limit| limit.reserve.packing),
        "reserve_bytes": facts.limit.map(|limit| limit.reserve.total()),
        "peak_intervals": intervals.collect::<Vec<_>>(),
        "within_module": flow.tree.branches()[facts.within].path,
        "live": facts.live().iter().map(tensor).collect::<Vec<_>>(),
        "modules": modules(facts, depth),
        "nodes": nodes.map(|id| node(facts, id)).collect::<Vec<_>>(),
        "operators": operators.map(|row| operator(facts, row)).collect::<Vec<_>>(),
        "dataflow": { "graph": flow.graph, "modules": figures(facts) },
    })
}

fn interval(facts: &Facts, interval: &PeakInterval) -> Value {
    let name = |rank: u32| facts.order.get(rank as usize).map(|&node| facts.name(node));
    let over = facts.limit.map(|limit| interval.held + limit.reserve.total() - limit.budget);
    json!({
        "first": name(interval.first),
        "last": name(interval.last),
        "largest": name(interval.at),
        "first_rank": interval.first,
        "last_rank": interval.last,
        "held_bytes": interval.held,
        "over_bytes": over,
    })
}

fn tensor(tensor: &LiveTensor) -> Value {
    json!({
        "name": tensor.name,
        "module": tensor.module,
        "phase": tensor.phase,
        "bytes": tensor.bytes,
    })
}

fn modules(facts: &Facts, depth: usize) -> Vec<Value> {
    let rows = facts.modules(depth).map(|module| {
        let figures = &facts.flow.modules[module];
        json!({
            "module": facts.flow.tree.branches()[module].path,
            "nodes": figures.work.nodes,
            "parameter_bytes": facts.parameters.bytes[module],
            "saved_bytes": figures.share.fwd_mem_tmp + figures.share.fwd_mem_out,
            "seconds": figures.work.all,
            "fwd_seconds": figures.work.forward,
            "bwd_seconds": figures.work.backward,
        })
    });
    rows.collect()
}

fn figures(facts: &Facts) -> Vec<Value> {
    let rows = facts.modules(usize::MAX).map(|module| {
        let figures = &facts.flow.modules[module];
        json!({
            "module": facts.flow.tree.branches()[module].path,
            "share": figures.share,
            "alone": figures.alone,
        })
    });
    rows.collect()
}

fn node(facts: &Facts, id: NodeId) -> Value {
    let (node, row) = (&facts.graph.nodes()[id], &facts.access[id]);
    let name = |node: Option<NodeId>| node.map(|node| facts.name(node));
    let saved: Vec<StorageId> = facts.flow.saved_by(&facts.graph, id).collect();
    let saved_bytes: Bytes = saved.iter().map(|&storage| facts.graph.storages()[storage]).sum();
    json!({
        "name": node.name,
        "op": node.op,
        "phase": node.phase.name(),
        "pass": facts.flow.pass(id).name(),
        "module": facts.module(id),
        "parameter": node.parameter,
        "differentiates": name(node.differentiates),
        "is_view": facts.graph.is_view(id),
        "rank": row.rank,
        "seconds": row.seconds,
        "output_bytes": row.output,
        "birth": row.life.and_then(|life| life.birth),
        "death": row.life.map(|life| life.death),
        "saved": !saved.is_empty(),
        "saved_bytes": saved_bytes,
        "active_bytes": row.rank.map(|_| row.active),
        "in_peak_interval": row.in_peak_interval,
        "first_forward_access": name(row.first_forward_access),
        "last_forward_access": name(row.last_forward_access),
        "first_backward_access": name(row.first_backward_access),
        "last_backward_access": name(row.last_backward_access),
        "idle_seconds": row.idle,
        "swap_seconds": row.swap,
        "dataflow": facts.flow.nodes[id],
    })
}

fn operator(facts: &Facts, operator: &Operator) -> Value {
    let node = &facts.graph.nodes()[operator.node];
    let list = |storages: &[StorageId]| -> Vec<Value> {
        storages.iter().map(|&storage| saved(facts, storage)).collect()
    };
    let backward = operator.backward.iter().map(|&node| facts.name(node));
    json!({
        "name": node.name,
        "op": node.op,
        "phase": node.phase.name(),
        "module": facts.module(operator.node),
        "backward": backward.collect::<Vec<_>>(),
        "fwd_seconds": operator.fwd_seconds,
        "bwd_seconds": operator.bwd_seconds,
        "share": operator.share,
        "alone": operator.alone,
        "save_fwd_in": !operator.fwd_in.is_empty(),
        "fwd_in": list(&operator.fwd_in),
        "fwd_tmp": list(&operator.fwd_tmp),
        "fwd_out": list(&operator.fwd_out),
    })
}

/// A saved tensor: its producer, which of the producer's outputs it is, and its bytes.
fn saved(facts: &Facts, storage: StorageId) -> Value {
    let maker = facts.graph.producer(storage).map(|maker| &facts.graph.nodes()[maker]);
    let output = maker.and_then(|maker| {
        let lies_there = |&value| facts.graph.values()[value].storage == storage;
        maker.outputs.iter().position(|output| output.as_ref().is_some_and(lies_there))
    });
    json!({
        "name": maker.map(|maker| &maker.name),
        "output": output,
        "bytes": facts.graph.storages()[storage],
    })
}
