//! Measuring this processor once. Invariant: each rate is the lower quartile over several runs of
//! the engine's own kernels on the given number of threads, not the best; and the measurements take
//! turns, so that a disturbance affects all of them alike.

use std::sync::Arc;
use std::time::Instant;

use tightfit::Goal;
use tightfit::check::Checked;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{StorageId, ValueId};
use tightfit::machine::{Hierarchy, Machine, Runtime};
use tightfit::plan::{Instance, Planner};
use tightfit::profile::Profile;
use tightfit::schedule::{Lowering, lower};
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;

use crate::execute::error::CompileError;
use crate::execute::error::SessionError;
use crate::execute::executable::{Executable, StepSettings};
use crate::memory::process;
use crate::memory::slab::Slab;

/// Timed runs of each graph, after one that faults its pages in.
const ROUNDS: usize = 24;

/// The size of the tensors on which rates are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Larger than caches: about a second, and less than [`Extent::MEMORY`] for the whole process.
    Usual,
    /// Sizes as in a step of a few MiB, in little more memory than the program itself takes.
    Small,
}

impl Extent {
    /// Most memory that measuring on tensors of the usual size may take.
    pub const MEMORY: Bytes = Bytes(256 << 20);
}

/// Measures rates on `threads` threads.
pub fn calibrate(threads: u32, extent: Extent) -> Result<Machine, SessionError> {
    let [rows, width, long, curve] = match extent {
        Extent::Usual => [2048, 512, 1 << 24, 1 << 18],
        Extent::Small => [256, 128, 1 << 15, 1 << 13],
    };
    let graphs = [
        layer(rows, width),
        chain("aten.add.Tensor", &[long], 1),
        chain("aten.gelu.default", &[curve], 1),
        chain("aten.relu.default", &[16], 64),
    ];
    let [products, copied, curved, tiny] = seconds(graphs, threads, extent == Extent::Small)?;
    let flops = 3.0 * 2.0 * (rows * width * width) as f64 / products;
    Ok(Machine {
        name: "cpu".to_string(),
        flops_16: flops,
        flops_32: flops,
        bandwidth: 3.0 * 4.0 * long as f64 / copied,
        elementary: Some(curve as f64 / curved),
        launch: tiny / 64.0,
        threads,
        runtime: Runtime::Engine,
        hierarchy: Hierarchy::default(),
    })
}

/// The three products of a linear layer in a training step: its result, the gradient of its input,
/// and that of its weight. The last one sums over many rows of a transposed operand, which is
/// slower than a product of square matrices.
fn layer(rows: u64, width: u64) -> Graph {
    let mut builder = GraphBuilder::new("layer");
    let (tall, square) = ([rows, width], [width, width]);
    let x = stored(&mut builder, NodeSpec::new("x", "placeholder", Phase::Input), &tall);
    let weight =
        stored(&mut builder, NodeSpec::new("weight", "placeholder", Phase::Input), &square);
    let y = tensor(&mut builder, call("y", "aten.mm.default", &[x.0, weight.0]), &tall);
    let weight = transposed(&mut builder, "weight_t", weight, square);
    let x_t = transposed(&mut builder, "x_t", x, tall);
    let of_x = tensor(&mut builder, call("of_x", "aten.mm.default", &[y, weight]), &tall);
    let of_weight = tensor(&mut builder, call("of_weight", "aten.mm.default", &[x_t, y]), &square);
    builder.output(of_x);
    builder.output(of_weight);
    builder.build().expect("the layer obeys the rules")
}

/// `count` calls of one operator, each on the result of the one before.
fn chain(op: &str, shape: &[u64], count: usize) -> Graph {
    let mut builder = GraphBuilder::new(op);
    let left = tensor(&mut builder, NodeSpec::new("left", "placeholder", Phase::Input), shape);
    let right = tensor(&mut builder, NodeSpec::new("right", "placeholder", Phase::Input), shape);
    let mut last = left;
    for i in 0..count {
        let inputs = if op == "aten.add.Tensor" { vec![last, right] } else { vec![last] };
        last = tensor(&mut builder, call(&format!("call_{i}"), op, &inputs), shape);
    }
    builder.output(last);
    builder.build().expect("the chain obeys the rules")
}

fn call(name: &str, op: &str, inputs: &[ValueId]) -> NodeSpec {
    let args = inputs.iter().map(|&value| Argument::Value(value)).collect();
    NodeSpec { inputs: inputs.to_vec(), args, ..NodeSpec::new(name, op, Phase::Forward) }
}

/// A node with one output in a storage of its own.
fn tensor(builder: &mut GraphBuilder, spec: NodeSpec, shape: &[u64]) -> ValueId {
    stored(builder, spec, shape).0
}

fn stored(builder: &mut GraphBuilder, spec: NodeSpec, shape: &[u64]) -> (ValueId, StorageId) {
    let storage = builder.storage(Bytes(shape.iter().product::<u64>() * 4));
    (builder.node(spec, &[Some(ValueSpec::contiguous(shape, DType::F32, storage))])[0], storage)
}

/// The transpose of a matrix, as a view.
fn transposed(
    builder: &mut GraphBuilder,
    name: &str,
    (matrix, storage): (ValueId, StorageId),
    [rows, columns]: [u64; 2],
) -> ValueId {
    let view = ValueSpec {
        contiguous: false,
        strides: Some(vec![1, columns]),
        ..ValueSpec::contiguous(&[columns, rows], DType::F32, storage)
    };
    let mut permuted = call(name, "aten.permute.default", &[matrix]);
    permuted.args.push(Argument::List(vec![Argument::Int(1), Argument::Int(0)]));
    builder.node(permuted, &[Some(view)])[0]
}

/// Seconds of each graph: the lower quartile of its runs.
fn seconds<const N: usize>(
    graphs: [Graph; N],
    threads: u32,
    is_small: bool,
) -> Result<[f64; N], SessionError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build()?;
    let pool = Arc::new(pool);
    let settings = StepSettings { seed: 0, step: 0, learning_rate: 0.0 };
    let mut executables = Vec::with_capacity(N);
    for graph in &graphs {
        let profile = Profile::new(graph, &Machine::unmeasured_cpu(threads)).without_reuse();
        let program = graph.compute_nodes();
        let plan = Instance::new(graph, &profile, &program).unplanned(Planner::None);
        let schedule = lower(graph, &profile, &plan, &Lowering::to(Goal::Smallest));
        let slab = Slab::new(schedule.slab)?;
        let checked = Checked::new(graph, &profile, schedule).map_err(CompileError::from)?;
        executables.push((Executable::compile(graph, &checked, &pool)?, slab));
    }
    if is_small {
        process::give_back();
    }
    let mut runs = [const { Vec::new() }; N];
    for round in 0..=ROUNDS {
        for ((executable, slab), runs) in executables.iter_mut().zip(&mut runs) {
            let start = Instant::now();
            executable
                .run(slab, &settings)
                .map_err(|error| SessionError::Step { step: 0, error })?;
            runs.extend((round > 0).then(|| start.elapsed().as_secs_f64()));
        }
    }
    Ok(runs.map(|mut runs| {
        runs.sort_by(f64::total_cmp);
        runs[ROUNDS / 4]
    }))
}
