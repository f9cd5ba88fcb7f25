//! Programs of the system that steps of the run need. Invariant: what is there is taken; something
//! is installed only where that is asked for and this runs as root beside apt-get; and a step that
//! goes without it says what it left out.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command::Log;
use crate::workspace::Workspace;

/// Whoever sets it asks for packages to be installed.
pub const ASKED: &str = "TIGHTFIT_INSTALL";

/// A program on the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-as-this").is_none());
    }
}
