//! Changes of a tightfit-graph/1 document that leave it a step that can be trained. Invariant: a
//! change in [`NEUTRAL`] also leaves every loss and every trained number as it was.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use crate::draw::Draw;
use crate::mutate::graph::{change_argument, list, reshape, restride, retarget};
use crate::mutate::json;

/// One change; false if the graph has nothing to change in this way.
pub type Change = fn(&mut Json, &mut Draw) -> bool;

/// Changes on which no number depends. What is added feeds nothing, so if it is wrong it is either
/// refused or harmless.
pub const NEUTRAL: [Change; 9] = [
    rename,
    enlarge,
    hint,
    reorder,
    dead_function,
    dead_function,
    dead_copy,
    dead_copy,
    another_output,
];

/// A node that feeds nothing and is wrong. If it is accepted, nothing else may change.
pub const WRONG_AND_DEAD: [Change; 2] = [wrong_copy, wrong_function];

/// Changes that give another step, which is legal as well.
const OTHER: [Change; 6] = [scalar, scalar, other_function, live_function, fresh_slot, decay];

/// Functions of one float tensor with an output of its shape.
const FUNCTIONS: [&str; 9] = [
    "aten.relu.default",
    "aten.gelu.default",
    "aten.tanh.default",
    "aten.sigmoid.default",
    "aten.silu.default",
    "aten.neg.default",
    "aten.abs.default",
    "aten.sin.default",
    "aten.cos.default",
];

/// Some change that keeps the step legal; `neutral` also keeps its numbers.
pub fn legal(graph: &mut Json, neutral: bool, draw: &mut Draw) -> bool {
    (0..8).any(|_| {
        let change = if neutral || draw.chance(50) { draw.one(NEUTRAL) } else { draw.one(OTHER) };
        change(graph, draw)
    })
}

/// Some node that feeds nothing and is wrong.
pub fn wrong_and_dead(graph: &mut Json, draw: &mut Draw) -> bool {
    (0..8).any(|_| draw.one(WRONG_AND_DEAD)(graph, draw))
}

fn is_computed(node: &Json) -> bool {
    node["op"].is_string() && node["op"] != "placeholder"
}

fn fresh_name(draw: &mut Draw) -> String {
    format!("added_{}", draw.word())
}

fn fresh_id(draw: &mut Draw) -> u64 {
    1_000_000 + draw.word() % (1 << 40)
}

fn rename(graph: &mut Json, draw: &mut Draw) -> bool {
    let nodes = list(graph, "nodes");
    let at = draw.below(nodes.len());
    let Some(node) = nodes.get_mut(at).filter(|node| node.is_object()) else { return false };
    // A step finds these by their names.
    if [json!("input"), json!("target")].contains(&node["name"]) {
        return false;
    }
    let new = json!(fresh_name(draw));
    let old = node["name"].clone();
    json::set(node, "name", new.clone());
    for node in nodes {
        for link in ["differentiates", "recomputes"] {
            if node.get(link) == Some(&old) {
                json::set(node, link, new.clone());
            }
        }
    }
    true
}

/// Makes a storage larger than what lies in it.
fn enlarge(graph: &mut Json, draw: &mut Draw) -> bool {
    let storages = list(graph, "storages");
    let at = draw.below(storages.len());
    let Some(size) = storages.get_mut(at) else { return false };
    *size = json!(size.as_u64().unwrap_or(0).saturating_add(draw.one([4, 64, 100, 4096])));
    true
}

/// Changes the hint about a node's cost, so that plans differ.
fn hint(graph: &mut Json, draw: &mut Draw) -> bool {
    let mut computed: Vec<&mut Json> =
        list(graph, "nodes").iter_mut().filter(|node| is_computed(node)).collect();
    let at = draw.below(computed.len());
    let Some(node) = computed.get_mut(at) else { return false };
    match draw.below(3) {
        0 => json::set(node, "seconds", json!(draw.share() * 1e-3)),
        1 => json::set(node, "flops", json!(draw.below(1 << 20))),
        _ => json::set(node, "bytes_written", json!(draw.below(1 << 20))),
    }
    true
}

/// Values that a node makes.
fn made(node: &Json) -> impl Iterator<Item = &Json> {
    node["outputs"].as_array().into_iter().flatten().filter(|output| output.is_object())
}

/// Exchanges two neighbours of which neither needs the other.
fn reorder(graph: &mut Json, draw: &mut Draw) -> bool {
    let nodes = list(graph, "nodes");
    let at = draw.below(nodes.len().saturating_sub(1));
    let [first, second] = [nodes.get(at), nodes.get(at + 1)];
    let (Some(first), Some(second)) = (first, second) else { return false };
    let writes = |node: &Json| {
        node.get("mutates").is_some_and(|flag| flag == &json!(true))
            || node.get("stream").is_some()
            || node.get("overwrites").is_some()
    };
    let reads_first = made(first)
        .any(|output| second["inputs"].as_array().is_some_and(|all| all.contains(&output["id"])));
    let is_linked = ["differentiates", "recomputes"]
        .iter()
        .any(|&link| second.get(link).is_some_and(|name| name == &first["name"]));
    if writes(first) || writes(second) || reads_first || is_linked {
        return false;
    }
    if !is_computed(first) || !is_computed(second) || first["phase"] != second["phase"] {
        return false;
    }
    nodes.swap(at, at + 1);
    true
}

/// The position after the node at `at`, and after every placeholder.
fn place_behind(nodes: &[Json], at: usize) -> usize {
    let last = nodes.iter().rposition(|node| !is_computed(node));
    at.max(last.unwrap_or(0)) + 1
}

/// The phase of a node that reads a value of this node.
fn phase_behind(node: &Json) -> Json {
    if is_computed(node) && node["phase"] != "optimizer" {
        node["phase"].clone()
    } else {
        json!("forward")
    }
}

/// Bytes of a tensor of these extents, as the files of the seeds count them.
fn bytes(output: &Json) -> u64 {
    let extents = output["shape"].as_array().into_iter().flatten();
    let size = if output["dtype"] == "bool" { 1 } else { 8 };
    extents.filter_map(Json::as_u64).fold(size, u64::saturating_mul)
}

/// A dense float tensor that some node makes and nothing overwrites: the node's position and the
/// value.
fn float_tensor(graph: &mut Json, draw: &mut Draw) -> Option<(usize, Json)> {
    let nodes = list(graph, "nodes");
    let overwritten: BTreeSet<u64> = nodes
        .iter()
        .filter(|node| node.get("mutates").is_some())
        .flat_map(made)
        .filter_map(|output| output["storage"].as_u64())
        .collect();
    let at = draw.below(nodes.len());
    let output = made(nodes.get(at)?).next()?.clone();
    let is_dense = output.get("contiguous").is_none_or(|flag| flag == &json!(true));
    let is_written = output["storage"].as_u64().is_some_and(|s| overwritten.contains(&s));
    (is_dense && !is_written && output["dtype"] == "f32").then_some((at, output))
}

/// Adds a function of some tensor; returns its position and the value that it reads.
fn add_function(graph: &mut Json, draw: &mut Draw) -> Option<(usize, Json)> {
    let (at, input) = float_tensor(graph, draw)?;
    let storage = list(graph, "storages").len();
    let nodes = graph.get_mut("nodes")?.as_array_mut()?;
    let mut output = json!({
        "id": fresh_id(draw), "shape": input["shape"], "dtype": "f32", "storage": storage,
    });
    if input.get("strides").is_some() {
        json::set(&mut output, "strides", input["strides"].clone());
    }
    let node = json!({
        "name": fresh_name(draw),
        "op": draw.one(FUNCTIONS),
        "phase": phase_behind(&nodes[at]),
        "inputs": [input["id"]],
        "args": [{ "value": input["id"] }],
        "outputs": [output],
    });
    let place = place_behind(nodes, at);
    nodes.insert(place, node);
    graph.get_mut("storages")?.as_array_mut()?.push(json!(bytes(&input)));
    Some((place, input))
}

fn dead_function(graph: &mut Json, draw: &mut Draw) -> bool {
    add_function(graph, draw).is_some()
}

/// Puts a function between a tensor and one of its readers.
fn live_function(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some((place, from)) = add_function(graph, draw) else { return false };
    let nodes = list(graph, "nodes");
    let to = nodes[place]["outputs"][0]["id"].clone();
    let mut readers: Vec<&mut Json> = (nodes[place + 1..].iter_mut())
        .filter(|node| node["inputs"].as_array().is_some_and(|all| all.contains(&from["id"])))
        .filter(|node| node.get("mutates").is_none())
        .collect();
    let at = draw.below(readers.len());
    let Some(reader) = readers.get_mut(at) else { return true };
    for input in list(reader, "inputs").iter_mut().filter(|input| **input == from["id"]) {
        *input = to.clone();
    }
    for argument in list(reader, "args") {
        retarget(argument, &from["id"], &to);
    }
    true
}

/// Adds a node again, with storages and names of its own; returns its position.
fn add_copy(graph: &mut Json, draw: &mut Draw) -> Option<usize> {
    let nodes = list(graph, "nodes");
    let at = draw.below(nodes.len());
    let mut node = nodes.get(at)?.clone();
    if !is_computed(&node) || node.get("mutates").is_some() {
        return None;
    }
    let earlier: BTreeSet<u64> =
        nodes[..at].iter().flat_map(made).filter_map(|output| output["storage"].as_u64()).collect();
    let is_view =
        made(&node).any(|output| output["storage"].as_u64().is_some_and(|s| earlier.contains(&s)));
    let storages = graph.get_mut("storages")?.as_array_mut()?;
    json::set(&mut node, "name", json!(fresh_name(draw)));
    if let Some(fields) = node.as_object_mut() {
        fields.remove("differentiates");
        fields.remove("recomputes");
        fields.remove("overwrites");
    }
    if node.get("seed_slot").is_some() {
        json::set(&mut node, "seed_slot", json!(1000 + draw.word() % (1 << 20)));
    }
    for output in list(&mut node, "outputs").iter_mut().filter(|output| output.is_object()) {
        json::set(output, "id", json!(fresh_id(draw)));
        if !is_view {
            let size = output["storage"].as_u64().and_then(|s| storages.get(s as usize)).cloned();
            json::set(output, "storage", json!(storages.len()));
            storages.push(size.unwrap_or(json!(0)));
        }
    }
    let nodes = graph.get_mut("nodes")?.as_array_mut()?;
    nodes.insert(at + 1, node);
    Some(at + 1)
}

fn dead_copy(graph: &mut Json, draw: &mut Draw) -> bool {
    add_copy(graph, draw).is_some()
}

/// Adds a dead copy with a wrong output, argument or flag.
fn wrong_copy(graph: &mut Json, draw: &mut Draw) -> bool {
    add_copy(graph, draw).is_some_and(|place| spoil(graph, place, draw))
}

fn wrong_function(graph: &mut Json, draw: &mut Draw) -> bool {
    add_function(graph, draw).is_some_and(|(place, _)| spoil(graph, place, draw))
}

/// Makes one field of a dead node wrong, and its storages large enough for whatever it says.
fn spoil(graph: &mut Json, place: usize, draw: &mut Draw) -> bool {
    let nodes = list(graph, "nodes");
    let shapes: Vec<Json> = nodes[..place]
        .iter()
        .flat_map(made)
        .filter(|output| output["dtype"] == "f32" || draw.chance(30))
        .cloned()
        .collect();
    let node = &mut nodes[place];
    let other = draw.pick(&shapes).cloned();
    let wrong = match draw.below(7) {
        5 => other.is_some_and(|other| read_instead(node, &other["id"], draw)),
        6 => change_argument(node, draw),
        part => {
            let outputs = list(node, "outputs");
            let at = draw.below(outputs.len());
            outputs.get_mut(at).is_some_and(|output| spoil_output(output, part, draw))
        }
    };
    if draw.chance(80) {
        make_room(graph, place);
    }
    wrong
}

/// Another shape, stride, type or offset.
fn spoil_output(output: &mut Json, part: usize, draw: &mut Draw) -> bool {
    match part {
        0 | 1 => return reshape(output, draw),
        2 => return restride(output, draw),
        3 => json::set(output, "dtype", json!(draw.one(["f32", "i64", "bool"]))),
        _ => json::set(output, "offset", json!(draw.below(5))),
    }
    true
}

/// Reads another value in place of an input.
fn read_instead(node: &mut Json, to: &Json, draw: &mut Draw) -> bool {
    let inputs = list(node, "inputs");
    let at = draw.below(inputs.len());
    if inputs.contains(to) {
        return false;
    }
    let Some(input) = inputs.get_mut(at) else { return false };
    let from = std::mem::replace(input, to.clone());
    for argument in list(node, "args") {
        retarget(argument, &from, to);
    }
    true
}

/// Makes the storages of a node's outputs large enough for them, if that takes less than a MiB.
fn make_room(graph: &mut Json, place: usize) {
    let outputs: Vec<Json> = made(&graph["nodes"][place]).cloned().collect();
    let storages = list(graph, "storages");
    for output in outputs {
        let at = output["storage"].as_u64().unwrap_or(u64::MAX) as usize;
        let needed = bytes(&output).saturating_mul(4).saturating_add(256);
        if let Some(size) = storages.get_mut(at).filter(|_| needed < 1 << 20) {
            *size = json!(size.as_u64().unwrap_or(0).max(needed));
        }
    }
}

/// Makes another value an output of the step.
fn another_output(graph: &mut Json, draw: &mut Draw) -> bool {
    let Some((_, output)) = float_tensor(graph, draw) else { return false };
    let Some(outputs) = graph.get_mut("outputs").and_then(Json::as_array_mut) else {
        return false;
    };
    if outputs.contains(&output["id"]) {
        return false;
    }
    outputs.push(output["id"].clone());
    if let Some(names) = graph.get_mut("output_names").and_then(Json::as_array_mut) {
        names.push(json!(fresh_name(draw)));
    }
    true
}

/// Changes a number in a call that takes any.
fn scalar(graph: &mut Json, draw: &mut Draw) -> bool {
    let mut numbers: Vec<&mut Json> = Vec::new();
    for node in list(graph, "nodes") {
        let args = node.get_mut("args").and_then(Json::as_array_mut).into_iter().flatten();
        numbers.extend(args.filter(|argument| argument.is_f64()));
    }
    let at = draw.below(numbers.len());
    let Some(number) = numbers.get_mut(at) else { return false };
    // Shares and rates stay between 0 and 1, and tiny numbers stay tiny.
    **number = json!(number.as_f64().unwrap_or(0.0) * (0.25 + 0.75 * draw.share()));
    true
}

/// Changes the decay of an optimizer, the first and last of its numbers included.
fn decay(graph: &mut Json, draw: &mut Draw) -> bool {
    let share = draw.one([0.0, 0.5, 1e-6]);
    let mut changed = false;
    let part = 30 + draw.below(70) as u32;
    for node in list(graph, "nodes") {
        if node["op"].as_str().is_some_and(|op| op.starts_with("tightfit.")) && draw.chance(part) {
            let kwargs = node.get_mut("kwargs").and_then(Json::as_object_mut);
            if let Some(decay) = kwargs.and_then(|kwargs| kwargs.get_mut("weight_decay")) {
                *decay = json!(share);
                changed = true;
            }
        }
    }
    changed
}

fn other_function(graph: &mut Json, draw: &mut Draw) -> bool {
    let mut known: Vec<&mut Json> = list(graph, "nodes")
        .iter_mut()
        .filter(|node| node["op"].as_str().is_some_and(|op| FUNCTIONS.contains(&op)))
        .collect();
    let at = draw.below(known.len());
    let Some(node) = known.get_mut(at) else { return false };
    // Arguments are those of the former operator.
    if node["args"].as_array().is_none_or(|args| args.len() != 1) || node.get("kwargs").is_some() {
        return false;
    }
    json::set(node, "op", json!(draw.one(FUNCTIONS)));
    true
}

fn fresh_slot(graph: &mut Json, draw: &mut Draw) -> bool {
    let mut random: Vec<&mut Json> =
        list(graph, "nodes").iter_mut().filter(|node| node.get("seed_slot").is_some()).collect();
    let at = draw.below(random.len());
    let Some(node) = random.get_mut(at) else { return false };
    json::set(node, "seed_slot", json!(1000 + draw.word() % (1 << 20)));
    true
}
