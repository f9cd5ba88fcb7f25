//! All tests of the engine in one binary, by subject; those that count calls of the allocator, and
//! those of MPI jobs, have their own.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod generator;

mod axes;
#[cfg(target_os = "linux")]
mod children;
mod fitting;
mod hostile_shapes;
mod kernel_goldens;
mod mutated_calls;
mod pipeline;
mod placement;
mod random_graphs;
mod residency;
mod set_aside;
mod sharded;
mod transfers;
