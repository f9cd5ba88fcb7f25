//! Where things are. Invariant: every command starts in the workspace's folder, with the cargo that
//! started this program, and builds into the one target folder.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The folders of the workspace.
#[derive(Clone)]
pub struct Workspace {
    /// The workspace itself.
    pub root: PathBuf,
    /// The folder that cargo builds into.
    pub target: PathBuf,
}

/// Variables that would interfere with the steps: another build target, whose programs would lie
/// elsewhere; an active conda environment, with which maturin refuses to build; packages that would
/// be imported instead; folders that pip would install into; options of pytest that leave tests
/// out.
const FOREIGN: [&str; 9] = [
    "CARGO_BUILD_TARGET",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTEST_ADDOPTS",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_USER",
];

impl Workspace {
    /// The workspace in this folder.
    pub fn at(root: &Path) -> Result<Workspace> {
        Ok(Workspace { root: root.to_path_buf(), target: target(root)? })
    }

    /// A command of cargo.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(cargo());
        command.args(arguments);
        command
    }

    /// A command of another program.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        // The variable may hold a path relative to where this program was started.
        command.env("CARGO_TARGET_DIR", &self.target);
        for name in FOREIGN {
            command.env_remove(name);
        }
        command
    }
}

fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or("cargo".into())
}

/// The folder that cargo builds into, wherever the user has configured it.
fn target(root: &Path) -> Result<PathBuf> {
    let mut metadata = Command::new(cargo());
    metadata.args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"]);
    let output = metadata.arg(root.join("Cargo.toml")).output().context("cargo metadata")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {}", said.trim());
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    let target = metadata["target_directory"].as_str().context("cargo metadata: no target")?;
    std::fs::create_dir_all(target).with_context(|| target.to_string())?;
    Ok(target.into())
}
