//! Ranks as processes of an MPI job. Invariant: the first one plans, the others check what they are
//! told; each process says why it fails, or which other one failed, and all of them end together.

use std::sync::Arc;
use std::time::Duration;

use tightfit::exit::Exit;
use tightfit::id::RankId;
use tightfit::units::Bytes;
use tightfit_engine::transport::Link;
use tightfit_engine::transport::mpi::{Ended, Job, MpiLink};
use tightfit_engine::{Budget, process};

use super::announce::announce;
use super::chosen::{Asked, patience};
use super::greeting::Greeting;
use super::share::Share;
use super::{Way, assignment, choose, rank};
use crate::exit_code::ExitCode;
use crate::failure::{Context, Result};
use crate::train::announce::announce_saving;
use crate::train::resident::Resident;
use crate::train::{Arguments, begins, distinct, open};
use crate::{conclusion, interrupt, output};

/// How many actions ahead messages are posted: they arrive while the action before their reader
/// runs.
const AHEAD: usize = 1;

/// Bytes that MPI takes of a process once ranks exchange messages, in addition to those at its
/// start: as measured, up to 1.6 MiB (Open MPI 4.1, two and four ranks of one computer).
const EXCHANGING: Bytes = Bytes(2 << 20);

/// Processes get at least this time to start, however short the deadline of messages is.
const START: Duration = Duration::from_secs(10);

/// Trains as one process of a job, and reports.
pub fn train(arguments: &Arguments, way: Way) -> Result<ExitCode> {
    process::one_heap();
    // Threads that start from here on inherit how signals are treated.
    interrupt::listen();
    let before = process::resident().unwrap_or(Bytes::ZERO);
    let patience = patience(arguments.ranks.peer_deadline).max(START);
    let job = Job::begin(way.ranks(), patience, |cause| note!("error: {cause}"))?;
    let beside = process::resident().unwrap_or(Bytes::ZERO).saturating_sub(before);
    let beside = beside + EXCHANGING;
    let Some(link) = job.link() else {
        note!(
            "note: {} of {} is not needed by {way}, and waits until the others are done",
            job.rank(),
            job.ranks()
        );
        let Ended { failure, codes } = job.end(0);
        let ran = failure.map_or(Ok(ExitCode::SUCCESS), |failure| Err(failure.into()));
        return Ok(of_the_cause(conclusion::conclude(ran, arguments.json), &codes));
    };
    let ran = ranked(arguments, way, link, job.first_nearby(), beside).map_err(|error| {
        // The others need not know what is alive at a node.
        link.abort(error.to_string().lines().next().unwrap_or_default());
        error.context(job.rank().to_string())
    });
    // All of them speak before one of them ends, after which `mpirun` ends the others.
    let code = conclusion::conclude(ran, arguments.json);
    let Ended { codes, .. } = job.end(code.into());
    Ok(of_the_cause(code, &codes))
}

/// The exit code of a process; if it only knows of another one's failure, that one's. So `mpirun`,
/// which passes some process's code on, passes that of the cause on.
fn of_the_cause(own: ExitCode, all: &[u8]) -> ExitCode {
    let says_why = |code: &&u8| **code != 0 && **code != Exit::OtherRank as u8;
    match all.iter().find(says_why).filter(|_| own == ExitCode::from(Exit::OtherRank)) {
        Some(&cause) => ExitCode::from(cause),
        None => own,
    }
}

/// Trains as one rank.
fn ranked(
    arguments: &Arguments,
    way: Way,
    link: &MpiLink,
    first_nearby: u32,
    beside: Bytes,
) -> Result<ExitCode> {
    let leads = link.rank() == RankId::from_u32(0);
    let budget: Budget = arguments.budget.parse()?;
    let (step, data) = open(arguments)?;
    let step = arguments.batches.split_step(step)?;
    distinct(arguments, &step)?;
    if leads {
        for path in [&arguments.save, &arguments.trace].into_iter().flatten() {
            output::writable(path)?;
        }
    }
    let begins = begins(arguments, &step)?;
    let greeting = Greeting::new(arguments, (&step, &data), &begins, first_nearby, beside);
    let agreed = greeting.exchange(link)?;
    let run = |share: &Share, figures, data| {
        process::settle_heap();
        rank::run(
            arguments,
            (share, figures),
            data,
            Arc::new(link.clone()),
            (begins.seed, Resident::before_steps()),
        )
    };
    if !leads {
        let (share, routes, deadline) = assignment::hear(link, &step)?;
        link.expects(routes, deadline)?;
        return run(&share, None, data);
    }
    let chosen = choose(&Asked {
        arguments,
        step: &step,
        data: &data,
        budget,
        way,
        threads: agreed.threads,
        ahead: AHEAD,
        beside: agreed.beside,
        seed: begins.seed,
    })?;
    let deadline = chosen.deadline(arguments.ranks.peer_deadline);
    assignment::tell(link, &step, &chosen, deadline)?;
    // What the others run takes no memory here.
    let (shares, routes, figures) = chosen.divide();
    let (_, share) = shares.into_iter().next().context("there is a first rank")?;
    link.expects(routes, deadline)?;
    if !arguments.json {
        announce(&step, &data, &figures)
            .and_then(|()| announce_saving(arguments.save.as_deref()))
            .context("no step was run, and nothing was saved")?;
    }
    run(&share, Some(&figures), data)
}
