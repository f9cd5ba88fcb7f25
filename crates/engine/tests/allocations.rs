//! What a step allocates in addition to the slab. Invariant: no call allocates except those that
//! pack a product, as the operator table says, and what they hold at once lies within the packing
//! that is subtracted from the budget, whatever the extents; panels are allocated before the first
//! step.
//!
//! Tier: quick, since it takes less than a second.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tightfit::graph::{Graph, GraphBuilder, NodeSpec, Phase, ValueSpec};
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::tensor::{Argument, DType};
use tightfit::units::Bytes;
use tightfit::unplanned;
use tightfit_engine::{Dataset, Executable, Executed, Session, Slab, Step, StepSettings, reserve};

/// The system's allocator, counted.
struct Counting;

/// Bytes allocated so far, bytes held now, and most bytes held at once.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static HELD: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator, with its own layouts; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let size = layout.size() as u64;
        ALLOCATED.fetch_add(size, Ordering::SeqCst);
        MOST.fetch_max(HELD.fetch_add(size, Ordering::SeqCst) + size, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn held() -> u64 {
    HELD.load(Ordering::SeqCst)
}

/// Runs and returns the most bytes held at once in addition to those held before.
fn most_at_once(run: impl FnOnce()) -> u64 {
    let before = held();
    MOST.store(before, Ordering::SeqCst);
    run();
    MOST.load(Ordering::SeqCst) - before
}

/// Whether the operator table says that the node's call packs a product.
fn packs(graph: &Graph, node: NodeId) -> bool {
    let operator = graph.nodes()[node].operator.unwrap();
    !(operator.row().cost.packing)(&graph.call(node)).is_empty()
}

/// Tests of a binary run in parallel, and all that is allocated is counted.
static ALONE: Mutex<()> = Mutex::new(());

fn step() -> (Step, Dataset) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let step = Step::open(&corpus.join("steps/gpt-nano")).unwrap();
    let data = Dataset::open(&step.data, &step.folder, None).unwrap();
    (step, data)
}

/// The unplanned step on this many threads, and its packing.
fn session(step: &Step, threads: u32) -> (Session, Bytes) {
    let machine = Machine::unmeasured_cpu(threads);
    let fitted = unplanned(&step.training, &Profile::new(&step.training, &machine)).unwrap();
    let session = Session::builder(step, fitted.checked()).threads(threads as usize).seed(1);
    let session = session.start().unwrap();
    (session, reserve(&step.training, &machine).packing)
}

#[test]
fn a_step_allocates_within_the_packing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (step, mut data) = step();
    let graph = &step.training;
    for threads in [1, 2, 3] {
        let (mut session, packing) = session(&step, threads);
        // The first step starts what the standard library and rayon keep for a thread.
        let before = held();
        session.step(&mut data).unwrap();
        let kept = held().saturating_sub(before);
        assert!(kept < 64 << 10, "{kept} bytes stay after a first step: panels come before it");
        let mut calls: Vec<(NodeId, u64)> = Vec::with_capacity(graph.nodes().len());
        let mut last = ALLOCATED.load(Ordering::SeqCst);
        let most = most_at_once(|| {
            let loss = session.step_timed(&mut data, &mut |executed| {
                let Executed::Call(call) = executed else { return };
                let now = ALLOCATED.load(Ordering::SeqCst);
                calls.push((call.node, now - last));
                last = now;
            });
            assert!(loss.unwrap() > 0.0);
        });
        let all: u64 = calls.iter().map(|(_, bytes)| bytes).sum();
        println!(
            "{threads} threads: {most} bytes at once, {all} in {} calls; packing {} bytes",
            calls.len(),
            packing.0
        );
        assert!(most > 0, "products pack");
        assert!(most <= packing.0, "{threads} threads: {most} of {} bytes", packing.0);
        for (node, bytes) in calls {
            let name = &graph.nodes()[node].name;
            assert!(bytes == 0 || packs(graph, node), "`{name}` allocates {bytes} bytes");
        }
    }
}

/// A product of `m × k` and `k × n`, each operand in row order or transposed.
fn product([m, n, k]: [u64; 3], [left, right]: [bool; 2]) -> Graph {
    let mut builder = GraphBuilder::new("product");
    let mut operand = |name: &str, [rows, columns]: [u64; 2], is_transposed: bool| {
        let storage = builder.storage(Bytes(rows * columns * 4));
        let stored = if is_transposed { [columns, rows] } else { [rows, columns] };
        let spec = NodeSpec::new(name, "placeholder", Phase::Input);
        let value = ValueSpec::contiguous(&stored, DType::F32, storage);
        let matrix = builder.node(spec, &[Some(value)])[0];
        if !is_transposed {
            return matrix;
        }
        let view = ValueSpec {
            contiguous: false,
            strides: Some(vec![1, rows]),
            ..ValueSpec::contiguous(&[rows, columns], DType::F32, storage)
        };
        let spec = NodeSpec {
            inputs: vec![matrix],
            args: vec![
                Argument::Value(matrix),
                Argument::List(vec![Argument::Int(1), Argument::Int(0)]),
            ],
            ..NodeSpec::new(format!("{name}_t"), "aten.permute.default", Phase::Forward)
        };
        builder.node(spec, &[Some(view)])[0]
    };
    let (a, b) = (operand("a", [m, k], left), operand("b", [k, n], right));
    let storage = builder.storage(Bytes(m * n * 4));
    let spec = NodeSpec {
        inputs: vec![a, b],
        args: vec![Argument::Value(a), Argument::Value(b)],
        ..NodeSpec::new("y", "aten.mm.default", Phase::Forward)
    };
    let value = ValueSpec::contiguous(&[m, n], DType::F32, storage);
    let y = builder.node(spec, &[Some(value)])[0];
    builder.output(y);
    builder.build().unwrap()
}

/// Deep, tall and wide products, with extents below, at and above those of the library's tiles and
/// blocks, and operands in either order.
#[test]
fn no_product_packs_more_than_is_taken_off_the_budget() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let extents = [
        [5, 7, 3],
        [16, 16, 16],
        [64, 64, 2000],
        [65, 64, 511],
        [70, 300, 513],
        [96, 96, 1025],
        [300, 65, 3000],
        [384, 400, 384],
        [768, 769, 700],
        [769, 48, 512],
        [1000, 24, 1030],
        [2000, 16, 64],
        [16, 2000, 64],
        [1, 900, 900],
        [900, 1, 900],
        [4000, 130, 40],
    ];
    let (mut packed, mut closest) = (0, 0.0f64);
    for threads in [1, 2, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads as usize).build().unwrap();
        let pool = Arc::new(pool);
        let machine = Machine::unmeasured_cpu(threads);
        for extents in extents {
            for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                let graph = product(extents, transposed);
                let profile = Profile::new(&graph, &machine);
                let fitted = unplanned(&graph, &profile).unwrap();
                let mut slab = Slab::new(fitted.schedule().slab).unwrap();
                let executable = Executable::compile(&graph, fitted.checked(), &pool).unwrap();
                let settings = StepSettings { seed: 0, step: 0, learning_rate: 0.0 };
                let packing = reserve(&graph, &machine).packing.0;
                // Threads that have no panel yet allocate one, whenever they first run.
                let mut runs = (0..8).map(|_| {
                    let before = held();
                    let most = most_at_once(|| executable.run(&mut slab, &settings).unwrap());
                    (held() == before).then_some(most)
                });
                let most = runs.find_map(|most| most).unwrap();
                assert!(
                    most <= packing,
                    "{extents:?}, transposed {transposed:?}, {threads} threads: {most} bytes, \
                     {packing} are taken off"
                );
                packed += usize::from(most > 1000);
                closest = closest.max(most as f64 / packing as f64);
            }
        }
    }
    assert!(packed > 60 && closest > 0.5, "{packed} products packed, at most {closest} of it");
}
