//! The interpreter: a checked schedule, compiled, executed step after step. Invariant: only a
//! schedule that passed the checker for this very graph and profile is compiled, and executing it
//! allocates nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use rayon::ThreadPool;
use thiserror::Error;
use tightfit::check::{Violation, check};
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::operator::{Kind, Unsuited};
use tightfit::profile::Profile;
use tightfit::schedule::{Call, Instruction, Schedule};
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::kernels;
use crate::kernels::tensor::Tensor;
use crate::kernels::{FaultFlag, Kernel, KernelError, Operands, Run};
use crate::memory::slab::Slab;

/// What differs from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSettings {
    /// Seed of the run: all random draws depend on it.
    pub seed: u64,
    /// Number of the step, from 0.
    pub step: u32,
    /// Learning rate.
    pub learning_rate: f64,
}

/// Why a schedule cannot be executed here.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields are
pub enum CompileError {
    #[error("the schedule is wrong and was not executed: {0}")]
    Violation(#[from] Violation),
    #[error(
        "{} not implemented by the engine: {}; such a graph can be planned, but not trained",
        if operators.len() == 1 { "1 operator is" } else { "some operators are" },
        list(operators)
    )]
    UnknownOperators { operators: Vec<UnknownOperator> },
    #[error("node `{node}` ({op}): {reason}")]
    Kernel { node: String, op: String, reason: KernelError },
    #[error("node `{node}` ({op}): {reason}")]
    Unsuited { node: String, op: String, reason: Unsuited },
    #[error("node `{node}`: {what}; this graph is for planning only")]
    NotExecutable { node: String, what: String },
}

/// An operator without a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOperator {
    /// Its name.
    pub op: String,
    /// How many nodes call it.
    pub count: usize,
    /// The first of them.
    pub first: String,
}

fn list(operators: &[UnknownOperator]) -> String {
    let times =
        |count: usize| if count == 1 { "once".to_string() } else { format!("{count} times") };
    let each = operators
        .iter()
        .map(|o| format!("{} ({}, first in node `{}`)", o.op, times(o.count), o.first));
    each.collect::<Vec<_>>().join(", ")
}

/// Why a step failed. Parameters and state may have been updated in part.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum StepError {
    /// The data does not suit the model.
    #[error("the batch holds an index outside its table, or a class that the model does not have")]
    Index,
}

/// One executed call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredCall {
    /// The node.
    pub node: NodeId,
    /// It is a recomputation.
    pub again: bool,
    /// When it started, in seconds from the start of the step.
    pub start: f64,
    /// How long it took.
    pub seconds: f64,
}

struct Compiled {
    node: NodeId,
    again: bool,
    kernel: Kernel,
}

/// A schedule, compiled.
pub struct Executable {
    calls: Vec<Compiled>,
    slab: Bytes,
    fault: FaultFlag,
}

impl Executable {
    /// Checks a schedule and compiles it for `threads` worker threads.
    pub fn compile(
        graph: &Graph,
        profile: &Profile,
        schedule: &Schedule,
        threads: usize,
    ) -> Result<Executable, CompileError> {
        check(graph, profile, schedule, schedule.budget)?;
        executable(graph)?;
        let mut calls = Vec::new();
        for instruction in &schedule.instructions {
            if let Some(call) = instruction.call() {
                let again = matches!(instruction, Instruction::Recompute(_));
                calls.push(Compiled {
                    node: call.node,
                    again,
                    kernel: compile(graph, schedule, call, threads)?,
                });
            }
        }
        Ok(Executable { calls, slab: schedule.slab, fault: FaultFlag::default() })
    }

    /// Executes one step.
    ///
    /// # Panics
    /// Where the slab is smaller than the schedule's.
    pub fn run(
        &self,
        slab: &mut Slab,
        pool: &ThreadPool,
        settings: &StepSettings,
    ) -> Result<(), StepError> {
        self.execute(slab, pool, settings, |call, run| (call.kernel)(run))
    }

    /// Executes one step and reports each call's seconds.
    pub fn run_timed(
        &self,
        slab: &mut Slab,
        pool: &ThreadPool,
        settings: &StepSettings,
        report: &mut (dyn FnMut(MeasuredCall) + Send),
    ) -> Result<(), StepError> {
        let begun = Instant::now();
        self.execute(slab, pool, settings, |call, run| {
            let start = Instant::now();
            (call.kernel)(run);
            let seconds = start.elapsed().as_secs_f64();
            report(MeasuredCall {
                node: call.node,
                again: call.again,
                start: start.duration_since(begun).as_secs_f64(),
                seconds,
            });
        })
    }

    fn execute(
        &self,
        slab: &mut Slab,
        pool: &ThreadPool,
        settings: &StepSettings,
        mut call: impl FnMut(&Compiled, &Run) + Send,
    ) -> Result<(), StepError> {
        assert!(
            slab.bytes() >= self.slab,
            "the slab has {}, the schedule needs {}",
            slab.bytes(),
            self.slab
        );
        let base = slab.base();
        let run = Run {
            base,
            fault: &self.fault,
            seed: settings.seed,
            step: settings.step,
            micro_batch: 0,
            learning_rate: settings.learning_rate as f32,
        };
        let run = &run;
        pool.install(|| {
            for compiled in &self.calls {
                call(compiled, run);
            }
        });
        match self.fault.take() {
            Some(kernels::Fault::Index) => Err(StepError::Index),
            None => Ok(()),
        }
    }
}

/// What planning does without but execution needs: known operators, strides, seeds, types that
/// kernels have.
fn executable(graph: &Graph) -> Result<(), CompileError> {
    let mut unknown: BTreeMap<&str, UnknownOperator> = BTreeMap::new();
    for id in graph.program() {
        let node = &graph.nodes()[id];
        if node.operator.is_none() {
            let entry = unknown.entry(&node.op).or_insert_with(|| UnknownOperator {
                op: node.op.clone(),
                count: 0,
                first: node.name.clone(),
            });
            entry.count += 1;
        }
    }
    if !unknown.is_empty() {
        return Err(CompileError::UnknownOperators { operators: unknown.into_values().collect() });
    }
    for node in graph.nodes().values() {
        for &value in node.outputs.iter().flatten() {
            let value = &graph.values()[value];
            let refuse = |what: &str| {
                Err(CompileError::NotExecutable { node: node.name.clone(), what: what.to_string() })
            };
            if !value.tensor.contiguous && value.tensor.strides.is_none() {
                return refuse("an output is not contiguous and carries no strides");
            }
            if !matches!(value.tensor.dtype, DType::F32 | DType::I64 | DType::Bool) {
                return refuse(&format!(
                    "the engine computes in f32, i64 and bool, not in {}",
                    value.tensor.dtype.name()
                ));
            }
        }
    }
    for (id, node) in graph.nodes() {
        let Some(operator) = node.operator else { continue };
        let result = operator.conform(&graph.call(id));
        let random = operator.row().kind == Kind::Random && !node.random;
        let result = if random { Err(Unsuited::NotMarkedRandom) } else { result };
        result.map_err(|reason| CompileError::Unsuited {
            node: node.name.clone(),
            op: node.op.clone(),
            reason,
        })?;
    }
    Ok(())
}

fn compile(
    graph: &Graph,
    schedule: &Schedule,
    call: &Call,
    threads: usize,
) -> Result<Kernel, CompileError> {
    let node = &graph.nodes()[call.node];
    let bind =
        |value, buffer| Tensor::bind(&graph.values()[value], schedule.buffers[buffer].address);
    let mut buffers = call.outputs.iter();
    let operands = Operands {
        node,
        inputs: node
            .inputs
            .iter()
            .zip(&call.inputs)
            .map(|(&value, &buffer)| bind(value, buffer))
            .collect(),
        outputs: node
            .outputs
            .iter()
            .map(|output| {
                output.and_then(|value| buffers.next().map(|&buffer| bind(value, buffer)))
            })
            .collect(),
        workspace: call.workspace.map(|buffer| {
            (schedule.buffers[buffer].address as usize, schedule.buffers[buffer].bytes.0 as usize)
        }),
    };
    let operator = node.operator.expect("`executable` refuses unknown operators");
    kernels::compile(operator, &operands, threads).map_err(|reason| CompileError::Kernel {
        node: node.name.clone(),
        op: node.op.clone(),
        reason,
    })
}
