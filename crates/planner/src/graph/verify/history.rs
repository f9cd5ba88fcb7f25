//! What the nodes up to one did to values and storages. Invariant: every value that a node reads
//! exists, in the version in which it was made; every storage has one maker.

use cranelift_entity::{PrimaryMap, SecondaryMap};

use crate::graph::Accesses;
use crate::graph::error::GraphError;
use crate::graph::node::{Node, Value};
use crate::graph::verify::{describe, produced};
use crate::id::{NodeId, StorageId, ValueId};

/// The last node that used a value or a storage in some way: whether a node has done so before is
/// known at once, however much it reads and writes. And what later nodes find: makers, versions.
#[derive(Default)]
pub(super) struct History {
    listed: SecondaryMap<ValueId, Option<NodeId>>,
    overwriting: SecondaryMap<ValueId, Option<NodeId>>,
    reader: SecondaryMap<StorageId, Option<NodeId>>,
    writer: SecondaryMap<StorageId, Option<NodeId>>,
    /// The node that makes each storage.
    pub producer: SecondaryMap<StorageId, Option<NodeId>>,
    /// The times that each storage was written in place, and by which node last.
    version: SecondaryMap<StorageId, (u32, Option<NodeId>)>,
}

impl History {
    /// The number of times that a storage was written in place.
    pub fn version(&self, storage: StorageId) -> u32 {
        self.version[storage].0
    }

    /// The node that wrote a value's storage in place after the value was made.
    pub fn overwriter(&self, value: &Value) -> Option<NodeId> {
        let (current, writer) = self.version[value.storage];
        writer.filter(|_| value.version != current)
    }

    /// Whether a node lists a value among its inputs. The table does not grow for ids that no value
    /// has.
    fn lists(&self, node: NodeId, value: ValueId) -> bool {
        self.listed.get(value) == Some(&Some(node))
    }

    /// A node lists its inputs, each once and in its current version; what it overwrites and its
    /// arguments are among them.
    pub fn read(
        &mut self,
        id: NodeId,
        node: &Node,
        nodes: &PrimaryMap<NodeId, Node>,
        values: &PrimaryMap<ValueId, Value>,
    ) -> Result<(), GraphError> {
        for &value in &node.inputs {
            if !values.is_valid(value) || values[value].producer >= id {
                return Err(GraphError::ReadBeforeProduced {
                    node: node.name.clone(),
                    value: value.as_u32().into(),
                });
            }
            if self.listed[value].replace(id) == Some(id) {
                return Err(GraphError::DuplicateInput {
                    node: node.name.clone(),
                    value: describe(value, nodes, values),
                });
            }
            if let Some(writer) = self.overwriter(&values[value]) {
                return Err(GraphError::ReadsOverwritten {
                    node: node.name.clone(),
                    value: describe(value, nodes, values),
                    writer: nodes[writer].name.clone(),
                });
            }
        }
        for &value in &node.overwrites {
            if !self.lists(id, value) || self.overwriting[value].replace(id) == Some(id) {
                let value = describe(value, nodes, values);
                return Err(GraphError::Overwrites { node: node.name.clone(), value });
            }
        }
        let arguments = node.args.iter().chain(node.kwargs.iter().map(|(_, argument)| argument));
        let mut arguments = arguments.flat_map(|argument| argument.values());
        match arguments.find(|&value| !self.lists(id, value)) {
            Some(value) => Err(GraphError::ArgumentNotInput {
                node: node.name.clone(),
                value: describe(value, nodes, values),
            }),
            None => Ok(()),
        }
    }

    /// The storages that a node reads, each once.
    fn reads(
        &mut self,
        id: NodeId,
        node: &Node,
        values: &PrimaryMap<ValueId, Value>,
    ) -> Vec<StorageId> {
        let storages = node.inputs.iter().map(|&value| values[value].storage);
        storages.filter(|&storage| self.reader[storage].replace(id) != Some(id)).collect()
    }

    /// The storages that a node reads, makes and overwrites; its outputs lie in no others.
    pub fn access(
        &mut self,
        id: NodeId,
        node: &Node,
        nodes: &PrimaryMap<NodeId, Node>,
        values: &PrimaryMap<ValueId, Value>,
    ) -> Result<Accesses, GraphError> {
        let reads = self.reads(id, node, values);
        let (mut fresh, mut touched): (Vec<StorageId>, Vec<StorageId>) = (Vec::new(), Vec::new());
        let mut written_twice = None;
        for (output, value) in produced(node) {
            let storage = values[value].storage;
            if self.reader[storage] == Some(id) {
                if self.writer[storage].replace(id) == Some(id) {
                    written_twice = written_twice.or(Some(storage));
                }
                touched.push(storage);
                continue;
            }
            if node.mutates {
                return Err(GraphError::MutatesNothing { node: node.name.clone(), output });
            }
            if let Some(first) = self.producer[storage].filter(|&first| first != id) {
                return Err(GraphError::TwoProducers {
                    node: node.name.clone(),
                    output,
                    storage: storage.as_u32(),
                    producer: nodes[first].name.clone(),
                });
            }
            if self.producer[storage].replace(id).is_none() {
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
        let is_view = !node.phase.is_placeholder()
            && !node.mutates
            && fresh.is_empty()
            && !touched.is_empty();
        let mutated = if node.mutates { touched } else { Vec::new() };
        for &storage in &mutated {
            self.version[storage] = (self.version[storage].0 + 1, Some(id));
        }
        Ok(Accesses { reads, fresh, mutated, is_view })
    }
}
