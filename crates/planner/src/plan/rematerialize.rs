//! From a set of dropped nodes to a sequence of runs. Invariant: the sequence is closed over its
//! inputs, and a node runs again only while every version that it reads is still there.
//!
//! A dropped node runs again just before its first backward access. Its inputs are read where they
//! lie or, if they were dropped too, made again first; nodes made again for one access run in
//! program order.

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{NodeId, StorageId};

/// What happens to the outputs of a node between forward and backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// They are held.
    #[default]
    Save,
    /// They are dropped after the last forward access, and held from the first time that they are
    /// made again.
    Recompute,
    /// Like `Recompute`, but when made again as the source of another tensor they are dropped at
    /// once, and made again at their own access.
    RecomputeEachUse,
    /// They are held even if no backward node reads them, so that recomputations find them.
    Checkpoint,
}

/// The decision for each forward node; absent ones are saved.
pub type Retentions = SecondaryMap<NodeId, Retention>;

/// The sequence that `order` becomes. Forward nodes that no backward node reads are transparent:
/// they are made again for each node that needs them, and are never held.
pub fn rematerialize(graph: &Graph, order: &[NodeId], retentions: &Retentions) -> Vec<NodeId> {
    Readers::new(graph, order).rematerialize(graph, order, retentions)
}

/// Whether a node may ever run again: it does not mutate, and no storage that it makes is written
/// in place later.
///
/// Random nodes may: the executor of the plan replays their seeds, and the engine refuses a random
/// node without one.
pub(super) fn may_run_again(
    graph: &Graph,
    is_mutated: &SecondaryMap<StorageId, bool>,
    node: NodeId,
) -> bool {
    let call = &graph.nodes()[node];
    !call.mutates
        && graph.runs(node)
        && call.phase.is_forward()
        && graph.fresh(node).iter().all(|&storage| !is_mutated[storage])
}

/// The number of times each storage has been written in place, at some point of a sequence.
#[derive(Default)]
pub(super) struct Versions {
    written: SecondaryMap<StorageId, u32>,
}

impl Versions {
    /// Moves on to just after a run.
    pub fn advance(&mut self, graph: &Graph, node: NodeId) {
        for &storage in graph.mutated(node) {
            self.written[storage] += 1;
        }
    }

    /// Whether a node that ran before may run again here: every version that it reads is still
    /// current, and nothing that it makes has been written in place.
    pub fn allow(&self, graph: &Graph, node: NodeId) -> bool {
        let call = &graph.nodes()[node];
        let current =
            |value| self.written[graph.values()[value].storage] == graph.values()[value].version;
        let untouched = |storage| self.written[storage] == 0;
        let repeatable = graph.runs(node) && call.phase.is_forward() && !call.mutates;
        repeatable
            && call.inputs.iter().all(|&input| current(input))
            && graph.fresh(node).iter().all(|&storage| untouched(storage))
    }
}

/// Storages that some node writes in place.
pub(super) fn mutated_storages(graph: &Graph) -> SecondaryMap<StorageId, bool> {
    let mut mutated = SecondaryMap::new();
    for node in graph.compute_nodes() {
        for &storage in graph.mutated(node) {
            mutated[storage] = true;
        }
    }
    mutated
}

/// `runs` with the node that makes a storage once more, before the run at a position; `None` if it
/// may not run there, or if the storage exists from the start.
pub fn once_more(
    graph: &Graph,
    runs: &[NodeId],
    storage: StorageId,
    before: usize,
) -> Option<Vec<NodeId>> {
    let node = graph.producer(storage).filter(|&node| graph.runs(node))?;
    let mut more = runs.to_vec();
    more.insert(before, node);
    let is_first = !runs[..before].contains(&node);
    (!is_first && legal(graph, &more) == more).then_some(more)
}

/// `runs` without the repeated runs that are not allowed (something that they read or make has been
/// written in place since) and without those whose results are not read. First runs stay, so
/// readers of a run that is left out find the earlier copy: any sequence in which first runs come
/// in a legal order becomes a legal one.
pub(super) fn legal(graph: &Graph, runs: &[NodeId]) -> Vec<NodeId> {
    let mut ran: SecondaryMap<NodeId, bool> = SecondaryMap::new();
    let mut versions = Versions::default();
    let mut legal: Vec<(NodeId, bool)> = Vec::with_capacity(runs.len());
    for &node in runs {
        let repeated = ran[node];
        if !repeated || versions.allow(graph, node) {
            ran[node] = true;
            versions.advance(graph, node);
            legal.push((node, repeated));
        }
    }
    let mut wanted: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    legal.reverse();
    legal.retain(|&(node, repeated)| {
        // A kept storage stays from its first run, and serves all reads.
        let made =
            || graph.fresh(node).iter().filter(|&&storage| !(repeated && graph.is_kept(storage)));
        if repeated && !made().any(|&storage| wanted[storage]) {
            return false;
        }
        for &storage in made() {
            wanted[storage] = false;
        }
        for &storage in graph.reads(node) {
            wanted[storage] = true;
        }
        true
    });
    legal.into_iter().rev().map(|(node, _)| node).collect()
}

/// Facts of the graph and its order that the pass needs repeatedly, whatever is recomputed.
pub(super) struct Readers {
    is_forward: SecondaryMap<NodeId, bool>,
    position: SecondaryMap<NodeId, u32>,
    read_by_backward: SecondaryMap<NodeId, bool>,
    again: SecondaryMap<NodeId, bool>,
}

impl Readers {
    pub fn new(graph: &Graph, order: &[NodeId]) -> Readers {
        let is_mutated = mutated_storages(graph);
        let mut table = Readers {
            is_forward: SecondaryMap::new(),
            position: SecondaryMap::new(),
            read_by_backward: SecondaryMap::new(),
            again: SecondaryMap::new(),
        };
        for (position, &node) in order.iter().enumerate() {
            table.position[node] = position as u32;
            table.is_forward[node] = graph.nodes()[node].phase.is_forward();
            table.again[node] = may_run_again(graph, &is_mutated, node);
            if !graph.nodes()[node].phase.is_forward() {
                for producer in
                    graph.reads(node).iter().filter_map(|&storage| graph.producer(storage))
                {
                    table.read_by_backward[producer] = true;
                }
            }
        }
        table
    }

    /// Whether a backward node reads what a node makes.
    pub fn is_read_by_backward(&self, node: NodeId) -> bool {
        self.read_by_backward[node]
    }

    /// [`rematerialize`], for one set of decisions after another.
    pub fn rematerialize(
        &self,
        graph: &Graph,
        order: &[NodeId],
        retentions: &Retentions,
    ) -> Vec<NodeId> {
        let mut state = Rematerialization {
            graph,
            retentions,
            table: self,
            made: SecondaryMap::with_default(Made::Never),
            written: SecondaryMap::new(),
            access: 0,
        };
        let mut runs = Vec::with_capacity(order.len() + order.len() / 4);
        let mut again = Vec::new();
        for (position, &node) in order.iter().enumerate() {
            if !self.is_forward[node] {
                state.access = position as u32 + 1;
                for &storage in graph.reads(node) {
                    state.make(storage, &mut again);
                }
                again.sort_by_key(|&node| self.position[node]);
                runs.append(&mut again);
            }
            for &storage in graph.mutated(node) {
                state.written[storage] = true;
            }
            runs.push(node);
        }
        runs
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Made {
    Never,
    /// Made again and held from then on.
    Held,
    /// Made again as a source for one access, whose number is given.
    For(u32),
}

struct Rematerialization<'a> {
    graph: &'a Graph,
    retentions: &'a Retentions,
    table: &'a Readers,
    made: SecondaryMap<NodeId, Made>,
    written: SecondaryMap<StorageId, bool>,
    access: u32,
}

impl Rematerialization<'_> {
    /// Makes sure that `wanted` exists for the current access, which the backward node itself
    /// reads.
    fn make(&mut self, wanted: StorageId, again: &mut Vec<NodeId>) {
        let Some(node) = self.must_run_again(wanted, true) else { return };
        again.push(node);
        let mut missing: Vec<(StorageId, bool)> =
            self.graph.reads(node).iter().map(|&read| (read, false)).collect();
        while let Some((storage, wanted)) = missing.pop() {
            if let Some(node) = self.must_run_again(storage, wanted) {
                missing.extend(self.graph.reads(node).iter().map(|&read| (read, false)));
                again.push(node);
            }
        }
    }

    /// The node that must run again for `storage` to exist now, if any.
    fn must_run_again(&mut self, storage: StorageId, wanted: bool) -> Option<NodeId> {
        let node = self.graph.producer(storage)?;
        let retention = match self.retentions[node] {
            Retention::Save if !self.table.read_by_backward[node] => Retention::RecomputeEachUse,
            retention => retention,
        };
        // A kept storage lives to the end, whatever is decided about its siblings.
        let stays = matches!(retention, Retention::Save | Retention::Checkpoint);
        if stays || !self.table.again[node] || self.graph.is_kept(storage) {
            return None;
        }
        let held = wanted || retention == Retention::Recompute;
        match self.made[node] {
            Made::Held => return None,
            Made::For(access) if access == self.access => {
                if held {
                    self.made[node] = Made::Held;
                }
                return None;
            }
            _ => {}
        }
        // Too late: a version that it reads is gone, so the existing copy is held instead.
        if self.graph.reads(node).iter().any(|&read| self.written[read]) {
            return None;
        }
        self.made[node] = if held { Made::Held } else { Made::For(self.access) };
        Some(node)
    }
}
