//! A browser for the tests of pages. Invariant: without one the run goes on, since those tests
//! report that they are skipped.

use std::path::PathBuf;

use anyhow::Result;

use crate::command::{Log, find};

use super::Run;

/// Names that Chromium goes by; the tests look for the same.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Debian's package of Chromium.
pub const PACKAGE: &str = "chromium";

/// The path of the browser.
pub fn found() -> Option<PathBuf> {
    NAMES.into_iter().find_map(find)
}

/// Says whether there is one.
pub fn browser(run: &mut Run, log: &mut Log) -> Result<()> {
    run.preparation.wait(log);
    match found() {
        Some(found) => log.say(&found.display().to_string()),
        None => log.say(&format!(
            "NO BROWSER: the tests of the report's page will be skipped; install Chromium (Debian \
             and Ubuntu: apt install {PACKAGE})"
        )),
    }
    Ok(())
}
