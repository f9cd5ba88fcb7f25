//! The project's own chores: `cargo xtask tidy`, `ci` and `dist`. Invariant: a chore that finds
//! something wrong exits with a code other than zero, and says where it looked and what to do.

mod ci;
mod command;
mod dist;
mod environment;
mod tidy;
mod workspace;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use command::say;
use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask tidy                 the rules of the house that no compiler checks
       cargo xtask ci [STEP …]          what a change must pass, or the steps named
       cargo xtask ci --full [STEP …]   the same with all tests and more cases
       cargo xtask ci --slice N         a slice of these tests; `next`: another with each commit
       cargo xtask ci --torch 2.11.0    its Python tests alone, with that version of PyTorch
       cargo xtask dist                 archive and wheel of a release, in target/artifacts";

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let arguments: Vec<String> =
        arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    match dispatch(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr(), "error: {error:#}").unwrap_or_default();
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<()> {
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        say(&format!("{USAGE}\n       steps: {}", ci::names()));
        return Ok(());
    }
    let workspace = Workspace::at(&root()?)?;
    match arguments {
        [chore] if chore == "tidy" => tidy::tidy(&workspace),
        [chore] if chore == "dist" => dist::dist(&workspace),
        [chore, steps @ ..] if chore == "ci" => ci::ci(workspace, steps),
        _ => bail!("{USAGE}\n       steps: {}", ci::names()),
    }
}

/// The folder of the workspace: the parent of this package's, which cargo names at run time, since
/// copies of a clone may share what was built.
fn root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR");
    let package = package.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&package).parent().context("xtask lies in the workspace's folder")?;
    Ok(root.to_path_buf())
}
