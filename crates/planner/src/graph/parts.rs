//! The parts of a graph before they are verified. Invariant: only the builder fills them, and only
//! the verifier takes them.

use cranelift_entity::PrimaryMap;

use crate::graph::Recaptures;
use crate::graph::node::{Node, Value};
use crate::id::{ModuleId, NodeId, StorageId, ValueId};
use crate::units::Bytes;

/// The contents of a graph; [`Graph`](super::Graph) says what each part means.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub name: String,
    pub source: serde_json::Value,
    pub modules: PrimaryMap<ModuleId, String>,
    pub uncalled: Option<Vec<String>>,
    pub storages: PrimaryMap<StorageId, Bytes>,
    pub nodes: PrimaryMap<NodeId, Node>,
    pub values: PrimaryMap<ValueId, Value>,
    pub outputs: Vec<ValueId>,
    pub output_names: Option<Vec<String>>,
    pub recaptures: Recaptures,
}
