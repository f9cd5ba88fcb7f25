//! Ranks as processes of an MPI job. Invariant: one thread makes all calls of MPI, so that a
//! transfer goes on while the others compute; tensors go from slab to slab, and this program makes
//! no copy; and a process that fails, panics or waits too long stops all others, with its cause.

mod carrier;
mod link;
mod raw;
mod slots;

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;
use tightfit::exit::{Coded, Exit};
use tightfit::id::RankId;

use crate::transport::{Link, LinkError};
use carrier::{Carrier, Groups};
use raw::{Library, MpiError};
use slots::{Board, FIRST, Slot};

pub use link::MpiLink;

/// The name of the thread that makes all calls of MPI.
const CARRIER: &str = "mpi";

/// Why this process takes part in no job.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobError {
    /// A call of MPI failed.
    #[error("MPI does not begin: {0}")]
    Mpi(String),
    /// More ranks are requested than the job has.
    #[error(
        "{wanted} ranks are asked for, and the job has {ranks}: begin it with `mpirun -n \
         {wanted} tightfit train … --transport mpi`"
    )]
    Few {
        /// The ranks of the job.
        ranks: u32,
        /// The requested ranks.
        wanted: u32,
    },
    /// Other processes have not begun.
    #[error(
        "after {waited:?} some processes of the job have not begun: each has to be `tightfit train \
         … --transport mpi`; where they are only slow, pass a longer --peer-deadline"
    )]
    Absent {
        /// How long this one waited.
        waited: Duration,
    },
    /// Other ranks were started for another number of ranks.
    #[error("of the first {wanted} ranks of the job, {ranks} were begun for {wanted} ranks")]
    Others {
        /// The ranks that were started for `wanted` ranks.
        ranks: u32,
        /// The requested ranks.
        wanted: u32,
    },
}

impl Coded for JobError {
    fn exit(&self) -> Exit {
        match self {
            JobError::Absent { .. } => Exit::OtherRank,
            JobError::Mpi(_) | JobError::Few { .. } | JobError::Others { .. } => Exit::Usage,
        }
    }
}

/// This process's part in a job.
#[derive(Debug)]
pub struct Job {
    rank: RankId,
    ranks: u32,
    first_nearby: u32,
    link: Option<MpiLink>,
    board: Arc<Board>,
    carrier: JoinHandle<()>,
}

/// What the thread that makes MPI's calls has found when it begins.
struct Found {
    rank: u32,
    ranks: u32,
    first_nearby: u32,
    most_tags: u32,
    /// The number of ranks in the pipeline, if this process is one of them.
    of_pipeline: Option<u32>,
}

impl Job {
    /// Begins, together with all other processes of the job, the first `wanted` of which are the
    /// ranks of a pipeline. If the job has to be aborted, its cause goes to `last_words` first. A
    /// panic anywhere in this process aborts the job from now on.
    ///
    /// # Errors
    /// [`JobError`] if there are too few, some have not begun after `patience`, or a call of MPI
    /// failed.
    pub fn begin(wanted: u32, patience: Duration, last_words: fn(&str)) -> Result<Job, JobError> {
        let board = Arc::new(Board::default());
        board.lock().slots = vec![Slot::Free; FIRST];
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let carries = Arc::clone(&board);
        let carrier = std::thread::Builder::new().name(CARRIER.to_string()).spawn(move || {
            match begin(wanted, carries, last_words) {
                Ok((found, library, carrier)) => {
                    tell.send(Ok(found)).ok();
                    carrier.run(library);
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        });
        let carrier = carrier.map_err(|error| JobError::Mpi(error.to_string()))?;
        let found = told.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => JobError::Absent { waited: patience },
            RecvTimeoutError::Disconnected => JobError::Mpi("its thread has ended".to_string()),
        })?;
        let Found { rank, ranks, first_nearby, most_tags, of_pipeline } =
            found.map_err(|error| JobError::Mpi(error.to_string()))?;
        let rank = RankId::from_u32(rank);
        abort_where_it_panics(&board);
        let link = of_pipeline.map(|ranks| {
            let board = Arc::clone(&board);
            MpiLink { rank, ranks, most_tags, board, routes: Arc::default() }
        });
        let job = Job { rank, ranks, first_nearby, link, board, carrier };
        let refused = match &job.link {
            // Every process finds the same, so none has to be told.
            _ if ranks < wanted => JobError::Few { ranks, wanted },
            Some(link) if link.ranks != wanted => {
                let error = JobError::Others { ranks: link.ranks, wanted };
                link.abort(&error.to_string());
                error
            }
            _ => return Ok(job),
        };
        job.end(0);
        Err(refused)
    }

    /// This process.
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// All processes of the job.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The first process of the job on the same computer.
    pub fn first_nearby(&self) -> u32 {
        self.first_nearby
    }

    /// The link to the other ranks of the pipeline; `None` if this process is none of them.
    pub fn link(&self) -> Option<&MpiLink> {
        self.link.as_ref()
    }

    /// Waits until all processes have called this, and exchanges the `code`s with which they will
    /// exit.
    pub fn end(self, code: u8) -> Ended {
        let mut state = self.board.lock();
        state.ends = Some(code);
        self.board.asked.notify_one();
        drop(state);
        self.carrier.join().ok();
        let state = self.board.lock();
        Ended { failure: state.failure.clone(), codes: state.codes.clone() }
    }
}

/// How a job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Why a rank has failed, if one has.
    pub failure: Option<LinkError>,
    /// The exit codes of all processes, in the order of the ranks; empty if MPI does not say.
    pub codes: Vec<u8>,
}

fn begin(
    wanted: u32,
    board: Arc<Board>,
    last_words: fn(&str),
) -> Result<(Found, Library, Carrier), MpiError> {
    let library = Library::begin()?;
    let world = library.world();
    let rank = world.rank()?;
    let pipeline = world.those(rank < wanted)?;
    let groups = Groups {
        all: world.again()?,
        notes: world.again()?,
        pipeline,
        gives: pipeline.map(raw::Group::again).transpose()?,
    };
    let found = Found {
        rank,
        ranks: world.size()?,
        first_nearby: world.first_nearby()?,
        most_tags: world.most_tags()?,
        of_pipeline: pipeline.map(raw::Group::size).transpose()?,
    };
    let carrier = Carrier::new(RankId::from_u32(rank), groups, board, last_words)?;
    Ok((found, library, carrier))
}

/// How long a process that panics waits for the end of the job.
const ABORTED: Duration = Duration::from_secs(10);

/// Unwinding would end MPI, which waits for the others forever.
fn abort_where_it_panics(board: &Arc<Board>) {
    let (board, before) = (Arc::clone(board), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        if std::thread::current().name() != Some(CARRIER) {
            board.lock().panics = true;
            board.asked.notify_one();
            std::thread::sleep(ABORTED);
        }
        std::process::abort();
    }));
}
