//! A schedule written by hand, judged by the checker: an activation goes to the host, comes back
//! for the gradient, and its memory is used by another in between. Invariant: the schedule comes
//! from no planner and from no lowering, so all that the checker knows of it is in this file.
//!
//! ```text
//! cargo run --example hand_written_schedule
//! ```

use std::error::Error;

use tightfit::check::Checked;
use tightfit::graph::{Graph, GraphBuilder, GraphError, NodeSpec, Phase, ValueSpec};
use tightfit::id::{
    BufferId, DEVICE, EntityRef, LaneId, MicroBatchId, NodeId, PrimaryMap, RankId, SecondaryMap,
    TierId, TransferId, ValueId,
};
use tightfit::machine::{Lane, Link, Machine, Tier};
use tightfit::profile::Profile;
use tightfit::schedule::{ALIGNMENT, Buffer, Call, Instruction, Movement, Schedule, Transfer};
use tightfit::tensor::DType;
use tightfit::units::{Bytes, Seconds};
use tightfit::unplanned;

/// The size of an activation, in bytes, and what a lane moves in a second; every call takes a
/// second.
const BYTES: Bytes = Bytes(1 << 20);
/// The size of the loss and of the gradient.
const SCALAR: Bytes = Bytes(4);

/// x → a → b → c → loss → gradient, which reads `a` again.
fn graph() -> Result<Graph, GraphError> {
    let mut builder = GraphBuilder::new("by hand");
    let mut node = |name: &str, phase: Phase, inputs: &[ValueId], bytes: Bytes| {
        let op = if phase.is_placeholder() { "placeholder" } else { "call" };
        let mut spec = NodeSpec::new(name, op, phase);
        spec.inputs = inputs.to_vec();
        spec.seconds = Some(Seconds(1.0));
        let storage = builder.storage(bytes);
        builder.node(spec, &[Some(ValueSpec::contiguous(&[bytes.0 / 4], DType::F32, storage))])[0]
    };
    let x = node("x", Phase::Input, &[], BYTES);
    let a = node("a", Phase::Forward, &[x], BYTES);
    let b = node("b", Phase::Forward, &[a], BYTES);
    let c = node("c", Phase::Forward, &[b], BYTES);
    let loss = node("loss", Phase::Loss, &[c], SCALAR);
    let gradient = node("gradient", Phase::Backward, &[loss, a], SCALAR);
    builder.output(gradient);
    builder.build()
}

/// A preset with a host below the device, and a lane each way.
fn machine() -> Result<(Machine, TierId, [LaneId; 2]), Box<dyn Error>> {
    let mut machine = Machine::preset("a100-80gb")?;
    let host = Tier { name: "host".to_string(), capacity: Some(BYTES), block: Bytes(1) };
    let host = machine.hierarchy.tiers.push(host);
    let link = Link { latency: Seconds(0.0), bandwidth: BYTES.0 as f64 };
    let lanes = [(DEVICE, host), (host, DEVICE)]
        .map(|(from, to)| machine.hierarchy.lanes.push(Lane { from, to, link }));
    Ok((machine, host, lanes))
}

/// The schedule, in a slab of two activations and two scalars.
fn schedule(graph: &Graph, host: TierId, [down, up]: [LaneId; 2]) -> Schedule {
    let (bottom, middle) = (0, BYTES.0);
    let top = 2 * BYTES.0;
    let mut buffers = PrimaryMap::new();
    let mut buffer = |bytes, address, tier| buffers.push(Buffer { bytes, address, tier });
    let x = buffer(BYTES, bottom, DEVICE);
    let a = buffer(BYTES, middle, DEVICE);
    let away = buffer(BYTES, 0, host);
    let b = buffer(BYTES, bottom, DEVICE);
    let c = buffer(BYTES, middle, DEVICE);
    let back = buffer(BYTES, bottom, DEVICE);
    let loss = buffer(SCALAR, top, DEVICE);
    let gradient = buffer(SCALAR, top + ALIGNMENT, DEVICE);
    let slab = Bytes(top + 2 * ALIGNMENT);

    let node = |name: &str| -> NodeId {
        graph.node_named(name).expect("the graph has a node of this name")
    };
    let run = |name: &str, inputs: &[BufferId], output| {
        Instruction::Run(Call {
            node: node(name),
            micro_batch: MicroBatchId::WHOLE,
            inputs: inputs.to_vec(),
            outputs: vec![output],
            workspace: None,
        })
    };
    let [first, second] = [0, 1].map(TransferId::new);
    let copy = |id, lane, from, to| {
        Instruction::Start(Transfer { id, lane, movement: Movement::Copy { from, to } })
    };
    let mut below = SecondaryMap::new();
    below[host] = BYTES;
    Schedule {
        graph: graph.hash().to_string(),
        rank: RankId::new(0),
        planner: "by hand".to_string(),
        budget: slab,
        slab,
        below,
        placeholders: vec![(node("x"), x)],
        instructions: vec![
            run("a", &[x], a),
            Instruction::Free(x),
            copy(first, down, a, away),
            run("b", &[a], b),
            Instruction::Wait(first),
            Instruction::Free(a),
            run("c", &[b], c),
            Instruction::Free(b),
            copy(second, up, away, back),
            run("loss", &[c], loss),
            Instruction::Free(c),
            Instruction::Wait(second),
            run("gradient", &[loss, back], gradient),
            Instruction::Free(loss),
            Instruction::Free(back),
            Instruction::Free(away),
        ],
        buffers,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let graph = graph()?;
    let (machine, host, lanes) = machine()?;
    let profile = Profile::new(&graph, &machine);
    let schedule = schedule(&graph, host, lanes);

    let checked = Checked::new(&graph, &profile, schedule.clone())?;
    let timeline = checked.timeline();
    let whole = unplanned(&graph, &profile)?.timeline().peak;
    println!(
        "legal: {} bytes held, where the step as it stands holds {}",
        timeline.peak.0, whole.0
    );
    for transfer in &timeline.transfers {
        println!(
            "  {} over {} from {:.0} s on, for {:.0} s; calls wait {:.0} s for it",
            transfer.id, transfer.lane, transfer.start.0, transfer.seconds.0, transfer.stall.0
        );
    }
    println!("the step takes {:.0} s", timeline.seconds.0);

    // Without the second wait the gradient would read what has not arrived.
    let mut hasty = schedule;
    hasty.instructions.retain(|instruction| *instruction != Instruction::Wait(TransferId::new(1)));
    match Checked::new(&graph, &profile, hasty) {
        Ok(_) => println!("legal without the wait"),
        Err(violation) => println!("illegal without the wait: {violation}"),
    }
    Ok(())
}
