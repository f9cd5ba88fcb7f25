//! A call that computes with tensors whose places are decided at run time. Invariant: its kernel is
//! compiled for the places of these tensors at the time it runs, and for no others.

use std::sync::{Mutex, PoisonError};

use tightfit::graph::{self, Graph, Node};
use tightfit::id::{BufferId, ValueId};
use tightfit::operator::Operator;
use tightfit::schedule::{Call, Schedule};

use crate::execute::error::{CompileError, StepError};
use crate::execute::placement::Placement;
use crate::execute::region::{Operands, Region};
use crate::kernels::tensor::Tensor;
use crate::kernels::{self, Kernel, Scratch};
use crate::residency::{Phase, TensorId};

/// Compiled kernels kept per call, one for each set of places; in a steady run few recur.
const KEPT: usize = 2;

/// A call whose kernel depends on where tensors are.
pub(super) struct PlacedCall {
    node: Node,
    operator: Operator,
    inputs: Vec<Operand>,
    outputs: Vec<Option<Operand>>,
    scratch: Option<Scratch>,
    threads: usize,
    /// The persistent tensors that it computes with.
    pub operands: Operands,
    /// The part of the step that it belongs to.
    pub phase: Phase,
    /// Most recently used last.
    kernels: Mutex<Vec<(Vec<u64>, Kernel)>>,
}

/// An operand, with its offset from the beginning of its tensor, if that may be anywhere.
struct Operand {
    tensor: Tensor,
    placed: Option<TensorId>,
}

impl PlacedCall {
    /// A call of a schedule that computes with tensors of a region; none if it does not.
    pub fn new(
        graph: &Graph,
        (schedule, region): (&Schedule, &Region),
        call: &Call,
        threads: usize,
    ) -> Result<Option<PlacedCall>, CompileError> {
        let operands = region.operands(graph, schedule, call);
        if operands.is_empty() {
            return Ok(None);
        }
        let node = &graph.nodes()[call.node];
        let among = || CompileError::AmongPlaced { node: node.name.clone() };
        let bind = |value: ValueId, buffer: BufferId| {
            let placed = region.tensor(schedule, buffer);
            let address = match placed {
                Some(_) => 0,
                None => region.behind(schedule, buffer).ok_or_else(among)?,
            };
            let tensor = Tensor::bind(&graph.values()[value], address);
            Ok::<_, CompileError>(Operand { tensor, placed })
        };
        let inputs = node.inputs.iter().zip(&call.inputs);
        let inputs = inputs.map(|(&value, &buffer)| bind(value, buffer));
        let mut buffers = call.outputs.iter();
        let outputs = node.outputs.iter().map(|output| {
            let bound = output.and_then(|value| buffers.next().map(|&buffer| bind(value, buffer)));
            bound.transpose()
        });
        let scratch = call.workspace.map(|buffer| {
            let address = region.behind(schedule, buffer).ok_or_else(among)? as usize;
            let bytes = schedule.buffers[buffer].bytes.0 as usize;
            Ok::<_, CompileError>(Scratch { address, bytes })
        });
        Ok(Some(PlacedCall {
            inputs: inputs.collect::<Result<_, _>>()?,
            outputs: outputs.collect::<Result<_, _>>()?,
            scratch: scratch.transpose()?,
            node: node.clone(),
            operator: node.operator.expect("`admit` refuses unknown operators"),
            threads,
            operands,
            phase: phase(node.phase),
            kernels: Mutex::new(Vec::with_capacity(KEPT)),
        }))
    }

    /// Compiles a kernel for arbitrary places, to know before the first step that there is one.
    ///
    /// # Errors
    /// If no kernel computes this call.
    pub fn probe(&self) -> Result<(), CompileError> {
        self.compile(|_| Some(0)).map(drop).map_err(|reason| match reason {
            Uncompiled::Absent => CompileError::AmongPlaced { node: self.node.name.clone() },
            Uncompiled::Kernel(reason) => CompileError::Kernel {
                node: self.node.name.clone(),
                op: self.node.op.clone(),
                reason,
            },
        })
    }

    /// Has `run` compute with the acquired tensors, at their current places.
    ///
    /// # Errors
    /// If one of them has no place.
    pub fn with_kernel<R>(
        &self,
        placement: &Placement,
        run: impl FnOnce(&Kernel) -> R,
    ) -> Result<R, StepError> {
        let absent = || StepError::Absent { node: self.node.name.clone() };
        let mut kept = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let named = || self.operands.reads.iter().chain(&self.operands.writes);
        let is_there = |addresses: &[u64]| {
            named().map(|&tensor| placement.address(tensor)).eq(addresses.iter().copied().map(Some))
        };
        match kept.iter().position(|(addresses, _)| is_there(addresses)) {
            Some(known) => kept[known..].rotate_left(1),
            None => {
                let addresses = named().map(|&tensor| placement.address(tensor));
                let addresses = addresses.collect::<Option<Vec<u64>>>().ok_or_else(absent)?;
                let kernel = self.compile(|tensor| placement.address(tensor));
                let kernel = kernel.map_err(|_| absent())?;
                if kept.len() == KEPT {
                    drop(kept.remove(0));
                }
                kept.push((addresses, kernel));
            }
        }
        let (_, kernel) = kept.last().ok_or_else(absent)?;
        Ok(run(kernel))
    }

    fn compile(&self, address: impl Fn(TensorId) -> Option<u64>) -> Result<Kernel, Uncompiled> {
        let bind = |Operand { tensor, placed }: &Operand| {
            let mut tensor = tensor.clone();
            if let Some(placed) = placed {
                tensor.address += address(*placed).ok_or(Uncompiled::Absent)? as usize;
            }
            Ok::<_, Uncompiled>(tensor)
        };
        let outputs = self.outputs.iter().map(|output| output.as_ref().map(bind).transpose());
        let operands = kernels::Operands {
            node: &self.node,
            inputs: self.inputs.iter().map(bind).collect::<Result<_, _>>()?,
            outputs: outputs.collect::<Result<_, _>>()?,
            scratch: self.scratch,
        };
        kernels::compile(self.operator, &operands, self.threads).map_err(Uncompiled::Kernel)
    }
}

/// Why there is no kernel.
enum Uncompiled {
    /// A tensor has no place.
    Absent,
    /// No kernel computes this call.
    Kernel(kernels::KernelError),
}

/// The part of the step that a node belongs to, in the terms of the residency manager.
fn phase(phase: graph::Phase) -> Phase {
    match phase {
        graph::Phase::Optimizer => Phase::Optimizer,
        graph::Phase::Backward => Phase::Backward,
        _ => Phase::Forward,
    }
}
