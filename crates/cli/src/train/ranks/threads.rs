//! Ranks as threads of this process. Invariant: a failure of one of them is reported once.

use std::sync::Arc;
use std::thread;

use thiserror::Error;
use tightfit::exit::coded;
use tightfit::id::RankId;
use tightfit::units::Bytes;
use tightfit_engine::transport::{Link, LinkError, thread_links};
use tightfit_engine::{Budget, SessionError, StepError, process, weights};

use super::announce::announce;
use super::chosen::Asked;
use super::{Way, choose, rank};
use crate::exit_code::ExitCode;
use crate::failure::{Context, Failure, Result};
use crate::train::announce::announce_saving;
use crate::train::resident::Resident;
use crate::train::{Arguments, begins, distinct, open};
use crate::{interrupt, output, processor};

/// A rank that ended by a panic.
#[derive(Debug, Error)]
#[error("{rank} ended by a defect of this program; please report it")]
struct Panicked {
    rank: RankId,
}

coded!(Other: Panicked);

/// Trains on threads, and reports.
pub fn train(arguments: &Arguments, way: Way) -> Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    process::one_heap();
    let (step, data) = open(arguments)?;
    let step = arguments.batches.split_step(step)?;
    distinct(arguments, &step)?;
    for path in [&arguments.save, &arguments.trace].into_iter().flatten() {
        output::writable(path)?;
    }
    let seed = begins(arguments, &step)?.seed;
    interrupt::listen();
    let (ranks, threads) = (way.ranks(), processor::threads(arguments.threads));
    if ranks > threads {
        note!(
            "note: {ranks} ranks take turns, since there are {threads} threads; predictions are of \
             ranks that do not wait for a processor"
        );
    }
    let chosen = choose(&Asked {
        arguments,
        step: &step,
        data: &data,
        budget,
        way,
        threads: (threads / ranks).max(1),
        // A receiver copies when it waits, so nothing arrives early.
        ahead: 0,
        beside: Bytes::ZERO,
        seed,
    })?;
    let deadline = chosen.deadline(arguments.ranks.peer_deadline);
    let (shares, routes, figures) = chosen.divide();
    process::settle_heap();
    if !arguments.json {
        announce(&step, &data, &figures)
            .and_then(|()| announce_saving(arguments.save.as_deref()))
            .context("no step was run, and nothing was saved")?;
    }
    let resident = Resident::before_steps();
    let links = thread_links(way.ranks(), routes, deadline);
    let results: Vec<Result<ExitCode>> = thread::scope(|scope| {
        let running: Vec<_> = links
            .into_iter()
            .zip(shares.values())
            .map(|(link, share)| {
                let (figures, step) = (&figures, &step);
                scope.spawn(move || {
                    let rank = link.rank();
                    let unwinds = StopsAll(&link);
                    let run = || {
                        let data = arguments.source.open(step)?;
                        let figures = (rank == RankId::from_u32(0)).then_some(figures);
                        let link = Arc::new(link.clone());
                        rank::run(arguments, (share, figures), data, link, (seed, resident))
                    };
                    let ran = run();
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
            rank.join().unwrap_or_else(|_| Err(Panicked { rank: number }.into()))
        });
        joined.collect()
    });
    verdict(results)
}

/// Stops all ranks if one ends by a panic, so that none waits for it.
struct StopsAll<'a>(&'a dyn Link);

impl Drop for StopsAll<'_> {
    fn drop(&mut self) {
        self.0.abort("it ended by a defect of this program");
    }
}

/// The outcome of all ranks: the first cause, if one failed.
fn verdict(results: Vec<Result<ExitCode>>) -> Result<ExitCode> {
    let mut code = interrupt::code();
    let mut failed: Option<Failure> = None;
    for result in results {
        match result {
            Ok(own) => code = own,
            Err(error) if failed.as_ref().is_none_or(is_of_another) => failed = Some(error),
            Err(_) => {}
        }
    }
    failed.map_or(Ok(code), Err)
}

/// Whether a rank only says that another one failed.
fn is_of_another(error: &Failure) -> bool {
    let aborted = |error: &LinkError| matches!(error, LinkError::Aborted { .. });
    let of_session = error.cause().is_some_and(|error| match error {
        SessionError::Link(error) => aborted(error),
        SessionError::Step { error: StepError::Link(error), .. } => aborted(error),
        SessionError::OtherRank(_) => true,
        _ => false,
    });
    let of_weights = error.cause().is_some_and(|error| match error {
        weights::WeightsError::Link(error) => aborted(error),
        weights::WeightsError::OtherRank(_) => true,
        _ => false,
    });
    of_session || of_weights
}
