//! Planners of modules: against brute force, recorded answers and laws.

mod called;
mod deadlines;
mod selective_cases;
mod shard_cases;
mod shard_laws;
