//! Schedules with transfers, executed without a tier. Invariant: such a step fails before anything
//! is moved; without its transfers it runs. What the engine's tier, one file of whole blocks, could
//! not carry is not even compiled, even if it is legal on the machine that it was made for.
//!
//! Tier: quick, since it takes less than a second.

use std::sync::Arc;

use tightfit::Goal;
use tightfit::check::Checked;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{BufferId, DEVICE, LaneId, TierId, TransferId, ValueId};
use tightfit::machine::{Lane, Link, Machine, Runtime, Tier};
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{
    ALIGNMENT, Buffer, Instruction, Lowering, Movement, Schedule, Transfer, lower,
};
use tightfit::tensor::{Argument, DType};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{CompileError, Executable, Slab, StepError, StepSettings, assert_disjoint};

const ELEMENTS: u64 = 1024;
const BYTES: u64 = ELEMENTS * 4;

/// The tier below the device.
fn host() -> TierId {
    TierId::from_u32(1)
}

/// x → a → b → c → d: each the rectified one before, except d = c + a.
fn graph() -> Graph {
    let mut builder = GraphBuilder::new("away");
    let mut node = |name: &str, op: &str, inputs: &[ValueId]| {
        let phase = if inputs.is_empty() { Phase::Input } else { Phase::Forward };
        let args = inputs.iter().map(|&value| Argument::Value(value)).collect();
        let spec = NodeSpec { inputs: inputs.to_vec(), args, ..NodeSpec::new(name, op, phase) };
        let storage = builder.storage(Bytes(BYTES));
        let output = ValueSpec::contiguous(&[ELEMENTS], DType::F32, storage);
        builder.node(spec, &[Some(output)])[0]
    };
    let x = node("x", "placeholder", &[]);
    let a = node("a", "aten.relu.default", &[x]);
    let b = node("b", "aten.relu.default", &[a]);
    let c = node("c", "aten.relu.default", &[b]);
    let d = node("d", "aten.add.Tensor", &[c, a]);
    builder.output(d);
    builder.build().unwrap()
}

/// A processor with a host tier, and a lane there and one back.
fn machine() -> Machine {
    let mut machine = Machine::unmeasured_cpu(1);
    assert_eq!(machine.runtime, Runtime::Engine);
    machine.hierarchy.tiers.push(Tier {
        name: "host".to_string(),
        capacity: None,
        block: Bytes(1),
    });
    let link = Link { latency: Seconds(0.0), bandwidth: 1e9 };
    machine.hierarchy.lanes.push(Lane { from: DEVICE, to: host(), link });
    machine.hierarchy.lanes.push(Lane { from: host(), to: DEVICE, link });
    machine
}

fn unplanned(graph: &Graph, profile: &Profile) -> Schedule {
    let program = graph.compute_nodes();
    let plan = Instance::new(graph, profile, &program).unplanned(Planner::None);
    lower(graph, profile, &plan, &Lowering::to(Goal::Smallest))
}

/// The schedule in which `a` leaves before `c` and comes back for `d`.
fn away(graph: &Graph, profile: &Profile) -> Schedule {
    let mut schedule = unplanned(graph, profile);
    let place = |schedule: &Schedule, name: &str| {
        let id = graph.node_named(name).unwrap();
        let is_it = |i: &Instruction| i.call().is_some_and(|call| call.node == id);
        schedule.instructions.iter().position(is_it).unwrap()
    };
    let [a, c, d] = ["a", "c", "d"].map(|name| place(&schedule, name));
    let device = schedule.instructions[a].call().unwrap().outputs[0];
    let (bytes, behind) = (Bytes(BYTES), schedule.slab.0);
    let below = schedule.buffers.push(Buffer { bytes, address: 0, tier: host() });
    let back = schedule.buffers.push(Buffer { bytes, address: behind, tier: DEVICE });
    schedule.slab += bytes;
    schedule.budget = schedule.slab;
    schedule.below[host()] = bytes;
    for instruction in &mut schedule.instructions[d..] {
        match instruction {
            Instruction::Run(call) | Instruction::Recompute(call) => {
                let read = call.inputs.iter_mut().filter(|input| **input == device);
                read.for_each(|input| *input = back);
            }
            Instruction::Free(freed) if *freed == device => *freed = back,
            Instruction::Free(_) | Instruction::Start(_) | Instruction::Wait(_) => {}
        }
    }
    // From the end, so that earlier positions stay valid.
    let returns = [copy(1, below, back), wait(1), Instruction::Free(below)];
    schedule.instructions.splice(d..d, returns);
    let leaves = [copy(0, device, below), wait(0), Instruction::Free(device)];
    schedule.instructions.splice(c..c, leaves);
    schedule
}

/// The copy of this number, over the lane of this number.
fn copy(number: u32, from: BufferId, to: BufferId) -> Instruction {
    Instruction::Start(Transfer {
        id: TransferId::from_u32(number),
        lane: LaneId::from_u32(number),
        movement: Movement::Copy { from, to },
    })
}

fn wait(number: u32) -> Instruction {
    Instruction::Wait(TransferId::from_u32(number))
}

fn compiled(graph: &Graph, checked: &Checked) -> Result<Executable, CompileError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    assert_disjoint();
    Executable::compile(graph, checked, &Arc::new(pool))
}

#[test]
fn nobody_carries_what_moves() {
    let graph = graph();
    let profile = Profile::new(&graph, &machine()).without_reuse();
    let checked = Checked::new(&graph, &profile, away(&graph, &profile)).unwrap();
    assert_eq!(checked.timeline().transfers.len(), 2);
    let executable = compiled(&graph, &checked).unwrap();
    let mut slab = Slab::new(checked.schedule().slab).unwrap();
    let settings = StepSettings { seed: 0, step: 0, learning_rate: 0.0 };
    let error = executable.run(&mut slab, &settings).unwrap_err();
    assert!(matches!(error, StepError::NoLanes), "{error}");
    assert_eq!(error.to_string(), "the schedule moves tensors to a tier, and this run has none");
}

#[test]
fn without_transfers_it_compiles() {
    let graph = graph();
    let profile = Profile::new(&graph, &machine()).without_reuse();
    let checked = Checked::new(&graph, &profile, unplanned(&graph, &profile)).unwrap();
    assert!(compiled(&graph, &checked).is_ok());
}

/// Why a legal schedule is not compiled.
fn refused(graph: &Graph, profile: &Profile, schedule: Schedule) -> CompileError {
    let checked = Checked::new(graph, profile, schedule).unwrap();
    compiled(graph, &checked).err().unwrap()
}

#[test]
fn transfers_of_other_than_whole_blocks_are_refused() {
    let graph = graph();
    let profile = Profile::new(&graph, &machine()).without_reuse();
    let changes: [fn(&mut Buffer); 2] = [
        |below| below.address += ALIGNMENT,
        // The bytes that are moved out are not all that the copy has.
        |below| below.bytes += Bytes(ALIGNMENT),
    ];
    for change in changes {
        let mut schedule = away(&graph, &profile);
        let mut buffers = schedule.buffers.iter();
        let (below, _) = buffers.find(|(_, buffer)| buffer.tier == host()).unwrap();
        change(&mut schedule.buffers[below]);
        schedule.below[host()] += Bytes(ALIGNMENT);
        let error = refused(&graph, &profile, schedule);
        assert!(matches!(error, CompileError::Transfer { .. }), "{error}");
        let says = "transfer0 does not move whole blocks of 4096 bytes";
        assert!(error.to_string().starts_with(says), "{error}");
    }
}

#[test]
fn a_second_tier_is_refused() {
    let graph = graph();
    let mut machine = machine();
    let disk = Tier { name: "disk".to_string(), capacity: None, block: Bytes(1) };
    let link = Link { latency: Seconds(0.0), bandwidth: 1e9 };
    let disk = machine.hierarchy.add(disk, link, link);
    let profile = Profile::new(&graph, &machine).without_reuse();
    let mut schedule = away(&graph, &profile);
    let first = |(place, instruction): (usize, &Instruction)| match instruction {
        Instruction::Start(transfer) => Some((place, transfer.movement.buffers()[0])),
        Instruction::Run(_)
        | Instruction::Recompute(_)
        | Instruction::Free(_)
        | Instruction::Wait(_) => None,
    };
    let (place, device) = schedule.instructions.iter().enumerate().find_map(first).unwrap();
    let second = schedule.buffers.push(Buffer { bytes: Bytes(BYTES), address: 0, tier: disk });
    schedule.below[disk] = Bytes(BYTES);
    let more = [copy(2, device, second), wait(2), Instruction::Free(second)];
    schedule.instructions.splice(place..place, more);
    let error = refused(&graph, &profile, schedule);
    assert!(matches!(error, CompileError::Tiers), "{error}");
}
