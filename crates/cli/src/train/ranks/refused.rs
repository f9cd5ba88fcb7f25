//! What is refused of several ranks before anything is planned. Invariant: the message says what to
//! do instead.

use thiserror::Error;
use tightfit::id::RankId;

/// Why ranks do not begin.
#[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "what processes refuse"))]
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// This program cannot speak MPI.
    #[cfg(not(feature = "mpi"))]
    #[error(
        "this tightfit was built without MPI: `cargo install --path crates/cli --features mpi` \
         builds one with it, where an MPI library and libclang are installed"
    )]
    NoMpi,
    /// Ranks were not begun alike.
    #[error("the ranks of a job do the same: {what} is {theirs} for {rank} and {first} for rank0")]
    Other {
        /// The first rank that differs.
        rank: RankId,
        /// In what.
        what: String,
        /// What it has there.
        theirs: String,
        /// What the first rank has.
        first: String,
    },
    /// What a rank was told makes no sense to it.
    #[error("what rank0 told this rank is no plan: {says}")]
    NoPlan {
        /// Why not.
        says: String,
    },
}
