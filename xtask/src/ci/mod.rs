//! Everything that a change must pass, step by step. Invariant: the first command that fails ends
//! the run with an error that names it; what the commands print goes where this program's own
//! output goes.

mod browser;
mod debian;
mod mpi;
mod python;

use std::path::Path;

use anyhow::{Result, bail};

use crate::command::Log;
use crate::workspace::Workspace;

/// What everything is built with, so that each crate is compiled once.
const PROFILE: &str = "--profile=ci";

type Step = fn(&Workspace, &mut Log) -> Result<()>;

const STEPS: [(&str, Step); 8] = [
    ("fmt", fmt),
    ("clippy", clippy),
    ("tidy", tidy),
    ("doc", doc),
    ("test", test),
    ("mpi", mpi::mpi),
    ("browser", browser::browser),
    ("python", python::python),
];

/// The names of all steps, in their order.
pub fn names() -> String {
    STEPS.map(|(name, _)| name).join(", ")
}

/// Runs the steps that are `chosen`, or all of them, in their order.
pub fn ci(root: &Path, chosen: &[String]) -> Result<()> {
    if let Some(unknown) = chosen.iter().find(|name| STEPS.iter().all(|(step, _)| step != name)) {
        bail!("there is no step `{unknown}`; the steps are {}", names());
    }
    let workspace = Workspace::at(root)?;
    let mut log = Log::default();
    let result = STEPS
        .iter()
        .filter(|(name, _)| chosen.is_empty() || chosen.iter().any(|step| step == name))
        .try_for_each(|(name, step)| log.step(name, |log| step(&workspace, log)));
    log.summary();
    result
}

fn fmt(workspace: &Workspace, log: &mut Log) -> Result<()> {
    log.run(workspace.cargo(&["fmt", "--all", "--check"]))
}

fn clippy(workspace: &Workspace, log: &mut Log) -> Result<()> {
    log.run(workspace.cargo(&[
        "clippy",
        PROFILE,
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Documentation that links to nothing, or to what nobody sees, is a warning.
fn doc(workspace: &Workspace, log: &mut Log) -> Result<()> {
    let mut command = workspace.cargo(&["doc", PROFILE, "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    log.run(command)
}

fn tidy(workspace: &Workspace, _: &mut Log) -> Result<()> {
    crate::tidy::tidy(&workspace.root)
}

fn test(workspace: &Workspace, log: &mut Log) -> Result<()> {
    log.run(workspace.cargo(&["test", PROFILE, "--workspace"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_step_is_an_error_that_names_the_known_ones() {
        let error = ci(Path::new("."), &["fmt".to_string(), "tests".to_string()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no step `tests`; the steps are fmt, clippy, tidy, doc, test, mpi, browser, \
             python"
        );
    }
}
