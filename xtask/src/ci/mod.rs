//! What a change must pass, step by step. Invariant: the first step that fails ends the run with an
//! error that names it; what the commands print goes where this program's own output goes.
//!
//! Two tiers, told apart by the variable `TIGHTFIT_TESTS` in the environment of the tests: the
//! quick one has at least one case of every promise, the full one has everything. The full one is
//! also divided into slices, of which each landing runs one.

mod browser;
mod debian;
mod mpi;
mod preparation;
mod python;
mod rust;
mod slices;
mod timings;

use std::fs::{File, TryLockError};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::command::Log;
use crate::workspace::Workspace;
use preparation::Preparation;
use timings::Timings;

/// What everything is built with, so that each crate is compiled once.
const PROFILE: &str = "--profile=ci";

/// How much the tests try; `crates/testing` and `python/tests/conftest.py` read the same variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    Quick,
    Full,
}

impl Tier {
    /// The variable of the environment and its value.
    fn variable(self) -> (&'static str, &'static str) {
        ("TIGHTFIT_TESTS", if self == Tier::Quick { "quick" } else { "full" })
    }
}

/// What the steps of a run share.
struct Run {
    workspace: Workspace,
    tier: Tier,
    preparation: Preparation,
    timings: Timings,
}

impl Run {
    /// Runs a command of tests, and remembers what each took.
    fn tests(&mut self, command: Command, log: &mut Log) -> Result<()> {
        let ended = log.run(command);
        self.timings.collect(&self.workspace);
        ended
    }
}

type Step = fn(&mut Run, &mut Log) -> Result<()>;

/// The cheapest first; Rust's tests build what the later steps need.
const STEPS: [(&str, Step); 8] = [
    ("fmt", rust::fmt),
    ("tidy", rust::tidy),
    ("clippy", rust::clippy),
    ("doc", rust::doc),
    ("test", rust::test),
    ("mpi", mpi::mpi),
    ("browser", browser::browser),
    ("python", python::python),
];

/// The names of all steps, in their order.
pub fn names() -> String {
    STEPS.map(|(name, _)| name).join(", ")
}

/// Runs what the arguments ask for: steps of the quick tier, all of them if none is named; with
/// `--full`, of the full one; with `--slice N`, a slice of the full one.
pub fn ci(workspace: Workspace, arguments: &[String]) -> Result<()> {
    let began = Instant::now();
    let mut log = Log::default();
    let asked = Asked::of(&workspace, arguments)?;
    let _alone = alone(&workspace, &mut log)?;
    let result = match asked {
        Asked::Slice(number) => slices::slice(workspace, number, &mut log),
        Asked::Steps(tier, steps) => run(workspace, tier, steps, &mut log),
    };
    log.summary(began);
    result
}

/// What a run is asked for.
enum Asked<'a> {
    Slice(usize),
    /// These steps, or all.
    Steps(Tier, &'a [String]),
}

impl Asked<'_> {
    fn of<'a>(workspace: &Workspace, arguments: &'a [String]) -> Result<Asked<'a>> {
        let (tier, steps) = match arguments {
            [option, which] if option == "--slice" => {
                return Ok(Asked::Slice(slices::number(workspace, which)?));
            }
            [option] if option == "--slice" => bail!("--slice takes a number, or `next`"),
            [option, steps @ ..] if option == "--full" => (Tier::Full, steps),
            steps => (Tier::Quick, steps),
        };
        match steps.iter().find(|name| STEPS.iter().all(|(step, _)| step != name)) {
            Some(unknown) => bail!("there is no step `{unknown}`; the steps are {}", names()),
            None => Ok(Asked::Steps(tier, steps)),
        }
    }
}

/// Waits until no other run uses the target folder, as reports and the environment of Python are
/// the same; until the file is dropped, others wait.
fn alone(workspace: &Workspace, log: &mut Log) -> Result<File> {
    let path = workspace.target.join("ci.lock");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            log.say(&format!("waiting for another run in {}", workspace.target.display()));
            file.lock().with_context(|| path.display().to_string())?;
        }
        // Some file systems of clusters have no locks.
        Err(TryLockError::Error(error)) => {
            log.say(&format!("{} cannot be locked: {error}", path.display()));
        }
    }
    Ok(file)
}

fn run(workspace: Workspace, tier: Tier, chosen: &[String], log: &mut Log) -> Result<()> {
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|step| step == name);
    let timings = Timings::none(&workspace);
    let preparation = Preparation::begin(&workspace, is_chosen);
    let mut run = Run { workspace, tier, preparation, timings };
    let mut steps = STEPS.into_iter().filter(|(name, _)| is_chosen(name));
    let result = steps.try_for_each(|(name, step)| log.step(name, |log| step(&mut run, log)));
    // Where a step failed before it was needed; nothing is left that goes on by itself.
    let prepared = run.preparation.finish(log);
    run.timings.show_slowest(log);
    result.and(prepared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_step_is_an_error_that_names_the_known_ones() {
        let workspace = Workspace { root: ".".into(), target: std::env::temp_dir() };
        let error = ci(workspace, &["fmt".to_string(), "tests".to_string()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no step `tests`; the steps are fmt, tidy, clippy, doc, test, mpi, browser, \
             python"
        );
    }
}
