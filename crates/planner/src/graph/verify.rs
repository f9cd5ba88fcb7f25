//! The rules of tightfit-graph/1. Invariant: a graph that passes never makes a later pass panic.

use std::collections::{HashMap, HashSet};

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::graph::error::GraphError;
use crate::graph::node::{Node, Phase, Value};
use crate::graph::parts::Parts;
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
    } = parts;
    if modules.is_empty() {
        return Err(GraphError::NoModules);
    }
    bounded(&storages, &nodes)?;
    unique(&nodes)?;
    called(&modules, uncalled.as_deref().unwrap_or_default(), &nodes)?;
    let mut accesses = SecondaryMap::with_default(Accesses::default());
    let mut producer: SecondaryMap<StorageId, Option<NodeId>> = SecondaryMap::new();
    let mut version: SecondaryMap<StorageId, (u32, Option<NodeId>)> = SecondaryMap::new();
    let mut last = Last::default();
    let mut seconds = Seconds(0.0);
    for (id, node) in &nodes {
        if node.module.as_u32() as usize >= modules.len() {
            return Err(GraphError::UnknownModule {
                node: node.name.clone(),
                module: node.module.as_u32(),
                count: modules.len(),
            });
        }
        placeholder(node)?;
        numbers(node, &mut seconds)?;
        links(id, node, &nodes)?;
        inputs(id, node, &nodes, &values, &version, &mut last)?;
        for (output, value) in produced(node) {
            fits(node, output, &values[value], &storages)?;
        }
        let access = access(id, node, &values, &producer, &nodes, &mut last)?;
        for &storage in &access.fresh {
            producer[storage] = Some(id);
        }
        for &storage in &access.mutated {
            version[storage] = (version[storage].0 + 1, Some(id));
        }
        for value in node.outputs.iter().flatten() {
            values[*value].version = version[values[*value].storage].0;
        }
        accesses[id] = access;
    }
    if let Some(names) = output_names.as_ref().filter(|names| names.len() != outputs.len()) {
        return Err(GraphError::OutputNames { names: names.len(), outputs: outputs.len() });
    }
    let mut kept: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    for &value in &outputs {
        if !values.is_valid(value) {
            return Err(GraphError::UnknownOutput { value: value.as_u32().into() });
        }
        let (current, writer) = version[values[value].storage];
        if let Some(writer) = writer.filter(|_| values[value].version != current) {
            return Err(GraphError::OutputOverwritten {
                value: describe(value, &nodes, &values),
                writer: nodes[writer].name.clone(),
            });
        }
        kept[values[value].storage] = true;
    }
    for (_, node) in nodes.iter().filter(|(_, node)| node.phase.is_persistent()) {
        for value in node.outputs.iter().flatten() {
            kept[values[*value].storage] = true;
        }
    }
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
        accesses,
        kept,
        producer,
        hash: String::new(),
    }
    .with_hash())
}

/// The last node that used a value or a storage in some way: whether a node has done so before is
/// known at once, however much it reads and writes.
#[derive(Default)]
struct Last {
    listed: SecondaryMap<ValueId, Option<NodeId>>,
    overwriting: SecondaryMap<ValueId, Option<NodeId>>,
    reader: SecondaryMap<StorageId, Option<NodeId>>,
    maker: SecondaryMap<StorageId, Option<NodeId>>,
    writer: SecondaryMap<StorageId, Option<NodeId>>,
}

impl Last {
    /// Whether a node lists a value among its inputs. The table does not grow for ids that no value
    /// has.
    fn lists(&self, node: NodeId, value: ValueId) -> bool {
        self.listed.get(value) == Some(&Some(node))
    }
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

fn inputs(
    id: NodeId,
    node: &Node,
    nodes: &PrimaryMap<NodeId, Node>,
    values: &PrimaryMap<ValueId, Value>,
    version: &SecondaryMap<StorageId, (u32, Option<NodeId>)>,
    last: &mut Last,
) -> Result<(), GraphError> {
    for &value in &node.inputs {
        if !values.is_valid(value) || values[value].producer >= id {
            return Err(GraphError::ReadBeforeProduced {
                node: node.name.clone(),
                value: value.as_u32().into(),
            });
        }
        if last.listed[value].replace(id) == Some(id) {
            return Err(GraphError::DuplicateInput {
                node: node.name.clone(),
                value: describe(value, nodes, values),
            });
        }
        let (current, writer) = version[values[value].storage];
        if let Some(writer) = writer.filter(|_| values[value].version != current) {
            let (value, writer) = (describe(value, nodes, values), nodes[writer].name.clone());
            return Err(GraphError::ReadsOverwritten { node: node.name.clone(), value, writer });
        }
    }
    for &value in &node.overwrites {
        if !last.lists(id, value) || last.overwriting[value].replace(id) == Some(id) {
            let value = describe(value, nodes, values);
            return Err(GraphError::Overwrites { node: node.name.clone(), value });
        }
    }
    let arguments = node.args.iter().chain(node.kwargs.iter().map(|(_, argument)| argument));
    match arguments.flat_map(|argument| argument.values()).find(|&value| !last.lists(id, value)) {
        Some(value) => Err(GraphError::ArgumentNotInput {
            node: node.name.clone(),
            value: describe(value, nodes, values),
        }),
        None => Ok(()),
    }
}

/// Extents times element size must fit the storage; a strided value must lie inside as far as its
/// strides are known.
fn fits(
    node: &Node,
    output: usize,
    value: &Value,
    storages: &PrimaryMap<StorageId, Bytes>,
) -> Result<(), GraphError> {
    let name = || node.name.clone();
    let Some(&held) = storages.get(value.storage) else {
        return Err(GraphError::UnknownStorage {
            node: name(),
            output,
            storage: value.storage.as_u32(),
            count: storages.len(),
        });
    };
    // Extents of zero are left out, so that the product of any of the extents is bounded too.
    let elements = value
        .tensor
        .shape
        .iter()
        .filter(|&&extent| extent > 0)
        .try_fold(1u64, |product, &extent| product.checked_mul(extent));
    let Some(elements) = elements.filter(|&elements| elements <= Bytes::LIMIT.0) else {
        return Err(GraphError::TooManyElements {
            node: name(),
            output,
            shape: value.tensor.shape.clone(),
        });
    };
    let elements = if value.tensor.shape.contains(&0) { 0 } else { elements };
    if let Some(strides) = &value.tensor.strides {
        if strides.len() != value.tensor.shape.len() {
            return Err(GraphError::StrideCount {
                node: name(),
                output,
                strides: strides.len(),
                dims: value.tensor.shape.len(),
            });
        }
        if value.tensor.contiguous && !row_major(&value.tensor.shape, strides) {
            return Err(GraphError::NotContiguous {
                node: name(),
                output,
                strides: strides.clone(),
                shape: value.tensor.shape.clone(),
            });
        }
    }
    // One past the last element; in 128 bits a shape's strides cannot overflow.
    let end = match &value.tensor.strides {
        _ if elements == 0 => 0,
        Some(strides) => {
            let steps = value
                .tensor
                .shape
                .iter()
                .zip(strides)
                .map(|(&extent, &stride)| u128::from(extent - 1) * u128::from(stride));
            steps.fold(1 + u128::from(value.tensor.offset), u128::saturating_add)
        }
        None if value.tensor.contiguous => u128::from(value.tensor.offset) + u128::from(elements),
        // Without strides only contiguous values can be checked against their storage.
        None => 0,
    };
    let needed = end.saturating_mul(value.tensor.dtype.size().into());
    if needed > u128::from(held.0) {
        let strides = value
            .tensor
            .strides
            .as_ref()
            .map_or(String::new(), |strides| format!(" with strides {strides:?}"));
        let tensor = format!(
            "shape {:?} of {}{strides} from element {}",
            value.tensor.shape,
            value.tensor.dtype.name(),
            value.tensor.offset
        );
        let storage = value.storage.as_u32();
        return Err(GraphError::DoesNotFit {
            node: name(),
            output,
            tensor,
            needed,
            storage,
            held: held.0,
        });
    }
    Ok(())
}

/// Dimensions of extent one may have any stride.
fn row_major(shape: &[u64], strides: &[u64]) -> bool {
    let mut expected = 1u64;
    for (&extent, &stride) in shape.iter().zip(strides).rev() {
        if extent > 1 && stride != expected {
            return extent == 0;
        }
        expected = expected.saturating_mul(extent.max(1));
    }
    true
}

fn access(
    id: NodeId,
    node: &Node,
    values: &PrimaryMap<ValueId, Value>,
    producer: &SecondaryMap<StorageId, Option<NodeId>>,
    nodes: &PrimaryMap<NodeId, Node>,
    last: &mut Last,
) -> Result<Accesses, GraphError> {
    let mut reads: Vec<StorageId> = Vec::new();
    for &value in &node.inputs {
        let storage = values[value].storage;
        if last.reader[storage].replace(id) != Some(id) {
            reads.push(storage);
        }
    }
    let (mut fresh, mut touched): (Vec<StorageId>, Vec<StorageId>) = (Vec::new(), Vec::new());
    let mut written_twice = None;
    for (output, value) in produced(node) {
        let storage = values[value].storage;
        if last.reader[storage] == Some(id) {
            if last.writer[storage].replace(id) == Some(id) {
                written_twice = written_twice.or(Some(storage));
            }
            touched.push(storage);
            continue;
        }
        if node.mutates {
            return Err(GraphError::MutatesNothing { node: node.name.clone(), output });
        }
        if let Some(first) = producer[storage] {
            return Err(GraphError::TwoProducers {
                node: node.name.clone(),
                output,
                storage: storage.as_u32(),
                producer: nodes[first].name.clone(),
            });
        }
        if last.maker[storage].replace(id) != Some(id) {
            fresh.push(storage);
        }
    }
    if node.mutates && touched.is_empty() {
        return Err(GraphError::MutatesWithoutOutput { node: node.name.clone() });
    }
    if let Some(storage) = written_twice.filter(|_| node.mutates) {
        return Err(GraphError::MutatedOutputs {
            node: node.name.clone(),
            storage: storage.as_u32(),
            count: touched.iter().filter(|&&other| other == storage).count(),
        });
    }
    let is_view =
        !node.phase.is_placeholder() && !node.mutates && fresh.is_empty() && !touched.is_empty();
    let mutated = if node.mutates { touched } else { Vec::new() };
    Ok(Accesses { reads, fresh, mutated, is_view })
}
