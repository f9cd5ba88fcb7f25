//! What the layers of a graph cost. Invariant: times are the profile's; bytes are those of
//! storages, each counted in the layer that makes it.

use cranelift_entity::SecondaryMap;

use crate::graph::Graph;
use crate::id::{NodeId, StageId, StorageId};
use crate::pipeline::action::Pass;
use crate::pipeline::divide::{Division, Role};
use crate::pipeline::error::PipelineError;
use crate::pipeline::layers::Layer;
use crate::pipeline::stages::LayerCost;
use crate::profile::Profile;
use crate::units::Bytes;

/// The costs of layers; each element of a parameter holds `state` bytes, its gradient and the
/// optimizer's state included, or what the graph has if that is not given.
///
/// # Errors
/// [`PipelineError`] if the graph cannot be divided.
pub fn layer_costs(
    graph: &Graph,
    profile: &Profile,
    layers: &[Layer],
    state: Option<f64>,
) -> Result<Vec<LayerCost>, PipelineError> {
    let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    for (index, layer) in layers.iter().enumerate() {
        layer.nodes.iter().for_each(|&id| of_forward[id] = StageId::from_u32(index as u32));
    }
    let division = Division::new(graph, &of_forward)?;
    let times = division.costs(profile);
    let mut costs: Vec<LayerCost> = (0..layers.len() as u32)
        .map(|index| {
            let time = &times[StageId::from_u32(index)];
            LayerCost {
                forward: time.forward,
                input_gradient: time.input_gradient,
                weight_gradient: time.weight_gradient,
                ..LayerCost::default()
            }
        })
        .collect();
    activations(&division, &mut costs);
    held(&division, state, &mut costs);
    Ok(costs)
}

/// The layer and the pass of a node.
fn place(division: &Division<'_>, id: NodeId) -> Option<(usize, Pass)> {
    match division.roles[id] {
        Role::Pass(stage, pass) => Some((stage.as_u32() as usize, pass)),
        Role::Nothing | Role::Anywhere | Role::Update => None,
    }
}

/// Bytes that forward passes leave, and bytes that calls need while they run.
fn activations(division: &Division<'_>, costs: &mut [LayerCost]) {
    let graph = division.graph;
    let mut made: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
    for id in graph.nodes().keys() {
        let Some((layer, pass)) = place(division, id) else { continue };
        if pass == Pass::Forward {
            graph.fresh(id).iter().for_each(|&storage| made[storage] = Some(layer));
        }
    }
    // Whether backward passes read a storage, and the last layer in which other passes do.
    let mut is_saved: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    let mut last: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    for id in graph.nodes().keys() {
        let Some((layer, pass)) = place(division, id) else { continue };
        let mut needed = Bytes::ZERO;
        for &storage in graph.reads(id) {
            let Some(maker) = made[storage] else {
                if !graph.is_persistent(storage) {
                    needed += graph.storages()[storage];
                }
                continue;
            };
            is_saved[storage] |= pass != Pass::Forward;
            if layer > maker {
                last[storage] = last[storage].max(layer);
            }
        }
        needed += graph.fresh(id).iter().map(|&storage| graph.storages()[storage]).sum();
        costs[layer].transient = costs[layer].transient.max(needed);
    }
    for (storage, &bytes) in graph.storages() {
        let Some(maker) = made[storage] else { continue };
        if is_saved[storage] {
            costs[maker].activations += bytes;
        }
        if last[storage] > maker {
            if is_saved[storage] {
                costs[maker].boundary += bytes;
            }
            costs[maker + 1..=last[storage]].iter_mut().for_each(|cost| cost.entering += bytes);
        }
    }
}

/// Bytes that stay on the rank of a layer.
fn held(division: &Division<'_>, state: Option<f64>, costs: &mut [LayerCost]) {
    let graph = division.graph;
    let mut elements: SecondaryMap<StorageId, u64> = SecondaryMap::new();
    for (id, storage) in graph.placeholder_storages() {
        let outputs = graph.nodes()[id].outputs.iter().flatten();
        elements[storage] = outputs.map(|&value| graph.values()[value].tensor.elements()).sum();
    }
    let mut seen: Vec<SecondaryMap<StorageId, bool>> = vec![SecondaryMap::new(); costs.len()];
    let mut of_parameter: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
    for id in graph.nodes().keys() {
        let Some((layer, _)) = place(division, id) else { continue };
        for &storage in graph.reads(id).iter().filter(|&&storage| graph.is_persistent(storage)) {
            of_parameter[storage] = of_parameter[storage].or(Some(layer));
            if std::mem::replace(&mut seen[layer][storage], true) {
                continue;
            }
            costs[layer].held += match state {
                Some(state) => Bytes((elements[storage] as f64 * state) as u64),
                None => graph.storages()[storage],
            };
        }
    }
    if state.is_some() {
        return;
    }
    // Sums of gradients count where they are made; optimizer state counts with its parameter.
    for &value in &division.summed {
        let producer = graph.values()[division.root(value)].producer;
        if let Some((layer, _)) = place(division, producer) {
            costs[layer].held += graph.values()[value].tensor.bytes();
        }
    }
    for id in graph.nodes().keys().filter(|&id| division.roles[id] == Role::Update) {
        let reads = graph.reads(id);
        let layer = reads.iter().find_map(|&storage| of_parameter[storage]);
        let Some(layer) = layer else { continue };
        for &storage in reads.iter().filter(|&&storage| graph.is_persistent(storage)) {
            if of_parameter[storage].is_none() {
                of_parameter[storage] = Some(layer);
                costs[layer].held += graph.storages()[storage];
            }
        }
    }
}
