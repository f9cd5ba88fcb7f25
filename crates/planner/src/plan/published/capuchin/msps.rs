//! What a dropped activation is made again from, and what that costs. Invariant: every node is
//! counted once per recomputation (diamonds are not counted twice), and sources are transitive: no
//! source of a chosen node is chosen.
//!
//! Recompute time = own time + that of the sources that are neither placeholders nor candidates; a
//! candidate that was chosen is no longer a source, its own sources replace it. MSPS = bytes /
//! (recompute time × executions), where a node is executed for itself and once for each chosen node
//! that it is a source of.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;

use crate::analysis::accesses;
use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::NodeId;
use crate::plan::Instance;
use crate::plan::rematerialize::{Retention, may_run_again, mutated_storages};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// The cost of making a candidate again, and its benefit, at some point of the choices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Seconds of one recomputation: its own, and those of its other sources.
    pub recompute_time: Seconds,
    /// The number of times it runs again.
    pub executions: usize,
    /// Seconds of all its executions.
    pub execution_time: Seconds,
    /// Memory saved per second of recomputation, in bytes per second.
    pub msps: f64,
}

/// Sources that are examined in the time of one operation.
const SOURCES_PER_OPERATION: usize = 4;

/// One choice of a rule.
pub(super) struct Chosen {
    pub node: NodeId,
    /// Its figures when it was chosen.
    pub figures: Figures,
    /// How it is dropped.
    pub retention: Retention,
    /// Open candidates whose sources or executions the choice changes, in program order.
    pub changed: Vec<NodeId>,
}

/// A rule that chooses one candidate after another.
pub(super) trait Choosing {
    fn candidates(&self) -> &Candidates<'_>;
    /// The next choice; `None` if the rule has none left, or no time.
    fn choose(&mut self, meter: &mut Meter<'_>) -> Option<Chosen>;
    /// The sequence that results from the choices so far.
    fn runs(&self) -> Vec<NodeId>;
}

/// A forward node whose output is read by forward and backward nodes, in the state after the
/// choices so far.
#[derive(Clone, Debug)]
pub(super) struct CandidateState {
    pub bytes: Bytes,
    /// Candidates that it is made from.
    pub activation_sources: BTreeSet<NodeId>,
    /// Placeholders that it is made from.
    pub parameter_sources: BTreeSet<NodeId>,
    /// Nodes in between, and chosen candidates, all of which run again with it.
    pub other_sources: BTreeSet<NodeId>,
    pub last_forward_access: NodeId,
    pub first_backward_access: NodeId,
    pub chosen: bool,
}

pub(super) struct Candidates<'a> {
    profile: &'a Profile,
    pub table: SecondaryMap<NodeId, Option<CandidateState>>,
    /// All candidates in program order.
    pub open: Vec<NodeId>,
    /// In the order of the choices.
    pub chosen: Vec<NodeId>,
}

impl<'a> Candidates<'a> {
    /// The state before the first choice. If time is up the sources of the later candidates are
    /// missing, so nothing may be chosen any more.
    pub fn new(instance: Instance<'a>, meter: &mut Meter<'_>) -> Candidates<'a> {
        let Instance { graph, profile, order } = instance;
        let is_mutated = mutated_storages(graph);
        let mut table: SecondaryMap<NodeId, Option<CandidateState>> = SecondaryMap::new();
        let accesses = accesses(graph, order);
        let mut open = Vec::new();
        for &node in order.iter().filter(|&&node| may_run_again(graph, &is_mutated, node)) {
            let access = accesses[node];
            if let (Some(last), Some(first)) = (access.last_forward, access.first_backward) {
                let bytes = graph
                    .fresh(node)
                    .iter()
                    .filter(|&&storage| !graph.is_kept(storage))
                    .map(|&storage| graph.storages()[storage])
                    .sum();
                open.push(node);
                table[node] = Some(CandidateState {
                    bytes,
                    activation_sources: BTreeSet::new(),
                    parameter_sources: BTreeSet::new(),
                    other_sources: BTreeSet::new(),
                    last_forward_access: last,
                    first_backward_access: first,
                    chosen: false,
                });
            }
        }
        let mut candidates = Candidates { profile, table, open, chosen: Vec::new() };
        for node in candidates.open.clone() {
            if meter.is_late() {
                break;
            }
            let found = candidates.find_sources(graph, node);
            meter.spend(found as u64);
        }
        candidates
    }

    /// Finds the sources of a candidate, and returns how many nodes it examined.
    fn find_sources(&mut self, graph: &Graph, node: NodeId) -> usize {
        let (mut activations, mut parameters, mut others) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut pending = vec![node];
        while let Some(next) = pending.pop() {
            for producer in graph.reads(next).iter().filter_map(|&storage| graph.producer(storage))
            {
                if graph.nodes()[producer].phase.is_placeholder() {
                    parameters.insert(producer);
                } else if self.table[producer].is_some() {
                    activations.insert(producer);
                } else if others.insert(producer) {
                    pending.push(producer);
                }
            }
        }
        let found = 1 + activations.len() + parameters.len() + others.len();
        let candidate = self.candidate_mut(node);
        candidate.activation_sources = activations;
        candidate.parameter_sources = parameters;
        candidate.other_sources = others;
        found
    }

    pub fn candidate(&self, node: NodeId) -> &CandidateState {
        self.table[node].as_ref().expect("only candidates are asked for")
    }

    fn candidate_mut(&mut self, node: NodeId) -> &mut CandidateState {
        self.table[node].as_mut().expect("only candidates are asked for")
    }

    /// A candidate that was not chosen yet.
    pub fn is_open(&self, node: NodeId) -> bool {
        self.table[node].as_ref().is_some_and(|candidate| !candidate.chosen)
    }

    /// The figures of a candidate after the choices so far.
    pub fn figures(&self, node: NodeId) -> Figures {
        let (recompute_time, executions) = (self.recompute_time(node), self.executions(node));
        Figures {
            recompute_time,
            executions,
            execution_time: Seconds(recompute_time.0 * executions as f64),
            msps: self.bytes_per_second(node, executions),
        }
    }

    /// The number of times it runs in all: once for itself, once for each chosen node that it is a
    /// source of.
    fn executions(&self, node: NodeId) -> usize {
        1 + self
            .chosen
            .iter()
            .filter(|&&chosen| self.candidate(chosen).activation_sources.contains(&node))
            .count()
    }

    /// One recomputation: its own time and that of its other sources, each once.
    fn recompute_time(&self, node: NodeId) -> Seconds {
        let others = self.candidate(node).other_sources.iter();
        self.profile.seconds[node] + others.map(|&source| self.profile.seconds[source]).sum()
    }

    fn bytes_per_second(&self, node: NodeId, executions: usize) -> f64 {
        let seconds = self.recompute_time(node).0 * executions as f64;
        self.candidate(node).bytes.0 as f64 / seconds.max(f64::MIN_POSITIVE)
    }

    /// Sorts nodes by falling MSPS; program order breaks ties.
    pub fn by_msps(&self, nodes: &mut [NodeId], meter: &mut Meter<'_>) {
        let sources = |nodes: &[NodeId], of: fn(&CandidateState) -> &BTreeSet<NodeId>| {
            nodes.iter().map(|&node| 1 + of(self.candidate(node)).len()).sum::<usize>()
        };
        let looked_at = sources(&self.chosen, |chosen| &chosen.activation_sources)
            + sources(nodes, |open| &open.other_sources);
        meter.spend((looked_at / SOURCES_PER_OPERATION) as u64);
        let mut executions: SecondaryMap<NodeId, usize> = SecondaryMap::with_default(1);
        for &source in
            self.chosen.iter().flat_map(|&chosen| &self.candidate(chosen).activation_sources)
        {
            executions[source] += 1;
        }
        let mut msps: SecondaryMap<NodeId, f64> = SecondaryMap::new();
        for &node in nodes.iter() {
            msps[node] = self.bytes_per_second(node, executions[node]);
        }
        nodes.sort_by(|&a, &b| msps[b].total_cmp(&msps[a]).then(a.cmp(&b)));
    }

    /// Chooses a candidate: wherever it was a source, its own sources take its place. Returns the
    /// open candidates whose sources or executions that changes, in program order: those that it
    /// was a source of, and its own sources.
    pub fn choose(&mut self, node: NodeId, meter: &mut Meter<'_>) -> Vec<NodeId> {
        let chosen = self.candidate(node).clone();
        let mut changed = chosen.activation_sources.clone();
        let sources = chosen.activation_sources.len() + chosen.other_sources.len();
        meter.spend((self.open.len() / SOURCES_PER_OPERATION) as u64);
        for &other in &self.open {
            let candidate = self.table[other].as_mut().expect("only candidates are open");
            if candidate.activation_sources.remove(&node) {
                meter.spend(1 + sources as u64);
                candidate.activation_sources.extend(&chosen.activation_sources);
                candidate.parameter_sources.extend(&chosen.parameter_sources);
                candidate.other_sources.extend(&chosen.other_sources);
                candidate.other_sources.insert(node);
                if !candidate.chosen {
                    changed.insert(other);
                }
            }
        }
        self.candidate_mut(node).chosen = true;
        self.chosen.push(node);
        changed.into_iter().collect()
    }
}
