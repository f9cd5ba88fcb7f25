//! `tightfit-bench layout`: how fast sets of buffers that are known to be hard are packed.
//! Invariant: a packing counts as fitting only if no two of its buffers overlap, which is tested
//! here and not taken on trust.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tightfit::Goal;
use tightfit::plan::Planner;
use tightfit::schedule::{Lifetime, Shelf, pack};
use tightfit::units::{Bytes, Seconds};
use tightfit_cli::clock::wall;
use tightfit_cli::effort::Limits;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::{Context, Failure, Result};
use tightfit_cli::{note, say};

use crate::markdown::table;

/// The time limit if none is given.
const DEADLINE: Seconds = Seconds(60.0);

/// Pack sets of buffers into a fixed capacity; a minute each unless --deadline says otherwise.
#[derive(Args)]
#[command(after_help = "Example:\n  tightfit-bench layout corpus/buffers --deadline 10s")]
pub struct Arguments {
    /// Folder with CSV files: id,lower,upper,size, the upper end of a lifetime not included
    #[arg(default_value = "corpus/buffers")]
    folder: PathBuf,
    /// Bytes to fit into
    #[arg(long, default_value_t = 1_048_576)]
    capacity: u64,
    #[command(flatten)]
    limits: Limits,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Packs and prints.
pub fn layout(arguments: &Arguments) -> Result<ExitCode> {
    let mut limits = arguments.limits;
    if limits.deadline.is_none() && limits.iterations.is_none() {
        limits.deadline = Some(DEADLINE);
    }
    let search = limits.effort(Planner::Auto, arguments.seed);
    let (mut rows, mut results): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    for path in files(&arguments.folder)? {
        let name =
            path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        note!("{name}");
        let lifetimes = read(&path).with_context(|| path.display().to_string())?;
        let start = wall();
        let packing = pack(
            &lifetimes,
            &Shelf {
                fixed: &vec![None; lifetimes.len()],
                floor: 0,
                alignment: 1,
                goal: Goal::Within(Bytes(arguments.capacity)),
                enough: Bytes::ZERO,
            },
            &search,
        );
        let seconds = wall().0 - start.0;
        if !is_disjoint(&lifetimes, &packing.addresses) {
            return Err(Failure::other(format_args!(
                "{name}: buffers overlap; the packing is wrong"
            )));
        }
        let fits = packing.end.0 <= arguments.capacity;
        let verdict = if fits { "yes" } else { "no" };
        rows.push(vec![
            name.clone(),
            lifetimes.len().to_string(),
            packing.bound.0.to_string(),
            packing.end.0.to_string(),
            verdict.to_string(),
            format!("{seconds:.3}"),
        ]);
        results.push(json!({
            "file": name,
            "buffers": lifetimes.len(),
            "bound_bytes": packing.bound,
            "end_bytes": packing.end,
            "fits": fits,
            "seconds": seconds,
        }));
    }
    if arguments.json {
        say!("{}", Value::Array(results))?;
    } else {
        say!("Capacity {} bytes.\n", arguments.capacity)?;
        let heads = ["buffers", "count", "lower bound", "end", "fits", "seconds"];
        say!("{}", table(&heads, &rows).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let mut files = read().with_context(|| folder.display().to_string())?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<Lifetime>> {
    let text = std::fs::read_to_string(path)?;
    let mut lines = text.lines();
    if lines.next() != Some("id,lower,upper,size") {
        return Err(Failure::other("the first line must be id,lower,upper,size"));
    }
    lines
        .enumerate()
        .map(|(index, line)| {
            lifetime(line).with_context(|| format!("line {}: `{line}`", index + 2))
        })
        .collect()
}

fn lifetime(line: &str) -> Result<Lifetime> {
    let columns: Vec<&str> = line.split(',').collect();
    let [_, lower, upper, size] = columns[..] else {
        return Err(Failure::other("four columns are needed"));
    };
    let number = |text: &str| text.parse::<u64>().map_err(Failure::other);
    let time = |text: &str| text.parse::<u32>().map_err(Failure::other);
    let (first, end, bytes) = (time(lower)?, time(upper)?, number(size)?);
    if first >= end {
        return Err(Failure::other("the lifetime is empty"));
    }
    Ok(Lifetime { first, last: end - 1, bytes: Bytes(bytes) })
}

/// Whether no two buffers that are held at the same time share a byte. Compares every pair: the
/// sets are small.
fn is_disjoint(lifetimes: &[Lifetime], addresses: &[u64]) -> bool {
    let blocks: Vec<(&Lifetime, u64)> = lifetimes.iter().zip(addresses.iter().copied()).collect();
    let meet = |(a, at): &(&Lifetime, u64), (b, bt): &(&Lifetime, u64)| {
        a.first <= b.last && b.first <= a.last && *at < bt + b.bytes.0 && *bt < at + a.bytes.0
    };
    blocks
        .iter()
        .enumerate()
        .all(|(index, block)| blocks[..index].iter().all(|other| !meet(block, other)))
}
