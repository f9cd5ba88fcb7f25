//! Calls with their addresses. Invariant: every operand of a kernel lies where the checked schedule
//! has its buffer.

use tightfit::graph::Graph;
use tightfit::id::{BufferId, DEVICE};
use tightfit::operator::Operator;
use tightfit::schedule::{Buffer, Call, Instruction, Schedule};
use tightfit::sharded::{Ending, endings};

use crate::execute::error::CompileError;
use crate::execute::region::Region;
use crate::kernels::tensor::Tensor;
use crate::kernels::{self, Kernel, KernelError, Operands, Scratch};
use crate::memory::tier::BLOCK;

/// Checks that there is one tier below the slab, a file, and that transfers between the two move
/// whole blocks of the same size.
pub(super) fn transfers_suit(schedule: &Schedule) -> Result<(), CompileError> {
    let mut tiers = schedule.buffers.values().map(|buffer| buffer.tier).filter(|&t| t != DEVICE);
    let first = tiers.next();
    if tiers.any(|tier| Some(tier) != first) {
        return Err(CompileError::Tiers);
    }
    for instruction in &schedule.instructions {
        let Instruction::Start(transfer) = instruction else { continue };
        let ends = transfer.movement.buffers().map(|buffer| schedule.buffers[buffer]);
        let is_whole = |buffer: &Buffer| {
            buffer.address.is_multiple_of(BLOCK.0) && buffer.bytes.0.is_multiple_of(BLOCK.0)
        };
        let joins_both = (ends[0].tier == DEVICE) != (ends[1].tier == DEVICE);
        if !joins_both || ends[0].bytes != ends[1].bytes || !ends.iter().all(is_whole) {
            return Err(CompileError::Transfer { transfer: transfer.id });
        }
    }
    Ok(())
}

/// The second halves of collectives, each with the instruction before which it must run.
pub(super) fn ends(
    graph: &Graph,
    places: (&Schedule, Option<&Region>),
) -> Result<Vec<(usize, Kernel)>, CompileError> {
    let mut ends = Vec::new();
    for Ending { call, before } in endings(graph, places.0) {
        let Some(call) = places.0.instructions[call].call() else { continue };
        let end = with_operands(graph, places, call, |operator, operands| {
            kernels::end(operator, operands).map(|end| end.map(|end| (before, end)))
        })?;
        ends.extend(end);
    }
    Ok(ends)
}

/// The address of a buffer that is not placed at run time; none if it lies among those that are.
pub(super) fn address(
    (schedule, region): (&Schedule, Option<&Region>),
    buffer: BufferId,
) -> Option<u64> {
    match region {
        Some(region) => region.behind(schedule, buffer),
        None => Some(schedule.buffers[buffer].address),
    }
}

/// The kernel of a call.
pub(super) fn compile(
    graph: &Graph,
    places: (&Schedule, Option<&Region>),
    call: &Call,
    threads: usize,
) -> Result<Kernel, CompileError> {
    with_operands(graph, places, call, |operator, operands| {
        kernels::compile(operator, operands, threads)
    })
}

/// What `make` makes of a call whose operands are bound.
fn with_operands<T>(
    graph: &Graph,
    (schedule, region): (&Schedule, Option<&Region>),
    call: &Call,
    make: impl FnOnce(Operator, &Operands) -> Result<T, KernelError>,
) -> Result<T, CompileError> {
    let node = &graph.nodes()[call.node];
    let address = |buffer| {
        let address = address((schedule, region), buffer);
        address.ok_or_else(|| CompileError::AmongPlaced { node: node.name.clone() })
    };
    let bind = |value, buffer| {
        Ok::<_, CompileError>(Tensor::bind(&graph.values()[value], address(buffer)?))
    };
    let mut buffers = call.outputs.iter();
    let operands = Operands {
        node,
        inputs: node
            .inputs
            .iter()
            .zip(&call.inputs)
            .map(|(&value, &buffer)| bind(value, buffer))
            .collect::<Result<_, _>>()?,
        outputs: node
            .outputs
            .iter()
            .map(|output| {
                let bound =
                    output.and_then(|value| buffers.next().map(|&buffer| bind(value, buffer)));
                bound.transpose()
            })
            .collect::<Result<_, _>>()?,
        scratch: call
            .workspace
            .map(|buffer| {
                let bytes = schedule.buffers[buffer].bytes.0 as usize;
                Ok::<_, CompileError>(Scratch { address: address(buffer)? as usize, bytes })
            })
            .transpose()?,
    };
    let operator = node.operator.expect("`admit` refuses unknown operators");
    make(operator, &operands).map_err(|reason| CompileError::Kernel {
        node: node.name.clone(),
        op: node.op.clone(),
        reason,
    })
}
