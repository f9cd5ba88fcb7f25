//! tightfit-graph/1 on disk: JSON, plain or gzip. Invariant: reading what was written gives the
//! same graph, and no bytes whatever make the reader panic or allocate without bound.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Read, Write};

use cranelift_entity::EntityRef;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Deserialize;
use serde_json::{Map, Number, Value as Json, json};

use crate::graph::Graph;
use crate::graph::builder::{GraphBuilder, NodeSpec, ValueSpec};
use crate::graph::error::{GraphError, ReadError};
use crate::graph::limits::{DEEPEST_LIST, FORMAT, MOST_BYTES};
use crate::graph::node::Phase;
use crate::id::{ModuleId, NodeId, StorageId, ValueId};
use crate::tensor::{Argument, DType};
use crate::units::{Bytes, Flops, Seconds};

#[derive(Deserialize)]
struct RawGraph {
    #[serde(default)]
    name: String,
    #[serde(default)]
    source: Json,
    modules: Vec<String>,
    uncalled: Option<Vec<String>>,
    storages: Vec<Number>,
    nodes: Vec<RawNode>,
    outputs: Vec<u64>,
    output_names: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawNode {
    name: String,
    op: String,
    phase: String,
    module: Option<Number>,
    parameter: Option<String>,
    #[serde(default)]
    inputs: Vec<u64>,
    #[serde(default)]
    outputs: Vec<Option<RawValue>>,
    #[serde(default)]
    args: Vec<Json>,
    #[serde(default)]
    kwargs: Map<String, Json>,
    flops: Option<Number>,
    bytes_read: Option<Number>,
    bytes_written: Option<Number>,
    workspace: Option<Number>,
    seconds: Option<f64>,
    #[serde(default)]
    random: bool,
    seed_slot: Option<u32>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    mutates: bool,
    differentiates: Option<String>,
    recomputes: Option<String>,
    #[serde(default)]
    overwrites: Vec<u64>,
}

#[derive(Deserialize)]
struct RawValue {
    id: u64,
    shape: Vec<Number>,
    dtype: String,
    storage: Number,
    contiguous: Option<bool>,
    strides: Option<Vec<Number>>,
    offset: Option<Number>,
}

/// Reads a graph from the bytes of a file.
pub fn read(bytes: &[u8]) -> Result<Graph, ReadError> {
    let text = &unfold(bytes, MOST_BYTES)?[..];
    #[derive(Deserialize)]
    struct Header {
        format: Option<Json>,
    }
    let header: Header = serde_json::from_slice(text)?;
    if header.format.as_ref().and_then(Json::as_str) != Some(FORMAT) {
        let found = header.format.map_or("missing".to_string(), |format| format.to_string());
        return Err(ReadError::Version { found });
    }
    build(serde_json::from_slice(text)?)
}

/// The text itself, where it is not packed.
fn unfold(bytes: &[u8], most: u64) -> Result<Cow<'_, [u8]>, ReadError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes.into());
    }
    let mut text = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes)
        .take(most + 1)
        .read_to_end(&mut text)
        .map_err(ReadError::Gzip)?;
    if text.len() as u64 > most {
        return Err(ReadError::TooLong { most });
    }
    Ok(text.into())
}

fn size(number: Option<&Number>, node: &str, field: &'static str) -> Result<u64, ReadError> {
    bounded(number, Bytes::LIMIT.0).map_err(|found| ReadError::Size {
        node: node.to_string(),
        field,
        found,
        most: Bytes::LIMIT.0,
    })
}

/// A number that becomes an id; whether there is such a part is for the verifier to say.
fn id(number: Option<&Number>, node: &str, field: &'static str) -> Result<u32, ReadError> {
    const MOST: u32 = u32::MAX - 1;
    match bounded(number, MOST.into()) {
        Ok(id) => Ok(id as u32),
        Err(found) => {
            Err(ReadError::Size { node: node.to_string(), field, found, most: MOST.into() })
        }
    }
}

/// Zero where it is absent; the number itself where it is no whole number up to `most`.
fn bounded(number: Option<&Number>, most: u64) -> Result<u64, String> {
    let Some(number) = number else { return Ok(0) };
    number.as_u64().filter(|&x| x <= most).ok_or_else(|| number.to_string())
}

fn build(raw: RawGraph) -> Result<Graph, ReadError> {
    let mut builder = GraphBuilder::new(raw.name).without_modules();
    builder.source(raw.source);
    for module in raw.modules {
        builder.module(module);
    }
    if let Some(uncalled) = raw.uncalled {
        builder.uncalled(uncalled);
    }
    for (index, number) in raw.storages.iter().enumerate() {
        let bytes = bounded(Some(number), Bytes::LIMIT.0)
            .map_err(|found| ReadError::StorageSize { index, found })?;
        builder.storage(Bytes(bytes));
    }
    let produced: HashMap<u64, usize> = raw
        .nodes
        .iter()
        .enumerate()
        .flat_map(|(i, node)| node.outputs.iter().flatten().map(move |value| (value.id, i)))
        .collect();
    let mut ids: HashMap<u64, ValueId> = HashMap::new();
    let mut named: HashMap<String, NodeId> = HashMap::new();
    for (index, node) in raw.nodes.into_iter().enumerate() {
        let name = node.name.clone();
        let resolve = |value: u64| match ids.get(&value) {
            Some(&id) => Ok(id),
            None if produced.contains_key(&value) => {
                Err(GraphError::ReadBeforeProduced { node: name.clone(), value }.into())
            }
            None => Err(ReadError::DanglingInput { node: name.clone(), value }),
        };
        let inputs =
            node.inputs.iter().map(|&value| resolve(value)).collect::<Result<Vec<_>, _>>()?;
        let overwrites =
            node.overwrites.iter().map(|&value| resolve(value)).collect::<Result<Vec<_>, _>>()?;
        let args = node
            .args
            .iter()
            .map(|x| argument(x, &name, &resolve, 0))
            .collect::<Result<Vec<_>, _>>()?;
        let kwargs = node
            .kwargs
            .iter()
            .map(|(key, x)| Ok((key.clone(), argument(x, &name, &resolve, 0)?)))
            .collect::<Result<Vec<_>, ReadError>>()?;
        let outputs = node
            .outputs
            .iter()
            .map(|output| output.as_ref().map(|value| value_spec(value, &name)).transpose())
            .collect::<Result<Vec<_>, _>>()?;
        let phase = Phase::from_name(&node.phase)
            .ok_or_else(|| ReadError::Phase { node: name.clone(), found: node.phase.clone() })?;
        let module = id(node.module.as_ref(), &name, "module")?;
        let linked = |field, found: Option<String>| match found {
            None => Ok(None),
            Some(found) => named.get(&found).copied().map(Some).ok_or(ReadError::UnknownLink {
                node: name.clone(),
                field,
                found,
            }),
        };
        let spec = NodeSpec {
            op: node.op,
            phase,
            module: ModuleId::from_u32(module),
            parameter: node.parameter,
            inputs,
            args,
            kwargs,
            flops: Flops(size(node.flops.as_ref(), &name, "flops")?),
            bytes_read: Bytes(size(node.bytes_read.as_ref(), &name, "bytes_read")?),
            bytes_written: Bytes(size(node.bytes_written.as_ref(), &name, "bytes_written")?),
            workspace: Bytes(size(node.workspace.as_ref(), &name, "workspace")?),
            seconds: node.seconds.map(Seconds),
            random: node.random,
            seed_slot: node.seed_slot,
            stream: node.stream,
            mutates: node.mutates,
            differentiates: linked("differentiates", node.differentiates)?,
            recomputes: linked("recomputes", node.recomputes)?,
            overwrites,
            name: node.name,
        };
        named.insert(name.clone(), NodeId::new(index));
        let made = builder.node(spec, &outputs);
        for (value, id) in node.outputs.iter().flatten().zip(made) {
            if ids.insert(value.id, id).is_some() {
                return Err(ReadError::DuplicateValue { node: name, value: value.id });
            }
        }
    }
    for value in raw.outputs {
        builder.output(*ids.get(&value).ok_or(ReadError::DanglingOutput { value })?);
    }
    if let Some(names) = raw.output_names {
        builder.output_names(names);
    }
    Ok(builder.build()?)
}

fn value_spec(raw: &RawValue, node: &str) -> Result<ValueSpec, ReadError> {
    let all = |numbers: &[Number], field| {
        numbers.iter().map(|n| size(Some(n), node, field)).collect::<Result<Vec<_>, _>>()
    };
    Ok(ValueSpec {
        shape: all(&raw.shape, "shape")?,
        dtype: DType::from_name(&raw.dtype).ok_or_else(|| ReadError::DType {
            node: node.to_string(),
            value: raw.id,
            found: raw.dtype.clone(),
        })?,
        storage: StorageId::from_u32(id(Some(&raw.storage), node, "storage")?),
        contiguous: raw.contiguous.unwrap_or(true),
        strides: raw.strides.as_ref().map(|strides| all(strides, "strides")).transpose()?,
        offset: size(raw.offset.as_ref(), node, "offset")?,
    })
}

fn argument(
    json: &Json,
    node: &str,
    resolve: &impl Fn(u64) -> Result<ValueId, ReadError>,
    depth: usize,
) -> Result<Argument, ReadError> {
    let unknown = || ReadError::Argument {
        node: node.to_string(),
        found: json.to_string().chars().take(60).collect(),
    };
    Ok(match json {
        Json::Null => Argument::None,
        Json::Bool(x) => Argument::Bool(*x),
        Json::Number(x) => match (x.as_i64(), x.as_f64()) {
            (Some(x), _) => Argument::Int(x),
            (None, Some(x)) => Argument::Float(x),
            (None, None) => return Err(unknown()),
        },
        Json::String(x) => Argument::Text(x.clone()),
        Json::Array(_) if depth >= DEEPEST_LIST => {
            return Err(ReadError::Nesting { node: node.to_string() });
        }
        Json::Array(list) => Argument::List(
            list.iter().map(|x| argument(x, node, resolve, depth + 1)).collect::<Result<_, _>>()?,
        ),
        Json::Object(object) => Argument::Value(resolve(
            object.get("value").and_then(Json::as_u64).ok_or_else(unknown)?,
        )?),
    })
}

/// The graph as tightfit-graph/1; value ids are its own dense ones.
pub fn write(graph: &Graph) -> Json {
    let nodes: Vec<Json> = graph.nodes().keys().map(|id| node_json(graph, id)).collect();
    with_nodes(graph, nodes)
}

/// The text of [`write()`], piece by piece: as one value a large graph takes many times the bytes
/// of its file.
pub(super) fn write_text(graph: &Graph, sink: &mut impl FnMut(&str)) {
    let Json::Object(object) = with_nodes(graph, Vec::new()) else { return };
    for (index, (key, value)) in object.iter().enumerate() {
        sink(if index == 0 { "{" } else { "," });
        sink(&json!(key).to_string());
        sink(":");
        if key != "nodes" {
            sink(&value.to_string());
            continue;
        }
        sink("[");
        for id in graph.nodes().keys() {
            sink(if id.index() == 0 { "" } else { "," });
            sink(&node_json(graph, id).to_string());
        }
        sink("]");
    }
    sink("}");
}

/// The text of [`write()`] as the bytes of a file, packed by gzip or not. The same graph gives the
/// same bytes.
pub fn write_file(graph: &Graph, packed: bool) -> Vec<u8> {
    let mut text = Vec::new();
    if !packed {
        write_text(graph, &mut |piece| text.extend_from_slice(piece.as_bytes()));
        text.push(b'\n');
        return text;
    }
    let mut packer = GzEncoder::new(text, Compression::best());
    // What is written to memory is written.
    write_text(graph, &mut |piece| drop(packer.write_all(piece.as_bytes())));
    packer.finish().unwrap_or_default()
}

fn with_nodes(graph: &Graph, nodes: Vec<Json>) -> Json {
    let mut file = json!({
        "format": FORMAT,
        "name": graph.name(),
        "source": graph.source(),
        "modules": graph.modules().values().collect::<Vec<_>>(),
        "storages": graph.storages().values().collect::<Vec<_>>(),
        "nodes": nodes,
        "outputs": graph.outputs().iter().map(|value| value.as_u32()).collect::<Vec<_>>(),
    });
    if let Some(names) = graph.output_names() {
        file["output_names"] = json!(names);
    }
    if let Some(uncalled) = graph.uncalled() {
        file["uncalled"] = json!(uncalled);
    }
    file
}

fn node_json(graph: &Graph, id: super::NodeId) -> Json {
    let node = &graph.nodes()[id];
    let mut object = Map::new();
    let mut set = |key: &str, value: Json| object.insert(key.to_string(), value);
    set("name", json!(node.name));
    set("op", json!(node.op));
    set("phase", json!(node.phase.name()));
    if node.module.index() != 0 {
        set("module", json!(node.module.as_u32()));
    }
    if let Some(parameter) = &node.parameter {
        set("parameter", json!(parameter));
    }
    if !node.inputs.is_empty() {
        set("inputs", json!(node.inputs.iter().map(|value| value.as_u32()).collect::<Vec<_>>()));
    }
    let outputs: Vec<Json> = node
        .outputs
        .iter()
        .map(|output| output.map_or(Json::Null, |value| value_json(graph, value)))
        .collect();
    set("outputs", Json::Array(outputs));
    if !node.args.is_empty() {
        set("args", node.args.iter().map(argument_json).collect());
    }
    if !node.kwargs.is_empty() {
        set(
            "kwargs",
            node.kwargs
                .iter()
                .map(|(key, value)| (key.clone(), argument_json(value)))
                .collect::<Map<_, _>>()
                .into(),
        );
    }
    for (key, number) in [
        ("flops", node.flops.0),
        ("bytes_read", node.bytes_read.0),
        ("bytes_written", node.bytes_written.0),
        ("workspace", node.workspace.0),
    ] {
        if number != 0 {
            set(key, json!(number));
        }
    }
    if let Some(seconds) = node.seconds {
        set("seconds", json!(seconds.0));
    }
    if node.random {
        set("random", json!(true));
    }
    if let Some(slot) = node.seed_slot {
        set("seed_slot", json!(slot));
    }
    if node.stream {
        set("stream", json!(true));
    }
    if node.mutates {
        set("mutates", json!(true));
    }
    let links = [("differentiates", node.differentiates), ("recomputes", node.recomputes)];
    for (key, target) in links {
        if let Some(target) = target {
            set(key, json!(graph.nodes()[target].name));
        }
    }
    if !node.overwrites.is_empty() {
        let values = node.overwrites.iter().map(|value| value.as_u32());
        set("overwrites", values.collect::<Vec<_>>().into());
    }
    Json::Object(object)
}

fn value_json(graph: &Graph, id: ValueId) -> Json {
    let value = &graph.values()[id];
    let mut object = Map::new();
    object.insert("id".into(), json!(id.as_u32()));
    object.insert("shape".into(), json!(value.tensor.shape));
    object.insert("dtype".into(), json!(value.tensor.dtype.name()));
    object.insert("storage".into(), json!(value.storage.as_u32()));
    if !value.tensor.contiguous {
        object.insert("contiguous".into(), json!(false));
    }
    if let Some(strides) = &value.tensor.strides {
        object.insert("strides".into(), json!(strides));
    }
    if value.tensor.offset != 0 {
        object.insert("offset".into(), json!(value.tensor.offset));
    }
    Json::Object(object)
}

fn argument_json(argument: &Argument) -> Json {
    match argument {
        Argument::Value(value) => json!({ "value": value.as_u32() }),
        Argument::None => Json::Null,
        Argument::Bool(x) => json!(x),
        Argument::Int(x) => json!(x),
        // JSON has no infinities.
        Argument::Float(x) if x.is_nan() => json!("nan"),
        Argument::Float(x) if x.is_infinite() => json!(if *x > 0.0 { "inf" } else { "-inf" }),
        Argument::Float(x) => json!(x),
        Argument::Text(x) => json!(x),
        Argument::List(list) => list.iter().map(argument_json).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_in_pieces_is_the_text() {
        let output = |id| json!({ "id": id, "shape": [4], "dtype": "f32", "storage": id });
        let graph = json!({
            "format": FORMAT,
            "name": "a \"b\"",
            "source": { "nodes": [] },
            "modules": [""],
            "storages": [16, 16],
            "nodes": [
                { "name": "x", "op": "placeholder", "phase": "input", "outputs": [output(0)] },
                {
                    "name": "y",
                    "op": "aten.relu.default",
                    "phase": "forward",
                    "inputs": [0],
                    "outputs": [output(1)],
                },
            ],
            "outputs": [1],
        });
        let graph = read(graph.to_string().as_bytes()).unwrap();
        let mut text = String::new();
        write_text(&graph, &mut |piece| text += piece);
        assert_eq!(text, write(&graph).to_string());
        for packed in [false, true] {
            assert_eq!(read(&write_file(&graph, packed)).unwrap(), graph);
        }
        assert!(write_file(&graph, true).starts_with(&[0x1f, 0x8b]));
    }

    #[test]
    fn a_small_file_may_not_unfold_without_bound() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&[b' '; 10_000]).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(unfold(&packed, 10_000).unwrap().len(), 10_000);
        let error = unfold(&packed, 9_999).unwrap_err();
        assert_eq!(error.to_string(), "the gzip data unfolds to more than 9999 bytes");
    }
}
