//! The reserve: what the process takes besides the slab. Invariant: the budget is slab plus
//! reserve; the reserve follows from graph, machine and the process alone, so `plan`, `check` and
//! `train` subtract the same from the same budget.

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::operator::{Product, Workers};
use tightfit::units::Bytes;

use crate::kernels::{Packed, packed};
use crate::memory::footprint::base;

/// The parts of a budget that are not the slab's; zero for a machine that is not this process's.
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

    /// The budget for a share of a peak: the base, which no plan makes smaller, plus that share of
    /// peak and packing together.
    pub fn with_share(self, share: f64, peak: Bytes) -> Bytes {
        let shared = ((peak + self.packing).0 as f64 * share) as u64;
        Bytes(self.base.0.saturating_add(shared).min(Bytes::LIMIT.0))
    }
}

/// Bytes that two lanes take: the memory through which the tier is saved and loaded, two stacks,
/// and tables.
const LANES: Bytes = Bytes((1 << 20) + (768 << 10));

/// What executing the step on a machine takes besides the slab.
pub fn reserve(graph: &Graph, machine: &Machine) -> Reserve {
    if !machine.runtime.rules().packs {
        return Reserve::default();
    }
    let has_tier = machine.hierarchy.main_route().is_some();
    let base = base(graph, machine.threads) + if has_tier { LANES } else { Bytes::ZERO };
    Reserve { base, packing: packing(graph, machine.threads) }
}

/// Most bytes that the calls of a graph make the matrix product hold: what one call packs at once,
/// and the threads' panels, which stay from one product to the next.
fn packing(graph: &Graph, threads: u32) -> Bytes {
    let threads = u64::from(threads);
    let products = graph.nodes().keys().flat_map(|node| match graph.nodes()[node].operator {
        Some(operator) => (operator.row().cost.packing)(&graph.call(node)),
        None => Vec::new(),
    });
    let (mut at_once, mut panel) = (0, 0);
    for Product { m, n, k, workers } in products {
        let (alone, together) = match workers {
            Workers::Together => (1, threads),
            Workers::Alone => (threads, 1),
        };
        let product: Packed = packed(m, n, k, together);
        at_once = at_once.max(product.at_once.0.saturating_mul(alone));
        panel = panel.max(product.panel.0);
    }
    Bytes(at_once.saturating_add(panel.saturating_mul(threads)).min(Bytes::LIMIT.0))
}
