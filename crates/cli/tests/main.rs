//! All tests of the program in one binary, by subject; those of MPI jobs have their own.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod program;

mod analyze;
mod answers;
#[cfg(target_os = "linux")] // other shells limit a process otherwise
mod batches;
mod bounded_reading;
mod capuchin;
mod completions;
mod endings;
#[cfg(unix)]
mod exit_codes;
mod failures;
mod frontier;
#[cfg(unix)]
mod interrupt;
mod largest;
mod measuring;
mod module_planners;
mod modules;
mod pages;
#[cfg(target_os = "linux")] // other systems refuse such names
mod paths;
mod pipeline;
mod placement;
mod plan_and_check;
#[cfg(target_os = "linux")]
mod process;
mod report;
mod rewritten;
mod shards;
mod shown_names;
mod small_steps;
mod split;
mod stages;
mod tiers;
mod training;
mod widths;
#[cfg(unix)]
mod written_files;
