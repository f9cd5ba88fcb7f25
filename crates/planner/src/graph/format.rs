//! Writes tightfit-graph/1: JSON, plain or gzip. Invariant: the same graph gives the same bytes,
//! and reading them gives the same graph.

use std::io::{self, BufWriter, Write};

use cranelift_entity::EntityRef;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value as Json;

use crate::graph::limits::FORMAT;
use crate::graph::{Dimension, Graph, Recapture, SeenNumber};
use crate::id::{MicroBatchId, NodeId, ValueId};
use crate::tensor::Argument;

/// The graph as tightfit-graph/1; value ids are its own dense ones.
pub fn write(graph: &Graph) -> Json {
    serde_json::to_value(File(graph)).expect("a graph has no keys but text")
}

/// The text of [`write()`], which as a single value would take many times the bytes of its file.
pub(super) fn write_text(graph: &Graph, out: impl Write) -> io::Result<()> {
    // Serialization writes pieces of a few bytes.
    let mut out = BufWriter::with_capacity(1 << 16, out);
    serde_json::to_writer(&mut out, &File(graph))?;
    out.flush()
}

/// The text of [`write()`] as the bytes of a file, packed by gzip or not. The same graph gives the
/// same bytes.
pub fn write_file(graph: &Graph, packed: bool) -> Vec<u8> {
    let written = "what is written to memory is written";
    let mut text = Vec::new();
    if !packed {
        write_text(graph, &mut text).expect(written);
        text.push(b'\n');
        return text;
    }
    let mut packer = GzEncoder::new(text, Compression::best());
    write_text(graph, &mut packer).expect(written);
    packer.finish().expect(written)
}

/// What a second capture showed, as a graph's file holds it.
pub fn write_recapture(seen: &Recapture) -> Json {
    serde_json::to_value(Again(seen)).expect("it has no keys but text")
}

/// A graph in the form of its file. Here and in all that follows, keys are in alphabetical order.
struct File<'a>(&'a Graph);

impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &File(graph) = self;
        let mut map = serializer.serialize_map(None)?;
        let mut set = Entries(&mut map);
        set.if_some("format", Some(FORMAT))?;
        set.if_some("modules", Some(Many(|| graph.modules().values())))?;
        set.if_some("name", Some(graph.name()))?;
        set.if_some("nodes", Some(Many(|| graph.nodes().keys().map(|id| Node(graph, id)))))?;
        set.if_some("output_names", graph.output_names())?;
        set.if_some("outputs", Some(ids(graph.outputs())))?;
        let seen = graph.recaptures.iter().any(Option::is_some);
        set.if_some("recaptures", seen.then_some(Seen(graph)))?;
        set.if_some("source", Some(graph.source()))?;
        set.if_some("storages", Some(Many(|| graph.storages().values())))?;
        set.if_some("uncalled", graph.uncalled())?;
        map.end()
    }
}

/// What captures at other sizes showed, by dimension.
struct Seen<'a>(&'a Graph);

impl Serialize for Seen<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let of =
            |dimension: Dimension| Some((dimension.name(), Again(self.0.recapture(dimension)?)));
        serializer.collect_map(Dimension::ALL.into_iter().filter_map(of))
    }
}

struct Again<'a>(&'a Recapture);

impl Serialize for Again<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Again(seen) = self;
        let mut map = serializer.serialize_map(None)?;
        let mut set = Entries(&mut map);
        set.if_some("above", seen.above.as_ref())?;
        set.if_some("below", seen.below.as_ref())?;
        set.if_some("between", seen.between)?;
        set.if_some("difference", seen.difference.as_ref())?;
        set.if_some("grid", (seen.grid != 1).then_some(seen.grid))?;
        set.if_some("numbers", given(&seen.numbers).map(|all| Many(|| all.iter().map(Other))))?;
        set.if_some("size", seen.size)?;
        map.end()
    }
}

struct Other<'a>(&'a SeenNumber);

impl Serialize for Other<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Other(SeenNumber { node, argument, item, number }) = self;
        let mut map = serializer.serialize_map(None)?;
        let mut set = Entries(&mut map);
        set.if_some("argument", Some(argument))?;
        set.if_some("item", item.as_ref())?;
        set.if_some("node", Some(node))?;
        set.if_some("number", Some(number))?;
        map.end()
    }
}

struct Node<'a>(&'a Graph, NodeId);

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Node(graph, id) = self;
        let node = &graph.nodes()[id];
        let link = |target: NodeId| &graph.nodes()[target].name;
        let mut map = serializer.serialize_map(None)?;
        let mut set = Entries(&mut map);
        set.if_some("args", given(&node.args).map(|args| Many(|| args.iter().map(Given))))?;
        set.if_some("bytes_read", positive(node.bytes_read.0))?;
        set.if_some("bytes_written", positive(node.bytes_written.0))?;
        set.if_some("differentiates", node.differentiates.map(link))?;
        set.if_some("flops", positive(node.flops.0))?;
        set.if_some("inputs", given(&node.inputs).map(ids))?;
        set.if_some("kwargs", given(&node.kwargs).map(Named))?;
        let micro_batch = node.micro_batch;
        let is_part = micro_batch != MicroBatchId::WHOLE;
        set.if_some("micro_batch", is_part.then(|| micro_batch.as_u32()))?;
        set.if_some("module", (node.module.index() != 0).then(|| node.module.as_u32()))?;
        set.if_some("mutates", node.mutates.then_some(true))?;
        set.if_some("name", Some(&node.name))?;
        set.if_some("op", Some(&node.op))?;
        let outputs = || node.outputs.iter().map(|output| output.map(|id| Value(graph, id)));
        set.if_some("outputs", Some(Many(outputs)))?;
        set.if_some("overwrites", given(&node.overwrites).map(ids))?;
        set.if_some("parameter", node.parameter.as_ref())?;
        set.if_some("phase", Some(node.phase.name()))?;
        set.if_some("random", node.random.then_some(true))?;
        set.if_some("recomputes", node.recomputes.map(link))?;
        set.if_some("seconds", node.seconds.map(|seconds| seconds.0))?;
        set.if_some("seed_slot", node.seed_slot)?;
        set.if_some("stream", node.stream.then_some(true))?;
        set.if_some("workspace", positive(node.workspace.0))?;
        map.end()
    }
}

struct Value<'a>(&'a Graph, ValueId);

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Value(graph, id) = self;
        let value = &graph.values()[id];
        let mut map = serializer.serialize_map(None)?;
        let mut set = Entries(&mut map);
        set.if_some("contiguous", (!value.tensor.contiguous).then_some(false))?;
        set.if_some("dtype", Some(value.tensor.dtype.name()))?;
        set.if_some("id", Some(id.as_u32()))?;
        set.if_some("offset", positive(value.tensor.offset))?;
        set.if_some("shape", Some(&value.tensor.shape))?;
        set.if_some("storage", Some(value.storage.as_u32()))?;
        set.if_some("strides", value.tensor.strides.as_ref())?;
        map.end()
    }
}

/// An argument of a call, for serialization.
struct Given<'a>(&'a Argument);

impl Serialize for Given<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Argument::Value(value) => serializer.collect_map([("value", value.as_u32())]),
            Argument::None => serializer.serialize_none(),
            Argument::Bool(x) => x.serialize(serializer),
            Argument::Int(x) => x.serialize(serializer),
            // JSON has no infinities.
            Argument::Float(x) if x.is_nan() => "nan".serialize(serializer),
            Argument::Float(x) if x.is_infinite() => {
                (if *x > 0.0 { "inf" } else { "-inf" }).serialize(serializer)
            }
            Argument::Float(x) => x.serialize(serializer),
            Argument::Text(x) => x.serialize(serializer),
            Argument::List(list) => serializer.collect_seq(list.iter().map(Given)),
        }
    }
}

/// Keyword arguments, which a node has in the order of their names.
struct Named<'a>(&'a [(String, Argument)]);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, argument)| (name, Given(argument))))
    }
}

/// The items of an iterator.
struct Many<F>(F);

impl<I: Iterator<Item: Serialize>, F: Fn() -> I> Serialize for Many<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The entries of a map.
struct Entries<'a, M>(&'a mut M);

impl<M: SerializeMap> Entries<'_, M> {
    /// Writes an entry that has a value.
    fn if_some(&mut self, key: &str, value: Option<impl Serialize>) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.0.serialize_entry(key, &value))
    }
}

/// The list, unless it is empty.
fn given<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}

/// The number, unless it is zero.
fn positive(number: u64) -> Option<u64> {
    (number != 0).then_some(number)
}

/// The numbers of values.
fn ids(values: &[ValueId]) -> Vec<u32> {
    values.iter().map(|value| value.as_u32()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::graph::read;

    #[test]
    fn the_text_in_pieces_is_the_text() {
        let output = |id| json!({ "id": id, "shape": [4], "dtype": "f32", "storage": id });
        let graph = json!({
            "format": FORMAT,
            "name": "a \"b\"",
            "source": { "nodes": [] },
            "modules": ["", "a"],
            "storages": [16, 16, 16, 16],
            "nodes": [
                { "name": "x", "op": "placeholder", "phase": "input", "outputs": [output(0)] },
                {
                    "name": "w",
                    "op": "placeholder",
                    "phase": "parameter",
                    "parameter": "a.w",
                    "module": 1,
                    "outputs": [output(1)],
                },
                {
                    "name": "y",
                    "op": "aten.relu.default",
                    "phase": "forward",
                    "micro_batch": 1,
                    "module": 1,
                    "inputs": [0],
                    "args": [{ "value": 0 }, [1, null, "nan", true, 0.5], "inf"],
                    "kwargs": { "b": "-inf", "a": 1.0 },
                    "outputs": [output(2), null],
                    "flops": 1,
                    "bytes_read": 2,
                    "bytes_written": 3,
                    "workspace": 4,
                    "seconds": 0.1,
                    "random": true,
                    "seed_slot": 5,
                    "overwrites": [0],
                },
                {
                    "name": "dx",
                    "op": "aten.relu.default",
                    "phase": "backward",
                    "inputs": [0],
                    "args": [{ "value": 0 }],
                    "differentiates": "y",
                    "differentiates": "y",
                    "random": true,
                    "stream": true,
                    "outputs": [{
                        "id": 3,
                        "shape": [2],
                        "dtype": "f32",
                        "storage": 3,
                        "contiguous": false,
                        "strides": [2],
                        "offset": 1,
                    }],
                },
            ],
            "outputs": [3],
            "output_names": ["result"],
            "uncalled": ["b"],
        });
        let graph = read(graph.to_string().as_bytes()).unwrap();
        let mut text = Vec::new();
        write_text(&graph, &mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), write(&graph).to_string());
        for packed in [false, true] {
            assert_eq!(read(&write_file(&graph, packed)).unwrap(), graph);
        }
        assert!(write_file(&graph, true).starts_with(&[0x1f, 0x8b]));
    }
}
