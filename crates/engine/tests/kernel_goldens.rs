//! Every operator against PyTorch's own outputs. Invariant: error = max|a − b| / max|b| ≤ 1e-5 for
//! floats, equality for integers and truth values; the same bits in place and not, on one thread
//! and on three.
//!
//! Tier: quick, since it takes less than a second.
#![allow(clippy::unwrap_used)] // a test that cannot read its goldens has failed

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use tightfit::Goal;
use tightfit::check::Checked;
use tightfit::graph::{self, Graph};
use tightfit::id::{BufferId, ValueId};
use tightfit::machine::{Machine, Reuse};
use tightfit::operator::Operator;
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, lower};
use tightfit::tensor::DType;
use tightfit::units::Bytes;
use tightfit_engine::{Executable, Slab, StepSettings, assert_disjoint};

const TOLERANCE: f64 = 1e-5;
/// For operators that do not depend on the step.
pub const DEFAULT: StepSettings = StepSettings { seed: 1, step: 0, learning_rate: 1e-3 };

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus/kernels")
}

/// Byte offsets of a value's elements within its storage, in logical order.
pub fn element_offsets(graph: &Graph, value: ValueId) -> Vec<usize> {
    let value = &graph.values()[value];
    let strides = value.tensor.strides_or_contiguous();
    let size = value.tensor.dtype.size();
    (0..value.tensor.elements())
        .map(|mut index| {
            let mut offset = value.tensor.offset;
            for (extent, stride) in value.tensor.shape.iter().zip(&strides).rev() {
                offset += index % extent * stride;
                index /= extent;
            }
            (offset * size) as usize
        })
        .collect()
}

/// The bytes of a value as PyTorch made them, in logical order.
pub fn golden<'a>(tensors: &SafeTensors<'a>, value: ValueId) -> &'a [u8] {
    tensors.tensor(&format!("value.{}", value.as_u32())).unwrap().data()
}

/// The settings that each case was computed with, by the name of its node; all cases share one
/// graph.
pub fn settings(bytes: &[u8]) -> HashMap<String, StepSettings> {
    let metadata =
        SafeTensors::read_metadata(bytes).unwrap().1.metadata().clone().unwrap_or_default();
    let cases: serde_json::Value = metadata
        .get("cases")
        .map_or(serde_json::Value::Null, |text| serde_json::from_str(text).unwrap());
    let setting = |case: &serde_json::Value| StepSettings {
        seed: 1,
        step: case["step"].as_u64().unwrap() as u32 - 1,
        learning_rate: case["learning_rate"].as_f64().unwrap(),
    };
    cases
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, case)| (name.clone(), setting(case)))
        .collect()
}

/// Runs a graph and returns the bytes of its outputs in logical order; `given` has those of what
/// its placeholders make.
pub fn execute(
    graph: &Graph,
    given: &impl Fn(ValueId) -> Vec<u8>,
    settings: &StepSettings,
    in_place: bool,
    threads: usize,
) -> Result<Vec<Vec<u8>>, String> {
    let machine = Machine::unmeasured_cpu(threads as u32);
    let reuse = if in_place { Reuse::OfTable } else { Reuse::Nothing };
    let profile = Profile { reuse, ..Profile::new(graph, &machine) };
    let program = graph.compute_nodes();
    let plan = Instance::new(graph, &profile, &program).unplanned(Planner::None);
    let mut schedule = lower(graph, &profile, &plan, &Lowering::to(Goal::Within(Bytes(1 << 40))));
    schedule.budget = schedule.slab;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let checked = Checked::new(graph, &profile, schedule.clone()).map_err(|e| e.to_string())?;
    assert_disjoint();
    let executable =
        Executable::compile(graph, &checked, &Arc::new(pool)).map_err(|error| error.to_string())?;
    let mut slab = Slab::new(schedule.slab).unwrap();
    let address = |buffer: BufferId| schedule.buffers[buffer].address;
    let mut place: HashMap<tightfit::id::StorageId, BufferId> = HashMap::new();
    for &(node, buffer) in &schedule.placeholders {
        let value = graph.nodes()[node].outputs[0].unwrap();
        place.insert(graph.values()[value].storage, buffer);
        let size = graph.values()[value].tensor.dtype.size() as usize;
        for (element, offset) in given(value).chunks(size).zip(element_offsets(graph, value)) {
            slab.write(address(buffer) + offset as u64, size as u64).copy_from_slice(element);
        }
    }
    for call in schedule.instructions.iter().filter_map(|instruction| instruction.call()) {
        for (&value, &buffer) in
            graph.nodes()[call.node].outputs.iter().flatten().zip(&call.outputs)
        {
            place.insert(graph.values()[value].storage, buffer);
        }
    }
    executable.run(&mut slab, settings).map_err(|error| format!("{error:?}"))?;
    let outputs = graph
        .outputs()
        .iter()
        .map(|&value| {
            let size = graph.values()[value].tensor.dtype.size();
            let base = address(place[&graph.values()[value].storage]);
            element_offsets(graph, value)
                .into_iter()
                .flat_map(|offset| slab.read(base + offset as u64, size).to_vec())
                .collect()
        })
        .collect();
    Ok(outputs)
}

fn compare(name: &str, dtype: DType, ours: &[u8], theirs: &[u8]) -> Result<f64, String> {
    if dtype != DType::F32 {
        return if ours == theirs { Ok(0.0) } else { Err(format!("{name}: not equal")) };
    }
    let floats = |bytes: &[u8]| {
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    let (ours, theirs) = (floats(ours), floats(theirs));
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
    if let Some((a, b)) = ours
        .iter()
        .zip(&theirs)
        .find(|(a, b)| (!a.is_finite() || !b.is_finite()) && !same(**a, **b))
    {
        return Err(format!("{name}: {a} instead of {b}"));
    }
    let finite = |x: &f32| if x.is_finite() { f64::from(*x) } else { 0.0 };
    let scale = theirs.iter().map(|x| finite(x).abs()).fold(0.0, f64::max);
    let error =
        ours.iter().zip(&theirs).map(|(a, b)| (finite(a) - finite(b)).abs()).fold(0.0, f64::max)
            / if scale > 0.0 { scale } else { 1.0 };
    if error <= TOLERANCE { Ok(error) } else { Err(format!("{name}: error {error:.2e}")) }
}

#[test]
fn every_operator_matches_pytorch() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    let (mut failures, mut compared) = (Vec::new(), 0);
    for path in &files {
        let graph = graph::read(&std::fs::read(path).unwrap())
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let bytes = std::fs::read(path.with_extension("safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let by_case = settings(&bytes);
        let given = |value: ValueId| golden(&tensors, value).to_vec();
        let mut distinct: Vec<StepSettings> = vec![DEFAULT];
        for &settings in by_case.values() {
            if !distinct.contains(&settings) {
                distinct.push(settings);
            }
        }
        for settings in distinct {
            let outputs = match execute(&graph, &given, &settings, false, 1) {
                Ok(outputs) => outputs,
                Err(error) => {
                    failures.push(error);
                    continue;
                }
            };
            for (in_place, threads) in [(true, 1), (false, 3), (true, 3)] {
                let again = execute(&graph, &given, &settings, in_place, threads);
                assert_eq!(
                    Ok(&outputs),
                    again.as_ref(),
                    "{}: other bits in place ({in_place}) or on {threads} threads",
                    path.display()
                );
            }
            for (&value, ours) in graph.outputs().iter().zip(&outputs) {
                let producer = &graph.nodes()[graph.values()[value].producer];
                if by_case.get(&producer.name).copied().unwrap_or(DEFAULT) != settings {
                    continue;
                }
                let name = format!("{} case {}", producer.op, producer.name);
                let theirs = golden(&tensors, value);
                compared += 1;
                if let Err(failure) =
                    compare(&name, graph.values()[value].tensor.dtype, ours, theirs)
                {
                    failures.push(failure);
                }
            }
        }
    }
    assert!(compared > 900, "only {compared} outputs were compared");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_operator_has_goldens() {
    // Random operators are checked by their statistics, not against PyTorch's draws; collectives
    // and messages are compared with one device, in `tests/pipeline.rs` and `tests/sharded.rs`.
    let others = [Operator::NativeDropout, Operator::Incoming, Operator::MeanPieces];
    let is_of_ranks = |operator: &Operator| operator.exchanges() || operator.is_collective();
    let missing: Vec<&str> = Operator::ALL
        .iter()
        .filter(|operator| !others.contains(operator) && !is_of_ranks(operator))
        .map(|operator| operator.name())
        .filter(|name| !folder().join(format!("{name}.json")).exists())
        .collect();
    assert!(missing.is_empty(), "no goldens for {missing:?}");
}
