//! What needs MPI: the feature `mpi` is built and tested. Invariant: without an MPI library the run
//! goes on and says what it left out, as the program goes on without the feature.

use anyhow::Result;

use crate::command::Log;
use crate::workspace::Workspace;

use super::debian::{find, install, installs};

/// Open MPI, what reading its headers takes, and the client without which Debian's `mpirun` begins
/// nothing, be it on this computer alone.
const PACKAGES: [&str; 6] =
    ["libopenmpi-dev", "openmpi-bin", "openssh-client", "libclang-dev", "clang", "pkg-config"];
/// The programs that these bring.
const PROGRAMS: [&str; 4] = ["mpicc", "mpirun", "ssh", "clang"];
/// What is tested with it.
const TESTED: [&str; 2] = ["tightfit-engine", "tightfit-cli"];

/// Finds MPI, or installs Debian's Open MPI, and runs what needs it.
pub fn mpi(workspace: &Workspace, log: &mut Log) -> Result<()> {
    let is_there = || PROGRAMS.into_iter().all(|name| find(name).is_some());
    if !is_there()
        && installs()
        && let Err(error) = install(workspace, log, &PACKAGES)
    {
        println!("Open MPI could not be installed: {error:#}");
    }
    if !is_there() {
        println!(
            "NO MPI: its tests are left out; install Open MPI (Debian and Ubuntu: apt install {})",
            PACKAGES.join(" ")
        );
        return Ok(());
    }
    for package in TESTED {
        let with = |verb| vec![verb, super::PROFILE, "--package", package, "--features", "mpi"];
        let lints = [with("clippy"), vec!["--all-targets", "--", "-D", "warnings"]].concat();
        log.run(workspace.cargo(&lints))?;
        log.run(workspace.cargo(&[with("test"), vec!["--test", "mpi"]].concat()))?;
    }
    Ok(())
}
