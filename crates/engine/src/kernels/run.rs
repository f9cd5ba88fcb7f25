//! What a kernel is given when it runs, and how it reports what it cannot compute. Invariant: a
//! fault is raised from any worker thread and read once, after the step.

use std::sync::atomic::{AtomicU8, Ordering};

use tightfit::id::MicroBatchId;

use crate::transport::Link;

/// What a kernel found wrong with its input while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An index or a class outside its table.
    Index,
    /// Something that should have come from another rank, or gone there, did not.
    Link,
}

/// Set by kernels on worker threads, read after the step.
#[derive(Debug, Default)]
pub(crate) struct FaultFlag(AtomicU8);

impl FaultFlag {
    const INDEX: u8 = 1;
    const LINK: u8 = 2;

    pub fn raise(&self, fault: Fault) {
        let bit = match fault {
            Fault::Index => FaultFlag::INDEX,
            Fault::Link => FaultFlag::LINK,
        };
        self.0.fetch_or(bit, Ordering::Relaxed);
    }

    /// Whether the link to other ranks has failed, so that further computation is useless.
    pub fn is_cut_off(&self) -> bool {
        self.0.load(Ordering::Relaxed) & FaultFlag::LINK != 0
    }

    /// The fault since the last call, if any.
    pub fn take(&self) -> Option<Fault> {
        match self.0.swap(0, Ordering::Relaxed) {
            0 => None,
            bits if bits & FaultFlag::LINK != 0 => Some(Fault::Link),
            _ => Some(Fault::Index),
        }
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
    /// The link to other ranks, and the link's number for the graph's first message.
    pub link: Option<(&'a dyn Link, u32)>,
}

// SAFETY: the pointer is only followed by kernels, whose operands the checker proved disjoint.
unsafe impl Sync for Run<'_> {}
