//! What a change must pass, step by step. Invariant: the first step that fails ends the run with an
//! error that names it; the output of commands goes where this program's own output goes.
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
use crate::environment::Environment;
use crate::workspace::Workspace;
use preparation::Preparation;
use timings::Timings;

/// The profile that everything is built with, so that each crate is compiled once.
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
    environment: Environment,
    tier: Tier,
    preparation: Preparation,
    timings: Timings,
}

impl Run {
    /// A run in the usual environment, while what the chosen steps need is prepared.
    fn begin(workspace: Workspace, tier: Tier, is_chosen: impl Fn(&str) -> bool) -> Run {
        let environment = Environment::of_tests(&workspace);
        let timings = Timings::none(&workspace);
        let preparation = Preparation::begin(&workspace, &environment, is_chosen);
        Run { workspace, environment, tier, preparation, timings }
    }

    /// Does steps until one fails.
    fn steps(
        mut self,
        mut steps: impl Iterator<Item = (&'static str, Step)>,
        log: &mut Log,
    ) -> Result<()> {
        let result = steps.try_for_each(|(name, step)| log.step(name, |log| step(&mut self, log)));
        // If a step failed before it was needed; no work is left running.
        let prepared = self.preparation.finish(log);
        self.timings.show_slowest(log);
        result.and(prepared)
    }

    /// Runs a command of tests, and records how long each took.
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

/// The steps of Python alone.
const OF_PYTHON: [(&str, Step); 3] = [
    ("environment", python::environment),
    ("program", python::program),
    ("python", python::python),
];

/// The names of all steps, in their order.
pub fn names() -> String {
    STEPS.map(|(name, _)| name).join(", ")
}

/// Runs what the arguments ask for: steps of the quick tier, all of them if none is named; with
/// `--full`, of the full one; with `--slice N`, a slice of the full one; with `--torch VERSION`,
/// the Python tests of the quick one with that version of PyTorch.
pub fn ci(workspace: Workspace, arguments: &[String]) -> Result<()> {
    let began = Instant::now();
    let mut log = Log::default();
    let asked = Asked::of(&workspace, arguments)?;
    let _alone = alone(&workspace, &mut log)?;
    let result = match asked {
        Asked::Slice(number) => slices::slice(workspace, number, &mut log),
        Asked::Torch(environment) => with_torch(workspace, environment, &mut log),
        Asked::Steps(tier, steps) => run(workspace, tier, steps, &mut log),
    };
    log.summary(began);
    result
}

/// What a run is asked to do.
enum Asked<'a> {
    Slice(usize),
    /// The Python tests in this environment.
    Torch(Environment),
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
            [option, version] if option == "--torch" => {
                return Ok(Asked::Torch(Environment::with_torch(workspace, version)?));
            }
            [option, ..] if option == "--torch" => {
                bail!("--torch takes a version of PyTorch, such as 2.11.0, and nothing else")
            }
            [option, steps @ ..] if option == "--full" => (Tier::Full, steps),
            steps => (Tier::Quick, steps),
        };
        match steps.iter().find(|name| STEPS.iter().all(|(step, _)| step != name)) {
            Some(unknown) => bail!("there is no step `{unknown}`; the steps are {}", names()),
            None => Ok(Asked::Steps(tier, steps)),
        }
    }
}

/// Waits until no other run uses the target folder, since reports and the Python environment are
/// shared; until the file is dropped, others wait.
fn alone(workspace: &Workspace, log: &mut Log) -> Result<File> {
    let path = workspace.target.join("ci.lock");
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            log.say(&format!("waiting for another run in {}", workspace.target.display()));
            file.lock().with_context(|| path.display().to_string())?;
        }
        // Some cluster file systems have no locks.
        Err(TryLockError::Error(error)) => {
            log.say(&format!("{} cannot be locked: {error}", path.display()));
        }
    }
    Ok(file)
}

fn run(workspace: Workspace, tier: Tier, chosen: &[String], log: &mut Log) -> Result<()> {
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|step| step == name);
    let steps = STEPS.into_iter().filter(|(name, _)| is_chosen(name));
    Run::begin(workspace, tier, is_chosen).steps(steps, log)
}

fn with_torch(workspace: Workspace, environment: Environment, log: &mut Log) -> Result<()> {
    let timings = Timings::none(&workspace);
    let preparation = Preparation::none();
    let run = Run { workspace, environment, tier: Tier::Quick, preparation, timings };
    run.steps(OF_PYTHON.into_iter(), log)
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

    #[test]
    fn a_version_of_pytorch_is_asked_for_alone() {
        let workspace = Workspace { root: ".".into(), target: std::env::temp_dir() };
        for arguments in [&["--torch"][..], &["--torch", "2.11.0", "fmt"], &["--torch", "newest"]] {
            let arguments: Vec<String> = arguments.iter().map(|word| word.to_string()).collect();
            let error = ci(workspace.clone(), &arguments).unwrap_err();
            assert!(error.to_string().contains("such as 2.11.0"), "{error}");
        }
    }
}
