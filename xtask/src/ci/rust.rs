//! The steps of the Rust code. Invariant: all build with one profile, so no crate is compiled twice
//! with the same features.

use std::process::Command;

use anyhow::Result;

use crate::command::Log;
use crate::workspace::Workspace;

use super::debian::find;
use super::{PROFILE, Run, Tier};

pub fn fmt(run: &mut Run, log: &mut Log) -> Result<()> {
    log.run(run.workspace.cargo(&["fmt", "--all", "--check"]))
}

pub fn tidy(run: &mut Run, _: &mut Log) -> Result<()> {
    crate::tidy::tidy(&run.workspace.root)
}

pub fn clippy(run: &mut Run, log: &mut Log) -> Result<()> {
    let arguments = ["clippy", PROFILE, "--workspace", "--all-targets", "--", "-D", "warnings"];
    log.run(run.workspace.cargo(&arguments))
}

/// Documentation that links to nothing, or to what nobody sees, is a warning.
pub fn doc(run: &mut Run, log: &mut Log) -> Result<()> {
    let mut command = run.workspace.cargo(&["doc", PROFILE, "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    log.run(command)
}

pub fn test(run: &mut Run, log: &mut Log) -> Result<()> {
    log.run(run.workspace.cargo(&["test", PROFILE, "--workspace", "--no-run"]))?;
    run.tests(tests(&run.workspace, run.tier, &["--workspace"], &[]), log)?;
    if has_nextest() {
        // It runs all tests but those in documentation.
        log.run(run.workspace.cargo(&["test", PROFILE, "--workspace", "--doc"]))?;
    }
    Ok(())
}

/// Runs the tests of `packages`, which are options of cargo, whose names contain one of `filters`;
/// with cargo-nextest, which measures each, where it is installed.
pub fn tests(workspace: &Workspace, tier: Tier, packages: &[&str], filters: &[&str]) -> Command {
    let mut command;
    if has_nextest() {
        // In `.config/nextest.toml`, its profile `ci` says what it writes.
        command = workspace.cargo(&["nextest", "run", "--cargo-profile=ci", "--profile=ci"]);
        command.args(packages).args(filters);
        command.args((tier == Tier::Full).then_some("--run-ignored=all"));
    } else {
        command = workspace.cargo(&["test", PROFILE, "--no-fail-fast"]);
        command.args(packages).arg("--").args(filters);
        command.args((tier == Tier::Full).then_some("--include-ignored"));
    }
    let (name, value) = tier.variable();
    command.env(name, value);
    command
}

fn has_nextest() -> bool {
    find("cargo-nextest").is_some()
}
