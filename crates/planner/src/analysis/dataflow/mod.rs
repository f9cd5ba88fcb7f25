//! Where the bytes of a step come from: what the backward pass needs of the forward pass, what it
//! holds itself, and what leaves it. For each node, each module and the graph. Invariant: a storage
//! is counted once, however many aliases and readers it has; a module, or an operator with the
//! backward nodes that differentiate it, is judged by the same rules as the whole graph.
//!
//! Source: ColossalAI, `fx/profiler/dataflow.py` (`autograd_graph_analysis`).
//! `doc/theory/dataflow.md` lists departures.

mod operators;

use std::ops::AddAssign;

use cranelift_entity::SecondaryMap;
pub use operators::{Operator, operators};
use serde::Serialize;

use crate::analysis::modules::{ModuleIndex, ModuleTree, Span};
use crate::analysis::{MemoryCurve, held, passes};
use crate::graph::{Graph, Phase};
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::units::{Bytes, Flops, Seconds};

/// Operations and bytes of the forward and the backward pass of a node, of a module or of the
/// graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Operations of the forward pass, with the loss.
    pub fwd_flop: Flops,
    /// Operations of the backward pass.
    pub bwd_flop: Flops,
    /// Bytes saved, and made outside: they stay if this is checkpointed.
    pub fwd_mem_in: Bytes,
    /// Bytes saved, made here, and read by no forward pass outside: what checkpointing frees.
    pub fwd_mem_tmp: Bytes,
    /// Bytes saved, made here, and handed on.
    pub fwd_mem_out: Bytes,
    /// Most bytes held at once of what the backward pass makes and uses up itself, workspace
    /// included.
    pub bwd_mem_tmp: Bytes,
    /// Bytes that the backward pass makes and hands on: gradients.
    pub bwd_mem_out: Bytes,
}

/// Adds up everything except `bwd_mem_tmp`, which is a peak.
impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.fwd_flop = Flops(self.fwd_flop.0.saturating_add(other.fwd_flop.0));
        self.bwd_flop = Flops(self.bwd_flop.0.saturating_add(other.bwd_flop.0));
        self.fwd_mem_in += other.fwd_mem_in;
        self.fwd_mem_tmp += other.fwd_mem_tmp;
        self.fwd_mem_out += other.fwd_mem_out;
        self.bwd_mem_tmp = self.bwd_mem_tmp.max(other.bwd_mem_tmp);
        self.bwd_mem_out += other.bwd_mem_out;
    }
}

/// The nodes of a module that run, and their seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Work {
    /// Nodes that run.
    pub nodes: u32,
    /// Seconds of the forward pass, with the loss.
    pub forward: Seconds,
    /// Seconds of the backward pass.
    pub backward: Seconds,
    /// Seconds of all nodes, including those of the optimizer.
    pub all: Seconds,
}

/// The figures of a module, over its nodes and those of modules below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ModuleFigures {
    /// The nodes that run.
    pub work: Work,
    /// Its part of the graph's figures: the sum over its nodes and those of the modules below it.
    pub share: Figures,
    /// Its figures as if it were a graph: what comes in, stays within and leaves is counted at its
    /// own border.
    pub alone: Figures,
}

/// All figures of a graph.
#[derive(Clone, Debug)]
pub struct Dataflow {
    /// The modules.
    pub tree: ModuleTree,
    /// What each node adds to the graph's figures; for a backward node `bwd_mem_tmp` is the bytes
    /// held while it runs.
    pub nodes: SecondaryMap<NodeId, Figures>,
    /// Those of each module.
    pub modules: SecondaryMap<ModuleIndex, ModuleFigures>,
    /// Those of the whole graph.
    pub graph: Figures,
    /// Bytes held while each node of the unplanned step runs, and their peak.
    pub curve: MemoryCurve,
    pub(super) phases: SecondaryMap<NodeId, Phase>,
    pub(super) readers: SecondaryMap<StorageId, Readers>,
}

/// Readers of a storage; reads through views count as reads of what they show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readers {
    /// Modules of forward nodes and of the loss.
    forward: Option<Span>,
    /// Modules of all nodes.
    all: Option<Span>,
    /// The loss reads it, or makes it.
    loss: bool,
    pub(super) backward: bool,
    pub(super) optimizer: bool,
    /// Position of the last one in the program, or else of the node that makes it.
    last: u32,
    /// The number of times it is written in place.
    pub(super) version: u32,
}

/// Analyzes the step as the graph states it: program order, nothing recomputed.
pub fn dataflow(graph: &Graph, profile: &Profile) -> Dataflow {
    let (program, tree) = (graph.compute_nodes(), ModuleTree::new(graph));
    let phases = passes(graph, &program);
    let readers = readers(graph, &tree, &phases, &program);
    let unplanned = profile.clone().without_reuse();
    let mut flow = Dataflow {
        tree,
        nodes: SecondaryMap::with_capacity(graph.nodes().len()),
        modules: SecondaryMap::new(),
        graph: Figures::default(),
        curve: held(graph, &unplanned, &(&program).into()),
        phases,
        readers,
    };
    flow.operations(graph, profile, &program);
    flow.saved(graph);
    flow.saved_outside(graph, &program);
    flow.gradients(graph, profile, &program);
    for (id, node) in graph.nodes() {
        for module in flow.tree.lineage(flow.tree.of(node.module)) {
            flow.modules[module].share += flow.nodes[id];
        }
    }
    flow.graph = flow.modules[flow.tree.root()].alone;
    flow
}

fn readers(
    graph: &Graph,
    tree: &ModuleTree,
    phases: &SecondaryMap<NodeId, Phase>,
    program: &[NodeId],
) -> SecondaryMap<StorageId, Readers> {
    let mut table: SecondaryMap<StorageId, Readers> =
        SecondaryMap::with_capacity(graph.storages().len());
    for (position, &id) in (0..).zip(program) {
        let module = tree.of(graph.nodes()[id].module);
        for &storage in graph.fresh(id) {
            table[storage].last = position;
            table[storage].loss |= phases[id] == Phase::Loss;
        }
        for &storage in graph.reads(id) {
            let readers = &mut table[storage];
            readers.last = position;
            readers.all = Span::with(readers.all, module);
            match phases[id] {
                Phase::Backward => readers.backward = true,
                Phase::Optimizer => readers.optimizer = true,
                phase => {
                    readers.forward = Span::with(readers.forward, module);
                    readers.loss |= phase == Phase::Loss;
                }
            }
        }
    }
    for value in graph.values().values() {
        table[value.storage].version = table[value.storage].version.max(value.version);
    }
    table
}

impl Dataflow {
    /// The pass that a node takes part in, as a phase: the file's, except for backward nodes that
    /// run in the forward pass.
    pub fn pass(&self, node: NodeId) -> Phase {
        self.phases[node]
    }

    /// Of the storages that a node makes or brings, those that are saved for the backward pass.
    pub fn saved_by<'a>(
        &'a self,
        graph: &'a Graph,
        node: NodeId,
    ) -> impl Iterator<Item = StorageId> + 'a {
        let may = self.phases[node] == Phase::Input || self.phases[node].is_forward();
        let made = graph.fresh(node).iter().copied();
        made.filter(move |&storage| may && self.readers[storage].backward)
    }

    /// Whether a storage that the forward pass of `module` makes stays within it: outside, only its
    /// own backward pass needs it. What the loss holds is not freed by any checkpointing of the
    /// model.
    pub(super) fn stays(&self, graph: &Graph, module: ModuleIndex, storage: StorageId) -> bool {
        let readers = &self.readers[storage];
        !graph.is_kept(storage) && !readers.loss && self.tree.encloses(module, readers.forward)
    }

    /// Storages that some nodes read, with the modules of these nodes: sorted, each pair once.
    pub(super) fn reads(
        &self,
        graph: &Graph,
        nodes: impl Iterator<Item = NodeId>,
    ) -> Vec<(StorageId, ModuleIndex)> {
        let of = |id: NodeId| self.tree.of(graph.nodes()[id].module);
        let mut reads: Vec<_> = nodes
            .flat_map(|id| graph.reads(id).iter().map(move |&storage| (storage, of(id))))
            .collect();
        reads.sort_unstable();
        reads.dedup();
        reads
    }

    /// The module whose forward pass makes a storage.
    pub(super) fn made_forward(&self, graph: &Graph, storage: StorageId) -> Option<ModuleIndex> {
        let maker = graph.producer(storage).filter(|&maker| self.phases[maker].is_forward())?;
        Some(self.tree.of(graph.nodes()[maker].module))
    }

    /// Whether a storage comes with the batch.
    pub(super) fn is_batch(&self, graph: &Graph, storage: StorageId) -> bool {
        graph.producer(storage).is_some_and(|maker| self.phases[maker] == Phase::Input)
    }

    fn operations(&mut self, graph: &Graph, profile: &Profile, program: &[NodeId]) {
        for &id in program {
            let (node, seconds) = (&graph.nodes()[id], profile.seconds[id]);
            let mut figures = Figures::default();
            let (mut forward, mut backward) = (Seconds(0.0), Seconds(0.0));
            match self.phases[id] {
                Phase::Backward => (figures.bwd_flop, backward) = (node.flops, seconds),
                phase if phase.is_forward() => (figures.fwd_flop, forward) = (node.flops, seconds),
                _ => {}
            }
            self.nodes[id] += figures;
            for module in self.tree.lineage(self.tree.of(node.module)) {
                let ModuleFigures { work, alone, .. } = &mut self.modules[module];
                *alone += figures;
                *work = Work {
                    nodes: work.nodes + 1,
                    forward: work.forward + forward,
                    backward: work.backward + backward,
                    all: work.all + seconds,
                };
            }
        }
    }

    /// Storages of the batch and of the forward pass that a backward node reads.
    fn saved(&mut self, graph: &Graph) {
        for (storage, &bytes) in graph.storages() {
            let Some(maker) = graph.producer(storage).filter(|_| self.readers[storage].backward)
            else {
                continue;
            };
            if self.is_batch(graph, storage) && !self.readers[storage].loss {
                self.nodes[maker].fwd_mem_in += bytes;
            }
            let Some(module) = self.made_forward(graph, storage) else { continue };
            let figures = |stays| match stays {
                true => Figures { fwd_mem_tmp: bytes, ..Figures::default() },
                false => Figures { fwd_mem_out: bytes, ..Figures::default() },
            };
            let within = self.stays(graph, self.tree.root(), storage);
            self.nodes[maker] += figures(within);
            let mut above = Some(module);
            while let Some(module) = above {
                let stays = self.stays(graph, module, storage);
                self.modules[module].alone += figures(stays);
                above = self.tree.branches()[module].parent;
            }
        }
    }

    /// What the backward nodes of a module read that was made outside of it.
    fn saved_outside(&mut self, graph: &Graph, program: &[NodeId]) {
        let backward = program.iter().copied().filter(|&id| self.phases[id] == Phase::Backward);
        let mut reads = self.reads(graph, backward);
        reads.retain(|&(storage, _)| {
            !self.readers[storage].loss
                && (self.is_batch(graph, storage) || self.made_forward(graph, storage).is_some())
        });
        let mut charges: Vec<(ModuleIndex, Bytes)> = Vec::new();
        let holds = |module, storage| {
            self.made_forward(graph, storage).is_some_and(|maker| self.tree.contains(module, maker))
        };
        self.tree.across_borders(&reads, holds, |module, storage| {
            charges.push((module, graph.storages()[storage]))
        });
        charges
            .into_iter()
            .for_each(|(module, bytes)| self.modules[module].alone.fwd_mem_in += bytes);
    }

    /// Storages that backward nodes make: handed on, or temporary.
    fn gradients(&mut self, graph: &Graph, profile: &Profile, program: &[NodeId]) {
        let root = self.tree.root();
        let mut live: SecondaryMap<ModuleIndex, Bytes> =
            SecondaryMap::with_capacity(self.tree.branches().len());
        // By the position after which they are freed: the lowest module that they never leave, and
        // bytes.
        let mut dying: Vec<Vec<(ModuleIndex, Bytes)>> = vec![Vec::new(); program.len()];
        for (position, &id) in program.iter().enumerate() {
            let here = self.tree.of(graph.nodes()[id].module);
            if self.phases[id] == Phase::Backward {
                for &storage in graph.fresh(id) {
                    let (bytes, readers) = (graph.storages()[storage], &self.readers[storage]);
                    let hands_on = graph.is_kept(storage) || readers.optimizer;
                    let stays = |&module: &ModuleIndex| {
                        !hands_on && self.tree.encloses(module, readers.all)
                    };
                    let lowest = self.tree.lineage(here).find(stays);
                    for module in
                        self.tree.lineage(here).take_while(|&module| Some(module) != lowest)
                    {
                        self.modules[module].alone.bwd_mem_out += bytes;
                    }
                    let Some(lowest) = lowest else {
                        self.nodes[id].bwd_mem_out += bytes;
                        continue;
                    };
                    self.tree.lineage(lowest).for_each(|module| live[module] += bytes);
                    dying[readers.last as usize].push((lowest, bytes));
                }
                let workspace = profile.workspace[id];
                for module in self.tree.lineage(here) {
                    let figures = &mut self.modules[module].alone;
                    figures.bwd_mem_tmp = figures.bwd_mem_tmp.max(live[module] + workspace);
                }
                self.nodes[id].bwd_mem_tmp = live[root] + workspace;
            }
            for &(lowest, bytes) in &dying[position] {
                self.tree.lineage(lowest).for_each(|module| live[module] -= bytes);
            }
        }
    }
}
