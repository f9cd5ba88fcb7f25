//! The rules of tightfit-graph/1. Invariant: a graph that passes never makes a later pass panic.

mod footprint;
mod history;

use std::collections::{HashMap, HashSet};

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::graph::error::GraphError;
use crate::graph::node::{Node, Phase, Value};
use crate::graph::parts::Parts;
use crate::graph::verify::footprint::fits;
use crate::graph::verify::history::History;
use crate::graph::{Accesses, Graph};
use crate::id::{MicroBatchId, ModuleId, NodeId, StorageId, ValueId};
use crate::operator::Operator;
use crate::units::{Bytes, Seconds};

/// Verifies all rules and derives accesses and versions.
pub(super) fn verify(parts: Parts) -> Result<Graph, GraphError> {
    let Parts {
        name,
        source,
        modules,
        uncalled,
        storages,
        nodes,
        mut values,
        outputs,
        output_names,
        recaptures,
    } = parts;
    if modules.is_empty() {
        return Err(GraphError::NoModules);
    }
    bounded(&storages, &nodes)?;
    unique(&nodes)?;
    called(&modules, uncalled.as_deref().unwrap_or_default(), &nodes)?;
    let mut accesses = SecondaryMap::with_default(Accesses::default());
    let mut history = History::default();
    let mut seconds = Seconds(0.0);
    for (id, node) in &nodes {
        module(node, modules.len())?;
        placeholder(node)?;
        numbers(node, &mut seconds)?;
        links(id, node, &nodes)?;
        history.read(id, node, &nodes, &values)?;
        for (output, value) in produced(node) {
            fits(node, output, &values[value], &storages)?;
        }
        accesses[id] = history.access(id, node, &nodes, &values)?;
        for value in node.outputs.iter().flatten() {
            values[*value].version = history.version(values[*value].storage);
        }
    }
    if let Some(names) = output_names.as_ref().filter(|names| names.len() != outputs.len()) {
        return Err(GraphError::OutputNames { names: names.len(), outputs: outputs.len() });
    }
    recaptures.iter().flatten().try_for_each(|seen| seen.check(&nodes))?;
    let kept = kept(&outputs, &nodes, &values, &history)?;
    Ok(Graph {
        name,
        source,
        modules,
        uncalled,
        storages,
        nodes,
        values,
        outputs,
        output_names,
        recaptures,
        accesses,
        kept,
        producer: history.producer,
        hash: String::new(),
    }
    .with_hash())
}

/// The outputs that exist, with their positions.
fn produced(node: &Node) -> impl Iterator<Item = (usize, ValueId)> + '_ {
    node.outputs.iter().enumerate().filter_map(|(position, value)| Some((position, (*value)?)))
}

/// A value by its place in the graph, since files number values arbitrarily.
fn describe(
    value: ValueId,
    nodes: &PrimaryMap<NodeId, Node>,
    values: &PrimaryMap<ValueId, Value>,
) -> String {
    let Some(producer) = values.get(value).map(|value| &nodes[value.producer]) else {
        return format!("unknown value {}", value.as_u32());
    };
    let output =
        produced(producer).find(|(_, other)| *other == value).map_or(0, |(position, _)| position);
    format!("output {output} of `{}`", producer.name)
}

/// All sizes together stay below [`Bytes::LIMIT`], so that later sums need no check.
fn bounded(
    storages: &PrimaryMap<StorageId, Bytes>,
    nodes: &PrimaryMap<NodeId, Node>,
) -> Result<(), GraphError> {
    let sizes = storages.values().copied();
    let moved = nodes.values().flat_map(|node| {
        [node.workspace, node.bytes_read, node.bytes_written, Bytes(node.flops.0)]
    });
    let mut total = 0u64;
    for bytes in sizes.chain(nodes.values().map(|node| node.workspace)) {
        total = total
            .checked_add(bytes.0)
            .filter(|&t| t <= Bytes::LIMIT.0)
            .ok_or(GraphError::TooLarge)?;
    }
    if moved.into_iter().any(|bytes| bytes > Bytes::LIMIT) {
        return Err(GraphError::TooLarge);
    }
    Ok(())
}

fn unique(nodes: &PrimaryMap<NodeId, Node>) -> Result<(), GraphError> {
    let mut names: HashMap<&str, NodeId> = HashMap::new();
    let mut slots: HashMap<(u32, MicroBatchId), NodeId> = HashMap::new();
    let mut parameters: HashMap<&str, NodeId> = HashMap::new();
    for (id, node) in nodes {
        if names.insert(&node.name, id).is_some() {
            return Err(GraphError::DuplicateName { name: node.name.clone() });
        }
        if let Some(parameter) = node.parameter.as_deref().filter(|_| node.phase.is_persistent())
            && let Some(first) = parameters.insert(parameter, id)
        {
            let first = nodes[first].name.clone();
            return Err(GraphError::DuplicateParameter {
                first,
                second: node.name.clone(),
                parameter: parameter.to_string(),
            });
        }
        let draws = node.random && node.seed_slot.is_none();
        if node.stream && !draws && !node.operator.is_some_and(Operator::exchanges) {
            return Err(GraphError::Stream { node: node.name.clone() });
        }
        let Some(slot) = node.seed_slot else { continue };
        if !node.random {
            return Err(GraphError::SeedWithoutRandom { node: node.name.clone(), slot });
        }
        // A recomputation draws what the first run drew.
        let first = *slots.entry((slot, node.micro_batch)).or_insert(id);
        if first != id && node.recomputes != Some(first) {
            let first = nodes[first].name.clone();
            return Err(GraphError::DuplicateSeedSlot { first, second: node.name.clone(), slot });
        }
    }
    Ok(())
}

/// Nodes of the forward and backward pass belong to modules that are called; parameters and their
/// updates may belong to any.
fn called(
    modules: &PrimaryMap<ModuleId, String>,
    uncalled: &[String],
    nodes: &PrimaryMap<NodeId, Node>,
) -> Result<(), GraphError> {
    let uncalled: HashSet<&str> = uncalled.iter().map(String::as_str).collect();
    let runs = |node: &&Node| node.phase.is_forward() || node.phase == Phase::Backward;
    let mut computing = nodes.values().filter(runs);
    let belongs = |node: &&Node| {
        modules.get(node.module).is_some_and(|module| uncalled.contains(module.as_str()))
    };
    match computing.find(belongs) {
        Some(node) => Err(GraphError::Uncalled {
            node: node.name.clone(),
            module: modules[node.module].clone(),
        }),
        None => Ok(()),
    }
}

/// A node's links to others: whose derivative it computes, and what it computes again.
fn links(id: NodeId, node: &Node, nodes: &PrimaryMap<NodeId, Node>) -> Result<(), GraphError> {
    let name = |other: NodeId| {
        nodes.get(other).map_or(format!("node {}", other.as_u32()), |other| other.name.clone())
    };
    if let Some(target) = node.differentiates {
        let before = nodes.get(target).filter(|other| target < id && other.phase.is_forward());
        if node.phase != Phase::Backward || before.is_none() {
            let target = name(target);
            return Err(GraphError::Differentiates { node: node.name.clone(), target });
        }
    }
    if let Some(target) = node.recomputes {
        let same = |first: &&Node| {
            target < id
                && (&first.op, first.random, first.seed_slot, first.stream)
                    == (&node.op, node.random, node.seed_slot, node.stream)
                && first.micro_batch == node.micro_batch
                && first.recomputes.is_none()
                && !first.phase.is_placeholder()
                && !first.mutates
                && !node.mutates
        };
        if nodes.get(target).filter(same).is_none() {
            let target = name(target);
            return Err(GraphError::Recomputes { node: node.name.clone(), target });
        }
    }
    Ok(())
}

fn module(node: &Node, count: usize) -> Result<(), GraphError> {
    if node.module.as_u32() as usize >= count {
        return Err(GraphError::UnknownModule {
            node: node.name.clone(),
            module: node.module.as_u32(),
            count,
        });
    }
    Ok(())
}

fn placeholder(node: &Node) -> Result<(), GraphError> {
    if node.phase.is_placeholder() {
        let one_output = node.outputs.len() == 1 && node.outputs[0].is_some();
        if node.op != "placeholder" || !node.inputs.is_empty() || !one_output || node.mutates {
            return Err(GraphError::Placeholder {
                node: node.name.clone(),
                op: node.op.clone(),
                inputs: node.inputs.len(),
                outputs: node.outputs.iter().flatten().count(),
            });
        }
    } else if node.op == "placeholder" {
        return Err(GraphError::PlaceholderPhase {
            node: node.name.clone(),
            phase: node.phase.name(),
        });
    }
    Ok(())
}

/// Run times are durations, and so is their sum; `before` is the sum over the nodes before.
fn numbers(node: &Node, before: &mut Seconds) -> Result<(), GraphError> {
    let Some(seconds) = node.seconds else { return Ok(()) };
    if !(seconds.0.is_finite() && seconds.0 >= 0.0) {
        return Err(GraphError::Seconds { node: node.name.clone(), seconds: seconds.0 });
    }
    *before = *before + seconds;
    if *before > Seconds::LIMIT {
        return Err(GraphError::TotalSeconds { node: node.name.clone(), seconds: seconds.0 });
    }
    Ok(())
}

/// The storages that stay to the end of the step: those of its outputs, in their last version, and
/// those of persistent placeholders.
fn kept(
    outputs: &[ValueId],
    nodes: &PrimaryMap<NodeId, Node>,
    values: &PrimaryMap<ValueId, Value>,
    history: &History,
) -> Result<SecondaryMap<StorageId, bool>, GraphError> {
    let mut kept: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    for &value in outputs {
        if !values.is_valid(value) {
            return Err(GraphError::UnknownOutput { value: value.as_u32().into() });
        }
        if let Some(writer) = history.overwriter(&values[value]) {
            return Err(GraphError::OutputOverwritten {
                value: describe(value, nodes, values),
                writer: nodes[writer].name.clone(),
            });
        }
        kept[values[value].storage] = true;
    }
    for node in nodes.values().filter(|node| node.phase.is_persistent()) {
        for value in node.outputs.iter().flatten() {
            kept[values[*value].storage] = true;
        }
    }
    Ok(kept)
}
