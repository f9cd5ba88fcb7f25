//! The dataflow analysis on whole steps: the seven graphs, the steps of the corpus, random ones.
//! Invariant: the oracle states the definitions of `doc/theory/dataflow.md` set by set and shares
//! no code with the analysis.
//!
//! Tier: quick with a part of the cases, less than a second; full with all of them.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tightfit::analysis::modules::ModuleTree;
use tightfit::analysis::{Dataflow, Figures, dataflow};
use tightfit::graph::{Graph, Phase};
use tightfit::id::{NodeId, StorageId};
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Flops};

use crate::fixtures::corpus::{GRAPHS, profile, step};
use crate::fixtures::oracle::passes::{below, phases};
use crate::fixtures::{corpus, generator};

/// One storage: its bytes, the node that makes it, the nodes that read it; nodes by index.
struct Storage {
    bytes: u64,
    maker: Option<usize>,
    readers: BTreeSet<usize>,
    stays: bool,
}

/// The figures of a set of nodes, with the storages of the three figures of saved bytes.
pub struct Alone {
    pub figures: Figures,
    pub saved_in: Vec<StorageId>,
    pub saved_tmp: Vec<StorageId>,
    pub saved_out: Vec<StorageId>,
}

/// The step as sets.
pub struct Oracle<'a> {
    graph: &'a Graph,
    phases: Vec<Phase>,
    paths: Vec<&'a str>,
    storages: Vec<Storage>,
}

impl<'a> Oracle<'a> {
    pub fn new(graph: &'a Graph) -> Oracle<'a> {
        let of = |value: &tightfit::id::ValueId| graph.values()[*value].storage;
        let mut storages: Vec<Storage> = graph
            .storages()
            .values()
            .map(|bytes| Storage {
                bytes: bytes.0,
                maker: None,
                readers: BTreeSet::new(),
                stays: false,
            })
            .collect();
        for (index, node) in graph.nodes().values().enumerate() {
            let read: BTreeSet<_> = node.inputs.iter().map(of).collect();
            let touched: Vec<_> = node.outputs.iter().flatten().map(of).collect();
            let is_view = !node.mutates
                && !touched.is_empty()
                && touched.iter().all(|storage| read.contains(storage));
            for storage in touched {
                let storage = &mut storages[storage.as_u32() as usize];
                storage.maker.get_or_insert(index);
                storage.stays |=
                    matches!(node.phase, Phase::Parameter | Phase::Buffer | Phase::State);
            }
            if !is_view {
                for storage in read {
                    storages[storage.as_u32() as usize].readers.insert(index);
                }
            }
        }
        graph.outputs().iter().for_each(|value| storages[of(value).as_u32() as usize].stays = true);
        let nodes = graph.nodes();
        let paths = nodes.values().map(|node| graph.modules()[node.module].as_str()).collect();
        Oracle { graph, phases: phases(graph), paths, storages }
    }

    fn any(&self, storage: &Storage, is: impl Fn(usize) -> bool) -> bool {
        storage.readers.iter().any(|&reader| is(reader))
    }

    /// The figures of a module as if it were the graph.
    fn alone(&self, module: &str, profile: &Profile) -> Figures {
        self.of(&|node: usize| below(self.paths[node], module), profile).figures
    }

    /// The figures of any set of nodes as if it were the graph, with their storages.
    pub fn of(&self, inside: &dyn Fn(usize) -> bool, profile: &Profile) -> Alone {
        let forward = |node: usize| matches!(self.phases[node], Phase::Forward | Phase::Loss);
        let backward = |node: usize| self.phases[node] == Phase::Backward;
        let mut figures = Figures::default();
        let (mut saved_in, mut saved_tmp, mut saved_out) = (vec![], vec![], vec![]);
        for (index, node) in
            self.graph.nodes().values().enumerate().filter(|&(index, _)| inside(index))
        {
            let is_view = self.graph.is_view(NodeId::from_u32(index as u32));
            match self.phases[index] {
                Phase::Forward | Phase::Loss if !is_view => figures.fwd_flop.0 += node.flops.0,
                Phase::Backward if !is_view => figures.bwd_flop.0 += node.flops.0,
                _ => {}
            }
        }
        // From first to last position: held only by the backward pass of this module.
        let mut temporary: Vec<(usize, usize, u64)> = Vec::new();
        for (place, storage) in self.storages.iter().enumerate() {
            let Some(maker) = storage.maker else { continue };
            let loss = self.phases[maker] == Phase::Loss
                || self.any(storage, |reader| self.phases[reader] == Phase::Loss);
            if self.phases[maker] == Phase::Input || forward(maker) {
                if forward(maker) && inside(maker) {
                    let handed_on = storage.stays
                        || loss
                        || self
                            .any(storage, |reader| !inside(reader) && !later(self.phases[reader]));
                    if self.any(storage, backward) {
                        let (sum, list) = match handed_on {
                            true => (&mut figures.fwd_mem_out, &mut saved_out),
                            false => (&mut figures.fwd_mem_tmp, &mut saved_tmp),
                        };
                        *sum += Bytes(storage.bytes);
                        list.push(StorageId::from_u32(place as u32));
                    }
                } else if !loss && self.any(storage, |reader| backward(reader) && inside(reader)) {
                    figures.fwd_mem_in += Bytes(storage.bytes);
                    saved_in.push(StorageId::from_u32(place as u32));
                }
            }
            if backward(maker) && inside(maker) {
                if storage.stays
                    || self.any(storage, |reader| {
                        !inside(reader) || self.phases[reader] == Phase::Optimizer
                    })
                {
                    figures.bwd_mem_out += Bytes(storage.bytes);
                } else {
                    let last = storage.readers.iter().next_back().copied().unwrap_or(maker);
                    temporary.push((maker, last, storage.bytes));
                }
            }
        }
        for node in (0..self.phases.len()).filter(|&node| inside(node) && backward(node)) {
            let id = NodeId::from_u32(node as u32);
            if self.graph.is_view(id) {
                continue;
            }
            let held: u64 = temporary
                .iter()
                .filter(|&&(first, last, _)| first <= node && node <= last)
                .map(|&(.., bytes)| bytes)
                .sum();
            figures.bwd_mem_tmp = figures.bwd_mem_tmp.max(Bytes(held) + profile.workspace[id]);
        }
        Alone { figures, saved_in, saved_tmp, saved_out }
    }
}

/// Phases after the forward pass.
fn later(phase: Phase) -> bool {
    matches!(phase, Phase::Backward | Phase::Optimizer)
}

/// Laws that hold for every step.
fn laws(graph: &Graph, profile: &Profile, name: &str) -> Dataflow {
    let flow = dataflow(graph, profile);
    let unplanned = tightfit::unplanned(graph, profile).unwrap();
    assert_eq!(flow.curve.peak, unplanned.timeline().peak, "{name}: what the checker says");

    let mut nodes = Figures::default();
    graph.nodes().keys().for_each(|node| nodes += flow.nodes[node]);
    assert_eq!(nodes, flow.graph, "{name}: nodes add up to the graph");
    let mut own = Figures::default();
    for module in graph.modules().keys() {
        for (id, _) in graph.nodes().iter().filter(|(_, node)| node.module == module) {
            own += flow.nodes[id];
        }
    }
    assert_eq!(own, flow.graph, "{name}: modules add up to the graph");
    let root = flow.modules[flow.tree.root()];
    assert_eq!((root.share, root.alone), (flow.graph, flow.graph), "{name}: the root is the graph");

    for (module, branch) in flow.tree.branches() {
        let path = &branch.path;
        let (share, alone) = (flow.modules[module].share, flow.modules[module].alone);
        assert_eq!(
            (share.fwd_flop, share.bwd_flop),
            (alone.fwd_flop, alone.bwd_flop),
            "{name} {path}"
        );
        assert_eq!(
            share.fwd_mem_tmp + share.fwd_mem_out,
            alone.fwd_mem_tmp + alone.fwd_mem_out,
            "{name} {path}: what is saved"
        );
        assert!(
            share.fwd_mem_tmp >= alone.fwd_mem_tmp,
            "{name} {path}: a wider border keeps more within"
        );
        assert!(
            share.bwd_mem_out <= alone.bwd_mem_out && share.bwd_mem_tmp >= alone.bwd_mem_tmp,
            "{name} {path}"
        );
    }
    flow
}

fn agrees_with_the_oracle(graph: &Graph, profile: &Profile, flow: &Dataflow, name: &str) {
    let oracle = Oracle::new(graph);
    for (module, branch) in flow.tree.branches() {
        assert_eq!(
            flow.modules[module].alone,
            oracle.alone(&branch.path, profile),
            "{name} `{}`",
            branch.path
        );
    }
}

#[test]
fn laws_hold_on_the_corpus() {
    for name in GRAPHS {
        let graph = corpus::graph(name);
        laws(&graph, &profile(&graph), name);
    }
}

#[test]
fn modules_equal_the_sets_of_their_definition() {
    for name in ["gpt-nano", "gpt-nano-dropout", "mlp-digits"] {
        let graph = step(name);
        let flow = laws(&graph, &profile(&graph), name);
        agrees_with_the_oracle(&graph, &profile(&graph), &flow, name);
    }
    // Modules that run three times each, and updates of buffers after the backward pass.
    let graph = corpus::graph("resnet50_b32");
    let flow = dataflow(&graph, &profile(&graph));
    agrees_with_the_oracle(&graph, &profile(&graph), &flow, "resnet50_b32");
}

proptest! {
    #![proptest_config(tightfit_testing::config(400))]

    #[test]
    fn random_steps_equal_the_sets_of_their_definition(recipe in generator::recipes(24)) {
        let graph = recipe.graph();
        for profile in generator::profiles(&graph) {
            let flow = laws(&graph, &profile, "random");
            agrees_with_the_oracle(&graph, &profile, &flow, "random");
        }
    }
}

#[test]
fn the_whole_model_saves_what_the_step_needs() {
    // gpt-nano: the loss makes log-probabilities and a weight, which only the loss's own backward
    // pass reads.
    let graph = step("gpt-nano");
    let flow = dataflow(&graph, &profile(&graph));
    assert_eq!(flow.graph.fwd_mem_out, Bytes(256 * 256 * 4 + 4));
    assert!(flow.graph.fwd_flop > Flops(0) && flow.graph.bwd_flop > flow.graph.fwd_flop);
}

/// A graph whose nodes are in the given modules, one after another, forward unless marked.
fn of_modules(paths: &[(&str, Phase)]) -> Graph {
    use tightfit::graph::{GraphBuilder, NodeSpec, ValueSpec};
    use tightfit::tensor::DType;
    let mut builder = GraphBuilder::new("modules");
    for (index, &(path, phase)) in paths.iter().enumerate() {
        let mut spec = NodeSpec::new(
            format!("n{index}"),
            if phase.is_placeholder() { "placeholder" } else { "op" },
            phase,
        );
        spec.module = builder.module(path);
        let storage = builder.storage(Bytes(4));
        builder.node(spec, &[Some(ValueSpec::contiguous(&[4], DType::U8, storage))]);
    }
    builder.build().unwrap()
}

#[test]
fn the_tree_stands_in_forward_order_and_knows_components() {
    let graph = of_modules(&[
        ("layers.10", Phase::Parameter),
        ("head", Phase::Backward),
        ("unused.inner", Phase::Parameter),
        ("layers.1.norm", Phase::Forward),
        ("layers.10.norm", Phase::Forward),
        ("layers.1", Phase::Forward),
        ("embed..table.", Phase::Forward),
    ]);
    let tree = ModuleTree::new(&graph);
    let paths: Vec<&str> = tree.branches().values().map(|branch| branch.path.as_str()).collect();
    let expected = [
        "",
        "layers",
        "layers.1",
        "layers.1.norm",
        "layers.10",
        "layers.10.norm",
        "embed",
        "embed.table",
        "head",
    ];
    assert_eq!(paths, [&expected[..], &["unused", "unused.inner"]].concat());
    let find =
        |path: &str| tree.branches().iter().find(|(_, branch)| branch.path == path).unwrap().0;
    for (upper, branch) in tree.branches() {
        for (lower, other) in tree.branches() {
            assert_eq!(
                tree.contains(upper, lower),
                below(&other.path, &branch.path),
                "`{}` `{}`",
                branch.path,
                other.path
            );
        }
    }
    assert!(
        !tree.contains(find("layers.1"), find("layers.10"))
            && !tree.contains(find("layers.1"), find("layers.10.norm"))
    );
    assert_eq!(tree.lineage(find("layers.1.norm")).count(), 4);
}

#[test]
fn names_without_end_make_no_tree_without_end() {
    let path = vec!["deep"; 100_000].join(".");
    let graph = of_modules(&[(path.as_str(), Phase::Forward), ("", Phase::Backward)]);
    let flow = dataflow(&graph, &profile(&graph));
    assert_eq!(flow.tree.branches().len(), 65, "64 components and the root");
}
