//! A graph under construction, from the nodes of a file in their order. Invariant: an id of the
//! file is known from the node that makes it on; anything that names a part that the graph does not
//! have so far is refused with the name of the node that does so.

use std::collections::HashMap;

use serde_json::Number;

use crate::graph::builder::{GraphBuilder, NodeSpec, ValueSpec};
use crate::graph::error::{GraphError, ReadError};
use crate::graph::limits::MOST_OPERANDS;
use crate::graph::node::Phase;
use crate::graph::raw::{Name, RawArgument, RawNode, RawValue, makes};
use crate::id::{MicroBatchId, ModuleId, NodeId, StorageId, ValueId};
use crate::reading::Text;
use crate::tensor::{Argument, DType};
use crate::units::{Bytes, Flops, Seconds};

/// The nodes of a file so far.
pub(super) struct Assembly {
    pub builder: GraphBuilder,
    /// Values by the file's ids.
    pub values: HashMap<u64, ValueId>,
    nodes: HashMap<String, NodeId>,
    operands: usize,
}

impl Default for Assembly {
    fn default() -> Assembly {
        Assembly {
            builder: GraphBuilder::new("").without_modules(),
            values: HashMap::new(),
            nodes: HashMap::new(),
            operands: 0,
        }
    }
}

impl Assembly {
    /// Adds a node that comes after all of its inputs.
    pub fn node(&mut self, raw: RawNode) -> Result<(), ReadError> {
        let refused = |error| match error {
            ReadError::DanglingInput { node, value } if makes(&raw.outputs.0, value) => {
                GraphError::ReadBeforeProduced { node, value }.into()
            }
            error => error,
        };
        self.count(&raw)?;
        let name = &raw.name.0;
        let inputs = self.all(name, &raw.inputs.0).map_err(refused)?;
        let overwrites = self.all(name, &raw.overwrites.0).map_err(refused)?;
        let mut arguments = Vec::with_capacity(raw.args.len());
        for argument in raw.args {
            arguments.push(self.argument(argument, name).map_err(refused)?);
        }
        let mut keywords = Vec::with_capacity(raw.kwargs.len());
        for (key, argument) in raw.kwargs {
            keywords.push((key, self.argument(argument, name).map_err(refused)?));
        }
        let outputs = raw
            .outputs
            .0
            .iter()
            .map(|output| output.as_ref().map(|value| value_spec(value, name)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let Text(phase) = raw.phase;
        let phase = Phase::from_name(&phase)
            .ok_or_else(|| ReadError::Phase { node: name.clone(), found: phase })?;
        let spec = NodeSpec {
            op: raw.op.0,
            phase,
            module: ModuleId::from_u32(id(raw.module.as_ref(), name, "module")?),
            micro_batch: MicroBatchId::from_u32(id(raw.micro_batch.as_ref(), name, "micro_batch")?),
            parameter: raw.parameter.map(|parameter| parameter.0),
            inputs,
            args: arguments,
            kwargs: keywords,
            flops: Flops(size(raw.flops.as_ref(), name, "flops")?),
            bytes_read: Bytes(size(raw.bytes_read.as_ref(), name, "bytes_read")?),
            bytes_written: Bytes(size(raw.bytes_written.as_ref(), name, "bytes_written")?),
            workspace: Bytes(size(raw.workspace.as_ref(), name, "workspace")?),
            seconds: raw.seconds.map(Seconds),
            random: raw.random,
            seed_slot: raw.seed_slot,
            stream: raw.stream,
            mutates: raw.mutates,
            differentiates: self.link(name, "differentiates", raw.differentiates)?,
            recomputes: self.link(name, "recomputes", raw.recomputes)?,
            overwrites,
            name: name.clone(),
        };
        // The verifier would find this too, but only once all of them are in memory.
        if self.nodes.insert(name.clone(), self.builder.next_node()).is_some() {
            return Err(GraphError::DuplicateName { name: raw.name.0 }.into());
        }
        let ids = self.builder.node(spec, &outputs);
        for (value, id) in raw.outputs.0.iter().flatten().zip(ids) {
            if self.values.insert(value.id, id).is_some() {
                return Err(ReadError::DuplicateValue { node: raw.name.0, value: value.id });
            }
        }
        Ok(())
    }

    /// Counts the node's operands against the limit for all nodes together.
    fn count(&mut self, raw: &RawNode) -> Result<(), ReadError> {
        fn parts(argument: &RawArgument) -> usize {
            match argument {
                RawArgument::List(list) => 1 + list.iter().map(parts).sum::<usize>(),
                RawArgument::Value(_)
                | RawArgument::None
                | RawArgument::Bool(_)
                | RawArgument::Int(_)
                | RawArgument::Float(_)
                | RawArgument::Text(_)
                | RawArgument::Deep
                | RawArgument::Unknown(_) => 1,
            }
        }
        let values = raw.outputs.0.iter().flatten();
        let extents = values.map(|value| {
            value.shape.0.len() + value.strides.as_ref().map_or(0, |strides| strides.0.len())
        });
        self.operands += raw.inputs.0.len() + raw.outputs.0.len() + raw.overwrites.0.len();
        self.operands += extents.sum::<usize>();
        self.operands += raw.args.iter().chain(raw.kwargs.values()).map(parts).sum::<usize>();
        if self.operands > MOST_OPERANDS {
            return Err(ReadError::Operands { node: raw.name.0.clone() });
        }
        Ok(())
    }

    fn value(&self, node: &str, value: u64) -> Result<ValueId, ReadError> {
        let known = self.values.get(&value).copied();
        known.ok_or_else(|| ReadError::DanglingInput { node: node.to_string(), value })
    }

    fn all(&self, node: &str, values: &[u64]) -> Result<Vec<ValueId>, ReadError> {
        values.iter().map(|&value| self.value(node, value)).collect()
    }

    fn argument(&self, raw: RawArgument, node: &str) -> Result<Argument, ReadError> {
        Ok(match raw {
            RawArgument::Value(value) => Argument::Value(self.value(node, value)?),
            RawArgument::None => Argument::None,
            RawArgument::Bool(x) => Argument::Bool(x),
            RawArgument::Int(x) => Argument::Int(x),
            RawArgument::Float(x) => Argument::Float(x),
            RawArgument::Text(x) => Argument::Text(x),
            RawArgument::List(list) => Argument::List(
                list.into_iter().map(|x| self.argument(x, node)).collect::<Result<_, _>>()?,
            ),
            RawArgument::Deep => return Err(ReadError::Nesting { node: node.to_string() }),
            RawArgument::Unknown(found) => {
                let found = found.chars().take(60).collect();
                return Err(ReadError::Argument { node: node.to_string(), found });
            }
        })
    }

    fn link(
        &self,
        node: &str,
        field: &'static str,
        found: Option<Name>,
    ) -> Result<Option<NodeId>, ReadError> {
        let Some(Text(found)) = found else { return Ok(None) };
        match self.nodes.get(&found) {
            Some(&id) => Ok(Some(id)),
            None => Err(ReadError::UnknownLink { node: node.to_string(), field, found }),
        }
    }
}

/// The bytes of the storage with this index.
pub(super) fn storage_size(index: usize, size: &Number) -> Result<Bytes, ReadError> {
    bounded(Some(size), Bytes::LIMIT.0)
        .map(Bytes)
        .map_err(|found| ReadError::StorageSize { index, found })
}

fn value_spec(raw: &RawValue, node: &str) -> Result<ValueSpec, ReadError> {
    let all = |numbers: &[Number], field| {
        numbers.iter().map(|n| size(Some(n), node, field)).collect::<Result<Vec<_>, _>>()
    };
    Ok(ValueSpec {
        shape: all(&raw.shape.0, "shape")?,
        dtype: DType::from_name(&raw.dtype.0).ok_or_else(|| ReadError::DType {
            node: node.to_string(),
            value: raw.id,
            found: raw.dtype.0.clone(),
        })?,
        storage: StorageId::from_u32(id(Some(&raw.storage), node, "storage")?),
        contiguous: raw.contiguous.unwrap_or(true),
        strides: raw.strides.as_ref().map(|strides| all(&strides.0, "strides")).transpose()?,
        offset: size(raw.offset.as_ref(), node, "offset")?,
    })
}

fn size(number: Option<&Number>, node: &str, field: &'static str) -> Result<u64, ReadError> {
    bounded(number, Bytes::LIMIT.0).map_err(|found| ReadError::Size {
        node: node.to_string(),
        field,
        found,
        most: Bytes::LIMIT.0,
    })
}

/// Converts a number to an id; the verifier decides whether there is such a part.
fn id(number: Option<&Number>, node: &str, field: &'static str) -> Result<u32, ReadError> {
    const MOST: u32 = u32::MAX - 1;
    match bounded(number, MOST.into()) {
        Ok(id) => Ok(id as u32),
        Err(found) => {
            Err(ReadError::Size { node: node.to_string(), field, found, most: MOST.into() })
        }
    }
}

/// Zero if it is absent; an error with the number itself if it is not a whole number up to `most`.
fn bounded(number: Option<&Number>, most: u64) -> Result<u64, String> {
    let Some(number) = number else { return Ok(0) };
    number.as_u64().filter(|&x| x <= most).ok_or_else(|| number.to_string())
}
