//! What follows from a graph, a sequence of runs and its costs: who is alive when, and where the
//! bytes come from. Invariant: an analysis decides nothing; its result is a side table.

mod access;
mod dataflow;
mod disjoint_sets;
mod liveness;
pub mod modules;
mod moves;
mod passes;
mod stalls;

pub use access::{AccessProfile, AccessTable, Accesses, Life, access_profile, accesses};
pub use dataflow::{Dataflow, Figures, ModuleFigures, Operator, Work, dataflow, operators};
pub(crate) use disjoint_sets::DisjointSets;
pub use liveness::{
    Ends, Interval, IntervalId, Liveness, MemoryCurve, PeakInterval, held, liveness, liveness_with,
    memory_curve,
};
pub(crate) use moves::crossing;
pub use moves::{Motion, Move};
pub use passes::passes;
pub use stalls::seconds_with;
