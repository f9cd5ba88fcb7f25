//! The Python tests, in a virtual environment of their own. Invariant: the environment's stamp
//! holds the interpreter's version and the requirements that were installed into it, and is written
//! last; an environment without the right stamp is made anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::Log;
use crate::workspace::Workspace;

use super::{PROFILE, Run, Tier, timings};

const REQUIREMENTS: &str = "python/requirements-dev.txt";
/// The oldest Python that the tests run on.
const OLDEST: (u32, u32) = (3, 11);
/// Most workers that share the tests: each takes some 2 GiB, and a third of its time it waits.
const WORKERS: usize = 4;

/// Builds the package into the environment, and runs the tests with it and with the program inside
/// it.
pub fn python(run: &mut Run, log: &mut Log) -> Result<()> {
    run.preparation.finish(log)?;
    install(&run.workspace, log)?;
    run.tests(tests(&run.workspace, run.tier, &["python/tests"]), log)
}

/// Builds the package and puts it into the environment.
pub fn install(workspace: &Workspace, log: &mut Log) -> Result<()> {
    // The package as it lies in its folder, with the compiled module put into it, so that an edited
    // Python file counts at once.
    let mut maturin = workspace.command(scripts(workspace).join("maturin"));
    maturin.args(["develop", PROFILE, "--quiet"]);
    maturin.current_dir(workspace.root.join("python"));
    maturin.env("VIRTUAL_ENV", folder(workspace));
    log.run(maturin)
}

/// Runs the tests in these files or folders.
pub fn tests(workspace: &Workspace, tier: Tier, files: &[&str]) -> Command {
    let mut pytest = workspace.command(scripts(workspace).join("python"));
    // Tests that were skipped are named, with the reason.
    pytest.args(["-m", "pytest", "-q", "-rs"]);
    let workers =
        std::thread::available_parallelism().map_or(1, |cores| (cores.get() * 3 / 2).min(WORKERS));
    pytest.args(["-n", &workers.to_string(), "--dist", "loadgroup"]);
    pytest.arg(format!("--junitxml={}", timings::python(workspace).display()));
    pytest.args(files);
    pytest.env("TIGHTFIT_BIN", scripts(workspace).join("tightfit"));
    // As the tests in Rust left it.
    pytest.env("TIGHTFIT_BINARY", workspace.target.join("ci").join("tightfit"));
    let (name, value) = tier.variable();
    pytest.env(name, value);
    pytest
}

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("python-venv")
}

/// The folder of the environment's programs.
fn scripts(workspace: &Workspace) -> PathBuf {
    folder(workspace).join("bin")
}

/// Makes the environment where it is missing or stale.
pub fn environment(workspace: &Workspace, log: &mut Log) -> Result<()> {
    let (folder, scripts) = (folder(workspace), scripts(workspace));
    let stamp = folder.join("requirements-installed.txt");
    let interpreter = scripts.join("python");
    let required = fs::read_to_string(workspace.root.join(REQUIREMENTS)).context(REQUIREMENTS)?;
    let wanted = format!("# Python {}\n{required}", usable_python(workspace)?);
    let is_there = ["python", "maturin"].iter().all(|program| scripts.join(program).exists());
    if is_fresh(&stamp, &wanted) && is_there {
        log.say(&format!("{} is up to date", folder.display()));
        return Ok(());
    }
    let mut create = workspace.command("python3");
    create.args(["-m", "venv", "--clear"]).arg(&folder);
    log.run(create)?;
    let pip = |packages: &[&str]| {
        let mut install = workspace.command(&interpreter);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        install.args(packages);
        install
    };
    // Where uv can be had, it does in twenty seconds what takes pip minutes.
    let by_uv = log.run(pip(&["uv"])).and_then(|()| {
        let mut uv = workspace.command(scripts.join("uv"));
        uv.args(["pip", "install", "--quiet", "--python"]).arg(&interpreter);
        uv.args(["--requirement", REQUIREMENTS]);
        log.run(uv)
    });
    if let Err(error) = by_uv {
        log.say(&format!("without uv, since {error:#}"));
        log.run(pip(&["--requirement", REQUIREMENTS]))?;
    }
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())
}

fn is_fresh(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
}

/// The version of a `python3` that can make environments.
fn usable_python(workspace: &Workspace) -> Result<String> {
    let (major, minor) = OLDEST;
    let probe = workspace
        .command("python3")
        .args(["-c", "import sys; print(*sys.version_info[:3], sep='.'); import venv, ensurepip"])
        .output()
        .with_context(|| {
            format!("python3 was not found; install Python {major}.{minor} or later")
        })?;
    let version = String::from_utf8_lossy(&probe.stdout).trim().to_string();
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    let found = numbers.next().zip(numbers.next());
    let said = String::from_utf8_lossy(&probe.stderr);
    ensure!(found.is_some(), "python3 does not run: {}", said.trim());
    ensure!(
        found >= Some(OLDEST),
        "python3 is Python {version}; install Python {major}.{minor} or later"
    );
    ensure!(
        probe.status.success(),
        "python3 has no venv module; install it (Debian and Ubuntu: apt install python3-venv)"
    );
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_of_other_requirements_is_stale() {
        let stamp = std::env::temp_dir().join(format!("tightfit-stamp-{}", std::process::id()));
        assert!(!is_fresh(&stamp, "pytest==1"));
        fs::write(&stamp, "pytest==1").unwrap();
        assert!(is_fresh(&stamp, "pytest==1") && !is_fresh(&stamp, "pytest==2"));
        fs::remove_file(&stamp).unwrap();
    }
}
