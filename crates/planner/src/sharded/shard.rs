//! The graph that every rank executes. Invariant: it computes on shards what the step computes on
//! whole tensors; every parameter that a forward or backward call reads is gathered, and every
//! gradient that an update reads is a piece of its mean over the ranks.
//!
//! A piece has ⌈n/w⌉ elements of the n of its tensor, in row-major order, where w is the number of
//! ranks; after the last element there are zeros. Reduce-scatter is an all-to-all of pieces
//! followed by the mean of the own piece and those that came, in the order of the ranks, so its
//! sums have one order wherever they are computed.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, GraphBuilder, Node, NodeSpec, Phase, ValueSpec};
use crate::id::{NodeId, StorageId, ValueId};
use crate::operator::Operator;
use crate::sharded::error::ShardingError;
use crate::sharded::gradients::{Gradients, Reductions, is_update};
use crate::tensor::{Argument, DType, TensorType};
use crate::units::{Bytes, Flops};

/// How a step is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// The number of ranks.
    pub ranks: u32,
    /// How often gradients are reduced.
    pub reductions: Reductions,
}

/// A sharded step.
#[derive(Clone, Debug)]
pub struct Sharded {
    /// The graph that each rank executes.
    pub graph: Graph,
    /// Its collectives; with w ranks each has w (w − 1) messages, numbered from its position here
    /// times that number.
    pub collectives: Vec<Collective>,
    /// The shape of each parameter and state of which ranks hold shards, by its name in the model.
    pub shapes: BTreeMap<String, Vec<u64>>,
}

/// A communication in which all ranks take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// The call.
    pub operator: Operator,
    /// The parameter, or the node that makes the gradient.
    pub of: String,
}

/// The graph executed by each of the ranks that share a step.
///
/// # Errors
/// [`ShardingError`] if the step does not compute the same on shards.
pub fn shard(graph: &Graph, sharding: Sharding) -> Result<Sharded, ShardingError> {
    if sharding.ranks < 2 {
        return Err(ShardingError::TooFew { ranks: sharding.ranks });
    }
    let shards = Shards::of(graph)?;
    let gradients = Gradients::of(graph, sharding.reductions);
    let mut work = Work {
        graph,
        sharding,
        shards,
        gradients,
        builder: GraphBuilder::without_nodes(graph),
        whole: World::default(),
        divided: World::default(),
        nodes: SecondaryMap::new(),
        collectives: Vec::new(),
    };
    for (id, node) in graph.nodes() {
        if work.gradients.on_shards[id] {
            continue;
        }
        match node.phase {
            _ if node.phase.is_placeholder() => work.placeholder(id),
            Phase::Optimizer => work.update(id)?,
            _ => {
                work.compute(id)?;
                for value in work.gradients.reduced[id].clone() {
                    work.exchange(value);
                }
            }
        }
    }
    for &output in graph.outputs() {
        let made = work.whole.values[output].or(work.divided.values[output]);
        let producer = graph.values()[output].producer;
        let made = made.ok_or_else(|| work.only_shards(producer, output))?;
        work.builder.output(made);
    }
    if let Some(names) = graph.output_names() {
        work.builder.output_names(names.to_vec());
    }
    let Work { builder, collectives, shards, .. } = work;
    Ok(Sharded { graph: builder.build()?, collectives, shapes: shards.shapes })
}

/// The parts of a step that are divided.
struct Shards {
    /// By placeholders.
    is_divided: SecondaryMap<NodeId, bool>,
    shapes: BTreeMap<String, Vec<u64>>,
}

impl Shards {
    /// All parameters and states that can be divided; refuses a step that writes others.
    fn of(graph: &Graph) -> Result<Shards, ShardingError> {
        let mut shards = Shards { is_divided: SecondaryMap::new(), shapes: BTreeMap::new() };
        let mut placeholders: SecondaryMap<StorageId, u32> = SecondaryMap::new();
        graph.placeholder_storages().for_each(|(_, storage)| placeholders[storage] += 1);
        for (id, storage) in graph.placeholder_storages() {
            let node = &graph.nodes()[id];
            let Some(&Some(value)) = node.outputs.first() else { continue };
            let tensor = &graph.values()[value].tensor;
            let is_plain = tensor.dtype == DType::F32
                && tensor.contiguous
                && tensor.elements() > 0
                && graph.storages()[storage] == tensor.bytes()
                && placeholders[storage] == 1;
            if matches!(node.phase, Phase::Parameter | Phase::State) && is_plain {
                shards.is_divided[id] = true;
                let name = node.parameter.clone().unwrap_or_default();
                shards.shapes.insert(name, tensor.shape.clone());
            }
        }
        for (id, node) in graph.nodes() {
            for &storage in graph.mutated(id).iter().filter(|&&it| graph.is_persistent(it)) {
                let first = graph.producer(storage).map_or(id, |first| first);
                let placeholder = &graph.nodes()[first];
                let name = placeholder.parameter.clone().unwrap_or(placeholder.name.clone());
                if node.phase != Phase::Optimizer {
                    return Err(ShardingError::Statistic { node: node.name.clone(), name });
                }
                if !shards.is_divided[first] {
                    return Err(ShardingError::Indivisible { name });
                }
            }
            if node.phase == Phase::Optimizer && !is_update(node) {
                let (node, op) = (node.name.clone(), node.op.clone());
                return Err(ShardingError::Update { node, op });
            }
        }
        Ok(shards)
    }
}

/// Counterparts of the step's values: whole, or in shards.
#[derive(Default)]
struct World {
    values: SecondaryMap<ValueId, Option<ValueId>>,
    storages: SecondaryMap<StorageId, Option<StorageId>>,
}

/// The graph under construction.
struct Work<'a> {
    graph: &'a Graph,
    sharding: Sharding,
    shards: Shards,
    gradients: Gradients,
    builder: GraphBuilder,
    whole: World,
    divided: World,
    /// Counterparts of the nodes that compute on whole tensors.
    nodes: SecondaryMap<NodeId, Option<NodeId>>,
    collectives: Vec<Collective>,
}

impl Work<'_> {
    /// A placeholder: of the whole tensor, or of a shard.
    fn placeholder(&mut self, id: NodeId) {
        let node = &self.graph.nodes()[id];
        let spec = NodeSpec::from(node);
        if !self.shards.is_divided[id] {
            self.copy(id, spec);
            return;
        }
        let Some(&Some(value)) = node.outputs.first() else { return };
        let made = self.piece(spec, &self.graph.values()[value].tensor);
        self.divided.values[value] = Some(made.0);
        self.divided.storages[self.graph.values()[value].storage] = Some(made.1);
    }

    /// A call on whole tensors, for which parameters are gathered once.
    fn compute(&mut self, id: NodeId) -> Result<(), ShardingError> {
        let graph = self.graph;
        let node = &graph.nodes()[id];
        for &value in &node.inputs {
            let producer = graph.values()[value].producer;
            let is_missing = self.whole.values[value].is_none();
            if is_missing && graph.nodes()[producer].phase == Phase::Parameter {
                self.gather(producer);
            }
        }
        let of = |value: ValueId| self.whole.values[value];
        let missing = node.inputs.iter().find(|&&value| of(value).is_none());
        if let Some(&value) = missing {
            return Err(self.only_shards(id, value));
        }
        let spec = self.renamed(node, of);
        self.copy(id, spec);
        Ok(())
    }

    /// The same call on other values.
    fn renamed(&self, node: &Node, of: impl Fn(ValueId) -> Option<ValueId>) -> NodeSpec {
        let other = |value: ValueId| of(value).unwrap_or(value);
        let kwargs = node.kwargs.iter();
        NodeSpec {
            inputs: node.inputs.iter().map(|&value| other(value)).collect(),
            args: node.args.iter().map(|argument| argument.renamed(&other)).collect(),
            kwargs: kwargs.map(|(key, value)| (key.clone(), value.renamed(&other))).collect(),
            overwrites: node.overwrites.iter().map(|&value| other(value)).collect(),
            differentiates: node.differentiates.and_then(|target| self.nodes[target]),
            recomputes: node.recomputes.and_then(|target| self.nodes[target]),
            ..NodeSpec::from(node)
        }
    }

    /// Appends a node that makes the counterparts of a node's outputs.
    fn copy(&mut self, id: NodeId, spec: NodeSpec) {
        let graph = self.graph;
        let outputs = &graph.nodes()[id].outputs;
        let mut specs = Vec::with_capacity(outputs.len());
        for output in outputs {
            specs.push(output.map(|output| {
                let value = &graph.values()[output];
                let known = self.whole.storages[value.storage];
                let storage =
                    known.unwrap_or_else(|| self.builder.storage(graph.storages()[value.storage]));
                self.whole.storages[value.storage] = Some(storage);
                ValueSpec { storage, ..ValueSpec::from(value) }
            }));
        }
        self.nodes[id] = Some(self.builder.next_node());
        let made = self.builder.node(spec, &specs);
        for (&output, made) in outputs.iter().flatten().zip(made) {
            self.whole.values[output] = Some(made);
        }
    }

    /// Gathers a parameter.
    fn gather(&mut self, placeholder: NodeId) {
        let node = &self.graph.nodes()[placeholder];
        let Some(&Some(value)) = node.outputs.first() else { return };
        let (tensor, storage) =
            (&self.graph.values()[value].tensor, self.graph.values()[value].storage);
        let Some(shard) = self.divided.values[value] else { return };
        let bytes = tensor.bytes();
        let spec = NodeSpec {
            module: node.module,
            args: vec![
                Argument::Value(shard),
                Argument::List(integers(&tensor.shape)),
                Argument::Int(self.sharding.ranks.into()),
                Argument::Int(self.message()),
            ],
            inputs: vec![shard],
            bytes_read: bytes,
            bytes_written: bytes,
            ..NodeSpec::new(
                format!("{}_gathered", node.name),
                Operator::AllGather.name(),
                Phase::Forward,
            )
        };
        let of = node.parameter.clone().unwrap_or(node.name.clone());
        self.collectives.push(Collective { operator: Operator::AllGather, of });
        let place = self.builder.storage(bytes);
        let made = ValueSpec::contiguous(&tensor.shape, tensor.dtype, place);
        let made = self.builder.node(spec, &[Some(made)])[0];
        self.whole.values[value] = Some(made);
        self.whole.storages[storage] = Some(place);
    }

    /// Exchanges the pieces of a gradient that was just made.
    fn exchange(&mut self, value: ValueId) {
        let graph = self.graph;
        let of = &graph.values()[value];
        let (node, tensor) = (&graph.nodes()[of.producer], &of.tensor);
        let name = name_of(node, value);
        let Some(mut whole) = self.whole.values[value] else { return };
        let bytes = tensor.bytes();
        let new = |name: String, op: &str| NodeSpec {
            module: node.module,
            micro_batch: node.micro_batch,
            bytes_read: bytes,
            bytes_written: bytes,
            ..NodeSpec::new(name, op, Phase::Backward)
        };
        if !tensor.contiguous {
            let format = Argument::Text("torch.contiguous_format".to_string());
            let spec = NodeSpec {
                args: vec![Argument::Value(whole)],
                kwargs: vec![("memory_format".to_string(), format)],
                inputs: vec![whole],
                ..new(format!("{name}_contiguous"), Operator::Clone.name())
            };
            let storage = self.builder.storage(bytes);
            let made = ValueSpec::contiguous(&tensor.shape, tensor.dtype, storage);
            whole = self.builder.node(spec, &[Some(made)])[0];
        }
        let spec = NodeSpec {
            args: vec![
                Argument::Value(whole),
                Argument::Int(self.sharding.ranks.into()),
                Argument::Int(self.message()),
            ],
            inputs: vec![whole],
            ..new(format!("{name}_pieces"), Operator::AllToAll.name())
        };
        self.collectives.push(Collective { operator: Operator::AllToAll, of: name });
        let shape = [u64::from(self.sharding.ranks) - 1, self.elements(tensor)];
        let storage = self.builder.storage(Bytes(4 * shape[0] * shape[1]));
        let made = ValueSpec::contiguous(&shape, tensor.dtype, storage);
        let pieces = self.builder.node(spec, &[Some(made)])[0];
        self.reduce(value, whole, pieces);
    }

    /// The mean of a gradient's own piece and of those that came, and the sums that contain it.
    fn reduce(&mut self, value: ValueId, whole: ValueId, pieces: ValueId) {
        let of = &self.graph.values()[value];
        let node = &self.graph.nodes()[of.producer];
        let ranks = u64::from(self.sharding.ranks);
        let elements = self.elements(&of.tensor);
        let spec = NodeSpec {
            module: node.module,
            micro_batch: node.micro_batch,
            // The gradient stays until the others have their pieces of it.
            args: vec![Argument::Value(whole), Argument::Value(pieces)],
            inputs: vec![whole, pieces],
            flops: Flops(ranks * elements),
            bytes_read: Bytes(4 * ranks * elements),
            bytes_written: Bytes(4 * elements),
            ..NodeSpec::new(
                format!("{}_reduced", name_of(node, value)),
                Operator::MeanPieces.name(),
                Phase::Backward,
            )
        };
        let (made, _) = self.piece(spec, &of.tensor);
        self.divided.values[value] = Some(made);
        self.sum_up(value);
    }

    /// Computes the sums over micro-batches of which this was the last summand.
    fn sum_up(&mut self, summand: ValueId) {
        let graph = self.graph;
        let mut made = Some(summand);
        while let Some(value) = made.take()
            && let Some(sum) = self.gradients.sums[value]
        {
            let node = &graph.nodes()[sum];
            let is_there = |&input: &ValueId| self.divided.values[input].is_some();
            if node.inputs.iter().all(is_there)
                && let Some(&Some(output)) = node.outputs.first()
            {
                let spec = self.on_shards(node);
                let (piece, _) = self.piece(spec, &graph.values()[output].tensor);
                self.divided.values[output] = Some(piece);
                made = Some(output);
            }
        }
    }

    /// An update, on shards.
    fn update(&mut self, id: NodeId) -> Result<(), ShardingError> {
        let graph = self.graph;
        let node = &graph.nodes()[id];
        let missing = node.inputs.iter().find(|&&value| self.divided.values[value].is_none());
        if let Some(&value) = missing {
            return Err(self.only_shards(id, value));
        }
        let spec = self.on_shards(node);
        let mut specs = Vec::with_capacity(node.outputs.len());
        for output in &node.outputs {
            let spec = output.map(|output| {
                let value = &graph.values()[output];
                let storage = self.divided.storages[value.storage];
                let shape = [self.elements(&value.tensor)];
                storage.map(|storage| ValueSpec::contiguous(&shape, value.tensor.dtype, storage))
            });
            specs.push(spec.flatten());
        }
        let made = self.builder.node(spec, &specs);
        for (&output, made) in node.outputs.iter().flatten().zip(made) {
            self.divided.values[output] = Some(made);
        }
        Ok(())
    }

    /// The same call on shards.
    fn on_shards(&self, node: &Node) -> NodeSpec {
        let share = |amount: u64| amount.div_ceil(self.sharding.ranks.into());
        NodeSpec {
            flops: Flops(share(node.flops.0)),
            bytes_read: Bytes(share(node.bytes_read.0)),
            bytes_written: Bytes(share(node.bytes_written.0)),
            ..self.renamed(node, |value| self.divided.values[value])
        }
    }

    /// Appends a node that makes a piece of a tensor.
    fn piece(&mut self, spec: NodeSpec, whole: &TensorType) -> (ValueId, StorageId) {
        let elements = self.elements(whole);
        let storage = self.builder.storage(Bytes(elements * whole.dtype.size()));
        let piece = ValueSpec::contiguous(&[elements], whole.dtype, storage);
        (self.builder.node(spec, &[Some(piece)])[0], storage)
    }

    /// The elements of a piece.
    fn elements(&self, whole: &TensorType) -> u64 {
        whole.elements().div_ceil(self.sharding.ranks.into())
    }

    /// The number of the next collective's first message.
    fn message(&self) -> i64 {
        let ranks = i64::from(self.sharding.ranks);
        self.collectives.len() as i64 * ranks * (ranks - 1)
    }

    fn only_shards(&self, reader: NodeId, value: ValueId) -> ShardingError {
        let name = |node: NodeId| self.graph.nodes()[node].name.clone();
        let made = name(self.graph.values()[value].producer);
        ShardingError::OnlyShards { node: name(reader), made }
    }
}

/// The name for an output of a node.
fn name_of(node: &Node, value: ValueId) -> String {
    match node.outputs.iter().position(|output| *output == Some(value)) {
        Some(0) | None => node.name.clone(),
        Some(index) => format!("{}_{index}", node.name),
    }
}

fn integers(shape: &[u64]) -> Vec<Argument> {
    shape.iter().map(|&extent| Argument::Int(extent as i64)).collect()
}
