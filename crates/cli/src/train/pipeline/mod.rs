//! `tightfit train --stages`: a step divided among ranks, which are threads of this process.
//! Invariant: each rank has a slab and a budget of its own, and nothing runs before the plans of
//! all ranks were checked; all ranks end after the same step, and what one of them fails of is said
//! once.

mod announce;
mod choose;
mod order;
mod rank;
mod report;
mod trace;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use thiserror::Error;
use tightfit::id::RankId;
use tightfit_engine::transport::{Link, LinkError, thread_links};
use tightfit_engine::{Budget, Dataset, Session, SessionError, StepError, process, weights};

use super::{Arguments, distinct, open, seed};
use crate::exit::ExitCode;
use crate::values::duration;
use crate::{interrupt, output};
use choose::{Asked, Chosen, choose};

pub use order::NotASchedule;

/// How long a rank waits for others, unless their steps take longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Predicted steps that a rank waits for others at least.
const STEPS: f64 = 10.0;

/// A pipeline, as it is given on the command line.
#[derive(Args)]
pub struct Pipeline {
    /// Divide the step among so many ranks: threads of this process, each with a slab of its own
    /// and the budget for itself
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
    /// How long a rank waits for another one before it gives up: 10, 10s or 500ms [default: 60s, or
    /// ten steps where these are predicted to take longer]
    #[arg(long, value_name = "SECONDS", value_parser = duration, requires = "stages",
          allow_hyphen_values = true)]
    peer_deadline: Option<tightfit::units::Seconds>,
}

/// More ranks than threads of one process are of use.
const MOST_RANKS: i64 = 256;

/// A rank that ended otherwise than by an error.
#[derive(Debug, Error)]
#[error("{rank} ended by a defect of this program; please report it")]
struct Panicked {
    rank: RankId,
}

/// Trains on the ranks of a pipeline, and reports.
pub fn train(arguments: &Arguments, stages: u32) -> anyhow::Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    process::one_heap();
    let (step, data) = open(arguments)?;
    distinct(arguments, &step)?;
    for path in [&arguments.save, &arguments.trace].into_iter().flatten() {
        output::writable(path)?;
    }
    let seed = seed(arguments, &step)?;
    interrupt::listen();
    let asked = Asked { arguments, step: &step, data: &data, budget, stages, seed };
    let chosen = choose(&asked)?;
    process::settle_heap();
    if !arguments.json {
        announce::announce(&step, &data, &chosen)
            .context("no step was run, and nothing was saved")?;
    }
    let given = arguments.pipeline.peer_deadline;
    let deadline = match given {
        Some(seconds) => Duration::try_from_secs_f64(seconds.0).unwrap_or(Duration::MAX),
        None => PATIENCE
            .max(Duration::try_from_secs_f64(STEPS * chosen.makespan().0).unwrap_or(Duration::MAX)),
    };
    let links = thread_links(stages, chosen.divided.routes.clone(), deadline);
    let results: Vec<anyhow::Result<ExitCode>> = thread::scope(|scope| {
        let running: Vec<_> = links
            .into_iter()
            .map(|link| {
                let (chosen, step) = (&chosen, &step);
                scope.spawn(move || {
                    let rank = link.rank();
                    let unwinds = StopsAll(&link);
                    let data = Dataset::open(&step.data, &step.folder, arguments.data.as_deref())?;
                    let ran = rank::run(arguments, chosen, data, Arc::new(link.clone()), seed);
                    if let Err(error) = &ran {
                        link.abort(&format!("{error:#}"));
                    }
                    std::mem::forget(unwinds);
                    ran.with_context(|| rank.to_string())
                })
            })
            .collect();
        let ranks = (0..).map(RankId::from_u32);
        let joined = running.into_iter().zip(ranks).map(|(rank, number)| {
            rank.join().unwrap_or_else(|_| Err(anyhow!(Panicked { rank: number })))
        });
        joined.collect()
    });
    verdict(results)
}

/// Where a rank ends by a panic, nobody waits for it.
struct StopsAll<'a>(&'a dyn Link);

impl Drop for StopsAll<'_> {
    fn drop(&mut self) {
        self.0.abort("it ended by a defect of this program");
    }
}

/// What all ranks have come to: the first cause, where one failed.
fn verdict(results: Vec<anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let mut code = interrupt::code();
    let mut failed: Option<anyhow::Error> = None;
    for result in results {
        match result {
            Ok(own) => code = own,
            Err(error) if failed.as_ref().is_none_or(is_of_another) => failed = Some(error),
            Err(_) => {}
        }
    }
    failed.map_or(Ok(code), Err)
}

/// A rank only says that another one failed.
fn is_of_another(error: &anyhow::Error) -> bool {
    let aborted = |error: &LinkError| matches!(error, LinkError::Aborted { .. });
    error.chain().any(|cause| {
        let of_session = cause.downcast_ref::<SessionError>().is_some_and(|error| match error {
            SessionError::Link(error) => aborted(error),
            SessionError::Step { error: StepError::Link(error), .. } => aborted(error),
            SessionError::OtherRank(_) => true,
            _ => false,
        });
        let of_weights = cause.downcast_ref::<weights::WeightsError>();
        of_session
            || of_weights.is_some_and(|error| match error {
                weights::WeightsError::Link(error) => aborted(error),
                weights::WeightsError::OtherRank(_) => true,
                _ => false,
            })
    })
}

/// The session of a rank, connected to the others.
fn session(chosen: &Chosen, link: Arc<dyn Link>, seed: u64) -> Result<Session, SessionError> {
    let rank = link.rank();
    let (step, planned) = (&chosen.divided.ranks[rank], &chosen.plans[rank]);
    let training = &planned.training;
    let mut session = Session::new(
        step,
        training.fitted.checked(),
        planned.evaluation.as_ref(),
        training.slab(),
        chosen.machine.threads as usize,
        seed,
    )?;
    session.connect(link, chosen.divided.first_of_evaluation)?;
    Ok(session)
}
