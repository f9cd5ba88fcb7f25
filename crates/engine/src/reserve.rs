//! The reserve: what libraries allocate of their own beside the slab. Invariant: the budget is slab
//! plus reserve, and the reserve follows from the products that the operator table states for the
//! graph's calls.

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::operator::{Product, Workers};
use tightfit::units::Bytes;

use crate::kernels::packing_bytes;

/// Most bytes that any call of the graph makes the matrix product pack on a machine; none where
/// products are not packed.
pub fn reserve(graph: &Graph, machine: &Machine) -> Bytes {
    if !machine.runtime.rules().packs {
        return Bytes::ZERO;
    }
    let threads = u64::from(machine.threads);
    let packed = |product: Product| {
        let Product { m, n, k, workers } = product;
        match workers {
            Workers::Together => packing_bytes(m, n, k, threads),
            Workers::Alone => Bytes(packing_bytes(m, n, k, 1).0 * threads),
        }
    };
    let products = graph.nodes().keys().flat_map(|node| match graph.nodes()[node].operator {
        Some(operator) => (operator.row().cost.packing)(&graph.call(node)),
        None => Vec::new(),
    });
    products.map(packed).max().unwrap_or(Bytes::ZERO)
}
