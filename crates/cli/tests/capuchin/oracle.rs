//! Capuchin's arithmetic once more, by plain walks over the graph for every question. Invariant:
//! nothing is kept from one choice to the next except which nodes are chosen.

use std::collections::BTreeSet;

use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::profile::Profile;

/// A step, and the nodes chosen so far.
pub struct Oracle<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    candidates: BTreeSet<NodeId>,
    pub chosen: Vec<NodeId>,
}

/// What a node is computed from.
#[derive(Debug, Default, PartialEq)]
pub struct Sources {
    pub activations: BTreeSet<NodeId>,
    pub parameters: BTreeSet<NodeId>,
    pub others: BTreeSet<NodeId>,
}

impl<'a> Oracle<'a> {
    pub fn new(graph: &'a Graph, profile: &'a Profile) -> Oracle<'a> {
        let nodes = graph.compute_nodes();
        let is_read = |of: NodeId, forward: bool| {
            nodes.iter().any(|&reader| {
                graph.nodes()[reader].phase.is_forward() == forward
                    && graph.reads(reader).iter().any(|read| graph.fresh(of).contains(read))
            })
        };
        let is_overwritten = |of: NodeId| {
            nodes.iter().any(|&writer| {
                graph.mutated(writer).iter().any(|storage| graph.fresh(of).contains(storage))
            })
        };
        let is_candidate = |node: NodeId| {
            let call = &graph.nodes()[node];
            call.phase.is_forward()
                && !call.mutates
                && is_read(node, true)
                && is_read(node, false)
                && !is_overwritten(node)
        };
        let candidates = nodes.iter().copied().filter(|&node| is_candidate(node)).collect();
        Oracle { graph, profile, candidates, chosen: Vec::new() }
    }

    pub fn open(&self) -> BTreeSet<NodeId> {
        self.candidates.iter().copied().filter(|node| !self.chosen.contains(node)).collect()
    }

    pub fn bytes(&self, node: NodeId) -> u64 {
        let storages = self.graph.fresh(node).iter();
        let dropped = storages.filter(|&&storage| !self.graph.is_kept(storage));
        dropped.map(|&storage| self.graph.storages()[storage].0).sum()
    }

    /// From the inputs back to what is available: placeholders, and candidates that are not chosen.
    pub fn sources(&self, node: NodeId) -> Sources {
        let mut sources = Sources::default();
        self.walk(node, &mut sources);
        sources
    }

    fn walk(&self, node: NodeId, sources: &mut Sources) {
        for producer in
            self.graph.reads(node).iter().filter_map(|&storage| self.graph.producer(storage))
        {
            if self.graph.nodes()[producer].phase.is_placeholder() {
                sources.parameters.insert(producer);
            } else if self.candidates.contains(&producer) && !self.chosen.contains(&producer) {
                sources.activations.insert(producer);
            } else if sources.others.insert(producer) {
                self.walk(producer, sources);
            }
        }
    }

    pub fn recompute_seconds(&self, node: NodeId) -> f64 {
        let others: f64 =
            self.sources(node).others.iter().map(|&other| self.profile.seconds[other].0).sum();
        self.profile.seconds[node].0 + others
    }

    /// How often it runs: for itself, and for each chosen node that it is a source of.
    pub fn executions(&self, node: NodeId) -> usize {
        let needs = |&&chosen: &&NodeId| self.sources(chosen).activations.contains(&node);
        1 + self.chosen.iter().filter(needs).count()
    }

    pub fn msps(&self, node: NodeId) -> f64 {
        let seconds = self.recompute_seconds(node) * self.executions(node) as f64;
        self.bytes(node) as f64 / seconds.max(f64::MIN_POSITIVE)
    }
}
