//! Where a step may be cut into stages, and where it is cut by default. Invariant: a layer is a run
//! of the forward pass in the order of the program, a whole module if that is fine enough; and
//! stages are runs of layers.
//!
//! The model is taken apart from the outermost module inwards: as long as there are too few parts,
//! or one takes more than half of a stage's share of the time, the part that takes longest is
//! replaced by the modules that it calls. What a module computes itself belongs to the call before
//! it, and calls stay together unless less has to be sent between them than right before and right
//! after. If modules do not suffice, the nodes of one are layers of their own.
//!
//! Writes of the forward pass to buffers, such as running statistics, belong to the layer that
//! makes what is written and reads the buffers, wherever they are in the program: exporters put
//! them at the end.

use std::ops::Range;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Phase};
use crate::id::{NodeId, StageId, StorageId, ValueId};
use crate::pipeline::divide::{Division, Role};
use crate::pipeline::error::PipelineError;
use crate::pipeline::rows::PipelineSchedule;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// A run of the forward pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The call of a module that it begins with; `None` if it begins in the middle of one, or with
    /// the model.
    pub begins: Option<Entry>,
    /// Its nodes, in the order of the program.
    pub nodes: Vec<NodeId>,
    /// The time of its forward pass and of its backward pass.
    pub seconds: Seconds,
    /// Bytes that later layers read of it and of those before it.
    pub leaves: Bytes,
}

/// A call of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The module's path.
    pub module: String,
    /// The number of its earlier calls in the forward pass.
    pub call: usize,
}

/// The same layers, merged so that each one begins with the call of a module and can be named; the
/// others belong to those before them.
pub fn at_modules(layers: Vec<Layer>) -> Vec<Layer> {
    let mut whole: Vec<Layer> = Vec::new();
    for layer in layers {
        match whole.last_mut() {
            Some(last) if layer.begins.is_none() => {
                last.nodes.extend(layer.nodes);
                last.seconds = last.seconds + layer.seconds;
                last.leaves = layer.leaves;
            }
            _ => whole.push(layer),
        }
    }
    whole
}

/// The forward pass, in the order of the program, without the nodes that write to buffers.
pub(super) fn forward(graph: &Graph) -> Vec<NodeId> {
    let nodes = graph.nodes();
    let is_placed = |&id: &NodeId| nodes[id].phase.is_forward() && !writes_what_stays(graph, id);
    nodes.keys().filter(is_placed).collect()
}

/// The forward pass as layers, at least one for each stage.
///
/// # Errors
/// [`PipelineError::TooManyStages`] if the forward pass has fewer nodes.
pub fn layers(
    graph: &Graph,
    profile: &Profile,
    stages: usize,
) -> Result<Vec<Layer>, PipelineError> {
    layers_beginning_with(graph, profile, stages, &[])
}

/// The forward pass as layers fine enough for the order with the most stages, if it has that many
/// nodes; so each order is cut as it would be among all of them, whichever is requested. Layers
/// begin at each of these nodes, too, which are nodes of the forward pass in its order.
///
/// # Errors
/// [`PipelineError::TooManyStages`] if the forward pass has fewer nodes than there are ranks.
pub fn layers_for_all_orders(
    graph: &Graph,
    profile: &Profile,
    ranks: u32,
    begins: &[NodeId],
) -> Result<Vec<Layer>, PipelineError> {
    let chunks = PipelineSchedule::with_equal_sums().map(PipelineSchedule::chunks).max();
    let layers =
        |chunks| layers_beginning_with(graph, profile, ranks as usize * chunks as usize, begins);
    layers(chunks.unwrap_or(1)).or_else(|_| layers(1))
}

/// The same, with layers beginning at each of these nodes, which are nodes of the forward pass in
/// its order.
///
/// # Errors
/// [`PipelineError::TooManyStages`] if the forward pass has fewer nodes.
pub fn layers_beginning_with(
    graph: &Graph,
    profile: &Profile,
    stages: usize,
    begins: &[NodeId],
) -> Result<Vec<Layer>, PipelineError> {
    let forward = forward(graph);
    if forward.len() < stages {
        return Err(PipelineError::TooManyStages { stages, layers: forward.len() });
    }
    let seconds = seconds(graph, profile);
    let whole =
        |part: &Part| -> f64 { forward[part.nodes.clone()].iter().map(|&id| seconds[id].0).sum() };
    let crossing = crossing(graph, &forward);
    let places = (0..forward.len()).filter(|&at| at == 0 || begins.contains(&forward[at]));
    let places: Vec<usize> = places.chain([forward.len()]).collect();
    let between = places.windows(2).map(|ends| Part { nodes: ends[0]..ends[1], depth: Some(0) });
    let mut parts: Vec<Part> = between.collect();
    let all: f64 = parts.iter().map(whole).sum();
    let coarse = all / (2 * stages.max(1)) as f64;
    loop {
        let is_enough = parts.len() >= stages;
        let open = parts.iter().enumerate().filter(|(_, part)| part.depth.is_some());
        let longest = open.map(|(index, part)| (whole(part), index));
        let longest = longest.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        match longest {
            Some((time, index)) if !is_enough || time > coarse => {
                let inner = parts[index].calls(graph, &forward, &crossing);
                parts.splice(index..=index, inner);
            }
            Some(_) | None if is_enough => break,
            _ => {
                // No module is left: take the longest part apart node by node.
                let several = parts.iter().enumerate().filter(|(_, part)| part.nodes.len() > 1);
                let longest = several.map(|(index, part)| (whole(part), index));
                let longest = longest.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
                let Some((_, index)) = longest else { break };
                let single = |at| Part { nodes: at..at + 1, depth: None };
                let inner: Vec<Part> = parts[index].nodes.clone().map(single).collect();
                parts.splice(index..=index, inner);
            }
        }
    }
    let layer = |part: &Part| Layer {
        begins: entry(graph, &forward, part.nodes.start),
        nodes: forward[part.nodes.clone()].to_vec(),
        seconds: Seconds(whole(part)),
        leaves: crossing[part.nodes.end],
    };
    let mut layers: Vec<Layer> = parts.iter().map(layer).collect();
    for (write, layer) in layers_of_writes(graph, &layers) {
        layers[layer].nodes.push(write);
        layers[layer].seconds = layers[layer].seconds + seconds[write];
    }
    layers.iter_mut().for_each(|layer| layer.nodes.sort());
    Ok(layers)
}

/// Whether a node writes to a persistent storage.
fn writes_what_stays(graph: &Graph, id: NodeId) -> bool {
    graph.mutated(id).iter().any(|&storage| graph.is_persistent(storage))
}

/// The layer of each forward node that is in none so far, in the order of the program: the first
/// one after which everything is made that the node reads, and everything is read that it
/// overwrites.
fn layers_of_writes(graph: &Graph, layers: &[Layer]) -> Vec<(NodeId, usize)> {
    let mut own: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
    for (index, layer) in layers.iter().enumerate() {
        layer.nodes.iter().for_each(|&node| own[node] = Some(index));
    }
    // The layer that made a storage, or the last one that reads a persistent storage.
    let mut reached: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    let mut found = Vec::new();
    for (id, _) in graph.nodes().iter().filter(|(_, node)| node.phase.is_forward()) {
        let reads = graph.reads(id);
        let layer = own[id].unwrap_or_else(|| {
            let layer = reads.iter().map(|&storage| reached[storage]).max().unwrap_or(0);
            found.push((id, layer));
            layer
        });
        let stay = reads.iter().filter(|&&storage| graph.is_persistent(storage));
        for &storage in graph.fresh(id).iter().chain(graph.mutated(id)).chain(stay) {
            reached[storage] = reached[storage].max(layer);
        }
    }
    found
}

/// A run of forward nodes, by their places; `depth` is the number of components that the paths of
/// their modules share, if it can be taken apart.
#[derive(Clone, Debug)]
struct Part {
    nodes: Range<usize>,
    depth: Option<usize>,
}

impl Part {
    /// The calls that it is made of, or itself if there are none.
    fn calls(&self, graph: &Graph, forward: &[NodeId], crossing: &[Bytes]) -> Vec<Part> {
        let path = |at: usize| graph.module_of(forward[at]);
        let mut depth = self.depth.unwrap_or(0);
        loop {
            let component = |at: usize| path(at).split('.').nth(depth).filter(|c| !c.is_empty());
            if self.nodes.clone().all(|at| component(at).is_none()) {
                return vec![Part { nodes: self.nodes.clone(), depth: None }];
            }
            let mut parts: Vec<(Option<&str>, Part)> = Vec::new();
            for at in self.nodes.clone() {
                let own = component(at);
                match parts.last_mut() {
                    Some((last, part)) if own.is_none() || last.is_none() || *last == own => {
                        part.nodes.end = at + 1;
                        *last = last.or(own);
                    }
                    Some((last, part)) if !is_least(crossing, at) => {
                        part.nodes.end = at + 1;
                        *last = own;
                    }
                    _ => parts.push((own, Part { nodes: at..at + 1, depth: Some(depth + 1) })),
                }
            }
            if parts.len() > 1 {
                return parts.into_iter().map(|(_, part)| part).collect();
            }
            depth += 1;
        }
    }
}

/// The outermost module whose call begins at a place of the forward pass.
fn entry(graph: &Graph, forward: &[NodeId], at: usize) -> Option<Entry> {
    let path = |at: usize| graph.module_of(forward[at]);
    let before = path(at.checked_sub(1)?);
    let is_new = |module: &&str| is_within(path(at), module) && !is_within(before, module);
    let called = graph.modules().values().map(String::as_str).filter(|module| !module.is_empty());
    let module = called.filter(is_new).min_by_key(|module| module.len())?;
    let is_begun = |&at: &usize| {
        let is_in = |at: usize| is_within(path(at), module);
        is_in(at) && at.checked_sub(1).is_none_or(|before| !is_in(before))
    };
    let call = (0..at).filter(is_begun).count();
    Some(Entry { module: module.to_string(), call })
}

/// Whether a module is another one, or lies in it.
pub fn is_within(module: &str, other: &str) -> bool {
    module.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether no less crosses right before this place and right after it.
fn is_least(crossing: &[Bytes], at: usize) -> bool {
    let inner = 1..crossing.len() - 1;
    let differs = |&other: &usize| crossing[other] != crossing[at];
    let before = inner.clone().take_while(|&other| other < at).filter(differs).last();
    let behind = inner.skip_while(|&other| other <= at).find(differs);
    before.into_iter().chain(behind).all(|other| crossing[other] > crossing[at])
}

/// The time of each forward node plus that of the backward nodes that differentiate it.
fn seconds(graph: &Graph, profile: &Profile) -> SecondaryMap<NodeId, Seconds> {
    let mut seconds: SecondaryMap<NodeId, Seconds> = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        let of = if node.phase.is_forward() { Some(id) } else { node.differentiates };
        if let Some(of) = of
            && graph.runs(id)
        {
            seconds[of] = seconds[of] + profile.seconds[id];
        }
    }
    seconds
}

/// Bytes made before each place of the forward pass and read there or after it by the forward pass.
fn crossing(graph: &Graph, forward: &[NodeId]) -> Vec<Bytes> {
    let mut made: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
    let mut last: SecondaryMap<StorageId, usize> = SecondaryMap::new();
    for (at, &id) in forward.iter().enumerate() {
        graph.fresh(id).iter().for_each(|&storage| made[storage] = Some(at));
        graph.reads(id).iter().for_each(|&storage| last[storage] = at);
    }
    // Bytes that begin to cross at a place, less those that no longer do.
    let mut change = vec![0i128; forward.len() + 2];
    for (storage, &bytes) in graph.storages() {
        let Some(first) = made[storage].filter(|&first| first < last[storage]) else { continue };
        change[first + 1] += i128::from(bytes.0);
        change[last[storage] + 1] -= i128::from(bytes.0);
    }
    let mut held = 0;
    let sums = change[..=forward.len()].iter().map(|change| {
        held += change;
        Bytes(u64::try_from(held).unwrap_or(0))
    });
    sums.collect()
}

/// Cuts layers into stages so that the slowest stage takes as little time as possible, and, among
/// such cuts, with the least to send: returns the stage of each forward node.
///
/// # Errors
/// [`PipelineError::TooManyStages`] if there are fewer layers.
pub fn cut_evenly(
    layers: &[Layer],
    stages: usize,
) -> Result<SecondaryMap<NodeId, StageId>, PipelineError> {
    let count = layers.len();
    if stages == 0 || count < stages {
        return Err(PipelineError::TooManyStages { stages, layers: count });
    }
    let mut until = vec![0.0];
    for layer in layers {
        until.push(until[until.len() - 1] + layer.seconds.0);
    }
    // First the least time of the slowest, then the least to send if none is slower.
    let longest = best_cuts(count, stages, f64::max, &|from, to| Some(until[to] - until[from]));
    let longest = longest.map_or(f64::INFINITY, |(longest, _)| longest);
    let sent = |from: usize, to: usize| {
        let over = from.checked_sub(1).map_or(0.0, |last| layers[last].leaves.0 as f64);
        (until[to] - until[from] <= longest).then_some(over)
    };
    let Some((_, cuts)) = best_cuts(count, stages, |a, b| a + b, &sent) else {
        return Err(PipelineError::TooManyStages { stages, layers: count });
    };
    Ok(assign(layers, &cuts[1..]))
}

/// The stage of each forward node, for stages that end after these layers.
pub fn assign(layers: &[Layer], ends: &[usize]) -> SecondaryMap<NodeId, StageId> {
    let mut of_forward = SecondaryMap::with_default(StageId::from_u32(0));
    for (index, layer) in layers.iter().enumerate() {
        let stage = ends.partition_point(|&end| end <= index);
        for &node in &layer.nodes {
            of_forward[node] = StageId::from_u32(stage as u32);
        }
    }
    of_forward
}

/// Divides layers into runs, none of them empty, so that their costs, put together, are least:
/// returns that, and where runs begin and end.
pub(super) fn best_cuts(
    layers: usize,
    runs: usize,
    join: fn(f64, f64) -> f64,
    cost: &dyn Fn(usize, usize) -> Option<f64>,
) -> Option<(f64, Vec<usize>)> {
    // For each number of runs over the first layers: their cost, and where the last one begins.
    let mut best: Vec<Vec<Option<(f64, usize)>>> = vec![vec![None; layers + 1]; runs + 1];
    best[0][0] = Some((0.0, 0));
    for run in 1..=runs {
        for end in run..=layers - (runs - run) {
            for begin in run - 1..end {
                let Some((before, _)) = best[run - 1][begin] else { continue };
                let Some(own) = cost(begin, end) else { continue };
                let all = join(before, own);
                if best[run][end].is_none_or(|(least, _)| all < least) {
                    best[run][end] = Some((all, begin));
                }
            }
        }
    }
    let (least, _) = best[runs][layers]?;
    let mut cuts = vec![layers];
    for run in (1..=runs).rev() {
        cuts.push(best[run][cuts[cuts.len() - 1]]?.1);
    }
    cuts.reverse();
    Some((least, cuts))
}

/// The stage of each forward node of another graph of the same model, such as the one for
/// evaluation: nodes follow the parameters and buffers that they read, or else their inputs.
pub fn follow(division: &Division<'_>, graph: &Graph) -> SecondaryMap<NodeId, StageId> {
    let owners = owners(division);
    let first = StageId::from_u32(0);
    let mut stage_of: SecondaryMap<ValueId, StageId> = SecondaryMap::with_default(first);
    let mut of_forward = SecondaryMap::with_default(first);
    for (id, node) in graph.nodes() {
        let least = node.inputs.iter().map(|&input| stage_of[input]).max().unwrap_or(first);
        let mut stage = least;
        for &input in &node.inputs {
            let producer = &graph.nodes()[graph.values()[input].producer];
            let name = producer.parameter.as_deref().filter(|_| producer.phase.is_persistent());
            let own = owners.iter().filter(|(owned, _)| Some(owned.as_str()) == name);
            // Of several stages that share it, the first that is not before any of its inputs.
            let next = own.map(|&(_, stage)| stage).filter(|&stage| stage >= least).min();
            stage = stage.max(next.unwrap_or(least));
        }
        of_forward[id] = stage;
        node.outputs.iter().flatten().for_each(|&output| stage_of[output] = stage);
    }
    of_forward
}

/// Persistent storages, each with every stage whose passes read it.
fn owners(division: &Division<'_>) -> Vec<(String, StageId)> {
    let graph = division.graph;
    let mut placeholder: SecondaryMap<StorageId, Option<NodeId>> = SecondaryMap::new();
    for (id, storage) in graph.placeholder_storages() {
        if matches!(graph.nodes()[id].phase, Phase::Parameter | Phase::Buffer) {
            placeholder[storage] = Some(id);
        }
    }
    let mut owners = Vec::new();
    for id in graph.nodes().keys() {
        let Role::Pass(stage, _) = division.roles[id] else { continue };
        for &storage in graph.reads(id) {
            let name = placeholder[storage].and_then(|id| graph.nodes()[id].parameter.clone());
            owners.extend(name.map(|name| (name, stage)));
        }
    }
    owners.sort();
    owners.dedup();
    owners
}
