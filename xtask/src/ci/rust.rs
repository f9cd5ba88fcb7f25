//! The steps of the Rust code. Invariant: all build with one profile, so no crate is compiled twice
//! with the same features.

use std::process::Command;

use anyhow::Result;

use crate::command::{Log, find};
use crate::workspace::Workspace;

use super::{PROFILE, Run, Tier};

pub fn fmt(run: &mut Run, log: &mut Log) -> Result<()> {
    log.run(run.workspace.cargo(&["fmt", "--all", "--check"]))
}

pub fn tidy(run: &mut Run, _: &mut Log) -> Result<()> {
    crate::tidy::tidy(&run.workspace)
}

pub fn clippy(run: &mut Run, log: &mut Log) -> Result<()> {
    let arguments = ["clippy", PROFILE, "--workspace", "--all-targets", "--", "-D", "warnings"];
    log.run(run.workspace.cargo(&arguments))
}

/// Documentation that links to nothing, or to something private, is a warning.
pub fn doc(run: &mut Run, log: &mut Log) -> Result<()> {
    let mut command = run.workspace.cargo(&["doc", PROFILE, "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    log.run(command)
}

pub fn test(run: &mut Run, log: &mut Log) -> Result<()> {
    log.run(run.workspace.cargo(&["test", PROFILE, "--workspace", "--no-run"]))?;
    run.tests(tests(&run.workspace, run.tier, &["--workspace"], Names::All), log)?;
    if has_nextest() { documented(run, log) } else { Ok(()) }
}

/// The tests in documentation, which cargo-nextest does not run.
pub fn documented(run: &mut Run, log: &mut Log) -> Result<()> {
    log.run(run.workspace.cargo(&["test", PROFILE, "--workspace", "--doc"]))
}

/// Which tests of a package.
#[derive(Clone, Copy, Debug)]
pub enum Names {
    All,
    /// Those whose names contain one of these.
    With(&'static [&'static str]),
    /// All others.
    Without(&'static [&'static str]),
}

impl Names {
    /// As words after the `--` of `cargo test`, which cargo-nextest understands too.
    fn words(self) -> Vec<&'static str> {
        match self {
            Names::All => Vec::new(),
            Names::With(names) => names.to_vec(),
            Names::Without(names) => names.iter().flat_map(|name| ["--skip", name]).collect(),
        }
    }
}

/// Runs the tests with these names of `packages`, which are options of cargo: with cargo-nextest,
/// which times each, if it is installed.
pub fn tests(workspace: &Workspace, tier: Tier, packages: &[&str], names: Names) -> Command {
    let mut command;
    if has_nextest() {
        // Its profile `ci` in `.config/nextest.toml` says what it writes.
        command = workspace.cargo(&["nextest", "run", "--cargo-profile=ci", "--profile=ci"]);
        command.args(packages).args((tier == Tier::Full).then_some("--run-ignored=all"));
        command.arg("--").args(names.words());
    } else {
        command = workspace.cargo(&["test", PROFILE, "--no-fail-fast"]);
        command.args(packages).arg("--").args(names.words());
        command.args((tier == Tier::Full).then_some("--include-ignored"));
    }
    let (name, value) = tier.variable();
    command.env(name, value);
    command
}

fn has_nextest() -> bool {
    find("cargo-nextest").is_some()
}
