//! The reserve: what libraries allocate of their own beside the slab. Invariant: the budget is slab
//! plus reserve, and the reserve follows from the products that the operator table states for the
//! graph's calls.

use tightfit::graph::Graph;
use tightfit::operator::{Product, Workers};
use tightfit::units::Bytes;

use crate::kernels::packing_bytes;

/// Most bytes that any call of the graph makes the matrix product pack.
pub fn reserve(graph: &Graph, threads: u32) -> Bytes {
    let threads = u64::from(threads);
    let packed = |product: &Product| {
        let Product { m, n, k, workers } = *product;
        match workers {
            Workers::Together => packing_bytes(m, n, k, threads),
            Workers::Alone => Bytes(packing_bytes(m, n, k, 1).0 * threads),
        }
    };
    let of = |node| match graph.nodes()[node].operator {
        Some(operator) => (operator.row().cost.packing)(&graph.call(node)),
        None => Vec::new(),
    };
    let products = graph.nodes().keys().flat_map(of);
    products.map(|product| packed(&product)).max().unwrap_or(Bytes::ZERO)
}
