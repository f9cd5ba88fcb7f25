//! A browser for the tests of pages. Invariant: without one the run goes on, since those tests say
//! that they are skipped.

use anyhow::Result;

use crate::command::Log;
use crate::workspace::Workspace;

use super::debian::{find, install, installs};

/// Names that Chromium goes by; the tests look for the same.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Finds Chromium, or installs Debian's.
pub fn browser(workspace: &Workspace, log: &mut Log) -> Result<()> {
    if let Some(found) = NAMES.into_iter().find_map(find) {
        println!("{}", found.display());
        return Ok(());
    }
    if !installs() {
        println!(
            "NO BROWSER: the tests of the report's page will be skipped; install Chromium (Debian \
             and Ubuntu: apt install chromium)"
        );
        return Ok(());
    }
    if let Err(error) = install(workspace, log, &["chromium"]) {
        println!(
            "NO BROWSER: the tests of the report's page will be skipped, since Chromium could not \
             be installed: {error:#}"
        );
    }
    Ok(())
}
