//! The interpreter: a checked schedule, compiled, executed step after step. Invariant: only a
//! schedule that passed the checker for this very graph and profile is compiled, executing it
//! allocates nothing, and it runs on the threads that it was compiled for and on no others.

use std::sync::Arc;
use std::time::Instant;

use rayon::ThreadPool;
use tightfit::check::{Checked, Violation};
use tightfit::graph::Graph;
use tightfit::id::MicroBatchId;
use tightfit::schedule::{Call, Instruction, Schedule};
use tightfit::timeline::CallInTime;
use tightfit::units::{Bytes, Seconds};

use crate::execute::admission::admit;
use crate::execute::error::{CompileError, StepError};
use crate::kernels::tensor::Tensor;
use crate::kernels::{self, FaultFlag, Kernel, Operands, Run, Scratch};
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

struct Compiled {
    /// The call, as it was predicted.
    predicted: CallInTime,
    micro_batch: MicroBatchId,
    kernel: Kernel,
}

/// A schedule, compiled for the threads of one pool, which it keeps.
pub struct Executable {
    calls: Vec<Compiled>,
    pool: Arc<ThreadPool>,
    slab: Bytes,
    fault: FaultFlag,
}

impl Executable {
    /// Refuses a graph that no schedule makes executable, before one is looked for.
    pub fn admits(graph: &Graph) -> Result<(), CompileError> {
        admit(graph)
    }

    /// Compiles a checked schedule of `graph` for the threads of `pool`, on which it will run:
    /// kernels divide their workspace among that many.
    ///
    /// # Errors
    /// Where the graph is another one, or uses what the engine cannot execute.
    pub fn compile(
        graph: &Graph,
        checked: &Checked,
        pool: &Arc<ThreadPool>,
    ) -> Result<Executable, CompileError> {
        let schedule = checked.schedule();
        if schedule.graph != graph.hash() {
            return Err(Violation::OtherGraph.into());
        }
        admit(graph)?;
        let threads = pool.current_num_threads();
        let mut predicted = checked.timeline().calls.iter();
        let mut calls = Vec::with_capacity(predicted.len());
        for (index, instruction) in schedule.instructions.iter().enumerate() {
            match instruction {
                Instruction::Run(call) | Instruction::Recompute(call) => calls.push(Compiled {
                    predicted: *predicted.next().expect("a timeline has every call"),
                    micro_batch: call.micro_batch,
                    kernel: compile(graph, schedule, call, threads)?,
                }),
                // Buffers have their addresses, so there is nothing to give back.
                Instruction::Free(_) => {}
                Instruction::Start(_) | Instruction::Wait(_) => {
                    return Err(CompileError::NoLanes { index });
                }
            }
        }
        Ok(Executable {
            calls,
            pool: Arc::clone(pool),
            slab: schedule.slab,
            fault: FaultFlag::default(),
        })
    }

    /// Number of threads that it was compiled for and runs on.
    pub fn threads(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Executes one step.
    ///
    /// # Panics
    /// Where the slab is smaller than the schedule's.
    pub fn run(&self, slab: &mut Slab, settings: &StepSettings) -> Result<(), StepError> {
        self.execute(slab, settings, |call, run| (call.kernel)(run))
    }

    /// Executes one step and reports each call's seconds.
    pub fn run_timed(
        &self,
        slab: &mut Slab,
        settings: &StepSettings,
        report: &mut (dyn FnMut(CallInTime) + Send),
    ) -> Result<(), StepError> {
        let begun = Instant::now();
        self.execute(slab, settings, |call, run| {
            let start = Instant::now();
            (call.kernel)(run);
            let seconds = Seconds(start.elapsed().as_secs_f64());
            let start = Seconds(start.duration_since(begun).as_secs_f64());
            report(CallInTime { start, seconds, ..call.predicted });
        })
    }

    fn execute(
        &self,
        slab: &mut Slab,
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
        let step = Run {
            base,
            fault: &self.fault,
            seed: settings.seed,
            step: settings.step,
            micro_batch: MicroBatchId::WHOLE,
            learning_rate: settings.learning_rate as f32,
        };
        let step = &step;
        self.pool.install(|| {
            for compiled in &self.calls {
                call(compiled, &Run { micro_batch: compiled.micro_batch, ..*step });
            }
        });
        match self.fault.take() {
            Some(kernels::Fault::Index) => Err(StepError::Index),
            None => Ok(()),
        }
    }
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
        scratch: call.workspace.map(|buffer| Scratch {
            address: schedule.buffers[buffer].address as usize,
            bytes: schedule.buffers[buffer].bytes.0 as usize,
        }),
    };
    let operator = node.operator.expect("`admit` refuses unknown operators");
    kernels::compile(operator, &operands, threads).map_err(|reason| CompileError::Kernel {
        node: node.name.clone(),
        op: node.op.clone(),
        reason,
    })
}
