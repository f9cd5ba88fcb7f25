//! Writes calls that stand for those of a graph. Invariant: what a call makes is what its operator
//! derives from its inputs, and lies in a storage of its own, or in that of what it shows.

use std::collections::HashSet;

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::graph::{Graph, GraphBuilder, Node, NodeSpec, ValueSpec};
use crate::id::{NodeId, StorageId, ValueId};
use crate::operator::{Operator, Output, TypedCall, Types, to_torch};
use crate::split::SplitError;
use crate::tensor::{Argument, DType, TensorType, is_contiguous};
use crate::units::{Bytes, Flops, Seconds};

/// The types of what was made.
struct Made(PrimaryMap<ValueId, TensorType>);

impl Types for Made {
    fn type_of(&self, value: ValueId) -> &TensorType {
        &self.0[value]
    }
}

/// A graph that is being written.
pub struct Writer<'a> {
    graph: &'a Graph,
    builder: GraphBuilder,
    made: Made,
    /// What stands for each value, storage and node of the graph.
    values: SecondaryMap<ValueId, Option<ValueId>>,
    storages: SecondaryMap<StorageId, Option<StorageId>>,
    nodes: SecondaryMap<NodeId, Option<NodeId>>,
    /// Where each value that was made lies, and the call that made it.
    places: PrimaryMap<ValueId, StorageId>,
    makers: PrimaryMap<ValueId, NodeId>,
    /// The call that was made last.
    last: Option<NodeId>,
    /// The names that calls have.
    names: HashSet<String>,
    /// The device that calls of the graph name, if any does.
    device: Option<Argument>,
}

/// A call to be made.
pub struct Call<'n> {
    /// Its name.
    pub name: String,
    /// Its operator.
    pub op: &'n str,
    /// Its arguments.
    pub args: Vec<Argument>,
    /// The call that it stands for, or goes with.
    pub of: &'n Node,
    /// What it may overwrite, if that dies with it.
    pub over: Option<ValueId>,
    /// The part of the rows that it computes, if it does what the other call does.
    pub share: Option<f64>,
}

impl<'n> Call<'n> {
    /// A call in place of another one, by its name.
    pub fn named(of: &'n Node, op: &'n str, args: Vec<Argument>) -> Call<'n> {
        Call::new(of.name.clone(), op, args, of)
    }

    /// A call with a name of its own.
    pub fn new(name: String, op: &'n str, args: Vec<Argument>, of: &'n Node) -> Call<'n> {
        Call { name, op, args, of, over: None, share: None }
    }

    /// The same, which may overwrite a value if that dies with it.
    pub fn over(self, value: ValueId) -> Call<'n> {
        Call { over: Some(value), ..self }
    }

    fn inputs(&self) -> Vec<ValueId> {
        let mut inputs: Vec<ValueId> = Vec::new();
        for value in self.args.iter().flat_map(Argument::values) {
            if !inputs.contains(&value) {
                inputs.push(value);
            }
        }
        inputs
    }
}

impl<'a> Writer<'a> {
    /// Nothing yet.
    pub fn new(graph: &'a Graph) -> Writer<'a> {
        Writer {
            graph,
            builder: GraphBuilder::without_nodes(graph),
            made: Made(PrimaryMap::new()),
            values: SecondaryMap::new(),
            storages: SecondaryMap::new(),
            nodes: SecondaryMap::new(),
            places: PrimaryMap::new(),
            makers: PrimaryMap::new(),
            last: None,
            names: graph.nodes().values().map(|node| node.name.clone()).collect(),
            device: graph.nodes().values().find_map(|node| node.kwarg("device").cloned()),
        }
    }

    /// The graph, with the results of the other one.
    pub fn finish(mut self) -> Result<Graph, SplitError> {
        for &output in self.graph.outputs() {
            self.builder.output(self.of(output));
        }
        if let Some(names) = self.graph.output_names() {
            self.builder.output_names(names.to_vec());
        }
        Ok(self.builder.build()?)
    }

    /// What stands for a value, if something does by now.
    pub fn stands(&self, value: ValueId) -> Option<ValueId> {
        self.values[value]
    }

    /// Lets a value, and the call that made it, stand for an output of a call of the graph.
    pub fn stand_as(&mut self, id: NodeId, output: usize, made: ValueId) {
        self.nodes[id] = Some(self.makers[made]);
        self.stand(&self.graph.nodes()[id], output, made);
    }

    /// Lets a value stand for an output of a call of the graph, if that is used.
    pub fn stand(&mut self, node: &Node, output: usize, made: ValueId) {
        if let Some(value) = node.outputs.get(output).copied().flatten() {
            self.values[value] = Some(made);
            self.storages[self.graph.values()[value].storage] = Some(self.places[made]);
        }
    }

    /// The shape of what was made.
    pub fn shape(&self, made: ValueId) -> &[u64] {
        &self.made.0[made].shape
    }

    /// Lets the call that was made last stand for one of the graph: what differentiates that one
    /// differentiates it.
    pub fn stand_for(&mut self, id: NodeId) {
        self.nodes[id] = self.last;
    }

    /// Lets a call that was made stand for one of the graph.
    pub fn stand_in(&mut self, id: NodeId, made: NodeId) {
        self.nodes[id] = Some(made);
    }

    /// The call that stands for one of the graph, if one does by now.
    pub fn stands_in(&self, id: NodeId) -> Option<NodeId> {
        self.nodes[id]
    }

    /// Makes a call whose output is of a type that it is given, and returns that.
    pub fn typed(&mut self, call: Call<'_>, dtype: DType) -> Result<ValueId, SplitError> {
        let mut keywords = vec![("dtype".to_string(), Argument::Text(to_torch(dtype).to_string()))];
        // What is made of nothing is made where the rest of the graph is.
        let made_here = call.args.iter().all(|argument| argument.values().is_empty());
        let device = self.device.clone().filter(|_| made_here);
        keywords.extend(device.map(|device| ("device".to_string(), device)));
        Ok(self.make(call, &keywords, &[true])?[0].expect("it was asked for"))
    }

    /// Makes a call, and returns its first output.
    pub fn first(&mut self, call: Call<'_>) -> Result<ValueId, SplitError> {
        Ok(self.make(call, &[], &[true])?[0].expect("it was asked for"))
    }

    /// Makes a call, of whose outputs these are used.
    pub fn make(
        &mut self,
        call: Call<'_>,
        kwargs: &[(String, Argument)],
        used: &[bool],
    ) -> Result<Vec<Option<ValueId>>, SplitError> {
        let operator = Operator::from_name(call.op).ok_or_else(|| unknown(call.of))?;
        let kwargs = match kwargs {
            [] if call.op == call.of.op => &call.of.kwargs,
            given => given,
        };
        let outputs: Vec<Option<ValueId>> = used.iter().map(|_| None).collect();
        let typed = TypedCall { args: &call.args, kwargs, outputs: &outputs, types: &self.made };
        let row = operator.row();
        let derived = (row.outputs)(&typed)
            .map_err(|error| SplitError::Call { node: call.of.name.clone(), error })?;
        let flops = (row.cost.flops)(&typed);
        let derived = derived.into_iter().zip(used).map(|(output, used)| used.then_some(output));
        Ok(self.write(call, kwargs, derived.collect(), flops))
    }

    /// Makes a call of an operator that is not in the table, whose used outputs are these.
    pub fn foreign(
        &mut self,
        call: Call<'_>,
        outputs: Vec<Option<Output>>,
        flops: Flops,
    ) -> Vec<Option<ValueId>> {
        let kwargs = call.of.kwargs.clone();
        self.write(call, &kwargs, outputs, flops)
    }

    fn write(
        &mut self,
        call: Call<'_>,
        kwargs: &[(String, Argument)],
        outputs: Vec<Option<Output>>,
        flops: Flops,
    ) -> Vec<Option<ValueId>> {
        let inputs = call.inputs();
        let Call { name, op, args, of, over, share } = call;
        let name = self.fresh(name, &of.name);
        let is_view = outputs.iter().flatten().any(|output| output.place.is_some());
        let specs: Vec<Option<ValueSpec>> = outputs
            .iter()
            .map(|output| Some(self.placed(output.as_ref()?, inputs.first().copied())))
            .collect();
        let bytes = |value: &ValueId| self.made.0[*value].bytes().0;
        let read = if is_view { 0 } else { inputs.iter().map(bytes).sum() };
        let size = |spec: &ValueSpec| spec.shape.iter().product::<u64>() * spec.dtype.size();
        let written = if is_view { 0 } else { specs.iter().flatten().map(size).sum() };
        // A part that is put in its place is all that moves, and room for it moves nothing.
        let (read, written) = match (op, &inputs[..]) {
            (EMPTY, _) => (0, 0),
            (SLICE_SCATTER, [whole, part]) if over == Some(*whole) => (bytes(part), bytes(part)),
            _ => (read, written),
        };
        let spec = NodeSpec {
            name,
            op: op.to_string(),
            inputs,
            args,
            kwargs: kwargs.to_vec(),
            flops: if of.flops == Flops(0) { of.flops } else { flops },
            bytes_read: Bytes(read),
            bytes_written: Bytes(written),
            workspace: if op == of.op { of.workspace } else { Bytes::ZERO },
            seconds: of.seconds.zip(share).map(|(seconds, share)| Seconds(seconds.0 * share)),
            differentiates: of.differentiates.and_then(|target| self.nodes[target]),
            recomputes: None,
            overwrites: over.into_iter().collect(),
            ..NodeSpec::from(of)
        };
        self.add(spec, &specs)
    }

    /// The name, with a number if another call has it; `replaced` is the name of a call that goes.
    fn fresh(&mut self, name: String, replaced: &str) -> String {
        let mut number = 1;
        let mut found = name.clone();
        while found != replaced && !self.names.insert(found.clone()) {
            number += 1;
            found = format!("{name}.{number}");
        }
        found
    }

    /// Where an output lies: in the storage of what it shows, or in one of its own.
    fn placed(&mut self, output: &Output, shown: Option<ValueId>) -> ValueSpec {
        let elements: u64 = output.shape.iter().product();
        match (&output.place, shown) {
            (Some(place), Some(shown)) => ValueSpec {
                shape: output.shape.clone(),
                dtype: output.dtype,
                storage: self.places[shown],
                contiguous: is_contiguous(&output.shape, &place.strides),
                strides: Some(place.strides.clone()),
                offset: place.offset,
            },
            _ => {
                let storage = self.builder.storage(Bytes(elements * output.dtype.size()));
                ValueSpec::contiguous(&output.shape, output.dtype, storage)
            }
        }
    }

    fn add(&mut self, spec: NodeSpec, outputs: &[Option<ValueSpec>]) -> Vec<Option<ValueId>> {
        let id = self.builder.next_node();
        self.last = Some(id);
        let mut made = self.builder.node(spec, outputs).into_iter();
        let place = |output: &Option<ValueSpec>| {
            let output = output.as_ref()?;
            let tensor = TensorType {
                shape: output.shape.clone(),
                dtype: output.dtype,
                contiguous: output.contiguous,
                strides: output.strides.clone(),
                offset: output.offset,
            };
            let value = made.next()?;
            assert_eq!(self.made.0.push(tensor), value);
            self.places.push(output.storage);
            self.makers.push(id);
            Some(value)
        };
        outputs.iter().map(place).collect()
    }

    /// Copies a call as it is.
    pub fn copy(&mut self, id: NodeId) {
        let node = &self.graph.nodes()[id];
        let stand = |value: ValueId| self.values[value].unwrap_or(value);
        let nodes = |target: Option<NodeId>| target.and_then(|target| self.nodes[target]);
        let spec = NodeSpec {
            inputs: node.inputs.iter().map(|&value| stand(value)).collect(),
            args: node.args.iter().map(|argument| argument.renamed(&stand)).collect(),
            kwargs: node
                .kwargs
                .iter()
                .map(|(key, argument)| (key.clone(), argument.renamed(&stand)))
                .collect(),
            overwrites: node.overwrites.iter().map(|&value| stand(value)).collect(),
            differentiates: nodes(node.differentiates),
            recomputes: nodes(node.recomputes),
            ..NodeSpec::from(node)
        };
        let mut outputs = Vec::new();
        for output in &node.outputs {
            let spec = output.map(|output| {
                let value = &self.graph.values()[output];
                let storage = self.storage(value.storage);
                ValueSpec { storage, ..ValueSpec::from(value) }
            });
            outputs.push(spec);
        }
        let made = self.add(spec, &outputs);
        self.stand_for(id);
        for (output, made) in node.outputs.iter().zip(made) {
            if let Some(output) = output {
                self.values[*output] = made;
            }
        }
    }

    /// What stands for a storage.
    fn storage(&mut self, storage: StorageId) -> StorageId {
        if let Some(stands) = self.storages[storage] {
            return stands;
        }
        let stands = self.builder.storage(self.graph.storages()[storage]);
        self.storages[storage] = Some(stands);
        stands
    }

    /// What stands for a value, which something must by now.
    pub fn of(&self, value: ValueId) -> ValueId {
        self.values[value].expect("it was made before")
    }
}

/// Makes room for a tensor that is written in parts.
pub const EMPTY: &str = "aten.empty.memory_format";
/// Puts a part into a tensor.
pub const SLICE_SCATTER: &str = "aten.slice_scatter.default";

/// Extents as an argument.
pub fn sizes(shape: &[u64]) -> Argument {
    Argument::List(shape.iter().map(|&extent| Argument::Int(extent.cast_signed())).collect())
}

/// A call of an operator that is not in the table.
pub fn unknown(node: &Node) -> SplitError {
    SplitError::Unsuited { node: node.name.clone(), why: "calls an operator that is not known" }
}
