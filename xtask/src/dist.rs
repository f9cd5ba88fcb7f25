//! What a release consists of. Invariant: an archive holds the program and what its users need in
//! addition, in an order and with times that do not depend on who made it; the wheel is for every
//! Python from 3.10 on and every Linux from glibc 2.28 on, whatever it was built on, and has passed
//! tests; each file's checksum stands in `SHA256SUMS`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::command::Log;
use crate::environment::Environment;
use crate::workspace::Workspace;

/// The folder for it, in the target folder.
const ARTIFACTS: &str = "artifacts";

/// Files that are packed with the program.
const BESIDE: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// The oldest Linux that the wheel is for, as wheels name it; that of PyTorch's own.
const LINUX: &str = "manylinux_2_28";
/// The oldest Python that the wheel is for.
const PYTHON: &str = "cp310-abi3";
/// Most bytes of a wheel: it is fetched again and again, by every machine that tests something.
const LARGEST: u64 = 20 << 20;
/// Tests of the compiled module and the program inside a wheel, and of exceptions that pass through
/// it: zig brings an unwinder of its own.
const TRIED: [&str; 2] = ["python/tests/test_native.py", "python/tests/test_addresses.py"];

/// Builds the archive of the program and the wheel of the Python package into [`ARTIFACTS`].
pub fn dist(workspace: &Workspace) -> Result<()> {
    let (began, mut log) = (Instant::now(), Log::default());
    let environment = Environment::of_releases(workspace);
    let result = log
        .step("program", |log| program(workspace, log))
        .and_then(|()| log.step("environment", |log| environment.make(workspace, log)))
        .and_then(|()| log.step("wheel", |log| wheel(workspace, &environment, log)))
        .and_then(|wheel| log.step("trial", |log| trial(workspace, &environment, &wheel, log)))
        .and_then(|()| log.step("sums", |log| sums(workspace, log)));
    log.summary(began);
    result
}

/// `tightfit-VERSION-TARGET.tar.gz`.
fn program(workspace: &Workspace, log: &mut Log) -> Result<()> {
    log.run(workspace.cargo(&["build", "--profile=dist", "--package", "tightfit-cli"]))?;
    let name = format!("tightfit-{}-{}", env!("CARGO_PKG_VERSION"), host(workspace)?);
    let folder = workspace.target.join(ARTIFACTS);
    let inner = folder.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&inner)?;
    fs::copy(workspace.target.join("dist/tightfit"), inner.join("tightfit"))?;
    for file in BESIDE {
        fs::copy(workspace.root.join(file), inner.join(file)).context(file)?;
    }
    manuals(workspace, &inner, log)?;
    let mut tar = workspace.command("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--mtime=@0", "--directory"]).arg(&folder);
    tar.arg("--file").arg(folder.join(format!("{name}.tar.gz"))).arg(&name);
    log.run(tar)?;
    Ok(fs::remove_dir_all(&inner)?)
}

/// Manual pages, and completions by shell.
fn manuals(workspace: &Workspace, folder: &Path, log: &mut Log) -> Result<()> {
    let tightfit = || workspace.command(folder.join("tightfit"));
    let mut man = tightfit();
    man.arg("man").arg(folder.join("man/man1"));
    log.run(man)?;
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    for (shell, name) in
        [("bash", "tightfit.bash"), ("zsh", "_tightfit"), ("fish", "tightfit.fish")]
    {
        let output = tightfit().args(["completions", shell]).output()?;
        ensure!(output.status.success(), "completions of {shell}: {}", output.status);
        fs::write(completions.join(name), &output.stdout)?;
    }
    Ok(())
}

/// The target triple that cargo builds for.
fn host(workspace: &Workspace) -> Result<String> {
    let output = workspace.command("rustc").arg("-vV").output().context("rustc -vV")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc says for which host it is")?.to_string())
}

/// Builds the wheel, with zig's copies of the C library's older versions.
fn wheel(workspace: &Workspace, environment: &Environment, log: &mut Log) -> Result<PathBuf> {
    let folder = workspace.target.join(ARTIFACTS);
    let mut maturin = workspace.command(environment.program("maturin"));
    maturin.args(["build", "--zig", "--compatibility", LINUX, "--out"]).arg(&folder);
    maturin.current_dir(workspace.root.join("python"));
    // This is where it looks for zig.
    maturin.env("VIRTUAL_ENV", &environment.folder).env("PATH", environment.path()?);
    log.run(maturin)?;
    let files =
        fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_wheel = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "whl");
    let wheel = files.into_iter().find(is_wheel).context("maturin built no wheel")?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    admit(&name, fs::metadata(&wheel)?.len())?;
    Ok(wheel)
}

/// Refuses a wheel with narrower tags than intended, and one that is too large.
fn admit(name: &str, bytes: u64) -> Result<()> {
    let tags = format!("-{PYTHON}-{LINUX}_");
    ensure!(name.contains(&tags), "{name} should be a wheel for {PYTHON}-{LINUX}");
    ensure!(bytes < LARGEST, "{name} has {bytes} bytes, and should have less than {LARGEST}");
    Ok(())
}

/// Installs the wheel and tests it.
fn trial(
    workspace: &Workspace,
    environment: &Environment,
    wheel: &Path,
    log: &mut Log,
) -> Result<()> {
    let mut install = environment.pip(workspace);
    install.args(["--no-deps", "--force-reinstall"]).arg(wheel);
    log.run(install)?;
    let mut pytest = workspace.command(environment.program("python"));
    pytest.args(["-m", "pytest", "-q", "-rs", "-n", "2", "--dist", "loadgroup"]).args(TRIED);
    pytest.env("TIGHTFIT_BIN", environment.program("tightfit"));
    pytest.env("TIGHTFIT_BINARY", workspace.target.join("dist/tightfit"));
    log.run(pytest)
}

fn sums(workspace: &Workspace, log: &mut Log) -> Result<()> {
    let folder = workspace.target.join(ARTIFACTS);
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(&folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let output = workspace.command("sha256sum").args(&names).current_dir(&folder).output()?;
    ensure!(output.status.success(), "sha256sum: {}", String::from_utf8_lossy(&output.stderr));
    fs::write(folder.join("SHA256SUMS"), &output.stdout)?;
    let mut show = workspace.command("ls");
    show.args(["-l", "--human-readable"]).arg(&folder);
    log.run(show)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_for_one_python_or_a_new_linux_or_a_large_one_is_refused() {
        let name = "tightfit-0.1.0-cp310-abi3-manylinux_2_28_x86_64.whl";
        assert!(admit(name, LARGEST - 1).is_ok());
        assert!(admit(name, LARGEST).is_err());
        for name in [
            "tightfit-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            "tightfit-0.1.0-cp310-abi3-manylinux_2_39_x86_64.whl",
            "tightfit-0.1.0-cp310-abi3-linux_x86_64.whl",
        ] {
            assert!(admit(name, 1).is_err(), "{name}");
        }
    }
}
