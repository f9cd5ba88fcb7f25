//! Measuring this processor once. Invariant: each rate is the best of several runs of the engine's own kernels on the
//! given number of threads, so it bounds what a step can reach and noise can only make it too small.

use std::time::Instant;

use tightfit::graph::{Argument, DType, Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::machine::Machine;
use tightfit::plan::{Effort, Plan, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Residents, lower};
use tightfit::units::Bytes;

use crate::program::{Program, StepSettings};
use crate::session::SessionError;
use crate::slab::Slab;

const ROUNDS: usize = 12;

/// Measures rates on `threads` threads: about a second, and 200 MiB of memory.
pub fn calibrate(threads: u32) -> Result<Machine, SessionError> {
    let product = 1024u64;
    let long = 1u64 << 24;
    let matrix = fastest(&chain("aten.mm.default", &[product, product], 1), threads)?;
    let copied = fastest(&chain("aten.add.Tensor", &[long], 1), threads)?;
    let curved = fastest(&chain("aten.gelu.default", &[1 << 18], 1), threads)?;
    let tiny = fastest(&chain("aten.relu.default", &[16], 64), threads)?;
    Ok(Machine {
        name: "cpu".to_string(),
        flops_16: 2.0 * (product as f64).powi(3) / matrix,
        flops_32: 2.0 * (product as f64).powi(3) / matrix,
        bandwidth: 3.0 * 4.0 * long as f64 / copied,
        elementary: Some((1u64 << 18) as f64 / curved),
        launch: tiny / 64.0,
        threads,
        engine: true,
    })
}

/// `count` calls of one operator, each on the result of the one before.
fn chain(op: &str, shape: &[u64], count: usize) -> Graph {
    let mut builder = GraphBuilder::new(op);
    let bytes = Bytes(shape.iter().product::<u64>() * 4);
    let tensor = |builder: &mut GraphBuilder, spec| {
        let storage = builder.storage(bytes);
        builder.node(spec, &[Some(ValueSpec::contiguous(shape, DType::F32, storage))])[0]
    };
    let left = tensor(&mut builder, NodeSpec::new("left", "placeholder", Phase::Input));
    let right = tensor(&mut builder, NodeSpec::new("right", "placeholder", Phase::Input));
    let binary = matches!(op, "aten.mm.default" | "aten.add.Tensor");
    let mut last = left;
    for i in 0..count {
        let mut spec = NodeSpec::new(format!("call_{i}"), op, Phase::Forward);
        spec.inputs = if binary { vec![last, right] } else { vec![last] };
        spec.args = spec.inputs.iter().map(|&value| Argument::Value(value)).collect();
        last = tensor(&mut builder, spec);
    }
    builder.output(last);
    builder.build().expect("the chain obeys the rules")
}

/// Seconds of the fastest run of a graph.
fn fastest(graph: &Graph, threads: u32) -> Result<f64, SessionError> {
    let profile = Profile { in_place: false, ..Profile::new(graph, &Machine::unmeasured_cpu(threads)) };
    let plan = Plan { planner: Planner::None, steps: graph.program() };
    let mut schedule = lower(graph, &profile, &plan, Bytes::ZERO, &Residents::default(), &Effort::default());
    schedule.budget = schedule.slab;
    let program = Program::compile(graph, &profile, &schedule, threads as usize)?;
    let mut slab = Slab::new(schedule.slab)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build()?;
    let settings = StepSettings { seed: 0, step: 0, learning_rate: 0.0 };
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        program.run(&mut slab, &pool, &settings).map_err(|error| SessionError::Step { step: 0, error })?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
