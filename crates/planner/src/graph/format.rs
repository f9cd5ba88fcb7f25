//! tightfit-graph/1, written: JSON, plain or gzip. Invariant: the same graph gives the same bytes,
//! and reading them gives the same graph.

use std::io::Write;

use cranelift_entity::EntityRef;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Map, Value as Json, json};

use crate::graph::Graph;
use crate::graph::limits::FORMAT;
use crate::id::{MicroBatchId, NodeId, ValueId};
use crate::tensor::Argument;

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

fn node_json(graph: &Graph, id: NodeId) -> Json {
    let node = &graph.nodes()[id];
    let mut object = Map::new();
    let mut set = |key: &str, value: Json| object.insert(key.to_string(), value);
    set("name", json!(node.name));
    set("op", json!(node.op));
    set("phase", json!(node.phase.name()));
    if node.module.index() != 0 {
        set("module", json!(node.module.as_u32()));
    }
    if node.micro_batch != MicroBatchId::WHOLE {
        set("micro_batch", json!(node.micro_batch.as_u32()));
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
    use crate::graph::read;

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
}
