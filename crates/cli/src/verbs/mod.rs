//! The verbs, one per file; `train` and `bench` have folders of their own. Invariant: a verb reads
//! its arguments, calls the libraries and shows their answers; no algorithm lives here.

pub mod analyze;
pub mod calibrate;
pub mod check;
pub mod completions;
pub mod largest;
pub mod modules;
pub mod pareto;
pub mod plan;
pub mod report;
pub mod sac;
pub mod shard;
pub mod stages;
pub mod trace;
