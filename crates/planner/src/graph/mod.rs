//! The training graph: one joint step (forward, loss, backward, optimizer) over values and
//! storages.
//!
//! Invariant: a [`Graph`] exists only verified. Every rule of tightfit-graph/1 holds for it, and it
//! never changes; analyses and decisions are side tables indexed by its ids.

mod assembly;
mod builder;
mod document;
mod error;
mod format;
pub mod limits;
mod node;
mod parts;
mod raw;
mod read;
mod recapture;
mod verify;

use std::io::{self, Write};

use cranelift_entity::{PrimaryMap, SecondaryMap};
use sha2::{Digest, Sha256};

pub use builder::{GraphBuilder, NodeSpec, ValueSpec};
pub use error::{GraphError, ReadError};
pub use format::{write, write_file, write_recapture};
pub use limits::FORMAT;
pub use node::{Node, Phase, Value};
pub use read::{read, read_from};
pub use recapture::{Dimension, LEAST, Recapture, RecaptureError, SeenNumber};

use crate::id::{ModuleId, NodeId, StorageId, ValueId};
use crate::operator::{TypedCall, Types};
use crate::tensor::TensorType;
use crate::units::Bytes;

/// How a node touches storages. Derived once by the verifier.
#[derive(Clone, Debug, Default, PartialEq)]
struct Accesses {
    reads: Vec<StorageId>,
    fresh: Vec<StorageId>,
    mutated: Vec<StorageId>,
    is_view: bool,
}

/// What was seen along each dimension, if the step was captured at another size.
type Recaptures = [Option<Recapture>; Dimension::ALL.len()];

/// A verified training graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    name: String,
    source: serde_json::Value,
    modules: PrimaryMap<ModuleId, String>,
    uncalled: Option<Vec<String>>,
    storages: PrimaryMap<StorageId, Bytes>,
    nodes: PrimaryMap<NodeId, Node>,
    values: PrimaryMap<ValueId, Value>,
    outputs: Vec<ValueId>,
    output_names: Option<Vec<String>>,
    recaptures: Recaptures,
    accesses: SecondaryMap<NodeId, Accesses>,
    kept: SecondaryMap<StorageId, bool>,
    producer: SecondaryMap<StorageId, Option<NodeId>>,
    hash: String,
}

impl Graph {
    /// Name of the model and its shapes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the graph came from: free form, never interpreted.
    pub fn source(&self) -> &serde_json::Value {
        &self.source
    }

    /// Fully qualified module names; the first is the root's, empty.
    pub fn modules(&self) -> &PrimaryMap<ModuleId, String> {
        &self.modules
    }

    /// Fully qualified names of modules that are never called: they hold others, as a list of
    /// layers does, or only their parameters are read. `None` if the graph does not say.
    pub fn uncalled(&self) -> Option<&[String]> {
        self.uncalled.as_deref()
    }

    /// Bytes of each storage.
    pub fn storages(&self) -> &PrimaryMap<StorageId, Bytes> {
        &self.storages
    }

    /// All nodes in program order.
    pub fn nodes(&self) -> &PrimaryMap<NodeId, Node> {
        &self.nodes
    }

    /// All values, in the order in which they are produced.
    pub fn values(&self) -> &PrimaryMap<ValueId, Value> {
        &self.values
    }

    /// Values that outlive the step.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// What each of the outputs is, if the graph says so: the loss, the prediction, the gradient of
    /// the parameter of that name.
    pub fn output_names(&self) -> Option<&[String]> {
        self.output_names.as_deref()
    }

    /// What capturing the step at another size showed; `None` if the graph does not say.
    pub fn recapture(&self, dimension: Dimension) -> Option<&Recapture> {
        self.recaptures[dimension.index()].as_ref()
    }

    /// Storages that a node reads, each once (also those it overwrites).
    pub fn reads(&self, node: NodeId) -> &[StorageId] {
        &self.accesses[node].reads
    }

    /// Storages that a node creates: those of its outputs that are not its inputs'.
    pub fn fresh(&self, node: NodeId) -> &[StorageId] {
        &self.accesses[node].fresh
    }

    /// Storages that a node overwrites in place.
    pub fn mutated(&self, node: NodeId) -> &[StorageId] {
        &self.accesses[node].mutated
    }

    /// Whether a node costs nothing and only extends the life of storages: it does not mutate, and
    /// its outputs lie in its inputs.
    pub fn is_view(&self, node: NodeId) -> bool {
        self.accesses[node].is_view
    }

    /// Whether a node takes part in a schedule: neither a placeholder nor a view.
    pub fn runs(&self, node: NodeId) -> bool {
        !self.nodes[node].phase.is_placeholder() && !self.accesses[node].is_view
    }

    /// Nodes that take part in a schedule, in program order.
    pub fn compute_nodes(&self) -> Vec<NodeId> {
        self.nodes.keys().filter(|&node| self.runs(node)).collect()
    }

    /// The node that creates a storage.
    pub fn producer(&self, storage: StorageId) -> Option<NodeId> {
        self.producer[storage]
    }

    /// Whether a storage stays to the end of the step: a value in it is an output, or it belongs to
    /// a persistent placeholder.
    pub fn is_kept(&self, storage: StorageId) -> bool {
        self.kept[storage]
    }

    /// Whether a storage stays from step to step: it belongs to a persistent placeholder.
    pub fn is_persistent(&self, storage: StorageId) -> bool {
        self.producer[storage].is_some_and(|node| self.nodes[node].phase.is_persistent())
    }

    /// Storages of placeholders, each with its placeholder, in program order.
    pub fn placeholder_storages(&self) -> impl Iterator<Item = (NodeId, StorageId)> + '_ {
        self.nodes
            .iter()
            .filter(|(_, node)| node.phase.is_placeholder())
            .flat_map(|(id, _)| self.fresh(id).iter().map(move |&storage| (id, storage)))
    }

    /// Storages that are on the device when a step is over, once for each output in them.
    pub fn output_storages(&self) -> impl Iterator<Item = StorageId> + '_ {
        self.outputs.iter().map(|&value| self.values[value].storage)
    }

    /// Bytes of all placeholders' storages.
    pub fn static_bytes(&self) -> Bytes {
        self.placeholder_storages().map(|(_, storage)| self.storages[storage]).sum()
    }

    /// A node's call as the operator table sees it.
    pub fn call(&self, node: NodeId) -> TypedCall<'_> {
        let Node { args, kwargs, outputs, .. } = &self.nodes[node];
        TypedCall { args, kwargs, outputs, types: self }
    }

    /// Whether an input of a node has the shape, type and strides of its first output, and no other
    /// input sees the same storage differently; so that one could lie in the place of the other.
    pub fn has_layout_of_output(&self, node: NodeId, input: ValueId) -> bool {
        let Node { inputs, outputs, .. } = &self.nodes[node];
        let Some(&Some(output)) = outputs.first() else { return false };
        let (from, to) = (&self.values[input], &self.values[output]);
        let alone = inputs.iter().all(|&other| {
            let other = &self.values[other];
            other.storage != from.storage || other.tensor.same_layout(&from.tensor)
        });
        alone && from.tensor.same_layout(&to.tensor)
    }

    /// Fully qualified name of a node's module.
    pub fn module_of(&self, node: NodeId) -> &str {
        &self.modules[self.nodes[node].module]
    }

    /// The node called `name`.
    pub fn node_named(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().find(|(_, node)| node.name == name).map(|(id, _)| id)
    }

    /// SHA-256 over the graph's canonical text, without what other captures of the step showed:
    /// names the graph that a plan was made for.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Computed once, when the graph is built.
    fn with_hash(mut self) -> Graph {
        let recaptures = std::mem::take(&mut self.recaptures);
        let mut digest = Hashing(Sha256::new());
        format::write_text(&self, &mut digest).expect("a digest takes all that is written");
        self.recaptures = recaptures;
        self.hash = digest.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        self
    }
}

/// A digest that can be written to like a file.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.update(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Types for Graph {
    fn type_of(&self, value: ValueId) -> &TensorType {
        &self.values[value].tensor
    }
}
