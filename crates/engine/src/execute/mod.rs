//! Execution: a checked schedule, compiled, run step after step, measured, saved and resumed.
//! Invariant: the engine decides nothing; what runs, where and when is in the schedule.

pub mod admission;
mod binding;
pub mod error;
pub mod evaluation;
pub mod executable;
pub mod lanes;
mod placed_call;
pub mod placement;
pub mod places;
mod ranks;
pub mod ready;
pub mod region;
mod remote;
pub mod residents;
pub mod session;
pub mod set_aside;
mod settle;
pub mod trial;
pub mod weights;
