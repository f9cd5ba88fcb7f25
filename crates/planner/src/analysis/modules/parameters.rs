//! Which module parameters belong to. Invariant: a module owns what the graph places in it or below
//! it, and what its forward pass reads, each storage once; so a parameter that two modules share
//! counts for both, and once for a module that contains both.

use cranelift_entity::SecondaryMap;

use crate::analysis::Dataflow;
use crate::analysis::modules::{ModuleIndex, Span};
use crate::analysis::passes::is_update;
use crate::graph::{Graph, Phase};
use crate::id::{NodeId, StorageId};
use crate::units::Bytes;

/// Parameters by module.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Bytes of the parameters of each module, including all modules below it.
    pub bytes: SecondaryMap<ModuleIndex, Bytes>,
    /// The module of each node: as in the graph, except that a parameter or a buffer that it places
    /// in the root belongs to the lowest module that contains all its forward readers.
    pub module: SecondaryMap<NodeId, ModuleIndex>,
}

/// The parameters of a graph by module.
pub fn parameters(graph: &Graph, flow: &Dataflow) -> Parameters {
    owned(graph, flow, &forward_reads(graph, flow))
}

/// What the forward pass reads, with the modules that read it; updates of buffers do not count.
pub(super) fn forward_reads(graph: &Graph, flow: &Dataflow) -> Vec<(StorageId, ModuleIndex)> {
    let is_forward = |&id: &NodeId| flow.phases[id].is_forward() && !is_update(graph, id);
    flow.reads(graph, graph.compute_nodes().into_iter().filter(is_forward))
}

/// [`parameters`], given what the forward pass reads.
pub(super) fn owned(
    graph: &Graph,
    flow: &Dataflow,
    read: &[(StorageId, ModuleIndex)],
) -> Parameters {
    let tree = &flow.tree;
    let stated = |id: NodeId| tree.of(graph.nodes()[id].module);
    let is_parameter = |storage: StorageId| {
        graph.producer(storage).is_some_and(|maker| graph.nodes()[maker].phase == Phase::Parameter)
    };
    let mut owners: Vec<(StorageId, ModuleIndex)> =
        read.iter().copied().filter(|&(storage, _)| is_parameter(storage)).collect();
    let placeholders = graph.placeholder_storages().filter(|&(_, storage)| is_parameter(storage));
    owners.extend(placeholders.map(|(id, storage)| (storage, stated(id))));
    owners.sort_unstable();
    let mut bytes = SecondaryMap::with_capacity(tree.branches().len());
    tree.across_borders(
        &owners,
        |_, _| false,
        |module, storage| bytes[module] += graph.storages()[storage],
    );

    let mut readers: SecondaryMap<StorageId, Option<Span>> =
        SecondaryMap::with_capacity(graph.storages().len());
    for &(storage, module) in read {
        readers[storage] = Span::with(readers[storage], module);
    }
    let mut module = SecondaryMap::with_default(tree.root());
    for (id, node) in graph.nodes() {
        module[id] = stated(id);
        let is_placeless =
            module[id] == tree.root() && matches!(node.phase, Phase::Parameter | Phase::Buffer);
        if is_placeless {
            let spans = graph.fresh(id).iter().filter_map(|&storage| readers[storage]);
            let all = spans.reduce(Span::join);
            module[id] = all.map_or(tree.root(), |span| tree.lowest(span));
        }
    }
    Parameters { bytes, module }
}
