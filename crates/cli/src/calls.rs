//! Seconds of a step's calls: from the cache, else from a trial. Invariant: a trial runs in a
//! process of its own, `tightfit calibrate`, within the requested budget less what this process
//! holds meanwhile, so measuring takes no more memory than the run and counts against none.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Once;

use clap::Args;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::{CallSeconds, CallSecondsError, Profile};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, VERSION, process};

use crate::batches::Batches;
use crate::source::Source;
use crate::{exit_code, interrupt, output, processor, program};

/// A step that is predicted to take longer is not tried: its own run will tell.
const LONGEST: Seconds = Seconds(5.0);
/// Counted steps of a trial beyond the minimum begin no later than this after the first of them.
pub const TRIAL: Seconds = Seconds(3.0);

/// Where predictions come from.
#[derive(Args, Clone, Copy)]
pub struct Costs {
    /// Predict times from the processor's rates alone, instead of measuring the step's own calls
    /// once
    #[arg(long)]
    pub roofline: bool,
}

/// A step that may have to be tried, as named on the command line.
pub struct Subject<'a> {
    /// The step's folder.
    pub folder: &'a Path,
    /// Its data; the step's own if none were given.
    pub source: &'a Source,
    /// Its budget, as it was written.
    pub budget: &'a str,
    /// The planner for it.
    pub planner: Planner,
    /// Its tier, as it was written.
    pub tier: Option<&'a str>,
    /// Its batches.
    pub batches: Batches,
}

/// Times of calls on a machine that are known without measuring.
pub fn known(machine: &Machine) -> CallSeconds {
    let nothing = CallSeconds::new(VERSION, machine.threads);
    let Some(path) = cache(machine.threads).filter(|_| machine.runtime.rules().runs_here) else {
        return nothing;
    };
    let Ok(bytes) = std::fs::read(&path) else { return nothing };
    read(&bytes, machine.threads).unwrap_or_else(|error| {
        note!("note: {} is not used: {error}", path.display());
        nothing
    })
}

/// Seconds of the calls of a step: those known, after a trial if any are missing.
pub fn of_step(
    graph: &Graph,
    machine: &Machine,
    costs: Costs,
    subject: &Subject<'_>,
) -> CallSeconds {
    if costs.roofline || !machine.runtime.rules().runs_here {
        return CallSeconds::new(VERSION, machine.threads);
    }
    let mut table = known(machine);
    if table.covers(graph) {
        return table;
    }
    let whole = Profile::new(graph, machine).total(&graph.compute_nodes());
    let step = Seconds(whole.0 * subject.batches.share_tried());
    if step.0 > LONGEST.0 {
        // Once, however many ways to divide the step are compared.
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            note!(
                "note: a step takes about {:.0} s, too long to try it; predicted from the \
                 processor's rates",
                step.0
            );
        });
        return table;
    }
    note!(
        "measuring the calls of this step{} once (about {:.0} s) …",
        subject.batches.chunks().map_or(String::new(), |parts| format!(" (--split {parts})")),
        1.0 + step.0 + (3.0 * step.0).max(TRIAL.0.min(100.0 * step.0))
    );
    match measure(graph, machine, subject) {
        Some(measured) => table.update(measured),
        None if interrupt::raised() => {}
        None => {
            note!("note: the step could not be tried; predicted from the processor's rates")
        }
    }
    table
}

/// Adds to what later runs know. Without a cache they measure again, which is no reason to fail.
pub fn remember(machine: &Machine, measured: CallSeconds) {
    let Some(path) = cache(machine.threads) else { return };
    let mut table = known(machine);
    table.update(measured);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).ok();
    }
    output::write_whole(&path, table.write().as_bytes()).ok();
}

/// Tries the step in what this process, which waits, leaves of its budget; if no plan fits into
/// that, in all of the budget.
fn measure(graph: &Graph, machine: &Machine, subject: &Subject<'_>) -> Option<CallSeconds> {
    let budget: Budget = subject.budget.parse().ok()?;
    let own = processor::own();
    let left = processor::bytes(graph, machine, budget)
        .filter(|&budget| own > Bytes::ZERO && budget > own)
        .map(|budget| (budget - own).0.to_string());
    let budgets = left.as_deref().into_iter().chain([subject.budget]);
    for budget in budgets {
        let output = attempt(machine, subject, budget)?;
        if output.status.success() {
            return read(&output.stdout, machine.threads).ok();
        }
        // Any other failure would happen again, or was requested.
        if !exit_code::lacked_memory(output.status.code()) {
            return None;
        }
    }
    None
}

fn attempt(machine: &Machine, subject: &Subject<'_>, budget: &str) -> Option<Output> {
    let mut command = program::command().ok()?;
    command.arg("calibrate").arg(subject.folder).args(["--budget", budget, "--json"]);
    command.args(subject.batches.tried());
    command.args(["--threads", &machine.threads.to_string(), "--planner", subject.planner.name()]);
    subject.source.pass_on(&mut command);
    command.args(subject.tier.into_iter().flat_map(|tier| ["--tier", tier]));
    process::output(&mut command).ok()
}

fn read(bytes: &[u8], threads: u32) -> Result<CallSeconds, CallSecondsError> {
    CallSeconds::read(bytes, VERSION, threads)
}

/// The file in which they are kept.
fn cache(threads: u32) -> Option<PathBuf> {
    Some(processor::folder()?.join(format!("calls-{VERSION}-{threads}.json")))
}
