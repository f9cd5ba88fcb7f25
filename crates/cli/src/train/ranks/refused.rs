//! Why several ranks are refused before anything is planned. Invariant: the message says what to do
//! instead.

use thiserror::Error;
use tightfit::exit::coded;
use tightfit::id::RankId;

/// Why ranks do not start.
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
    /// Ranks were not started alike.
    #[error("the ranks of a job do the same: {what} is {theirs} for {rank} and {first} for rank0")]
    Other {
        /// The first rank that differs.
        rank: RankId,
        /// What differs.
        what: String,
        /// Its value on that rank.
        theirs: String,
        /// Its value on the first rank.
        first: String,
    },
    /// The assignment that a rank received makes no sense to it.
    #[error("what rank0 told this rank is no plan: {says}")]
    NoPlan {
        /// Why not.
        says: String,
    },
}

coded!(Usage: Refused);
