//! Capuchin's profile: how long each node runs, when its outputs are held, and which nodes access
//! them. Invariant: ranks are positions in the unplanned program; a node without forward users has
//! no last forward access.
//!
//! Source: Peng et al., "Capuchin: Tensor-based GPU Memory Management for Deep Learning", ASPLOS
//! 2020, section 4.

use cranelift_entity::SecondaryMap;

use crate::analysis::{MemoryCurve, liveness, passes};
use crate::graph::{Graph, Phase};
use crate::id::NodeId;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// One node's row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AccessProfile {
    /// Position among the nodes that run; none for placeholders and views.
    pub rank: Option<u32>,
    /// Run time.
    pub seconds: Seconds,
    /// Bytes of the storages that it makes, or brings as a placeholder.
    pub output: Bytes,
    /// The time over which these are held; `None` if there are none.
    pub life: Option<Life>,
    /// Bytes held while it runs.
    pub active: Bytes,
    /// The bytes held exceed the budget here; without a budget: they equal the peak.
    pub in_peak_interval: bool,
    /// First node of the forward pass that reads one of its outputs.
    pub first_forward_access: Option<NodeId>,
    /// Last node of the forward pass that reads one of its outputs.
    pub last_forward_access: Option<NodeId>,
    /// First node after the forward pass that reads one of its outputs.
    pub first_backward_access: Option<NodeId>,
    /// Last node after the forward pass that reads one of its outputs.
    pub last_backward_access: Option<NodeId>,
    /// From the end of the last access in the forward pass, its own run included, to the start of
    /// the first one after it; `None` if one of the two is missing.
    pub idle: Option<Seconds>,
    /// Seconds to move its outputs to the tier below and back; `None` if no lanes lead there.
    pub swap: Option<Seconds>,
}

/// The rows of all nodes.
pub type AccessTable = SecondaryMap<NodeId, AccessProfile>;

/// The time over which the outputs of a node are held, in ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The run that makes them; `None` for placeholders, which exist before the first one.
    pub birth: Option<u32>,
    /// The run that uses any of them for the last time; the last run of the step for outputs that
    /// outlive it.
    pub death: u32,
}

/// The first and the last node that read one of a node's outputs, by pass.
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

/// The readers of each node's outputs in `order`, by phase. Reads through views count as reads.
pub fn accesses(graph: &Graph, order: &[NodeId]) -> SecondaryMap<NodeId, Accesses> {
    readers(graph, order, |node| graph.nodes()[node].phase.is_forward())
}

fn readers(
    graph: &Graph,
    order: &[NodeId],
    is_forward: impl Fn(NodeId) -> bool,
) -> SecondaryMap<NodeId, Accesses> {
    let mut table: SecondaryMap<NodeId, Accesses> = SecondaryMap::new();
    for &node in order {
        for producer in graph.reads(node).iter().filter_map(|&storage| graph.producer(storage)) {
            let row = &mut table[producer];
            if is_forward(node) {
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

/// The table over `order`, the unplanned sequence, with its curve; accesses are assigned to passes
/// by the pass that a node takes part in.
pub fn access_profile(
    graph: &Graph,
    profile: &Profile,
    order: &[NodeId],
    curve: &MemoryCurve,
    budget: Option<Bytes>,
) -> AccessTable {
    let phases = passes(graph, order);
    let mut table: AccessTable = SecondaryMap::new();
    for (node, row) in readers(graph, order, |node| phases[node].is_forward()).iter() {
        table[node].first_forward_access = row.first_forward;
        table[node].last_forward_access = row.last_forward;
        table[node].first_backward_access = row.first_backward;
        table[node].last_backward_access = row.last_backward;
    }
    for (rank, &node) in order.iter().enumerate() {
        let over =
            budget.map_or(curve.held[rank] == curve.peak, |budget| curve.held[rank] > budget);
        table[node].rank = Some(rank as u32);
        table[node].seconds = profile.seconds[node];
        table[node].active = curve.held[rank];
        table[node].in_peak_interval = over;
    }
    lives(graph, profile, order, &mut table);
    idle(graph, &phases, order, &mut table);
    table
}

/// Bytes of outputs, how long they are held, and how long moving them takes.
fn lives(graph: &Graph, profile: &Profile, order: &[NodeId], table: &mut AccessTable) {
    for interval in liveness(graph, profile, &order.into()).intervals.values() {
        let Some(maker) = graph.producer(interval.storage) else { continue };
        let row = &mut table[maker];
        let death = row.life.map_or(interval.dies, |life| life.death.max(interval.dies));
        row.life = Some(Life { birth: interval.born, death });
        row.output += graph.storages()[interval.storage];
    }
    for node in graph.nodes().keys() {
        let row = &mut table[node];
        row.swap = (row.output > Bytes::ZERO).then(|| profile.hierarchy.swap(row.output)).flatten();
    }
}

/// How long outputs wait between the passes.
fn idle(
    graph: &Graph,
    phases: &SecondaryMap<NodeId, Phase>,
    order: &[NodeId],
    table: &mut AccessTable,
) {
    // The end of the last access in the forward pass.
    let mut since: SecondaryMap<NodeId, Option<Seconds>> = SecondaryMap::new();
    let mut now = Seconds(0.0);
    for &node in order {
        let (end, is_forward) = (now + table[node].seconds, phases[node].is_forward());
        for maker in graph.reads(node).iter().filter_map(|&storage| graph.producer(storage)) {
            if is_forward {
                since[maker] = Some(end);
            } else if table[maker].first_backward_access == Some(node) {
                table[maker].idle = since[maker].map(|since| Seconds(now.0 - since.0));
            }
        }
        since[node] = is_forward.then_some(end);
        now = end;
    }
}
