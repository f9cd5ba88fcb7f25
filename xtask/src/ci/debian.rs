//! Programs of the system that steps of the run need. Invariant: what is there is used; something
//! is installed only if that is requested, and this runs as root on a system with apt-get; and a
//! step that goes without it says what it left out.

use std::process::Command;

use anyhow::Result;

use crate::command::{Log, find};
use crate::workspace::Workspace;

/// Setting this variable requests that packages be installed.
pub const ASKED: &str = "TIGHTFIT_INSTALL";

/// Whether packages are to be installed, and can be.
pub fn installs() -> bool {
    std::env::var_os(ASKED).is_some() && is_root() && find("apt-get").is_some()
}

/// Installs packages.
pub fn install(workspace: &Workspace, log: &mut Log, packages: &[&str]) -> Result<()> {
    let mut update = workspace.command("apt-get");
    update.args(["update", "--quiet"]);
    let mut install = workspace.command("apt-get");
    install
        .args(["install", "--yes", "--quiet", "--no-install-recommends"])
        .args(packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    log.run(update).and_then(|()| log.run(install))
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
