//! How much of a collective overlaps with its rank's computation. Prints how long two ranks wait
//! for a gathered parameter and a reduced gradient of 64 MiB if either is waited for at once, and
//! if matrix products come in between:
//!
//! ```text
//! mpirun -n 2 --bind-to none cargo run --release -p tightfit-engine --features mpi \
//!     --example mpi_gather
//! ```
#![allow(clippy::unwrap_used)] // a measurement that cannot go on panics

use std::sync::Arc;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::{RankId, ValueId};
use tightfit::machine::Machine;
use tightfit::operator::Operator;
use tightfit::profile::Profile;
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;
use tightfit::unplanned;
use tightfit_engine::transport::mpi::{Job, MpiLink};
use tightfit_engine::transport::{Link, Route};
use tightfit_engine::{Executable, Executed, Slab, StepSettings};

/// Elements of the gathered and of the reduced tensor.
const ELEMENTS: u64 = 16 << 20;
const SIDE: u64 = 1024;
/// Number of products between a collective and its reader, each of some ten milliseconds.
const PRODUCTS: usize = 24;
const ROUNDS: u32 = 7;

/// A graph under construction.
struct Building {
    builder: GraphBuilder,
    calls: usize,
}

impl Building {
    fn tensor(&mut self, spec: NodeSpec, shape: &[u64]) -> ValueId {
        let storage = self.builder.storage(Bytes(4 * shape.iter().product::<u64>()));
        let made = ValueSpec::contiguous(shape, DType::F32, storage);
        self.builder.node(spec, &[Some(made)])[0]
    }

    fn call(
        &mut self,
        operator: Operator,
        of: &[ValueId],
        rest: &[Argument],
        to: &[u64],
    ) -> ValueId {
        self.calls += 1;
        let values = of.iter().map(|&value| Argument::Value(value));
        let spec = NodeSpec {
            args: values.chain(rest.iter().cloned()).collect(),
            inputs: of.to_vec(),
            ..NodeSpec::new(format!("call{}", self.calls), operator.name(), Phase::Forward)
        };
        self.tensor(spec, to)
    }

    fn placeholder(&mut self, name: &str, shape: &[u64]) -> ValueId {
        self.tensor(NodeSpec::new(name, "placeholder", Phase::Input), shape)
    }

    /// Products that only the end of the step waits for.
    fn compute(&mut self, [mut left, right]: [ValueId; 2]) -> ValueId {
        for _ in 0..PRODUCTS {
            left = self.call(Operator::Mm, &[left, right], &[], &[SIDE, SIDE]);
        }
        left
    }
}

/// Both collectives, each followed by products, or with none before its reader.
fn graph(overlaps: bool) -> Graph {
    let mut it = Building { builder: GraphBuilder::new("collectives"), calls: 0 };
    let shard = it.placeholder("shard", &[ELEMENTS / 2]);
    it.builder.output(shard);
    let pair = ["left", "right"].map(|name| it.placeholder(name, &[SIDE, SIDE]));
    let size = Argument::List(vec![Argument::Int(ELEMENTS as i64)]);
    let (two, first) = (Argument::Int(2), Argument::Int(0));
    let whole = it.call(Operator::AllGather, &[shard], &[size, two.clone(), first], &[ELEMENTS]);
    let mut squares = Vec::new();
    squares.extend(overlaps.then(|| it.compute(pair)));
    let read = it.call(Operator::Neg, &[whole], &[], &[ELEMENTS]);
    squares.extend((!overlaps).then(|| it.compute(pair)));
    let rows = [1, ELEMENTS / 2];
    let pieces = it.call(Operator::AllToAll, &[read], &[two, Argument::Int(2)], &rows);
    squares.extend(overlaps.then(|| it.compute(pair)));
    let reduced = it.call(Operator::MeanPieces, &[read, pieces], &[], &[ELEMENTS / 2]);
    squares.extend((!overlaps).then(|| it.compute(pair)));
    squares.into_iter().chain([reduced]).for_each(|value| it.builder.output(value));
    it.builder.build().unwrap()
}

/// Seconds that a step waited for collectives, and its seconds, both the medians of some steps.
fn run(link: &MpiLink, overlaps: bool, first: u32) -> (f64, f64) {
    let graph = graph(overlaps);
    let profile = Profile::new(&graph, &Machine::unmeasured_cpu(1));
    let fitted = unplanned(&graph, &profile).unwrap();
    let pool = Arc::new(ThreadPoolBuilder::new().num_threads(1).build().unwrap());
    let mut executable = Executable::compile(&graph, fitted.checked(), &pool).unwrap();
    executable.connect(Arc::new(link.clone()), 0);
    let mut slab = Slab::new(fitted.schedule().slab).unwrap();
    let (mut waited, mut steps) = (Vec::new(), Vec::new());
    for step in first..first + ROUNDS {
        link.gather(&[]).unwrap();
        let (mut ends, begun) = (0.0, std::time::Instant::now());
        let settings = StepSettings { seed: 1, step, learning_rate: 0.0 };
        executable
            .run_timed(&mut slab, &settings, &mut |executed| {
                if let Executed::End(seconds) = executed {
                    ends += seconds.0;
                }
            })
            .unwrap();
        steps.push(begun.elapsed().as_secs_f64());
        waited.push(ends);
    }
    (median(waited), median(steps))
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let job = Job::begin(2, Duration::from_secs(60), |cause| eprintln!("{cause}")).unwrap();
    let Some(link) = job.link() else {
        job.end(0);
        return;
    };
    let route = |from: u32, to: u32| Route {
        from: RankId::from_u32(from),
        to: RankId::from_u32(to),
        what: "a piece".to_string(),
    };
    let routes = [(0, 1), (1, 0), (0, 1), (1, 0)].map(|(from, to)| route(from, to));
    link.expects(routes.to_vec(), Duration::from_secs(60)).unwrap();
    for (overlaps, first, what) in
        [(false, 0, "waited for at once"), (true, ROUNDS, "with products in between")]
    {
        let (waited, step) = run(link, overlaps, first);
        if link.rank() == RankId::from_u32(0) {
            println!(
                "{} MiB gathered and reduced, {what}: {:.2} ms of waiting in a step of {:.1} ms \
                 (medians of {ROUNDS})",
                ELEMENTS >> 18,
                waited * 1e3,
                step * 1e3
            );
        }
    }
    job.end(0);
}
