//! What needs MPI: the feature `mpi` is built and tested. Invariant: without an MPI library the run
//! goes on and says what it left out, as the program goes on without the feature.

use anyhow::Result;

use crate::command::{Log, find};

use super::rust::{Names, tests};
use super::{PROFILE, Run, Tier};

/// Open MPI, what reading its headers takes, and the ssh client without which Debian's `mpirun`
/// starts nothing, not even on this computer alone.
pub const PACKAGES: [&str; 6] =
    ["libopenmpi-dev", "openmpi-bin", "openssh-client", "libclang-dev", "clang", "pkg-config"];
/// The programs in these packages.
const PROGRAMS: [&str; 4] = ["mpicc", "mpirun", "ssh", "clang"];
/// The packages tested with it.
pub const TESTED: [&str; 6] = [
    "--package",
    "tightfit-engine",
    "--package",
    "tightfit-cli",
    "--features",
    "tightfit-engine/mpi,tightfit-cli/mpi",
];

/// Whether all programs are there.
pub fn is_there() -> bool {
    PROGRAMS.into_iter().all(|name| find(name).is_some())
}

/// Checks and tests what needs MPI.
pub fn mpi(run: &mut Run, log: &mut Log) -> Result<()> {
    run.preparation.wait(log);
    if !is_there() {
        log.say(&format!(
            "NO MPI: its tests are left out; install Open MPI (Debian and Ubuntu: apt install {})",
            PACKAGES.join(" ")
        ));
        return Ok(());
    }
    // Both at once: each alone would have features of its own, and the engine would be compiled
    // twice.
    if run.tier == Tier::Full {
        let lints = [&["clippy", PROFILE], &TESTED[..], &["--all-targets", "--", "-D", "warnings"]];
        log.run(run.workspace.cargo(&lints.concat()))?;
    }
    let jobs = [&TESTED[..], &["--test", "mpi"]].concat();
    run.tests(tests(&run.workspace, run.tier, &jobs, Names::All), log)
}
