//! The figures of each operator of the forward pass with the backward nodes that differentiate it.
//! Invariant: every node belongs to one operator at most, so shares of operators and figures of the
//! nodes that belong to none add up to the graph's.
//!
//! `doc/theory/dataflow.md` states the rules; an operator is judged by the same rules as a module.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::analysis::{Dataflow, Figures};
use crate::graph::{Graph, Phase};
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// An operator of the forward pass or of the loss, with its backward nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// The forward node.
    pub node: NodeId,
    /// The nodes that, according to the graph, differentiate it, in program order.
    pub backward: Vec<NodeId>,
    /// Seconds of its nodes in the forward pass.
    pub fwd_seconds: Seconds,
    /// Seconds of its nodes in the backward pass.
    pub bwd_seconds: Seconds,
    /// Its part of the graph's figures: the sum over its nodes.
    pub share: Figures,
    /// Its figures as if it were a graph: what comes in, stays within and leaves is counted at its
    /// own border.
    pub alone: Figures,
    /// The storages of `fwd_mem_in` in `alone`: saved for its backward nodes, and made outside.
    pub fwd_in: Vec<StorageId>,
    /// The storages of `fwd_mem_tmp` in `alone`: saved, made here, and read by no other forward
    /// node.
    pub fwd_tmp: Vec<StorageId>,
    /// The storages of `fwd_mem_out` in `alone`: saved, made here, and handed on.
    pub fwd_out: Vec<StorageId>,
}

/// The operator that a node belongs to, by its forward node.
type Membership = SecondaryMap<NodeId, Option<NodeId>>;

/// The operator whose nodes use a storage in some way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Users {
    #[default]
    None,
    /// Nodes of one operator.
    One(NodeId),
    /// Nodes of several operators, or of none.
    Others,
}

impl Users {
    fn add(&mut self, operator: Option<NodeId>) {
        *self = match (*self, operator) {
            (Users::None, Some(operator)) => Users::One(operator),
            (Users::One(before), Some(operator)) if before == operator => *self,
            _ => Users::Others,
        };
    }

    fn are_within(self, operator: NodeId) -> bool {
        self == Users::None || self == Users::One(operator)
    }
}

/// The operators that read a storage, and the node that makes or reads it last.
#[derive(Clone, Copy, Debug, Default)]
struct Readers {
    forward: Users,
    all: Users,
    last: Option<NodeId>,
}

/// The data by which all operators are judged.
struct Judge<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    flow: &'a Dataflow,
    member: Membership,
    readers: SecondaryMap<StorageId, Readers>,
}

/// Every forward and loss node, with the nodes that differentiate it, in program order. Backward
/// nodes for which the graph does not say what they differentiate belong to no operator.
pub fn operators(graph: &Graph, profile: &Profile, flow: &Dataflow) -> Vec<Operator> {
    let mut member: Membership = SecondaryMap::with_capacity(graph.nodes().len());
    let mut nodes: SecondaryMap<NodeId, Vec<NodeId>> = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        member[id] = if node.phase.is_forward() { Some(id) } else { node.differentiates };
        if let Some(head) = member[id] {
            nodes[head].push(id);
        }
    }
    let readers = readers(graph, flow, &member);
    let judge = Judge { graph, profile, flow, member, readers };
    let heads = graph.nodes().iter().filter(|(_, node)| node.phase.is_forward());
    heads.map(|(head, _)| judge.operator(head, &nodes[head])).collect()
}

fn readers(
    graph: &Graph,
    flow: &Dataflow,
    member: &Membership,
) -> SecondaryMap<StorageId, Readers> {
    let mut table: SecondaryMap<StorageId, Readers> =
        SecondaryMap::with_capacity(graph.storages().len());
    for node in graph.nodes().keys().filter(|&node| graph.runs(node)) {
        for &storage in graph.fresh(node) {
            table[storage].last = Some(node);
        }
        for &storage in graph.reads(node) {
            let readers = &mut table[storage];
            readers.last = Some(node);
            readers.all.add(member[node]);
            if flow.pass(node).is_forward() {
                readers.forward.add(member[node]);
            }
        }
    }
    table
}

impl Judge<'_> {
    fn operator(&self, head: NodeId, nodes: &[NodeId]) -> Operator {
        let mut share = Figures::default();
        let (mut fwd_seconds, mut bwd_seconds) = (Seconds(0.0), Seconds(0.0));
        for &node in nodes {
            share += self.flow.nodes[node];
            let seconds = match self.flow.pass(node) {
                Phase::Backward => &mut bwd_seconds,
                _ => &mut fwd_seconds,
            };
            *seconds = *seconds + self.profile.seconds[node];
        }
        let fwd_in = self.saved_outside(head, nodes);
        let (fwd_tmp, fwd_out) = self.saved_here(head, nodes);
        let (bwd_mem_tmp, bwd_mem_out) = self.gradients(head, nodes);
        let alone = Figures {
            fwd_flop: share.fwd_flop,
            bwd_flop: share.bwd_flop,
            fwd_mem_in: self.bytes(&fwd_in),
            fwd_mem_tmp: self.bytes(&fwd_tmp),
            fwd_mem_out: self.bytes(&fwd_out),
            bwd_mem_tmp,
            bwd_mem_out,
        };
        let backward = nodes.iter().copied().filter(|&node| node != head).collect();
        Operator {
            node: head,
            backward,
            fwd_seconds,
            bwd_seconds,
            share,
            alone,
            fwd_in,
            fwd_tmp,
            fwd_out,
        }
    }

    fn bytes(&self, storages: &[StorageId]) -> Bytes {
        storages.iter().map(|&storage| self.graph.storages()[storage]).sum()
    }

    /// What its backward nodes read that is made outside by the forward pass, or comes with the
    /// batch.
    fn saved_outside(&self, head: NodeId, nodes: &[NodeId]) -> Vec<StorageId> {
        let runs =
            |&node: &NodeId| self.graph.runs(node) && self.flow.pass(node) == Phase::Backward;
        let reads = nodes.iter().copied().filter(runs).flat_map(|node| self.graph.reads(node));
        let is_charged = |&storage: &StorageId| {
            let is_saved = |maker: NodeId| {
                let pass = self.flow.pass(maker);
                (pass == Phase::Input || pass.is_forward()) && self.member[maker] != Some(head)
            };
            !self.flow.readers[storage].loss && self.graph.producer(storage).is_some_and(is_saved)
        };
        let mut storages: Vec<StorageId> = reads.copied().filter(is_charged).collect();
        storages.sort_unstable();
        storages.dedup();
        storages
    }

    /// What its forward pass makes and the backward pass reads: first what stays within it, then
    /// what is handed on.
    fn saved_here(&self, head: NodeId, nodes: &[NodeId]) -> (Vec<StorageId>, Vec<StorageId>) {
        let forward = nodes.iter().copied().filter(|&node| self.flow.pass(node).is_forward());
        forward.flat_map(|node| self.flow.saved_by(self.graph, node)).partition(|&storage| {
            !self.graph.is_kept(storage)
                && !self.flow.readers[storage].loss
                && self.readers[storage].forward.are_within(head)
        })
    }

    /// What its nodes make in the backward pass: the most bytes of temporaries held at once,
    /// workspace included, and all that is handed on.
    fn gradients(&self, head: NodeId, nodes: &[NodeId]) -> (Bytes, Bytes) {
        let (mut live, mut peak, mut out) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        // By the node after which they are freed, which belongs to the operator too.
        let mut dying: BTreeMap<NodeId, Bytes> = BTreeMap::new();
        for &node in nodes.iter().filter(|&&node| self.graph.runs(node)) {
            if self.flow.pass(node) == Phase::Backward {
                for &storage in self.graph.fresh(node) {
                    let (bytes, readers) = (self.graph.storages()[storage], &self.readers[storage]);
                    let stays = !self.graph.is_kept(storage)
                        && !self.flow.readers[storage].optimizer
                        && readers.all.are_within(head);
                    if stays {
                        live += bytes;
                        *dying.entry(readers.last.unwrap_or(node)).or_default() += bytes;
                    } else {
                        out += bytes;
                    }
                }
                peak = peak.max(live + self.profile.workspace[node]);
            }
            live -= dying.remove(&node).unwrap_or_default();
        }
        (peak, out)
    }
}
