//! Seconds of a node from its operations and bytes. Invariant: the figure does not depend on any
//! other node.
//!
//! seconds = launch + max(flops / peak + elementary / elementary rate, bytes / bandwidth); without
//! the middle term this is the roofline model (Williams, Waterman, Patterson 2009). That term
//! counts exponential-like functions, which a processor, unlike a GPU, does not overlap with its
//! memory traffic, and which take turns with its products.

use crate::graph::Graph;
use crate::id::NodeId;
use crate::machine::Machine;
use crate::units::Seconds;

/// Predicted run time of a node that computes; zero for placeholders and views.
pub fn roofline(graph: &Graph, machine: &Machine, node: NodeId) -> Seconds {
    if !graph.runs(node) {
        return Seconds(0.0);
    }
    let call = &graph.nodes()[node];
    let float_bytes = |&value: &_| {
        Some(&graph.values()[value].tensor.dtype)
            .filter(|dtype| dtype.is_float())
            .map(|dtype| dtype.size())
    };
    let half = call.inputs.iter().filter_map(float_bytes).all(|size| size <= 2);
    let peak = if half { machine.flops_16 } else { machine.flops_32 };
    let compute = call.flops.0 as f64 / peak;
    let memory = (call.bytes_read.0 as f64 + call.bytes_written.0 as f64) / machine.bandwidth;
    let elementary = match (machine.elementary, call.operator) {
        (Some(rate), Some(operator)) => {
            (operator.row().cost.elementary)(&graph.call(node)) as f64 / rate
        }
        _ => 0.0,
    };
    Seconds(machine.launch + (compute + elementary).max(memory))
}
