//! `tightfit train --stages`: a step divided among ranks, which are threads of this process or
//! processes of an MPI job. Invariant: each rank has a slab and a budget of its own, and nothing
//! runs before the plans of all ranks were checked; all ranks end after the same step.

mod announce;
#[cfg(feature = "mpi")]
mod assignment;
mod choose;
mod figures;
#[cfg(feature = "mpi")]
mod greeting;
#[cfg(feature = "mpi")]
mod job;
mod order;
mod rank;
mod refused;
mod report;
mod share;
mod threads;
mod trace;

use clap::{Args, ValueEnum};

use super::Arguments;
use crate::exit::ExitCode;
use crate::values::duration;

pub use order::NotASchedule;
pub use refused::Refused as PipelineRefused;

/// A pipeline, as it is given on the command line.
#[derive(Args)]
pub struct Pipeline {
    /// Divide the step among so many ranks, each with a slab of its own and the budget for itself
    #[arg(
        long,
        value_name = "RANKS",
        value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS),
        conflicts_with_all = ["tier", "replan", "dump", "output", "profile", "placement"]
    )]
    pub stages: Option<u32>,
    /// In which order ranks do what: auto for the fastest that fits, the name of a schedule (gpipe,
    /// 1f1b, interleaved, zb-h1, zb-v, v-half, v-min, greedy, greedy-v, asyncpipe), or a CSV file
    /// as `torch.distributed.pipelining` reads it
    #[arg(long, value_name = "SCHEDULE", default_value = "auto", requires = "stages")]
    schedule: String,
    /// What the ranks are, and how they reach each other
    #[arg(long, value_enum, default_value_t = Transport::Thread, requires = "stages")]
    transport: Transport,
    /// How long a rank waits for another one before it gives up: 10, 10s or 500ms [default: 60s, or
    /// ten steps where these are predicted to take longer]
    #[arg(long, value_name = "SECONDS", value_parser = duration, requires = "stages",
          allow_hyphen_values = true)]
    peer_deadline: Option<tightfit::units::Seconds>,
}

/// More ranks than threads of one process are of use.
const MOST_RANKS: i64 = 256;

/// What ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Threads of this process, among which --threads are divided
    Thread,
    /// Processes of an MPI job, begun by `mpirun -n RANKS tightfit train …`; --threads are those of
    /// each. Only where this program was built with the feature mpi
    Mpi,
}

/// Trains on the ranks of a pipeline, and reports.
pub fn train(arguments: &Arguments, stages: u32) -> anyhow::Result<ExitCode> {
    match arguments.pipeline.transport {
        Transport::Thread => threads::train(arguments, stages),
        #[cfg(feature = "mpi")]
        Transport::Mpi => job::train(arguments, stages),
        #[cfg(not(feature = "mpi"))]
        Transport::Mpi => Err(PipelineRefused::NoMpi.into()),
    }
}
