//! A bare graph, executed by a schedule. Invariant: its initial content depends on names and steps
//! alone, never on addresses, so two schedules of one graph must give the same bits.

use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::ThreadPoolBuilder;
use tightfit::check::Checked;
use tightfit::graph::{Graph, Phase};
use tightfit::id::{BufferId, StorageId, ValueId};
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::tensor::DType;
use tightfit::{Goal, Request, fit, unplanned};
use tightfit_engine::philox::{key, philox};
use tightfit_engine::{Executable, Slab, StepSettings};

use crate::target::{EFFORT, MOST_BYTES, MOST_OPERATIONS, refused};
use crate::verdict::Verdict;

const STEPS: u32 = 2;

/// Bytes of every element of all outputs and of all that stays, after each step.
pub type Left = Vec<Vec<u8>>;

/// Why a graph cannot be executed within the limits of a case, if so.
pub fn too_large(graph: &Graph) -> Option<Verdict> {
    let bytes: u128 = graph.storages().values().map(|bytes| u128::from(bytes.0)).sum();
    let operations: u128 = graph
        .nodes()
        .values()
        .flat_map(|node| node.inputs.iter().chain(node.outputs.iter().flatten()))
        .map(|&value| u128::from(graph.values()[value].tensor.elements()))
        .sum();
    (bytes > MOST_BYTES || operations > MOST_OPERATIONS)
        .then(|| Verdict::Skipped("too large to be executed here".to_string()))
}

/// Executes a graph as captured on one thread and in the smallest slab on two.
pub fn judge(graph: &Graph) -> Verdict {
    if let Some(verdict) = too_large(graph) {
        return verdict;
    }
    let one = Profile::new(graph, &Machine::unmeasured_cpu(1)).without_reuse();
    let captured = match unplanned(graph, &one) {
        Ok(fitted) => fitted.schedule().clone(),
        Err(violation) => return Verdict::Wrong(format!("unplanned: {violation}")),
    };
    let two = Profile::new(graph, &Machine::unmeasured_cpu(2));
    let request = Request { goal: Goal::Smallest, effort: EFFORT, ..Request::default() };
    let smallest = match fit(graph, &two, &request) {
        Ok(fitted) => fitted.schedule().clone(),
        Err(error) => return Verdict::Wrong(format!("no smallest plan: {error}")),
    };
    let first = execute(graph, &one, &captured, 1, 0xff);
    same(&first, &execute(graph, &two, &smallest, 2, 0x00))
}

/// Both executions have to end alike: refused by the same part, or with the same bits.
pub fn same(first: &Result<Left, Verdict>, second: &Result<Left, Verdict>) -> Verdict {
    match (first, second) {
        (Ok(first), Ok(second)) if first == second => Verdict::Executed,
        (Ok(_), Ok(_)) => Verdict::Wrong("outputs or weights differ".to_string()),
        (Err(first), Err(second)) if first.cause() == second.cause() => first.clone(),
        (Err(verdict), _) | (_, Err(verdict)) if verdict.is_finding() => verdict.clone(),
        (Err(first), Ok(_)) => Verdict::Wrong(format!("only as captured: {first}")),
        (Ok(_), Err(second)) => Verdict::Wrong(format!("only as planned: {second}")),
        (Err(first), Err(second)) => Verdict::Wrong(format!("{first}, but {second}")),
    }
}

/// Runs some steps of a schedule in a slab of `filler` and gathers what they leave; nothing may
/// depend on the slab's previous content.
pub fn execute(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
    threads: usize,
    filler: u8,
) -> Result<Left, Verdict> {
    let checked = Checked::new(graph, profile, schedule.clone())
        .map_err(|violation| Verdict::Wrong(format!("a plan that was made: {violation}")))?;
    let Ok(pool) = ThreadPoolBuilder::new().num_threads(threads).build() else {
        return Err(Verdict::Skipped("no threads".to_string()));
    };
    let executable = Executable::compile(graph, &checked, &Arc::new(pool))
        .map_err(|error| refused("compiling", &error))?;
    let mut slab = Slab::new(schedule.slab).map_err(|error| refused("the slab", &error))?;
    slab.write(0, schedule.slab.0).fill(filler);
    let places = places(graph, schedule);
    let mut left = Vec::new();
    for step in 0..STEPS {
        begin(graph, schedule, step, &mut slab);
        let settings = StepSettings { seed: 3, step, learning_rate: 0.01 };
        executable.run(&mut slab, &settings).map_err(|error| refused("running", &error))?;
        let persistent = graph
            .placeholder_storages()
            .filter(|(node, _)| graph.nodes()[*node].phase.is_persistent())
            .filter_map(|(node, _)| graph.nodes()[node].outputs.first().copied().flatten());
        for value in graph.outputs().iter().copied().chain(persistent) {
            let Some(&buffer) = places.get(&graph.values()[value].storage) else {
                return Err(Verdict::Wrong("an output lies nowhere".to_string()));
            };
            left.push(elements(graph, value, schedule.buffers[buffer].address, &slab));
        }
    }
    Ok(left)
}

/// The bytes of a value's elements; bytes between them belong to no value.
fn elements(graph: &Graph, value: ValueId, address: u64, slab: &Slab) -> Vec<u8> {
    let tensor = &graph.values()[value].tensor;
    let (strides, size) = (tensor.strides_or_contiguous(), tensor.dtype.size());
    let mut bytes = Vec::new();
    for mut index in 0..tensor.elements() {
        let mut offset = tensor.offset;
        for (extent, stride) in tensor.shape.iter().zip(&strides).rev() {
            offset += index % extent * stride;
            index /= extent;
        }
        bytes.extend_from_slice(slab.read(address + offset * size, size));
    }
    bytes
}

/// Fills what a step starts from: the batch in every step, the rest in the first.
fn begin(graph: &Graph, schedule: &Schedule, step: u32, slab: &mut Slab) {
    for &(id, buffer) in &schedule.placeholders {
        let node = &graph.nodes()[id];
        let Some(&Some(value)) = node.outputs.first() else { continue };
        let buffer = schedule.buffers[buffer];
        if step > 0 && node.phase.is_persistent() {
            continue;
        }
        let out = slab.write(buffer.address, buffer.bytes.0);
        out.fill(0);
        if node.phase == Phase::State || graph.values()[value].tensor.dtype != DType::F32 {
            continue;
        }
        for (index, slot) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let word = philox(key(7), [index as u32, value.as_u32(), step, 0])[0];
            *slot = ((f64::from(word) / f64::from(1u32 << 31) - 1.0) as f32).to_ne_bytes();
        }
    }
}

/// Where each storage lies at the end of the step.
fn places(graph: &Graph, schedule: &Schedule) -> BTreeMap<StorageId, BufferId> {
    let storage = |value: ValueId| graph.values()[value].storage;
    let mut held: BTreeMap<BufferId, StorageId> = BTreeMap::new();
    for &(node, buffer) in &schedule.placeholders {
        let made = graph.nodes()[node].outputs.iter().flatten();
        held.extend(made.map(|&value| (buffer, storage(value))));
    }
    for instruction in &schedule.instructions {
        match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                let made = graph.nodes()[call.node].outputs.iter().flatten().zip(&call.outputs);
                held.extend(made.map(|(&value, &buffer)| (buffer, storage(value))));
            }
            Instruction::Free(buffer) => drop(held.remove(buffer)),
            Instruction::Start(_) | Instruction::Wait(_) => {}
        }
    }
    held.into_iter().map(|(buffer, storage)| (storage, buffer)).collect()
}
