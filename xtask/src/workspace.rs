//! Where things are. Invariant: every command begins in the workspace's folder, with the cargo that
//! began this program.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The folders of the workspace.
#[derive(Clone)]
pub struct Workspace {
    /// The workspace itself.
    pub root: PathBuf,
    /// What cargo builds into.
    pub target: PathBuf,
}

/// Variables that would lead the tests away from their own virtual environment: an active conda
/// environment, with which maturin refuses to build; packages that would be imported instead;
/// folders that pip would install into; options of pytest that leave tests out.
const FOREIGN: [&str; 8] = [
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
    /// The workspace that lies there.
    pub fn at(root: &Path) -> Result<Workspace> {
        Ok(Workspace { root: root.to_path_buf(), target: target()? })
    }

    /// A command of cargo.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        command.args(arguments);
        command
    }

    /// A command of another program.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        for name in FOREIGN {
            command.env_remove(name);
        }
        command
    }
}

/// This program lies in `TARGET/PROFILE`, wherever the user has cargo build.
fn target() -> Result<PathBuf> {
    let program = std::env::current_exe().context("the path of this program")?;
    program
        .ancestors()
        .nth(2)
        .map(Path::to_path_buf)
        .context("cargo built this program, so it lies in its target folder")
}
