//! What a release consists of. Invariant: an archive holds the program and what its users need
//! beside it, in an order and with times that do not depend on who made it; each file's checksum
//! stands in `SHA256SUMS`.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::command::Log;
use crate::workspace::Workspace;

/// Where it goes, in the target folder.
const ARTIFACTS: &str = "artifacts";

/// What lies beside the program.
const BESIDE: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Builds the archive of the program and the wheel of the Python package into [`ARTIFACTS`].
pub fn dist(workspace: &Workspace) -> Result<()> {
    let (began, mut log) = (Instant::now(), Log::default());
    let result = log
        .step("program", |log| program(workspace, log))
        .and_then(|()| log.step("wheel", |log| wheel(workspace, log)))
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

/// The triple of what cargo builds for.
fn host(workspace: &Workspace) -> Result<String> {
    let output = workspace.command("rustc").arg("-vV").output().context("rustc -vV")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc says for which host it is")?.to_string())
}

fn wheel(workspace: &Workspace, log: &mut Log) -> Result<()> {
    let mut pip = workspace.command("python3");
    pip.args(["-m", "pip", "wheel", "--no-deps", "--quiet", "./python", "--wheel-dir"]);
    pip.arg(workspace.target.join(ARTIFACTS));
    log.run(pip)
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
