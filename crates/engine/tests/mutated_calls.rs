//! Golden calls with one thing changed, and PyTorch's verdict on each. Invariant: what PyTorch
//! refuses is refused with the name of the node; what it accepts is refused in the same way, or
//! gives PyTorch's shapes, types and numbers. Nothing panics.
//!
//! Tier: quick, since it takes less than a second.
#![allow(clippy::unwrap_used)] // a test that cannot read its corpus has failed

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value as Json, json};
use tightfit::Goal;
use tightfit::check::Checked;
use tightfit::graph::{self, Graph, Value};
use tightfit::id::{BufferId, StorageId};
use tightfit::machine::Machine;
use tightfit::operator::{Operator, Parameter, Signature};
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, lower};
use tightfit::tensor::DType;
use tightfit::units::Bytes;
use tightfit_engine::{CompileError, Executable, Slab, StepSettings, assert_disjoint};

/// max |a − b| / max |b|
const TOLERANCE: f64 = 1e-5;
/// The name of the changed node.
const NODE: &str = "`changed`";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/kernels/mutated")
}

/// The result of a call.
#[derive(Debug)]
enum Outcome {
    /// Refused by the reader of graphs, with a sentence.
    Unread(String),
    /// Refused when it was compiled.
    Uncompiled(CompileError),
    /// Refused by its data: an index outside its table.
    Unsuited,
    /// Executed: the content of each output that is used.
    Ran(Box<Graph>, Vec<Vec<u8>>),
}

/// Offsets of a value's elements in its storage, in bytes, in logical order.
fn offsets(value: &Value) -> Vec<u64> {
    let (strides, size) = (value.tensor.strides_or_contiguous(), value.tensor.dtype.size());
    let offset = |mut index: u64| {
        let mut offset = value.tensor.offset;
        for (extent, stride) in value.tensor.shape.iter().zip(&strides).rev() {
            offset += index % extent * stride;
            index /= extent;
        }
        offset * size
    };
    (0..value.tensor.elements()).map(offset).collect()
}

/// Reads, compiles and runs the graph of a call; inputs are the tensors called `inputs`.
fn outcome(call: &Json, tensors: &SafeTensors, pool: &Arc<ThreadPool>) -> Outcome {
    let graph = match graph::read(call["graph"].to_string().as_bytes()) {
        Ok(graph) => graph,
        Err(error) => return Outcome::Unread(error.to_string()),
    };
    let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
    let program = graph.compute_nodes();
    let plan = Instance::new(&graph, &profile, &program).unplanned(Planner::None);
    let mut schedule = lower(&graph, &profile, &plan, &Lowering::to(Goal::Within(Bytes(1 << 40))));
    schedule.budget = schedule.slab;
    let checked = Checked::new(&graph, &profile, schedule.clone()).unwrap();
    assert_disjoint();
    let executable = match Executable::compile(&graph, &checked, pool) {
        Ok(executable) => executable,
        Err(error) => return Outcome::Uncompiled(error),
    };
    let mut slab = Slab::new(schedule.slab).unwrap();
    let mut place: HashMap<StorageId, BufferId> = HashMap::new();
    let inputs: Vec<&str> = call["inputs"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|name| name.as_str().unwrap())
        .collect();
    for (index, &(node, buffer)) in schedule.placeholders.iter().enumerate() {
        let value = &graph.values()[graph.nodes()[node].outputs[0].unwrap()];
        place.insert(value.storage, buffer);
        let Some(name) = inputs.get(index) else { continue };
        let size = value.tensor.dtype.size();
        let content = tensors.tensor(name).unwrap();
        for (element, offset) in content.data().chunks(size as usize).zip(offsets(value)) {
            let address = schedule.buffers[buffer].address + offset;
            slab.write(address, size).copy_from_slice(element);
        }
    }
    for made in schedule.instructions.iter().filter_map(|instruction| instruction.call()) {
        let outputs = graph.nodes()[made.node].outputs.iter().flatten();
        for (&value, &buffer) in outputs.zip(&made.outputs) {
            place.insert(graph.values()[value].storage, buffer);
        }
    }
    let settings = StepSettings {
        seed: 1,
        step: call["settings"]["step"].as_u64().unwrap() as u32 - 1,
        learning_rate: call["settings"]["learning_rate"].as_f64().unwrap(),
    };
    if executable.run(&mut slab, &settings).is_err() {
        return Outcome::Unsuited;
    }
    let content = |value| {
        let value: &Value = &graph.values()[value];
        let base = schedule.buffers[place[&value.storage]].address;
        let size = value.tensor.dtype.size();
        let read = |offset| slab.read(base + offset, size).to_vec();
        offsets(value).into_iter().flat_map(read).collect::<Vec<u8>>()
    };
    let contents = graph.outputs().iter().map(|&value| content(value)).collect();
    Outcome::Ran(Box::new(graph), contents)
}

fn same_type(ours: DType, theirs: Dtype) -> bool {
    matches!(
        (ours, theirs),
        (DType::F32, Dtype::F32) | (DType::I64, Dtype::I64) | (DType::Bool, Dtype::BOOL)
    )
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn largest(numbers: &[f32]) -> f64 {
    let finite = numbers.iter().filter(|x| x.is_finite());
    finite.fold(0.0, |largest, x| largest.max(f64::from(x.abs())))
}

/// The relative error of a result with respect to `scale`; infinite if it is of another kind.
fn error(dtype: DType, ours: &[u8], theirs: &[u8], scale: f64) -> f64 {
    if dtype != DType::F32 {
        return if ours == theirs { 0.0 } else { f64::INFINITY };
    }
    let (ours, theirs) = (floats(ours), floats(theirs));
    let largest = largest(&theirs).max(scale);
    let scale = if largest > 0.0 { largest } else { 1.0 };
    let difference = |(&a, &b): (&f32, &f32)| match (a == b || a.is_nan() && b.is_nan(), a, b) {
        (true, ..) => 0.0,
        (false, a, b) if a.is_finite() && b.is_finite() => (f64::from(a) - f64::from(b)).abs(),
        (false, ..) => f64::INFINITY,
    };
    ours.iter().zip(&theirs).map(difference).fold(0.0, f64::max) / scale
}

/// Whether the call draws random numbers of the engine's own: a dropout that drops some elements
/// but not all.
fn is_drawn(call: &Json) -> bool {
    let node = call["graph"]["nodes"].as_array().unwrap().last().unwrap();
    let share = node["args"][1].as_f64().unwrap_or(0.0);
    node["random"] == true && share > 0.0 && share < 1.0 && node["args"][2] != false
}

/// What is wrong with a result, compared with PyTorch's.
fn differs(call: &Json, graph: &Graph, ours: &[Vec<u8>], theirs: &SafeTensors) -> Option<String> {
    let node = graph.nodes().values().last().unwrap();
    let results = call["results"].as_array().unwrap();
    // If terms cancel, the error is in proportion to them.
    let inputs = call["inputs"].as_array().into_iter().flatten().filter_map(|name| name.as_str());
    const CANCELS: [&str; 4] = ["sum", "mean", "log_softmax", "layer_norm_backward"];
    let scale = if CANCELS.iter().any(|name| node.op.contains(name)) {
        let inputs = inputs.map(|name| theirs.tensor(name).unwrap());
        let floating = inputs.filter(|tensor| tensor.dtype() == Dtype::F32);
        floating.map(|tensor| largest(&floats(tensor.data()))).fold(0.0, f64::max)
    } else {
        0.0
    };
    let used = node.outputs.iter().enumerate().filter_map(|(i, value)| Some((i, (*value)?)));
    for ((index, value), content) in used.zip(ours) {
        let Some(result) = results.get(index).and_then(|name| name.as_str()) else {
            return Some(format!("there is no output {index}"));
        };
        let (tensor, result) = (&graph.values()[value].tensor, theirs.tensor(result).unwrap());
        let shape: Vec<u64> = result.shape().iter().map(|&extent| extent as u64).collect();
        if tensor.shape != shape || !same_type(tensor.dtype, result.dtype()) {
            return Some(format!(
                "output {index} is {:?} of {}, but {:?} of {shape:?}",
                tensor.shape,
                tensor.dtype.name(),
                result.dtype()
            ));
        }
        let error = error(tensor.dtype, content, result.data(), scale);
        if !is_drawn(call) && error > TOLERANCE {
            return Some(format!("output {index} has other numbers, error {error:.1e}"));
        }
    }
    None
}

#[derive(Debug, Default)]
struct Counts {
    refused: usize,
    unread: usize,
    ran: usize,
}

#[test]
fn a_changed_call_is_refused_by_name_or_equals_pytorch() {
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    let (mut failures, mut families) = (Vec::new(), BTreeMap::new());
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files.sort();
    for path in &files {
        let bytes = std::fs::read(path.with_extension("safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let family = path.file_stem().unwrap().to_string_lossy().to_string();
        let counts: &mut Counts = families.entry(family).or_default();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            let call: Json = serde_json::from_str(line).unwrap();
            let forbidden = call["refused"].as_str().or(call["wrong"].as_str());
            let mut fail = |what: String| {
                let (op, change) = (call["operator"].as_str(), call["change"].as_str());
                failures.push(format!("{}: {}: {what}", op.unwrap(), change.unwrap()));
            };
            match catch_unwind(AssertUnwindSafe(|| outcome(&call, &tensors, &pool))) {
                Err(_) => fail("panicked".to_string()),
                Ok(Outcome::Unread(sentence)) => {
                    counts.unread += 1;
                    if !sentence.contains(NODE) {
                        fail(format!("refused without the node's name: {sentence}"));
                    }
                }
                Ok(Outcome::Uncompiled(error)) => {
                    counts.refused += 1;
                    let sentence = error.to_string();
                    // If the engine cannot hold an input, the input itself is named.
                    if !sentence.contains(NODE) && !sentence.contains("node `x") {
                        fail(format!("refused without the node's name: {sentence}"));
                    }
                }
                Ok(Outcome::Unsuited) => counts.refused += 1,
                Ok(Outcome::Ran(graph, contents)) => {
                    counts.ran += 1;
                    match forbidden {
                        Some(why) => fail(format!("accepted, but PyTorch: {why}")),
                        None => {
                            if let Some(difference) = differs(&call, &graph, &contents, &tensors) {
                                fail(difference);
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let calls = |counts: &Counts| counts.refused + counts.ran;
    assert!(families.values().all(|counts| calls(counts) >= 40), "{families:#?}");
    assert!(families.values().map(calls).sum::<usize>() >= 500, "{families:#?}");
    assert!(families.values().all(|counts| counts.ran > 0), "{families:#?}");
}

#[test]
fn schemas_are_those_of_pytorch() {
    let text = std::fs::read_to_string(folder().join("schemas.json")).unwrap();
    let theirs: BTreeMap<String, Vec<Json>> = serde_json::from_str(&text).unwrap();
    for operator in Operator::ALL.iter().filter(|operator| operator.name().starts_with("aten.")) {
        let Signature { positional, keyword } = operator.row().signature;
        let described = |parameters: &[Parameter], by_name: bool| -> Vec<Json> {
            let one = |p: &Parameter| {
                json!({
                    "name": p.name, "keyword": by_name, "default": p.has_default,
                    "nullable": p.nullable,
                })
            };
            parameters.iter().map(one).collect()
        };
        let ours = [described(positional, false), described(keyword, true)].concat();
        assert_eq!(ours, theirs[operator.name()], "{}", operator.name());
    }
}

#[test]
fn every_operator_has_changed_calls() {
    let mut seen: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            for line in std::fs::read_to_string(path).unwrap().lines() {
                let call: Json = serde_json::from_str(line).unwrap();
                seen.push(call["operator"].as_str().unwrap().to_string());
            }
        }
    }
    // PyTorch has no verdict on collectives and messages; `tests/pipeline.rs` and
    // `tests/sharded.rs` change such calls.
    let of_ranks = |operator: &Operator| operator.exchanges() || operator.is_collective();
    let local = [Operator::Incoming, Operator::MeanPieces];
    let own = |operator: &Operator| of_ranks(operator) || local.contains(operator);
    for operator in Operator::ALL.iter().filter(|operator| !own(operator)) {
        assert!(seen.iter().any(|name| name == operator.name()), "{}", operator.name());
    }
}
