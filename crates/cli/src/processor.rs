//! This processor's rates: from the user's cache folder, else measured. Invariant: they are
//! measured in a process of its own, `tightfit calibrate`, so that the memory that measuring takes
//! never counts against a budget.

use std::path::PathBuf;

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit_engine::{Budget, Extent, process, reserve};

use crate::{output, program};

/// Worker threads: as requested, or one for each processor.
pub fn threads(asked: Option<u32>) -> u32 {
    asked
        .filter(|&threads| threads > 0)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
        .min(1024)
}

/// This processor: from the cache, else measured in a child process, else a plausible guess.
pub fn machine(asked: Option<u32>) -> Machine {
    let threads = threads(asked);
    kept(threads, Extent::Usual)
        .or_else(|| measure(threads, Extent::Usual))
        .unwrap_or_else(|| Machine::unmeasured_cpu(threads))
}

/// The same, but measuring may take no more memory than a run of the graph within `budget`. Results
/// of larger measurements are used if known; if those take too much, smaller ones are made.
pub fn machine_within(
    asked: Option<u32>,
    graph: &Graph,
    budget: Budget,
    has_tier: bool,
) -> Machine {
    let threads = threads(asked);
    if let Some(machine) = kept(threads, Extent::Usual) {
        return machine;
    }
    let guessed = Machine::unmeasured_cpu(threads);
    let extent = match least(graph, &guessed, budget, has_tier).saturating_sub(own()) {
        room if room >= Extent::MEMORY => Extent::Usual,
        _ => Extent::Small,
    };
    let kept = if extent == Extent::Small { kept(threads, extent) } else { None };
    kept.or_else(|| measure(threads, extent)).unwrap_or(guessed)
}

/// The bytes of a budget, or a lower limit of them for the smallest one, which is not known yet.
fn least(graph: &Graph, machine: &Machine, budget: Budget, has_tier: bool) -> Bytes {
    match bytes(graph, machine, budget) {
        Some(budget) => budget,
        // Parameters and state may lie in the tier below.
        None if has_tier => reserve(graph, machine).total(),
        None => reserve(graph, machine).total() + graph.static_bytes(),
    }
}

/// The bytes of a budget for running a graph on this processor; `None` for the smallest.
pub fn bytes(graph: &Graph, machine: &Machine, budget: Budget) -> Option<Bytes> {
    let peak = match budget {
        Budget::Share(_) => {
            let unplanned = tightfit::unplanned(graph, &Profile::new(graph, machine));
            unplanned.map_or(Bytes::ZERO, |unplanned| unplanned.timeline().peak)
        }
        Budget::Absolute(_) | Budget::Smallest => Bytes::ZERO,
    };
    budget.bytes(peak, reserve(graph, machine))
}

/// What this process holds while it waits for another one, which runs the same program; zero for a
/// process that no budget applies to.
pub fn own() -> Bytes {
    if !process::is_program() {
        return Bytes::ZERO;
    }
    process::give_back();
    process::own().unwrap_or(Bytes::ZERO)
}

fn kept(threads: u32, extent: Extent) -> Option<Machine> {
    parse(&std::fs::read(cache(threads, extent)?).ok()?, threads)
}

/// Keeps what was measured, as JSON. Without a cache the next run measures again, which is no
/// reason to fail.
pub fn remember(threads: u32, extent: Extent, machine: &str) {
    let Some(path) = cache(threads, extent) else { return };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).ok();
    }
    output::write_whole(&path, machine.as_bytes()).ok();
}

fn measure(threads: u32, extent: Extent) -> Option<Machine> {
    note!("measuring this processor once (about a second) …");
    let mut command = program::command().ok()?;
    command.args(["calibrate", "--json", "--threads", &threads.to_string()]);
    command.args((extent == Extent::Small).then_some("--small"));
    let output = process::output(&mut command).ok()?;
    parse(&output.stdout, threads)
}

fn parse(bytes: &[u8], threads: u32) -> Option<Machine> {
    let machine: Machine = serde_json::from_slice(bytes).ok()?;
    machine
        .validate()
        .ok()
        .filter(|machine| machine.threads == threads && machine.runtime.rules().runs_here)
}

/// Where the rates are kept.
fn cache(threads: u32, extent: Extent) -> Option<PathBuf> {
    let small = if extent == Extent::Small { "-small" } else { "" };
    Some(folder()?.join(format!("cpu-{}-{threads}{small}.json", env!("CARGO_PKG_VERSION"))))
}

/// Where measurements are kept: the user's cache folder.
pub fn folder() -> Option<PathBuf> {
    let named =
        |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder =
        named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")))?;
    Some(folder.join("tightfit"))
}
