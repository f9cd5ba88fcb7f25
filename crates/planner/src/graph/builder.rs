//! Building a graph part by part. Invariant: the only way out is [`GraphBuilder::build`], which
//! verifies every rule.
//!
//! The file reader and the tests' generators both use it, so a graph made in memory obeys the same
//! rules as one from a file.

use cranelift_entity::{EntityRef, PrimaryMap};

use crate::graph::error::GraphError;
use crate::graph::node::{Node, Phase, Value};
use crate::graph::parts::Parts;
use crate::graph::verify;
use crate::graph::{Dimension, Graph, Recapture};
use crate::id::{MicroBatchId, ModuleId, NodeId, StorageId, ValueId};
use crate::operator::Operator;
use crate::tensor::{Argument, DType, TensorType};
use crate::units::{Bytes, Flops, Seconds};

/// A node without its outputs. [`NodeSpec::new`] fills in what most nodes do not need; [`Node`]
/// says what the fields mean.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// The name, which no other node of the graph may have.
    pub name: String,
    /// The name of the operator; it need not be one of the operator table.
    pub op: String,
    /// The part of the step that the node belongs to.
    pub phase: Phase,
    /// The module that the node belongs to.
    pub module: ModuleId,
    /// The part of the batch that the node belongs to.
    pub micro_batch: MicroBatchId,
    /// The name in the model, for parameters, buffers and state.
    pub parameter: Option<String>,
    /// The values that the node reads, each once.
    pub inputs: Vec<ValueId>,
    /// The positional arguments of the call, in ATen schema order.
    pub args: Vec<Argument>,
    /// The keyword arguments of the call, in any order.
    pub kwargs: Vec<(String, Argument)>,
    /// The floating-point operations of the call.
    pub flops: Flops,
    /// The bytes that the call reads from memory.
    pub bytes_read: Bytes,
    /// The bytes that the call writes to memory.
    pub bytes_written: Bytes,
    /// The transient bytes that the call takes beyond inputs and outputs.
    pub workspace: Bytes,
    /// The measured run time.
    pub seconds: Option<Seconds>,
    /// Whether the call draws random numbers.
    pub random: bool,
    /// The seed that the call draws with.
    pub seed_slot: Option<u32>,
    /// Whether the call draws from the device's running generator, or takes part in communication
    /// between ranks.
    pub stream: bool,
    /// Whether the call writes into storages of its inputs.
    pub mutates: bool,
    /// The forward node whose derivative the call computes, all of it or a part.
    pub differentiates: Option<NodeId>,
    /// The node that the call computes a second time.
    pub recomputes: Option<NodeId>,
    /// Inputs whose memory the first output may take over if they die with the call.
    pub overwrites: Vec<ValueId>,
}

impl NodeSpec {
    /// A node called `name` that calls `op` in `phase`, reads nothing and costs nothing.
    pub fn new(name: impl Into<String>, op: impl Into<String>, phase: Phase) -> NodeSpec {
        NodeSpec {
            name: name.into(),
            op: op.into(),
            phase,
            module: ModuleId::new(0),
            micro_batch: MicroBatchId::WHOLE,
            parameter: None,
            inputs: Vec::new(),
            args: Vec::new(),
            kwargs: Vec::new(),
            flops: Flops(0),
            bytes_read: Bytes(0),
            bytes_written: Bytes(0),
            workspace: Bytes(0),
            seconds: None,
            random: false,
            seed_slot: None,
            stream: false,
            mutates: false,
            differentiates: None,
            recomputes: None,
            overwrites: Vec::new(),
        }
    }
}

impl From<&Node> for NodeSpec {
    /// The same node, without its outputs.
    fn from(node: &Node) -> NodeSpec {
        NodeSpec {
            name: node.name.clone(),
            op: node.op.clone(),
            phase: node.phase,
            module: node.module,
            micro_batch: node.micro_batch,
            parameter: node.parameter.clone(),
            inputs: node.inputs.clone(),
            args: node.args.clone(),
            kwargs: node.kwargs.clone(),
            flops: node.flops,
            bytes_read: node.bytes_read,
            bytes_written: node.bytes_written,
            workspace: node.workspace,
            seconds: node.seconds,
            random: node.random,
            seed_slot: node.seed_slot,
            stream: node.stream,
            mutates: node.mutates,
            differentiates: node.differentiates,
            recomputes: node.recomputes,
            overwrites: node.overwrites.clone(),
        }
    }
}

/// A tensor that a node is to produce: its type, and the storage that it lies in.
#[derive(Clone, Debug)]
pub struct ValueSpec {
    /// The extent of each dimension, in elements.
    pub shape: Vec<u64>,
    /// The element type.
    pub dtype: DType,
    /// The storage that the tensor lies in.
    pub storage: StorageId,
    /// Whether the elements lie in row-major order without gaps.
    pub contiguous: bool,
    /// The stride of each dimension, in elements.
    pub strides: Option<Vec<u64>>,
    /// The position of the first element within the storage, in elements.
    pub offset: u64,
}

impl ValueSpec {
    /// A contiguous tensor at the start of its storage.
    pub fn contiguous(shape: &[u64], dtype: DType, storage: StorageId) -> ValueSpec {
        ValueSpec {
            shape: shape.to_vec(),
            dtype,
            storage,
            contiguous: true,
            strides: None,
            offset: 0,
        }
    }
}

impl From<&Value> for ValueSpec {
    /// The same tensor, in the same storage.
    fn from(value: &Value) -> ValueSpec {
        ValueSpec {
            shape: value.tensor.shape.clone(),
            dtype: value.tensor.dtype,
            storage: value.storage,
            contiguous: value.tensor.contiguous,
            strides: value.tensor.strides.clone(),
            offset: value.tensor.offset,
        }
    }
}

/// Collects the parts of a graph.
#[derive(Clone, Debug)]
pub struct GraphBuilder(Parts);

impl GraphBuilder {
    /// An empty graph whose module table holds just the root.
    pub fn new(name: impl Into<String>) -> GraphBuilder {
        let mut modules = PrimaryMap::new();
        modules.push(String::new());
        GraphBuilder(Parts {
            name: name.into(),
            source: serde_json::Value::Null,
            modules,
            uncalled: None,
            storages: PrimaryMap::new(),
            nodes: PrimaryMap::new(),
            values: PrimaryMap::new(),
            outputs: Vec::new(),
            output_names: None,
            recaptures: [None, None],
        })
    }

    /// The parts of an existing graph, to be extended or changed.
    pub fn from_graph(graph: &Graph) -> GraphBuilder {
        GraphBuilder(Parts {
            name: graph.name.clone(),
            source: graph.source.clone(),
            modules: graph.modules.clone(),
            uncalled: graph.uncalled.clone(),
            storages: graph.storages.clone(),
            nodes: graph.nodes.clone(),
            values: graph.values.clone(),
            outputs: graph.outputs.clone(),
            output_names: graph.output_names.clone(),
            recaptures: graph.recaptures.clone(),
        })
    }

    /// The name, the origin and the modules of an existing graph, for other nodes.
    pub fn without_nodes(graph: &Graph) -> GraphBuilder {
        let mut builder = GraphBuilder::new(graph.name.clone());
        builder.0.source = graph.source.clone();
        builder.0.modules = graph.modules.clone();
        builder.0.uncalled = graph.uncalled.clone();
        builder
    }

    /// No modules, not even the root: for a file, which lists them all.
    pub(super) fn without_modules(mut self) -> GraphBuilder {
        self.0.modules.clear();
        self
    }

    /// Names the graph.
    pub(super) fn name(&mut self, name: String) {
        self.0.name = name;
    }

    /// Records where the graph came from.
    pub fn source(&mut self, source: serde_json::Value) {
        self.0.source = source;
    }

    /// Adds a module by its fully qualified name.
    pub fn module(&mut self, name: impl Into<String>) -> ModuleId {
        self.0.modules.push(name.into())
    }

    /// Says which modules are never called.
    pub fn uncalled(&mut self, modules: Vec<String>) {
        self.0.uncalled = Some(modules);
    }

    /// Adds a storage of this many bytes.
    pub fn storage(&mut self, bytes: Bytes) -> StorageId {
        self.0.storages.push(bytes)
    }

    /// Sets all storages at once: for a file, whose nodes may come before them.
    pub(super) fn storages(&mut self, storages: PrimaryMap<StorageId, Bytes>) {
        self.0.storages = storages;
    }

    /// The id of the node that is added next.
    pub fn next_node(&self) -> NodeId {
        self.0.nodes.next_key()
    }

    /// Adds a node with its outputs (`None` = unused) and returns the ids of those that exist.
    pub fn node(&mut self, mut spec: NodeSpec, outputs: &[Option<ValueSpec>]) -> Vec<ValueId> {
        // A file does not order them, and a graph must equal the one that is read back.
        spec.kwargs.sort_by(|(a, _), (b, _)| a.cmp(b));
        let producer = self.next_node();
        let outputs: Vec<Option<ValueId>> = outputs
            .iter()
            .map(|output| {
                output.as_ref().map(|value| {
                    self.0.values.push(Value {
                        producer,
                        tensor: TensorType {
                            shape: value.shape.clone(),
                            dtype: value.dtype,
                            contiguous: value.contiguous,
                            strides: value.strides.clone(),
                            offset: value.offset,
                        },
                        storage: value.storage,
                        version: 0,
                    })
                })
            })
            .collect();
        let produced = outputs.iter().flatten().copied().collect();
        self.0.nodes.push(Node {
            operator: Operator::from_name(&spec.op),
            name: spec.name,
            op: spec.op,
            phase: spec.phase,
            module: spec.module,
            micro_batch: spec.micro_batch,
            parameter: spec.parameter,
            inputs: spec.inputs,
            outputs,
            args: spec.args,
            kwargs: spec.kwargs,
            flops: spec.flops,
            bytes_read: spec.bytes_read,
            bytes_written: spec.bytes_written,
            workspace: spec.workspace,
            seconds: spec.seconds,
            random: spec.random,
            seed_slot: spec.seed_slot,
            stream: spec.stream,
            mutates: spec.mutates,
            differentiates: spec.differentiates,
            recomputes: spec.recomputes,
            overwrites: spec.overwrites,
        });
        produced
    }

    /// Declares a value that outlives the step. If the outputs have names, its own is empty.
    pub fn output(&mut self, value: ValueId) {
        self.0.outputs.push(value);
        if let Some(names) = &mut self.0.output_names {
            names.push(String::new());
        }
    }

    /// Says what each of the outputs is.
    pub fn output_names(&mut self, names: Vec<String>) {
        self.0.output_names = Some(names);
    }

    /// Says what capturing the step at another size showed.
    pub fn recapture(&mut self, dimension: Dimension, seen: Recapture) {
        self.0.recaptures[dimension.index()] = Some(seen);
    }

    /// Verifies all rules; the graph never changes after that.
    pub fn build(self) -> Result<Graph, GraphError> {
        verify::verify(self.0)
    }
}
