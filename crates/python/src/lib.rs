//! `tightfit._native`: the planner and the program for Python.
//!
//! Invariant: no algorithm lives here; what Python gives becomes arguments of the crates below, and
//! their answers become Python objects or exceptions. No panic crosses, and Python's lock is not
//! held while a crate below works.

mod addresses;
mod attend;
mod errors;
mod execute;
mod fit;
mod given;
mod graph;
mod hold;
mod modules;
mod plan;
mod sizes;
mod verbs;

use std::ffi::OsString;
use std::panic::catch_unwind;

use pyo3::prelude::*;

/// The exit code of a Rust program that panics.
const PANICKED: u8 = 101;

/// The planner and the program of tightfit, compiled.
#[pymodule]
mod _native {
    /// The package's version.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::addresses::{Addresses, Placement, Trace, lay_out};
    #[pymodule_export]
    use super::execute::obstacle;
    #[pymodule_export]
    use super::fit::{Fitted, fit, planner};
    #[pymodule_export]
    use super::given::{seconds, size};
    #[pymodule_export]
    use super::graph::{Subject, parts, read_graph, split_graph};
    #[pymodule_export]
    use super::hold::{HeldStep, hold, peak_with_moves};
    #[pymodule_export]
    use super::modules::{modules, sac, shard, stages};
    #[pymodule_export]
    use super::sizes::largest_size;
    #[pymodule_export]
    use super::verbs::{analyze, check, pareto, report};
    #[pymodule_export]
    use super::{run, starts_by};
}

/// Runs the program with the arguments, its own name first, and returns its exit code. The program
/// takes over the process: its signals, its standard output, and its end if that is not read.
#[pyfunction]
fn run(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    // The message of a panic is on standard error; the code is that of a binary that panics.
    py.detach(|| catch_unwind(|| tightfit_cli::run(arguments)).map_or(PANICKED, u8::from))
}

/// Says how the program is started in a process of its own, for measurements.
#[pyfunction]
fn starts_by(words: Vec<OsString>) {
    tightfit_cli::program::starts_by(words);
}
