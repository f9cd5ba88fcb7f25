//! What a step allocates beside the slab. Invariant: no call allocates but those that pack a
//! product, as the operator table says, and what they hold at once lies within the reserve, but
//! for one panel a thread.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit::unplanned;
use tightfit_engine::{Dataset, Session, Step, reserve};

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

/// Runs and returns most bytes held at once beside what was held before.
fn most_at_once(run: impl FnOnce()) -> u64 {
    let before = held();
    MOST.store(before, Ordering::SeqCst);
    run();
    MOST.load(Ordering::SeqCst) - before
}

/// The operator table says that the node's call packs a product.
fn packs(graph: &Graph, node: NodeId) -> bool {
    let operator = graph.nodes()[node].operator.unwrap();
    !(operator.row().cost.packing)(&graph.call(node)).is_empty()
}

/// Tests of a binary run side by side, and all that is allocated is counted.
static ALONE: Mutex<()> = Mutex::new(());

fn step() -> (Step, Dataset) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let step = Step::open(&corpus.join("steps/gpt-nano")).unwrap();
    let data = Dataset::open(&step.data, &step.folder, None).unwrap();
    (step, data)
}

/// The unplanned step on so many threads, and its reserve.
fn session(step: &Step, threads: u32) -> (Session, Bytes) {
    let machine = Machine::unmeasured_cpu(threads);
    let fitted = unplanned(&step.training, &Profile::new(&step.training, &machine)).unwrap();
    let slab = fitted.schedule().slab;
    let session = Session::new(step, fitted.checked(), None, slab, threads as usize, 1).unwrap();
    (session, reserve(&step.training, &machine))
}

#[test]
fn a_further_step_allocates_within_the_reserve() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (step, mut data) = step();
    let graph = &step.training;
    for threads in [1, 2] {
        let (mut session, reserve) = session(&step, threads);
        session.step(&mut data).unwrap();
        // A thread keeps the panel of its first product, and which threads the warm-up step
        // employed is chance: counted is the first step that leaves nothing behind.
        let mut calls: Vec<(NodeId, u64)> = Vec::with_capacity(graph.nodes().len());
        let most = (0..16).find_map(|_| {
            calls.clear();
            let before = held();
            let mut last = ALLOCATED.load(Ordering::SeqCst);
            let most = most_at_once(|| {
                let loss = session.step_timed(&mut data, &mut |call| {
                    let now = ALLOCATED.load(Ordering::SeqCst);
                    calls.push((call.node, now - last));
                    last = now;
                });
                assert!(loss.unwrap() > 0.0);
            });
            (held() == before).then_some(most)
        });
        let most = most.expect("no panel is left to be allocated");
        let all: u64 = calls.iter().map(|(_, bytes)| bytes).sum();
        println!(
            "{threads} threads: {most} bytes at once, {all} in {} calls; reserve {} bytes",
            calls.len(),
            reserve.0
        );
        assert!(most > 0, "products pack");
        assert!(most <= reserve.0);
        for (node, bytes) in calls {
            let name = &graph.nodes()[node].name;
            assert!(bytes == 0 || packs(graph, node), "`{name}` allocates {bytes} bytes");
        }
    }
}

/// The reserve is to bound what products pack, and it bounds all of it but these panels: each
/// thread allocates one, as large as the second-level cache, at its first product, and keeps it.
/// With 1 MiB of cache, the first step on two threads holds 2164744 bytes at once where 851968 are
/// reserved.
#[test]
fn beside_the_reserve_each_thread_keeps_one_panel() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let (step, mut data) = step();
    let mut panel = 0;
    for threads in [1, 2] {
        let (mut session, reserve) = session(&step, threads);
        let before = held();
        let most = most_at_once(|| {
            session.step(&mut data).unwrap();
        });
        let kept = held() - before;
        println!(
            "{threads} threads: {most} bytes at once, {kept} kept; reserve {} bytes",
            reserve.0
        );
        assert!(most - kept <= reserve.0);
        if threads == 1 {
            panel = kept;
        }
        assert!(
            kept / panel.max(1) <= u64::from(threads),
            "{kept} bytes are more than {panel} a thread"
        );
    }
}
