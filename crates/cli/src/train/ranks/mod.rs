//! `tightfit train --stages` and `--shards`: a step divided among ranks, which are threads of this
//! process or processes of an MPI job. Invariant: each rank has a slab and a budget of its own, and
//! nothing runs before the plans of all ranks were checked; all ranks end after the same step.

mod announce;
#[cfg(feature = "mpi")]
mod assignment;
mod choose;
mod chosen;
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
mod shared;
mod threads;
mod trace;

use std::fmt;

use clap::{Args, ValueEnum};
use tightfit::units::Seconds;

use super::Arguments;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::progress;
use crate::values::deadline;
use chosen::{Asked, Chosen};

/// Several ranks, as they are given on the command line.
#[derive(Args)]
pub struct Ranks {
    /// Divide the model among this many ranks, a pipeline through which micro-batches pass: each
    /// has a slab of its own and the budget for itself
    #[arg(
        long,
        value_name = "RANKS",
        group = "ranks",
        value_parser = clap::value_parser!(u32).range(1..=MOST_RANKS),
        conflicts_with_all = ["tier", "replan", "dump", "output", "profile", "placement"]
    )]
    stages: Option<u32>,
    /// Divide the micro-batches among this many ranks, and parameters, gradients and optimizer
    /// state too: each has a shard of every one, gathers what it computes with, and has the budget
    /// for itself
    #[arg(
        long,
        value_name = "RANKS",
        group = "ranks",
        value_parser = clap::value_parser!(u32).range(2..=MOST_SHARDS),
        conflicts_with_all = ["tier", "replan", "dump", "output", "profile", "placement"]
    )]
    shards: Option<u32>,
    /// When ranks that share a step exchange gradients; another order of sums, so other last bits
    #[arg(long, value_enum, default_value_t = Reduce::MicroBatch, requires = "shards",
          conflicts_with = "stages")]
    reduce: Reduce,
    /// In which order ranks do what: auto for the fastest that fits, the name of a schedule (gpipe,
    /// 1f1b, interleaved, zb-h1, zb-v, v-half, v-min, greedy, greedy-v, asyncpipe), or a CSV file
    /// as `torch.distributed.pipelining` reads it
    #[arg(
        long,
        value_name = "SCHEDULE",
        default_value = "auto",
        requires = "stages",
        conflicts_with = "shards"
    )]
    schedule: String,
    /// What the ranks are, and how they reach each other
    #[arg(long, value_enum, default_value_t = Transport::Thread, requires = "ranks")]
    transport: Transport,
    /// How long a rank waits for another one before it gives up: 10, 10s or 500ms [default: 60s, or
    /// ten steps if these are predicted to take longer]
    #[arg(long, value_name = "SECONDS", value_parser = deadline, requires = "ranks",
          allow_hyphen_values = true)]
    peer_deadline: Option<tightfit::units::Seconds>,
}

/// The most ranks that may be requested: more threads of one process are of no use.
const MOST_RANKS: i64 = 256;

/// The most shards for which every rank can number its messages: these grow with the square.
const MOST_SHARDS: i64 = 64;

/// The kind of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Threads of this process, among which --threads are divided
    Thread,
    /// Processes of an MPI job, started by `mpirun -n RANKS tightfit train …`; --threads are those
    /// of each. Only if this program was built with the feature mpi
    Mpi,
}

impl Transport {
    /// Whether each rank is a process of its own, with memory of its own.
    fn has_a_process_for_each_rank(self) -> bool {
        match self {
            Transport::Thread => false,
            Transport::Mpi => true,
        }
    }
}

/// When gradients are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reduce {
    /// For each micro-batch: a rank holds its shards of their sums
    MicroBatch,
    /// Once an update: a rank holds whole gradients between micro-batches, and sends less
    Update,
}

impl fmt::Display for Reduce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduce::MicroBatch => "micro-batch",
            Reduce::Update => "update",
        })
    }
}

/// How a step is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Among this many ranks of a pipeline.
    Stages(u32),
    /// Among this many ranks that share all of it.
    Shards(u32),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Stages(ranks) => write!(f, "--stages {ranks}"),
            Way::Shards(ranks) => write!(f, "--shards {ranks}"),
        }
    }
}

impl Way {
    /// The number of ranks.
    fn ranks(self) -> u32 {
        match self {
            Way::Stages(ranks) | Way::Shards(ranks) => ranks,
        }
    }
}

impl Ranks {
    /// How the step is divided; not at all unless that is requested.
    pub fn way(&self) -> Option<Way> {
        self.stages.map(Way::Stages).or(self.shards.map(Way::Shards))
    }
}

/// Trains on several ranks, and reports.
pub fn train(arguments: &Arguments, way: Way) -> Result<ExitCode> {
    match arguments.ranks.transport {
        Transport::Thread => threads::train(arguments, way),
        #[cfg(feature = "mpi")]
        Transport::Mpi => job::train(arguments, way),
        #[cfg(not(feature = "mpi"))]
        Transport::Mpi => Err(refused::Refused::NoMpi.into()),
    }
}

/// Chooses what the ranks run.
fn choose(asked: &Asked<'_>) -> Result<Chosen> {
    progress::during("planning the ranks", Seconds(f64::INFINITY), || match asked.way {
        Way::Stages(ranks) => choose::choose(asked, ranks),
        Way::Shards(ranks) => shared::choose(asked, ranks),
    })
}
