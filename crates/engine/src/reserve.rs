//! The reserve: what the process takes beside the slab. Invariant: the budget is slab plus reserve;
//! the reserve follows from graph, machine and the process alone, so `plan`, `check` and `train`
//! take the same off the same budget.

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::operator::{Product, Workers};
use tightfit::units::Bytes;

use crate::kernels::{packing_bytes, panel_bytes};
use crate::memory::base::base;

/// The parts of a budget that are not the slab's; none of a machine that is not this process's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// What the process takes before slab and packing: code, stacks, tables of graph and plan.
    pub base: Bytes,
    /// Most bytes that the matrix product packs at once.
    pub packing: Bytes,
}

impl Reserve {
    /// All of it.
    pub fn total(self) -> Bytes {
        self.base + self.packing
    }

    /// The budget that is a share of a peak: the base, which no plan makes smaller, and that share
    /// of peak and packing together.
    pub fn with_share(self, share: f64, peak: Bytes) -> Bytes {
        self.base + Bytes(((peak + self.packing).0 as f64 * share) as u64)
    }
}

/// What executing the step on a machine takes beside the slab.
pub fn reserve(graph: &Graph, machine: &Machine) -> Reserve {
    if !machine.runtime.rules().packs {
        return Reserve::default();
    }
    Reserve { base: base(graph, machine.threads), packing: packing(graph, machine.threads) }
}

/// Most bytes that the calls of a graph make the matrix product hold: what one call packs, and the
/// panels that threads keep from one product to the next.
fn packing(graph: &Graph, threads: u32) -> Bytes {
    let threads = u64::from(threads);
    let packed = |product: Product| {
        let Product { m, n, k, workers } = product;
        match workers {
            Workers::Together => packing_bytes(m, n, k, threads),
            Workers::Alone => Bytes(packing_bytes(m, n, k, 1).0.saturating_mul(threads)),
        }
    };
    let products = graph.nodes().keys().flat_map(|node| match graph.nodes()[node].operator {
        Some(operator) => (operator.row().cost.packing)(&graph.call(node)),
        None => Vec::new(),
    });
    let at_once = products.map(packed).max().unwrap_or(Bytes::ZERO);
    if at_once == Bytes::ZERO {
        return at_once;
    }
    Bytes(at_once.0.saturating_add(panel_bytes().0 * threads).min(Bytes::LIMIT.0))
}
