//! Nodes of a step, once for each micro-batch. Invariant: what stays from step to step is there
//! once, and every micro-batch reads its newest version; everything else each micro-batch has for
//! itself, but for sums over micro-batches, which take up one summand after the other in the order
//! in which the summands are made.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use crate::id::{MicroBatchId, NodeId, StorageId, ValueId};
use crate::pipeline::error::PipelineError;
use crate::tensor::{Argument, TensorType, contiguous_strides};
use crate::units::Bytes;

/// The name of a node, or of a placeholder of the batch, in a micro-batch: the first one has the
/// names of the step itself.
pub fn name_of(name: &str, micro_batch: MicroBatchId) -> String {
    match micro_batch.index() {
        0 => name.to_string(),
        number => format!("{name}#{number}"),
    }
}

/// What stands for the parts of the step.
#[derive(Clone, Default)]
struct Copies {
    nodes: SecondaryMap<NodeId, Option<NodeId>>,
    values: SecondaryMap<ValueId, Option<ValueId>>,
}

/// A graph in the making.
pub(super) struct Unroll<'a> {
    graph: &'a Graph,
    builder: GraphBuilder,
    micro_batches: u32,
    /// The storage of each value of the new graph.
    lies: SecondaryMap<ValueId, Option<StorageId>>,
    /// What stays from step to step, and what belongs to all micro-batches.
    lasting: Copies,
    /// The newest version of a storage that stays: the value of the step that it is, and what
    /// stands for it.
    newest: SecondaryMap<StorageId, Option<(ValueId, ValueId)>>,
    /// What each micro-batch has for itself.
    own: Vec<Copies>,
    /// Which values are summed over the micro-batches.
    is_summed: SecondaryMap<ValueId, bool>,
    /// The sum so far; behind the last summand the mean.
    sums: SecondaryMap<ValueId, Option<ValueId>>,
}

impl<'a> Unroll<'a> {
    /// The placeholders of a step: those of the batch for each micro-batch.
    pub fn new(graph: &'a Graph, micro_batches: u32, summed: &[ValueId]) -> Unroll<'a> {
        let mut is_summed = SecondaryMap::new();
        summed.iter().for_each(|&value| is_summed[value] = true);
        let mut unroll = Unroll {
            graph,
            builder: GraphBuilder::without_nodes(graph),
            micro_batches,
            lies: SecondaryMap::new(),
            lasting: Copies::default(),
            newest: SecondaryMap::new(),
            own: vec![Copies::default(); micro_batches as usize],
            is_summed,
            sums: SecondaryMap::new(),
        };
        for (id, node) in graph.nodes().iter().filter(|(_, node)| node.phase.is_placeholder()) {
            if node.phase.is_persistent() {
                unroll.append(id, None, Vec::new());
                continue;
            }
            for micro_batch in (0..micro_batches).map(MicroBatchId::from_u32) {
                unroll.append(id, Some(micro_batch), Vec::new());
            }
        }
        unroll
    }

    /// Appends a node for a micro-batch, and behind it the sums that take up what it makes.
    pub fn run(&mut self, id: NodeId, micro_batch: MicroBatchId) -> Result<(), PipelineError> {
        let node = &self.graph.nodes()[id];
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(self.value(id, input, micro_batch)?);
        }
        self.append(id, Some(micro_batch), inputs);
        for &output in self.graph.nodes()[id].outputs.iter().flatten() {
            if self.is_summed[output] {
                self.add(output, micro_batch);
            }
        }
        Ok(())
    }

    /// Appends a node that belongs to no micro-batch: it reads what stays, and sums.
    pub fn update(&mut self, id: NodeId) -> Result<(), PipelineError> {
        let node = &self.graph.nodes()[id];
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(self.of_all(id, input)?);
        }
        self.append(id, None, inputs);
        Ok(())
    }

    /// The graph, with what stands for the outputs of the step as its outputs.
    pub fn build(mut self) -> Result<Graph, PipelineError> {
        for &output in self.graph.outputs() {
            let made = self.of_all(self.graph.values()[output].producer, output)?;
            self.builder.output(made);
        }
        if let Some(names) = self.graph.output_names() {
            self.builder.output_names(names.to_vec());
        }
        Ok(self.builder.build()?)
    }

    /// What stands for a value behind all micro-batches: a mean, or what stays as the last one
    /// leaves it.
    fn of_all(&self, reader: NodeId, value: ValueId) -> Result<ValueId, PipelineError> {
        let last = MicroBatchId::from_u32(self.micro_batches - 1);
        self.sums[value].map_or_else(|| self.value(reader, value, last), Ok)
    }

    /// What stands for a value where a node of a micro-batch reads it.
    fn value(
        &self,
        reader: NodeId,
        value: ValueId,
        micro_batch: MicroBatchId,
    ) -> Result<ValueId, PipelineError> {
        let (nodes, values) = (self.graph.nodes(), self.graph.values());
        let what = &values[value];
        if let Some(own) = self.own[micro_batch.index()].values[value] {
            return Ok(own);
        }
        let is_leaf = nodes[what.producer].phase.is_persistent();
        let name = |node: NodeId| nodes[node].name.clone();
        let missing = || PipelineError::OfAnother { node: name(reader), made: name(what.producer) };
        match self.newest[what.storage] {
            // An earlier micro-batch wrote what this one finds.
            Some((newest, made)) if is_leaf => {
                let same = values[newest].tensor == what.tensor;
                if same { Ok(made) } else { Err(missing()) }
            }
            _ => self.lasting.values[value].ok_or_else(missing),
        }
    }

    /// Appends a copy of a node whose inputs are `inputs`: for a micro-batch, or for all of them.
    fn append(&mut self, id: NodeId, of: Option<MicroBatchId>, inputs: Vec<ValueId>) {
        let (node, values) = (&self.graph.nodes()[id], self.graph.values());
        let copies = match of {
            Some(micro_batch) => &mut self.own[micro_batch.index()],
            None => &mut self.lasting,
        };
        let micro_batch = of.unwrap_or(MicroBatchId::WHOLE);
        let renamed = |value: ValueId| {
            let at = node.inputs.iter().position(|&input| input == value);
            // The verifier lets no argument mention what is not among the inputs.
            at.map_or(value, |at| inputs[at])
        };
        // A storage that is not fresh is that of an input.
        let mut places: Vec<(StorageId, StorageId)> = Vec::new();
        for (&input, &copy) in node.inputs.iter().zip(&inputs) {
            places.extend(self.lies[copy].map(|place| (values[input].storage, place)));
        }
        for &storage in self.graph.fresh(id) {
            places.push((storage, self.builder.storage(self.graph.storages()[storage])));
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for output in &node.outputs {
            outputs.push(output.and_then(|output| {
                let value = &values[output];
                let (_, place) = places.iter().find(|(storage, _)| *storage == value.storage)?;
                Some(ValueSpec { storage: *place, ..ValueSpec::from(value) })
            }));
        }
        let kwargs = node.kwargs.iter();
        let spec = NodeSpec {
            name: name_of(&node.name, micro_batch),
            micro_batch,
            args: node.args.iter().map(|argument| argument.renamed(&renamed)).collect(),
            kwargs: kwargs.map(|(key, value)| (key.clone(), value.renamed(&renamed))).collect(),
            overwrites: node.overwrites.iter().map(|&value| renamed(value)).collect(),
            differentiates: node.differentiates.and_then(|target| copies.nodes[target]),
            recomputes: node.recomputes.and_then(|target| copies.nodes[target]),
            inputs,
            ..NodeSpec::from(node)
        };
        copies.nodes[id] = Some(self.builder.next_node());
        let made = self.builder.node(spec, &outputs);
        let lies = outputs.iter().flatten().map(|output| output.storage);
        for ((&output, made), place) in node.outputs.iter().flatten().zip(made).zip(lies) {
            copies.values[output] = Some(made);
            self.lies[made] = Some(place);
            let storage = values[output].storage;
            let is_version = self.graph.mutated(id).contains(&storage);
            if of.is_some() && is_version && self.graph.is_persistent(storage) {
                self.newest[storage] = Some((output, made));
            }
        }
    }

    /// Takes up what a micro-batch has made of a value; the last one makes a mean of the sum.
    fn add(&mut self, value: ValueId, micro_batch: MicroBatchId) {
        let Some(made) = self.own[micro_batch.index()].values[value] else { return };
        let sum = match self.sums[value] {
            None => made,
            Some(sum) => {
                let (sum_argument, made_argument) = (Argument::Value(sum), Argument::Value(made));
                let call = ("aten.add.Tensor", vec![sum_argument, made_argument]);
                self.elementwise(value, "sum", micro_batch, call, vec![sum, made])
            }
        };
        let is_last = micro_batch.index() + 1 == self.micro_batches as usize;
        self.sums[value] = Some(if is_last && self.micro_batches > 1 {
            let share = Argument::Float(1.0 / f64::from(self.micro_batches));
            let call = ("aten.mul.Scalar", vec![Argument::Value(sum), share]);
            self.elementwise(value, "mean", MicroBatchId::WHOLE, call, vec![sum])
        } else {
            sum
        });
    }

    /// Appends a call that makes a tensor like `value` of tensors like it.
    fn elementwise(
        &mut self,
        value: ValueId,
        what: &str,
        micro_batch: MicroBatchId,
        (op, args): (&str, Vec<Argument>),
        inputs: Vec<ValueId>,
    ) -> ValueId {
        let of = &self.graph.values()[value];
        let producer = &self.graph.nodes()[of.producer];
        // A node may make several values that are summed.
        let index = producer.outputs.iter().position(|output| *output == Some(value)).unwrap_or(0);
        let index = if index == 0 { String::new() } else { format!("_{index}") };
        let name = format!("{}{index}_{what}", producer.name);
        let bytes = of.tensor.bytes();
        let spec = NodeSpec {
            module: producer.module,
            micro_batch,
            bytes_read: Bytes(bytes.0 * inputs.len() as u64),
            bytes_written: bytes,
            args,
            inputs,
            ..NodeSpec::new(name_of(&name, micro_batch), op, producer.phase)
        };
        let storage = self.builder.storage(bytes);
        let output = dense_like(&of.tensor, storage);
        let made = self.builder.node(spec, &[Some(output)])[0];
        self.lies[made] = Some(storage);
        made
    }
}

/// A tensor of its own storage whose elements lie as those of `tensor` do where these leave no
/// gaps, else in row-major order.
fn dense_like(tensor: &TensorType, storage: StorageId) -> ValueSpec {
    let contiguous = ValueSpec::contiguous(&tensor.shape, tensor.dtype, storage);
    if tensor.contiguous || !tensor.strides.as_ref().is_some_and(|s| is_dense(&tensor.shape, s)) {
        return contiguous;
    }
    ValueSpec { contiguous: false, strides: tensor.strides.clone(), ..contiguous }
}

/// Some order of the dimensions makes the strides those of row-major order.
fn is_dense(shape: &[u64], strides: &[u64]) -> bool {
    let mut order: Vec<usize> = (0..shape.len()).filter(|&d| shape[d] != 1).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    let extents: Vec<u64> = order.iter().map(|&d| shape[d]).collect();
    order.iter().map(|&d| strides[d]).eq(contiguous_strides(&extents))
}

/// A step computes the value in each micro-batch for itself.
pub(super) fn is_of_a_micro_batch(graph: &Graph, value: ValueId) -> bool {
    let value = &graph.values()[value];
    let phase = graph.nodes()[value.producer].phase;
    !graph.is_persistent(value.storage) && phase != Phase::Optimizer
}
