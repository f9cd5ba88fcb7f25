//! Capuchin's profile: when each activation is accessed, and what is active around each node of the
//! unplanned step. Invariant: ranks are positions in the unplanned program; a node without forward
//! users has no last forward access.
//!
//! Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS
//! 2020, section 4.

use cranelift_entity::SecondaryMap;

use crate::analysis::MemoryCurve;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// One node's row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccessProfile {
    /// Position among the nodes that run.
    pub rank: u32,
    /// Run time.
    pub seconds: Seconds,
    /// Bytes held while it runs.
    pub active: Bytes,
    /// The bytes held exceed the budget here; without a budget: they equal the peak.
    pub in_peak_interval: bool,
    /// First forward node that reads one of its outputs.
    pub first_forward_access: Option<NodeId>,
    /// Last forward node that reads one of its outputs.
    pub last_forward_access: Option<NodeId>,
    /// First backward node that reads one of its outputs.
    pub first_backward_access: Option<NodeId>,
    /// Last backward (or optimizer) node that reads one of its outputs.
    pub last_backward_access: Option<NodeId>,
}

/// The first and the last to read one of a node's outputs, by pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accesses {
    /// First forward node.
    pub first_forward: Option<NodeId>,
    /// Last forward node.
    pub last_forward: Option<NodeId>,
    /// First backward node.
    pub first_backward: Option<NodeId>,
    /// Last backward (or optimizer) node.
    pub last_backward: Option<NodeId>,
}

/// Who reads each node's outputs in `order`. Reads through views count as reads.
pub fn accesses(graph: &Graph, order: &[NodeId]) -> SecondaryMap<NodeId, Accesses> {
    let mut table: SecondaryMap<NodeId, Accesses> = SecondaryMap::new();
    for &node in order {
        for producer in graph.reads(node).iter().filter_map(|&storage| graph.producer(storage)) {
            let row = &mut table[producer];
            if graph.nodes()[node].phase.is_forward() {
                row.first_forward.get_or_insert(node);
                row.last_forward = Some(node);
            } else {
                row.first_backward.get_or_insert(node);
                row.last_backward = Some(node);
            }
        }
    }
    table
}

/// The table over `order`, the unplanned sequence, with its curve.
pub fn access_profile(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    curve: &MemoryCurve,
    budget: Option<Bytes>,
) -> SecondaryMap<NodeId, AccessProfile> {
    let mut table: SecondaryMap<NodeId, AccessProfile> = SecondaryMap::new();
    for (node, row) in accesses(graph, order).iter() {
        table[node].first_forward_access = row.first_forward;
        table[node].last_forward_access = row.last_forward;
        table[node].first_backward_access = row.first_backward;
        table[node].last_backward_access = row.last_backward;
    }
    for (rank, &node) in order.iter().enumerate() {
        let over =
            budget.map_or(curve.held[rank] == curve.peak, |budget| curve.held[rank] > budget);
        table[node].rank = rank as u32;
        table[node].seconds = profile.seconds[node];
        table[node].active = curve.held[rank];
        table[node].in_peak_interval = over;
    }
    table
}
