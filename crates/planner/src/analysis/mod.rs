//! What follows from a graph, a sequence and its costs: which storages are alive when, and where
//! the bytes come from. Invariant: an analysis decides nothing; its result is a side table.

mod access;
mod crossing;
mod dataflow;
mod disjoint_sets;
mod liveness;
pub mod modules;
mod passes;
mod seconds;
mod sequence;

pub use access::{AccessProfile, AccessTable, Accesses, Life, access_profile, accesses};
pub(crate) use crossing::crossing;
pub use dataflow::{Dataflow, Figures, ModuleFigures, Operator, Work, dataflow, operators};
pub(crate) use disjoint_sets::DisjointSets;
pub use liveness::{
    Ends, Interval, IntervalId, Liveness, MemoryCurve, PeakInterval, held, liveness, memory_curve,
};
pub use passes::passes;
pub use seconds::seconds;
pub use sequence::{Action, Motion, Move, Sequence};
