//! The reserve: what libraries allocate of their own beside the slab. Invariant: the budget is slab
//! + reserve, and the reserve is a bound that the graph's shapes give, not a guess.

use tightfit::graph::{Argument, Graph, Operator};
use tightfit::machine::Machine;
use tightfit::units::Bytes;

use crate::kernels::packing_bytes;

/// Most bytes that any call of the graph makes the matrix product pack on a machine; none where
/// the engine does not run.
pub fn reserve(graph: &Graph, machine: &Machine) -> Bytes {
    if !machine.engine {
        return Bytes::ZERO;
    }
    let threads = u64::from(machine.threads);
    let extents = |node: &tightfit::graph::Node, index: usize| match node.args.get(index) {
        Some(Argument::Value(value)) => graph.values()[*value].shape.clone(),
        _ => Vec::new(),
    };
    let product = |node: &tightfit::graph::Node, left: usize| {
        let (a, b) = (extents(node, left), extents(node, left + 1));
        match (a[..].as_ref(), b[..].as_ref()) {
            ([.., m, k], [.., n]) => packing_bytes(*m, *n, *k, threads),
            _ => Bytes::ZERO,
        }
    };
    let of = |node: &tightfit::graph::Node| match node.operator {
        Some(Operator::Mm | Operator::Bmm) => product(node, 0),
        Some(Operator::Addmm) => product(node, 1),
        Some(Operator::FlashAttention | Operator::FlashAttentionBackward) => {
            let first = usize::from(node.operator == Some(Operator::FlashAttentionBackward));
            let (q, k) = (extents(node, first), extents(node, first + 1));
            let block = Operator::attention_block() as u64;
            match (q.last(), k.get(2)) {
                // Each thread multiplies on its own: scores, and the products that scores take part
                // in.
                (Some(&size), Some(&keys)) => {
                    let largest = packing_bytes(block, keys, size, 1)
                        .max(packing_bytes(block, size, keys, 1))
                        .max(packing_bytes(keys, size, block, 1));
                    Bytes(largest.0 * threads)
                }
                _ => Bytes::ZERO,
            }
        }
        _ => Bytes::ZERO,
    };
    graph.nodes().values().map(of).max().unwrap_or(Bytes::ZERO)
}
