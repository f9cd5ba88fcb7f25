//! Statistics of modules, from a graph and the costs of its nodes. Invariant: all figures of one
//! module's backward pass are of one moment, its peak, so that they add up to the bytes held there;
//! a module is the set of its nodes, however often and in however many pieces it runs.
//!
//! Source of the figures: PyTorch, `torch/distributed/_tools/mem_tracker.py` and `ilp_utils.py`.
//! `doc/theory/modules.md` defines them and lists departures.

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::analysis::modules::parameters::{forward_reads, owned};
use crate::analysis::modules::tradeoff::{groups, tradeoff};
use crate::analysis::modules::{
    Groups, ModuleIndex, ModuleInfo, ModuleInfoError, ModuleOrders, ModuleStats, ModuleTree,
};
use crate::analysis::passes::is_update;
use crate::analysis::{Dataflow, dataflow, liveness};
use crate::graph::{Graph, Phase};
use crate::id::NodeId;
use crate::profile::Profile;
use crate::units::Bytes;

/// Bytes over the unplanned step, by position in the program.
struct Curves {
    /// What the forward pass made, during and after each node.
    activations: Vec<Bytes>,
    activations_behind: Vec<Bytes>,
    /// Gradients that outlive the backward pass.
    gradients: Vec<Bytes>,
    /// Everything else that the backward pass makes, and workspace.
    temporaries: Vec<Bytes>,
}

/// When a module runs, in positions of the program.
#[derive(Clone, Debug, Default)]
struct Runs {
    forward: Vec<NodeId>,
    last_forward: Option<usize>,
    first_backward: Option<usize>,
    last_backward: Option<usize>,
    /// The backward node at which the most bytes are held.
    peak: Option<usize>,
}

/// The modules of a graph: their statistics, and the nodes that these cover.
#[derive(Clone, Debug)]
pub struct MeasuredModules {
    /// The statistics.
    pub info: ModuleInfo,
    /// The nodes of each module's forward pass, in program order.
    pub forward: PrimaryMap<ModuleIndex, Vec<NodeId>>,
    /// The operators from which the tradeoff curve of each module is made; none for a leaf.
    pub groups: PrimaryMap<ModuleIndex, Groups>,
}

/// Statistics of every module that is called, under a root named as the graph. A module that only
/// holds others, such as a list of layers, has no passes of its own; its children are attached to
/// the nearest module above that is called.
pub fn measure(graph: &Graph, profile: &Profile) -> Result<ModuleInfo, ModuleInfoError> {
    Ok(measure_with_nodes(graph, profile)?.info)
}

/// The same with the nodes of each module.
pub fn measure_with_nodes(
    graph: &Graph,
    profile: &Profile,
) -> Result<MeasuredModules, ModuleInfoError> {
    let flow = dataflow(graph, profile);
    let program = graph.compute_nodes();
    let tree = &flow.tree;
    let curves = curves(graph, profile, &flow, &program);
    let runs = runs(graph, &flow, &program);
    let root = match graph.name().replace('.', "_") {
        name if name.is_empty() => "model".to_string(),
        name => name,
    };
    let mut holds_called: SecondaryMap<ModuleIndex, bool> = SecondaryMap::new();
    for (module, _) in tree.branches().iter().filter(|(_, branch)| branch.is_called) {
        tree.lineage(module).skip(1).for_each(|above| holds_called[above] = true);
    }
    let mut stats: PrimaryMap<ModuleIndex, ModuleStats> =
        PrimaryMap::with_capacity(tree.branches().len());
    let mut operators: PrimaryMap<ModuleIndex, Groups> = PrimaryMap::new();
    for (module, branch) in tree.branches() {
        let runs = &runs[module];
        let peak = |curve: &[Bytes]| runs.peak.map_or(Bytes::ZERO, |peak| curve[peak]);
        let checkpointed = (branch.is_called && holds_called[module])
            .then(|| groups(graph, profile, &flow, module, &runs.forward))
            .flatten();
        let checkpointed = checkpointed
            .map(|groups| (tradeoff(&groups), groups))
            .filter(|(tradeoff, _)| tradeoff.bytes > Bytes::ZERO);
        let behind = runs.last_forward.map_or(Bytes::ZERO, |last| curves.activations_behind[last]);
        let name =
            if branch.path.is_empty() { root.clone() } else { format!("{root}.{}", branch.path) };
        stats.push(ModuleStats {
            name,
            total_gradients: peak(&curves.gradients),
            forward_activations: flow.modules[module].alone.fwd_mem_tmp,
            backward_activations: peak(&curves.activations),
            activation_gradients: peak(&curves.temporaries),
            total_activations: behind.max(peak(&curves.activations)),
            forward: flow.modules[module].work.forward,
            backward: flow.modules[module].work.backward,
            is_leaf: checkpointed.is_none(),
            ..ModuleStats::default()
        });
        let mut groups = Groups::default();
        if let Some((tradeoff, of_curve)) = checkpointed {
            let stats = &mut stats[module];
            stats.checkpointing_seconds = tradeoff.seconds;
            stats.checkpointing_bytes = tradeoff.bytes;
            stats.tradeoff = tradeoff.curve;
            groups = of_curve;
        }
        operators.push(groups);
    }
    borders(graph, &flow, &mut stats);
    let orders = orders(tree, &runs, &stats);
    let is_called = |module: ModuleIndex| tree.branches()[module].is_called;
    let called = stats.into_iter().filter(|&(module, _)| is_called(module));
    let info = ModuleInfo::new(called.map(|(_, stats)| stats).collect(), &orders)?;
    // Statistics have the same order: that in which forward passes begin.
    let called = operators.into_iter().filter(|&(module, _)| is_called(module));
    let (forward, groups): (Vec<_>, Vec<_>) =
        called.map(|(module, groups)| (runs[module].forward.clone(), groups)).unzip();
    Ok(MeasuredModules {
        info,
        forward: forward.into_iter().collect(),
        groups: groups.into_iter().collect(),
    })
}

fn curves(graph: &Graph, profile: &Profile, flow: &Dataflow, program: &[NodeId]) -> Curves {
    let unplanned = profile.clone().without_reuse();
    // Bytes born and freed at each position, for each of the three kinds.
    let mut changes = vec![[(Bytes::ZERO, Bytes::ZERO); 3]; program.len()];
    for interval in liveness(graph, &unplanned, &program.into()).intervals.values() {
        let (Some(born), storage) = (interval.born, interval.storage) else { continue };
        let kept = graph.is_kept(storage);
        let kind = match flow.phases[program[born as usize]] {
            Phase::Backward if kept || flow.readers[storage].optimizer => 1,
            Phase::Backward => 2,
            Phase::Optimizer => continue,
            _ => 0,
        };
        changes[born as usize][kind].0 += graph.storages()[storage];
        if !kept {
            changes[interval.dies as usize][kind].1 += graph.storages()[storage];
        }
    }
    let mut now = [Bytes::ZERO; 3];
    let mut curves = Curves {
        activations: vec![],
        activations_behind: vec![],
        gradients: vec![],
        temporaries: vec![],
    };
    for (changes, &id) in changes.iter().zip(program) {
        (0..3).for_each(|kind| now[kind] += changes[kind].0);
        curves.activations.push(now[0]);
        curves.gradients.push(now[1]);
        curves.temporaries.push(now[2] + profile.workspace[id]);
        (0..3).for_each(|kind| now[kind] -= changes[kind].1);
        curves.activations_behind.push(now[0]);
    }
    curves
}

fn runs(graph: &Graph, flow: &Dataflow, program: &[NodeId]) -> SecondaryMap<ModuleIndex, Runs> {
    let mut table: SecondaryMap<ModuleIndex, Runs> =
        SecondaryMap::with_capacity(flow.tree.branches().len());
    for (position, &id) in program.iter().enumerate() {
        for module in flow.tree.lineage(flow.tree.of(graph.nodes()[id].module)) {
            let runs = &mut table[module];
            if flow.phases[id].is_forward() && !is_update(graph, id) {
                runs.forward.push(id);
                runs.last_forward = Some(position);
            } else if flow.phases[id] == Phase::Backward {
                runs.first_backward.get_or_insert(position);
                runs.last_backward = Some(position);
                if runs.peak.is_none_or(|peak| flow.curve.held[peak] < flow.curve.held[position]) {
                    runs.peak = Some(position);
                }
            }
        }
    }
    table
}

/// Fills in parameters, inputs and outputs.
fn borders(graph: &Graph, flow: &Dataflow, stats: &mut PrimaryMap<ModuleIndex, ModuleStats>) {
    let tree = &flow.tree;
    let read = forward_reads(graph, flow);
    for (module, &bytes) in owned(graph, flow, &read).bytes.iter() {
        stats[module].parameters = bytes;
        stats[module].gradients = bytes;
    }

    let made = |storage| flow.made_forward(graph, storage);
    let inputs: Vec<_> = read
        .iter()
        .copied()
        .filter(|&(storage, _)| flow.is_batch(graph, storage) || made(storage).is_some())
        .collect();
    let holds = |module, storage| made(storage).is_some_and(|maker| tree.contains(module, maker));
    tree.across_borders(&inputs, holds, |module, storage| {
        stats[module].input += graph.storages()[storage]
    });

    let mut readers = &read[..];
    for (storage, &bytes) in graph.storages() {
        let (these, others) =
            readers.split_at(readers.partition_point(|&(other, _)| other == storage));
        readers = others;
        let Some(maker) = made(storage) else { continue };
        let leaves = |&module: &ModuleIndex| {
            graph.is_kept(storage)
                || these.iter().any(|&(_, reader)| !tree.contains(module, reader))
        };
        for module in tree.lineage(maker).take_while(leaves) {
            stats[module].output += bytes;
        }
    }
}

fn orders(
    tree: &ModuleTree,
    runs: &SecondaryMap<ModuleIndex, Runs>,
    stats: &PrimaryMap<ModuleIndex, ModuleStats>,
) -> ModuleOrders {
    let depth = |module: ModuleIndex| tree.branches()[module].depth;
    let names = |order: Vec<ModuleIndex>| {
        order.into_iter().map(|module| stats[module].name.clone()).collect()
    };
    let called = tree.branches().iter().filter(|(_, branch)| branch.is_called);
    let pre: Vec<ModuleIndex> = called.map(|(module, _)| module).collect();
    // If nodes of several modules begin or end at once, one contains the other.
    let mut post = pre.clone();
    post.sort_by_key(|&module| (runs[module].last_forward, std::cmp::Reverse(depth(module))));
    let back: Vec<ModuleIndex> =
        pre.iter().copied().filter(|&module| runs[module].last_backward.is_some()).collect();
    let (mut backward_pre, mut backward_post) = (back.clone(), back);
    backward_pre.sort_by_key(|&module| (runs[module].first_backward, depth(module)));
    backward_post
        .sort_by_key(|&module| (runs[module].last_backward, std::cmp::Reverse(depth(module))));
    ModuleOrders {
        forward_pre: names(pre),
        forward_post: names(post),
        backward_pre: names(backward_pre),
        backward_post: names(backward_post),
    }
}
