//! This processor's rates: from the user's cache folder, else measured. Invariant: they are
//! measured in a process of its own, `tightfit calibrate`, so that the memory that measuring takes
//! never counts against a budget.

use std::path::PathBuf;

use tightfit::machine::Machine;

use crate::{output, program};

/// Worker threads: as asked, or one for each processor.
pub fn threads(asked: Option<u32>) -> u32 {
    asked
        .filter(|&threads| threads > 0)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as u32))
        .min(1024)
}

/// This processor: from the cache, else measured in a child process, else a plausible guess.
pub fn machine(asked: Option<u32>) -> Machine {
    let threads = threads(asked);
    let cached = cache(threads)
        .and_then(|path| std::fs::read(path).ok())
        .and_then(|bytes| parse(&bytes, threads));
    cached.or_else(|| measure(threads)).unwrap_or_else(|| Machine::unmeasured_cpu(threads))
}

/// Keeps what was measured, as JSON. Without a cache the next run measures again: no reason to
/// fail.
pub fn remember(threads: u32, machine: &str) {
    let Some(path) = cache(threads) else { return };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).ok();
    }
    output::write_whole(&path, machine.as_bytes()).ok();
}

fn measure(threads: u32) -> Option<Machine> {
    note!("measuring this processor once (about a second) …");
    let output = program::command()
        .ok()?
        .args(["calibrate", "--json", "--threads", &threads.to_string()])
        .output()
        .ok()?;
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
fn cache(threads: u32) -> Option<PathBuf> {
    Some(folder()?.join(format!("cpu-{}-{threads}.json", env!("CARGO_PKG_VERSION"))))
}

/// Where measurements are kept: the user's cache folder.
pub fn folder() -> Option<PathBuf> {
    let folder =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = folder
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(folder.join("tightfit"))
}
