//! The Python tests, in a virtual environment of their own. Invariant: the environment's stamp
//! holds the requirements that were installed into it, and is written last; an environment without
//! the right stamp is made anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::Log;
use crate::workspace::Workspace;

const REQUIREMENTS: &str = "python/requirements-dev.txt";

/// Installs what the tests need, builds the package into the environment, and runs the tests with
/// it and with the program inside it.
pub fn python(workspace: &Workspace, log: &mut Log) -> Result<()> {
    let scripts = environment(workspace, log)?;
    log.run(build(workspace, &scripts))?;
    let mut pytest = workspace.command(scripts.join("python"));
    // Tests that were skipped are named, with the reason, and those that take longest.
    pytest.args(["-m", "pytest", "-rs", "--durations=20", "python/tests"]);
    pytest.env("TIGHTFIT_BIN", scripts.join("tightfit"));
    // As the tests in Rust left it.
    pytest.env("TIGHTFIT_BINARY", workspace.target.join("ci").join("tightfit"));
    log.run(pytest)
}

/// The package as it lies in its folder, with the compiled module put into it, so that an edited
/// Python file counts at once.
fn build(workspace: &Workspace, scripts: &Path) -> Command {
    let mut maturin = workspace.command(scripts.join("maturin"));
    maturin.args(["develop", super::PROFILE, "--quiet"]);
    maturin.current_dir(workspace.root.join("python"));
    maturin.env("VIRTUAL_ENV", workspace.target.join("python-venv"));
    maturin.env("CARGO_TARGET_DIR", &workspace.target);
    maturin
}

/// The folder of the environment's programs; the environment is made where it is missing or stale.
fn environment(workspace: &Workspace, log: &mut Log) -> Result<PathBuf> {
    let folder = workspace.target.join("python-venv");
    let (scripts, stamp) = (folder.join("bin"), folder.join("requirements-installed.txt"));
    let interpreter = scripts.join("python");
    let wanted = fs::read_to_string(workspace.root.join(REQUIREMENTS)).context(REQUIREMENTS)?;
    if is_fresh(&stamp, &wanted) && interpreter.exists() {
        println!("{} is up to date", folder.display());
        return Ok(scripts);
    }
    usable_python()?;
    let mut create = workspace.command("python3");
    create.args(["-m", "venv", "--clear"]).arg(&folder);
    log.run(create)?;
    let mut install = workspace.command(&interpreter);
    install.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--requirement",
        REQUIREMENTS,
    ]);
    log.run(install)?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(scripts)
}

fn is_fresh(stamp: &Path, wanted: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|installed| installed == wanted)
}

/// A `python3` that can make environments.
fn usable_python() -> Result<()> {
    let probe = Command::new("python3")
        .args(["-c", "import venv, ensurepip"])
        .output()
        .context("python3 was not found; install Python 3.11 or later")?;
    if !probe.status.success() {
        bail!(
            "python3 has no venv module; install it (Debian and Ubuntu: apt install python3-venv)"
        );
    }
    Ok(())
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
