//! The nodes that a rank runs, once for each micro-batch. Invariant: there is one copy of what
//! stays from step to step, and every micro-batch reads its newest version; each micro-batch has
//! its own copy of everything else, except for sums over micro-batches, which add one summand after
//! another in the order in which the summands are made.

use std::collections::BTreeMap;

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use crate::id::{MicroBatchId, NodeId, RankId, StorageId, ValueId};
use crate::pipeline::divide::{Division, Role};
use crate::pipeline::error::PipelineError;
use crate::pipeline::exchange::{Exchange, UnderWay};
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

/// Copies of the parts of the step.
#[derive(Clone, Default)]
struct Copies {
    nodes: SecondaryMap<NodeId, Option<NodeId>>,
    values: SecondaryMap<ValueId, Option<ValueId>>,
}

/// The graph of a rank under construction.
pub(super) struct Unroll<'a> {
    pub(super) graph: &'a Graph,
    pub(super) division: &'a Division<'a>,
    pub(super) exchange: &'a Exchange,
    pub(super) rank: RankId,
    pub(super) builder: GraphBuilder,
    micro_batches: u32,
    /// The tensor of each value of the new graph.
    pub(super) tensors: SecondaryMap<ValueId, Option<ValueSpec>>,
    /// Copies of what stays from step to step, and of what belongs to all micro-batches.
    lasting: Copies,
    /// The newest version of a storage that stays: the corresponding value of the step, and its
    /// copy.
    newest: SecondaryMap<StorageId, Option<(ValueId, ValueId)>>,
    /// The copies of each micro-batch.
    own: Vec<Copies>,
    /// The values to be summed that a node makes, including those read through views.
    summands: SecondaryMap<NodeId, Vec<ValueId>>,
    /// The sum so far; after the last summand the mean.
    sums: SecondaryMap<ValueId, Option<ValueId>>,
    /// The number of summands in it.
    summed: SecondaryMap<ValueId, u32>,
    /// Sends that were not waited for yet.
    pub(super) under_way: Vec<UnderWay>,
    /// Memory for messages that were not waited for yet.
    pub(super) posted: BTreeMap<usize, ValueId>,
}

impl<'a> Unroll<'a> {
    /// Begins with the placeholders that a rank reads: those of the batch for each micro-batch.
    pub fn new(
        division: &'a Division<'a>,
        exchange: &'a Exchange,
        rank: RankId,
        micro_batches: u32,
    ) -> Unroll<'a> {
        let graph = division.graph;
        let mut summands: SecondaryMap<NodeId, Vec<ValueId>> = SecondaryMap::new();
        for &value in &division.summed {
            summands[graph.values()[division.root(value)].producer].push(value);
        }
        let mut unroll = Unroll {
            graph,
            division,
            exchange,
            rank,
            builder: GraphBuilder::without_nodes(graph),
            micro_batches,
            tensors: SecondaryMap::new(),
            lasting: Copies::default(),
            newest: SecondaryMap::new(),
            own: vec![Copies::default(); micro_batches as usize],
            summands,
            sums: SecondaryMap::new(),
            summed: SecondaryMap::new(),
            under_way: Vec::new(),
            posted: BTreeMap::new(),
        };
        for (id, node) in graph.nodes().iter().filter(|(_, node)| node.phase.is_placeholder()) {
            if !exchange.is_given(id, rank) {
                continue;
            }
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

    /// Appends a node for a micro-batch, followed by the sends of its outputs and the sums to which
    /// they are added.
    pub fn run(&mut self, id: NodeId, micro_batch: MicroBatchId) -> Result<(), PipelineError> {
        let node = &self.graph.nodes()[id];
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(self.value(id, input, micro_batch)?);
        }
        self.append(id, Some(micro_batch), inputs);
        for &output in node.outputs.iter().flatten() {
            self.send(output, Some(micro_batch));
        }
        for value in self.summands[id].clone() {
            let made = self.value(id, value, micro_batch)?;
            self.add(value, made, micro_batch);
        }
        Ok(())
    }

    /// Appends a node that belongs to no micro-batch: it reads what stays, and means.
    pub fn update(&mut self, id: NodeId) -> Result<(), PipelineError> {
        let node = &self.graph.nodes()[id];
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(self.of_all(id, input)?);
        }
        self.append(id, None, inputs);
        for &output in node.outputs.iter().flatten() {
            self.send(output, None);
        }
        Ok(())
    }

    /// The graph, whose outputs are the copies of the step's outputs that this rank makes, and
    /// their numbers in the step.
    pub fn build(mut self) -> Result<(Graph, Vec<usize>), PipelineError> {
        self.wait(|_| true);
        let outputs = self.graph.outputs().iter().enumerate();
        let here: Vec<(usize, ValueId)> = outputs
            .map(|(index, &output)| (index, output))
            .filter(|&(_, output)| self.exchange.home(self.division, output) == self.rank)
            .collect();
        for &(_, output) in &here {
            let made = self.of_all(self.graph.values()[output].producer, output)?;
            self.builder.output(made);
        }
        if let Some(names) = self.graph.output_names() {
            let names = here.iter().map(|&(index, _)| names[index].clone());
            self.builder.output_names(names.collect());
        }
        Ok((self.builder.build()?, here.into_iter().map(|(index, _)| index).collect()))
    }

    /// The copy of a value after all micro-batches: a mean, what an update makes, or what stays, as
    /// the last micro-batch leaves it.
    fn of_all(&mut self, reader: NodeId, value: ValueId) -> Result<ValueId, PipelineError> {
        let producer = self.graph.values()[value].producer;
        let is_mean = self.division.summed.contains(&value);
        let known = if is_mean { self.sums[value] } else { self.lasting.values[value] };
        if let Some(made) = known
            && !self.graph.nodes()[producer].phase.is_placeholder()
        {
            return Ok(made);
        }
        if let Some(message) = self.exchange.number(value, self.rank, None) {
            let made = self.receive(value, None, message);
            let table = if is_mean { &mut self.sums } else { &mut self.lasting.values };
            table[value] = Some(made);
            return Ok(made);
        }
        if self.graph.is_view(producer) && self.graph.nodes()[producer].phase == Phase::Optimizer {
            self.update(producer)?;
            return self.lasting.values[value].ok_or_else(|| self.missing(reader, value));
        }
        self.value(reader, value, MicroBatchId::from_u32(self.micro_batches - 1))
    }

    /// The copy of a value for a reader in a micro-batch. Missing views, nodes that depend on the
    /// batch and on constants alone, and receives are appended.
    fn value(
        &mut self,
        reader: NodeId,
        value: ValueId,
        micro_batch: MicroBatchId,
    ) -> Result<ValueId, PipelineError> {
        // The innermost comes first.
        let mut missing = vec![value];
        while let Some(&wanted) = missing.last() {
            if self.current(wanted, micro_batch).is_some() {
                missing.pop();
                continue;
            }
            let producer = self.graph.values()[wanted].producer;
            let node = &self.graph.nodes()[producer];
            let is_made_here =
                self.graph.is_view(producer) || self.division.roles[producer] == Role::Anywhere;
            if is_made_here {
                let current = |&input: &ValueId| self.current(input, micro_batch);
                let inputs: Vec<Option<ValueId>> = node.inputs.iter().map(current).collect();
                match inputs.iter().position(Option::is_none) {
                    Some(index) => missing.push(node.inputs[index]),
                    None => {
                        let inputs = inputs.into_iter().flatten().collect();
                        self.append(producer, Some(micro_batch), inputs);
                    }
                }
                continue;
            }
            let number = self.exchange.number(wanted, self.rank, Some(micro_batch));
            let Some(message) = number.filter(|_| !node.phase.is_placeholder()) else {
                return Err(self.missing(reader, wanted));
            };
            let made = self.receive(wanted, Some(micro_batch), message);
            self.own[micro_batch.index()].values[wanted] = Some(made);
        }
        self.current(value, micro_batch).ok_or_else(|| self.missing(reader, value))
    }

    /// The copy of a value in a micro-batch, if there is one.
    fn current(&self, value: ValueId, micro_batch: MicroBatchId) -> Option<ValueId> {
        if let Some(own) = self.own[micro_batch.index()].values[value] {
            return Some(own);
        }
        let values = self.graph.values();
        if !self.graph.nodes()[values[value].producer].phase.is_persistent() {
            return None;
        }
        match self.newest[values[value].storage] {
            // An earlier micro-batch wrote what this one reads.
            Some((newest, made)) => (values[newest].tensor == values[value].tensor).then_some(made),
            None => self.lasting.values[value],
        }
    }

    fn missing(&self, reader: NodeId, value: ValueId) -> PipelineError {
        let name = |node: NodeId| self.graph.nodes()[node].name.clone();
        let made = name(self.graph.values()[value].producer);
        PipelineError::OfAnother { node: name(reader), made }
    }

    /// The table entry for the copy of a value: in a micro-batch, or after all of them.
    pub(super) fn place_of(
        &mut self,
        value: ValueId,
        micro_batch: Option<MicroBatchId>,
    ) -> &mut Option<ValueId> {
        match micro_batch {
            Some(micro_batch) => &mut self.own[micro_batch.index()].values[value],
            None if self.division.summed.contains(&value) => &mut self.sums[value],
            None => &mut self.lasting.values[value],
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
            // The verifier ensures that arguments mention only what is among the inputs.
            at.map_or(value, |at| inputs[at])
        };
        // A storage that is not fresh is that of an input.
        let mut places: Vec<(StorageId, StorageId)> = Vec::new();
        for (&input, &copy) in node.inputs.iter().zip(&inputs) {
            let lies = self.tensors[copy].as_ref();
            places.extend(lies.map(|tensor| (values[input].storage, tensor.storage)));
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
        let tensors = outputs.into_iter().flatten();
        for ((&output, made), tensor) in node.outputs.iter().flatten().zip(made).zip(tensors) {
            copies.values[output] = Some(made);
            self.tensors[made] = Some(tensor);
            let storage = values[output].storage;
            let is_version = self.graph.mutated(id).contains(&storage);
            if of.is_some() && is_version && self.graph.is_persistent(storage) {
                self.newest[storage] = Some((output, made));
            }
        }
    }

    /// Adds a micro-batch's value to the sum; the last one makes a mean of it.
    fn add(&mut self, value: ValueId, made: ValueId, micro_batch: MicroBatchId) {
        let sum = match self.sums[value] {
            None => made,
            Some(sum) => {
                let arguments = vec![Argument::Value(sum), Argument::Value(made)];
                let call = ("aten.add.Tensor", arguments);
                self.elementwise(value, "sum", micro_batch, call, vec![sum, made])
            }
        };
        self.sums[value] = Some(sum);
        self.summed[value] += 1;
        if self.summed[value] < self.micro_batches {
            return;
        }
        if self.micro_batches > 1 {
            let share = Argument::Float(1.0 / f64::from(self.micro_batches));
            let call = ("aten.mul.Scalar", vec![Argument::Value(sum), share]);
            let mean = self.elementwise(value, "mean", MicroBatchId::WHOLE, call, vec![sum]);
            self.sums[value] = Some(mean);
        }
        self.send(value, None);
    }

    /// Appends a call that makes a tensor like `value` from tensors like it.
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
        let made = self.builder.node(spec, &[Some(output.clone())])[0];
        self.tensors[made] = Some(output);
        made
    }
}

/// A tensor with a storage of its own whose elements lie as those of `tensor` do if these leave no
/// gaps, and otherwise in row-major order.
pub(super) fn dense_like(tensor: &TensorType, storage: StorageId) -> ValueSpec {
    let contiguous = ValueSpec::contiguous(&tensor.shape, tensor.dtype, storage);
    if tensor.contiguous || !tensor.strides.as_ref().is_some_and(|s| is_dense(&tensor.shape, s)) {
        return contiguous;
    }
    ValueSpec { contiguous: false, strides: tensor.strides.clone(), ..contiguous }
}

/// Whether some order of the dimensions makes the strides row-major.
fn is_dense(shape: &[u64], strides: &[u64]) -> bool {
    let mut order: Vec<usize> = (0..shape.len()).filter(|&d| shape[d] != 1).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(strides[d]));
    let extents: Vec<u64> = order.iter().map(|&d| shape[d]).collect();
    order.iter().map(|&d| strides[d]).eq(contiguous_strides(&extents))
}
