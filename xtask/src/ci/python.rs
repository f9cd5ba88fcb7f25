//! The Python tests, in a virtual environment. Invariant: they run with the package as it lies in
//! its folder, and with the compiled module and the program that were just built.

use std::process::Command;

use anyhow::Result;

use crate::command::Log;

use super::{PROFILE, Run, timings};

/// Most workers that share the tests: each takes about 2 GiB, and waits a third of its time.
const WORKERS: usize = 4;

/// Makes the environment if nothing else has to be done meanwhile.
pub fn environment(run: &mut Run, log: &mut Log) -> Result<()> {
    run.environment.make(&run.workspace, log)
}

/// Builds the program, for runs in which no tests in Rust have built it.
pub fn program(run: &mut Run, log: &mut Log) -> Result<()> {
    log.run(run.workspace.cargo(&["build", PROFILE, "--package", "tightfit-cli"]))
}

/// Builds the package into the environment, and runs the tests with it and with the program inside
/// it.
pub fn python(run: &mut Run, log: &mut Log) -> Result<()> {
    run.preparation.finish(log)?;
    install(run, log)?;
    run.tests(tests(run, &["python/tests"]), log)
}

/// Builds the package and puts it into the environment.
pub fn install(run: &Run, log: &mut Log) -> Result<()> {
    // The package as it lies in its folder, with the compiled module put into it, so that an edited
    // Python file counts at once.
    let mut maturin = run.workspace.command(run.environment.program("maturin"));
    maturin.args(["develop", PROFILE, "--quiet"]);
    maturin.current_dir(run.workspace.root.join("python"));
    maturin.env("VIRTUAL_ENV", &run.environment.folder);
    log.run(maturin)
}

/// Runs the tests in these files or folders.
pub fn tests(run: &Run, files: &[&str]) -> Command {
    let Run { workspace, environment, tier, .. } = run;
    let mut pytest = workspace.command(environment.program("python"));
    // Tests that were skipped are named, with the reason.
    pytest.args(["-m", "pytest", "-q", "-rsf", "--show-capture=stderr"]);
    let workers =
        std::thread::available_parallelism().map_or(1, |cores| (cores.get() * 3 / 2).min(WORKERS));
    pytest.args(["-n", &workers.to_string(), "--dist", "loadgroup"]);
    pytest.arg(format!("--junitxml={}", timings::python(workspace).display()));
    pytest.args(files);
    pytest.env("TIGHTFIT_BIN", environment.program("tightfit"));
    // Built by the tests in Rust, or by `program`.
    pytest.env("TIGHTFIT_BINARY", workspace.target.join("ci").join("tightfit"));
    let (name, value) = tier.variable();
    pytest.env(name, value);
    pytest
}
