//! Changes of a tightfit-graph/1 document that break its rules or those of its operators.
//! Invariant: one change touches one field of one part, since such damage gets past many checks.

use serde_json::{Value as Json, json};

use crate::draw::Draw;
use crate::mutate::json;

/// One change; false if the graph has nothing to change in this way.
type Change = fn(&mut Json, &mut Draw) -> bool;

const CHANGES: [Change; 22] = [
    shape,
    shape,
    strides,
    offset,
    dtype,
    alias,
    storage_size,
    argument,
    argument,
    optimizer_field,
    drop_node,
    duplicate_node,
    swap_nodes,
    retarget_input,
    phase,
    seed_slot,
    flags,
    operator,
    outputs,
    parameter,
    costs,
    links,
];

/// Some change that may break a rule.
pub fn hostile(graph: &mut Json, draw: &mut Draw) -> bool {
    if draw.chance(3) {
        return json::anywhere(graph, draw);
    }
    (0..8).any(|_| draw.one(CHANGES)(graph, draw))
}

/// The elements of a list.
pub(super) fn list<'a>(of: &'a mut Json, key: &str) -> &'a mut [Json] {
    of.get_mut(key).and_then(Json::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// A random node.
pub(super) fn any_node<'a>(graph: &'a mut Json, draw: &mut Draw) -> Option<&'a mut Json> {
    let nodes = list(graph, "nodes");
    let at = draw.below(nodes.len());
    nodes.get_mut(at).filter(|node| node.is_object())
}

/// A value that a node makes; rarely of the last node, since added nodes are there.
fn any_output<'a>(graph: &'a mut Json, draw: &mut Draw) -> Option<&'a mut Json> {
    let outputs = list(any_node(graph, draw)?, "outputs");
    let at = draw.below(outputs.len());
    outputs.get_mut(at).filter(|output| output.is_object())
}

fn shape(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(output) = any_output(graph, draw) else { return false };
    reshape(output, draw)
}

/// Another extent, a dimension more or less, or dimensions in another order.
pub(super) fn reshape(output: &mut Json, draw: &mut Draw) -> bool {
    let Some(shape) = output.get_mut("shape").and_then(Json::as_array_mut) else { return false };
    let at = draw.below(shape.len());
    match draw.below(6) {
        0 => shape.insert(at, json!(draw.one([1, 1, 2, 0]))),
        1 if !shape.is_empty() => drop(shape.remove(at)),
        2 => shape.reverse(),
        _ if shape.is_empty() => shape.push(json!(1)),
        _ => shape[at] = json!(draw.near(shape[at].as_i64().unwrap_or(1)).unsigned_abs()),
    }
    true
}

fn strides(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(output) = any_output(graph, draw) else { return false };
    restride(output, draw)
}

/// Other strides than the value has.
pub(super) fn restride(output: &mut Json, draw: &mut Draw) -> bool {
    let shape: Vec<u64> =
        list(output, "shape").iter().map(|extent| extent.as_u64().unwrap_or(1)).collect();
    let mut strides: Vec<u64> = shape
        .iter()
        .rev()
        .scan(1u64, |step, &extent| {
            let stride = *step;
            *step = step.saturating_mul(extent.max(1));
            Some(stride)
        })
        .collect();
    strides.reverse();
    let at = draw.below(strides.len());
    match draw.below(5) {
        0 => strides.fill(0),
        1 => strides.reverse(),
        2 => strides.push(1),
        _ if strides.is_empty() => return false,
        3 => strides[at] = 0,
        _ => strides[at] = draw.near(strides[at] as i64).unsigned_abs(),
    }
    json::set(output, "strides", json!(strides));
    json::set(output, "contiguous", json!(draw.chance(20)));
    true
}

fn offset(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(output) = any_output(graph, draw) else { return false };
    json::set(output, "offset", json!(draw.near(1).unsigned_abs()));
    true
}

fn dtype(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(output) = any_output(graph, draw) else { return false };
    json::set(
        output,
        "dtype",
        json!(draw.one(["f32", "i64", "bool", "f64", "bf16", "i32", "u8", "f33"])),
    );
    true
}

fn alias(graph: &mut Json, draw: &mut Draw) -> bool {
    let storages = list(graph, "storages").len();
    let Some(output) = any_output(graph, draw) else { return false };
    json::set(output, "storage", json!(draw.below(storages + 1)));
    true
}

fn storage_size(graph: &mut Json, draw: &mut Draw) -> bool {
    let storages = list(graph, "storages");
    let at = draw.below(storages.len());
    let Some(size) = storages.get_mut(at) else { return false };
    let bytes = size.as_i64().unwrap_or(0);
    *size = json!(if draw.chance(50) { bytes.saturating_sub(4) } else { draw.near(bytes) });
    true
}

fn argument(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(node) = any_node(graph, draw) else { return false };
    change_argument(node, draw)
}

/// Another argument: a number, a list, one more or one less.
pub(super) fn change_argument(node: &mut Json, draw: &mut Draw) -> bool {
    if draw.chance(10) {
        let named = json!({ draw.one(["dtype", "scale", "alpha", "x"]): json::anything(draw) });
        json::set(node, "kwargs", named);
        return true;
    }
    let named = node.get_mut("kwargs").and_then(Json::as_object_mut);
    if let Some(named) = named.filter(|named| !named.is_empty() && draw.chance(50)) {
        let at = draw.below(named.len());
        if let Some(argument) = named.values_mut().nth(at) {
            json::change(argument, draw);
        }
        return true;
    }
    let Some(args) = node.get_mut("args").and_then(Json::as_array_mut) else { return false };
    let at = draw.below(args.len());
    if draw.chance(10) {
        args.push(json::anything(draw));
    } else if !args.is_empty() && draw.chance(12) {
        args.remove(at);
    } else if let Some(argument) = args.get_mut(at) {
        json::change(argument, draw);
    }
    true
}

/// Changes a number of an optimizer's call.
fn optimizer_field(graph: &mut Json, draw: &mut Draw) -> bool {
    let is_update =
        |node: &&mut Json| node["op"].as_str().is_some_and(|op| op.starts_with("tightfit."));
    let mut updates: Vec<&mut Json> = list(graph, "nodes").iter_mut().filter(is_update).collect();
    let at = draw.below(updates.len());
    updates.get_mut(at).is_some_and(|node| change_argument(node, draw))
}

fn drop_node(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(nodes) = graph.get_mut("nodes").and_then(Json::as_array_mut) else { return false };
    let at = draw.below(nodes.len());
    let exists = at < nodes.len();
    if exists {
        nodes.remove(at);
    }
    exists
}

fn duplicate_node(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(nodes) = graph.get_mut("nodes").and_then(Json::as_array_mut) else { return false };
    let at = draw.below(nodes.len());
    let Some(mut node) = nodes.get(at).cloned() else { return false };
    if draw.chance(80) {
        json::set(&mut node, "name", json!(format!("again_{}", draw.word())));
    }
    if draw.chance(80) {
        for output in list(&mut node, "outputs").iter_mut().filter(|output| output.is_object()) {
            json::set(output, "id", json!(1_000_000 + draw.below(1 << 30)));
        }
    }
    let to = at + draw.below(nodes.len() - at + 1);
    nodes.insert(to, node);
    true
}

fn swap_nodes(graph: &mut Json, draw: &mut Draw) -> bool {
    let nodes = list(graph, "nodes");
    let (first, second) = (draw.below(nodes.len()), draw.below(nodes.len()));
    if first == second {
        return false;
    }
    nodes.swap(first, second);
    true
}

/// Makes a node read another value, with or without its arguments saying so.
fn retarget_input(graph: &mut Json, draw: &mut Draw) -> bool {
    let nodes = list(graph, "nodes");
    let at = draw.below(nodes.len());
    let before: Vec<Json> = nodes
        .iter()
        .take(at)
        .flat_map(|node| node["outputs"].as_array().into_iter().flatten())
        .filter_map(|output| output.get("id").cloned())
        .collect();
    let (Some(to), Some(node)) = (draw.pick(&before), nodes.get_mut(at)) else { return false };
    let inputs = list(node, "inputs");
    let input = draw.below(inputs.len());
    let Some(input) = inputs.get_mut(input) else { return false };
    let from = std::mem::replace(input, to.clone());
    if draw.chance(90) {
        for argument in list(node, "args") {
            retarget(argument, &from, to);
        }
    }
    true
}

/// Replaces `from` by `to` wherever an argument names it.
pub(super) fn retarget(argument: &mut Json, from: &Json, to: &Json) {
    match argument {
        Json::Array(list) => list.iter_mut().for_each(|inner| retarget(inner, from, to)),
        Json::Object(object) if object.get("value") == Some(from) => {
            object.insert("value".to_string(), to.clone());
        }
        _ => {}
    }
}

fn phase(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(node) = any_node(graph, draw) else { return false };
    json::set(
        node,
        "phase",
        json!(draw.one([
            "forward",
            "loss",
            "backward",
            "optimizer",
            "parameter",
            "buffer",
            "state",
            "input",
            "tangent",
            "constant",
            "other",
        ])),
    );
    true
}

fn seed_slot(graph: &mut Json, draw: &mut Draw) -> bool {
    let mut random: Vec<&mut Json> =
        list(graph, "nodes").iter_mut().filter(|node| node.get("seed_slot").is_some()).collect();
    let at = draw.below(random.len());
    let Some(node) = random.get_mut(at) else { return false };
    json::set(
        node,
        "seed_slot",
        draw.one([json!(0), json!(1), json!(u32::MAX), json!(-1), Json::Null]),
    );
    true
}

fn flags(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(node) = any_node(graph, draw) else { return false };
    let flag = draw.one(["mutates", "random", "stream", "overwrites"]);
    let value = match flag {
        "overwrites" => match draw.pick(list(node, "inputs")) {
            Some(input) => json!([input]),
            None => json!([draw.below(10)]),
        },
        _ => json!(!node.get(flag).and_then(Json::as_bool).unwrap_or(false)),
    };
    json::set(node, flag, value);
    true
}

/// Takes the operator of another node.
fn operator(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(other) = any_node(graph, draw).map(|node| node["op"].clone()) else { return false };
    let Some(node) = any_node(graph, draw) else { return false };
    json::set(node, "op", if draw.chance(5) { json!("aten.unheard_of.default") } else { other });
    true
}

/// Changes the outputs of the step, or of a node.
fn outputs(graph: &mut Json, draw: &mut Draw) -> bool {
    let of = if draw.chance(50) { Some(graph) } else { any_node(graph, draw) };
    let Some(list) = of.and_then(|of| of.get_mut("outputs")).and_then(Json::as_array_mut) else {
        return false;
    };
    let (first, second) = (draw.below(list.len()), draw.below(list.len()));
    match draw.below(5) {
        _ if list.is_empty() => return false,
        0 => drop(list.remove(first)),
        1 => list.swap(first, second),
        2 => list.push(list[first].clone()),
        3 => list[first] = Json::Null,
        _ => list[first] = json!(draw.below(200)),
    }
    true
}

fn parameter(graph: &mut Json, draw: &mut Draw) -> bool {
    let other = any_node(graph, draw).and_then(|node| node.get("parameter").cloned());
    let Some(node) = any_node(graph, draw) else { return false };
    json::set(node, "parameter", if draw.chance(50) { json!("elsewhere") } else { json!(other) });
    true
}

fn costs(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(node) = any_node(graph, draw) else { return false };
    let field =
        draw.one(["flops", "bytes_read", "bytes_written", "workspace", "seconds", "module"]);
    json::set(
        node,
        field,
        match field {
            "seconds" => json!(draw.one([0.0, -1.0, 1e-300, 1.0, 1e308])),
            _ => json!(draw.near(1000)),
        },
    );
    true
}

fn links(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some(other) = any_node(graph, draw).map(|node| node["name"].clone()) else { return false };
    let Some(node) = any_node(graph, draw) else { return false };
    json::set(node, draw.one(["differentiates", "recomputes"]), other);
    true
}
