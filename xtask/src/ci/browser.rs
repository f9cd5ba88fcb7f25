//! A browser for the tests of pages. Invariant: a browser that is there is taken; one is installed
//! only where this runs as root beside apt-get, as in a container; and without one the run goes on,
//! since those tests say that they are skipped.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use super::Workspace;
use super::command::Log;

/// Names that Chromium goes by; the tests look for the same.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Finds Chromium, or installs Debian's.
pub fn browser(workspace: &Workspace, log: &mut Log) -> Result<()> {
    if let Some(found) = NAMES.into_iter().find_map(find) {
        println!("{}", found.display());
        return Ok(());
    }
    if !is_root() || find("apt-get").is_none() {
        println!(
            "NO BROWSER: the tests of the report's page will be skipped; install Chromium (Debian \
             and Ubuntu: apt install chromium)"
        );
        return Ok(());
    }
    let mut update = workspace.command("apt-get");
    update.args(["update", "--quiet"]);
    let mut install = workspace.command("apt-get");
    install
        .args(["install", "--yes", "--quiet", "--no-install-recommends", "chromium"])
        .env("DEBIAN_FRONTEND", "noninteractive");
    if let Err(error) = log.run(update).and_then(|()| log.run(install)) {
        println!(
            "NO BROWSER: the tests of the report's page will be skipped, since Chromium could not \
             be installed: {error:#}"
        );
    }
    Ok(())
}

/// A program on the search path.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
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
