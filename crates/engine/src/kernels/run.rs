//! What a kernel is told when it runs, and how it reports what it cannot compute. Invariant: a
//! fault is raised from any worker thread and read once, after the step.

use std::sync::atomic::{AtomicBool, Ordering};

use tightfit::id::MicroBatchId;

/// What a kernel found wrong with its input while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An index or a class outside its table.
    Index,
}

/// Set by kernels on worker threads, read after the step.
#[derive(Debug, Default)]
pub(crate) struct FaultFlag(AtomicBool);

impl FaultFlag {
    pub fn raise(&self, fault: Fault) {
        match fault {
            Fault::Index => self.0.store(true, Ordering::Relaxed),
        }
    }

    /// The fault since the last call, if any.
    pub fn take(&self) -> Option<Fault> {
        self.0.swap(false, Ordering::Relaxed).then_some(Fault::Index)
    }
}

/// What changes from run to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    /// Where kernels report what they cannot compute.
    pub fault: &'a FaultFlag,
    /// First byte of the slab.
    pub base: *mut u8,
    /// Seed of the run.
    pub seed: u64,
    /// Number of the step, from 0.
    pub step: u32,
    /// Number of the micro-batch within the step.
    pub micro_batch: MicroBatchId,
    /// Learning rate of the step.
    pub learning_rate: f32,
}

// SAFETY: the pointer is only followed by kernels, whose operands the checker proved disjoint.
unsafe impl Sync for Run<'_> {}
