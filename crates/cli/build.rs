//! The version that the program says: that of the crate, and in a release the commit that it was
//! built from, where there is one to ask.

use std::process::Command;

fn main() {
    // Elsewhere a commit would make everybody build again.
    let commit = match std::env::var("PROFILE").as_deref() {
        Ok("release") => {
            println!("cargo:rerun-if-changed=../../.git/HEAD");
            println!("cargo:rerun-if-changed=../../.git/refs/heads");
            commit()
        }
        _ => {
            println!("cargo:rerun-if-changed=build.rs");
            None
        }
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
