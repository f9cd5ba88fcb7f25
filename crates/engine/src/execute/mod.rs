//! Execution: a checked schedule, compiled, run step after step, measured, saved and resumed.
//! Invariant: the engine decides nothing; what runs, where and when is in the schedule.

pub mod executable;
pub mod session;
pub mod trial;
pub mod weights;
