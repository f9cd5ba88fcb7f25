//! The version that the program reports: that of the crate, and in a release the commit that it was
//! built from, if it can be found out.

use std::path::Path;
use std::process::Command;

/// The repository of this workspace. A packaged crate has none, and that of another project around
/// it says nothing.
const REPOSITORY: &str = "../../.git";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Outside a release, each commit would make everyone build again.
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = if release && Path::new(REPOSITORY).exists() {
        println!("cargo:rerun-if-changed={REPOSITORY}/HEAD");
        println!("cargo:rerun-if-changed={REPOSITORY}/refs/heads");
        commit()
    } else {
        None
    };
    let commit = commit.map_or(String::new(), |commit| format!(" ({commit})"));
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo:rustc-env=TIGHTFIT_VERSION={version}{commit}");
}

/// The commit's hash, shortened.
fn commit() -> Option<String> {
    let found = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).output().ok()?;
    let hash = String::from_utf8(found.stdout).ok()?;
    found.status.success().then(|| hash.trim().to_string())
}
