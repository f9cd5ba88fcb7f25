//! The run of one rank. Invariant: what all ranks decide alike they decide from what all of them
//! were told; the first one, which knows what was chosen, speaks for all.

use std::sync::Arc;

use tightfit::exit::Exit;
use tightfit_engine::transport::Link;
use tightfit_engine::{Dataset, Evaluation, FastestStep, Session, weights};

use super::figures::Figures;
use super::report::Outcome;
use super::share::Share;
use super::{Transport, trace};
use crate::exit_code::ExitCode;
use crate::failure::{Context, Result};
use crate::train::ending::{Ending, said};
use crate::train::placement::Placed;
use crate::train::resident::Resident;
use crate::train::run::Course;
use crate::train::{Arguments, run};
use crate::{conclusion, interrupt};

/// Steps, evaluates, saves and reports, together with the other ranks.
pub fn run(
    arguments: &Arguments,
    (share, figures): (&Share, Option<&Figures>),
    mut data: Dataset,
    link: Arc<dyn Link>,
    (seed, resident): (u64, Resident),
) -> Result<ExitCode> {
    let mut session = share.session(link, seed)?;
    let step = &share.step;
    resume(arguments, &mut session, &step.name)?;
    let signal = signal_of_any(&session)?;
    if signal != 0 {
        let code = interrupt::code_of(signal);
        return Ok(match session.leads() {
            true => conclusion::interrupted_at_once(code, arguments.json),
            false => code,
        });
    }
    let begun = session.next_step;
    let mut fastest = arguments.trace.as_ref().map(|_| FastestStep::default());
    let mut placed = Placed::default();
    let also = run::Also { fastest: fastest.as_mut(), replan: None, placed: &mut placed };
    let mut course = run::run(arguments, &mut session, &mut data, also)?;
    let stepped = session.next_step > begun;
    let is_over = session.any(!matches!(course.ending, Ending::InOrder))?;
    let signal = signal_of_any(&session)?;
    let is_interrupted = signal != 0;
    let evaluation = match is_over || is_interrupted {
        true => None,
        false => evaluate(arguments, &mut session, &mut data, stepped, &mut course)?,
    };
    // All ranks have the same losses.
    let is_good = match course.ending {
        Ending::NotFinite(_) => false,
        Ending::Failed(_) => stepped,
        Ending::InOrder => stepped || !(is_over || is_interrupted),
    };
    let path = arguments.save.as_deref().filter(|_| is_good);
    if let Some(path) = path {
        let lost = || format!("the weights after step {} could not be saved", session.next_step);
        weights::save(path, &session, &step.name).with_context(lost)?;
    }
    let done = session.next_step;
    let rest = || -> Result<()> {
        let processes = processes(&session, arguments.ranks.transport, resident.now())?;
        if let (Some(path), Some(fastest)) = (&arguments.trace, &fastest) {
            trace::write(path, &session, share, fastest)?;
        }
        if let Ending::Failed(error) = course.ending {
            return Err(error);
        }
        // What is written from here on may take the memory that the slab held.
        session.release();
        if let Some(figures) = figures {
            let outcome = Outcome {
                figures,
                measured: &course.measured,
                loss: course.loss,
                evaluation,
                processes,
                saved: path,
                steps: done,
                seed: session.seed,
                interrupted: is_interrupted,
                unsaved: !is_good,
                not_finite: course.not_finite,
            };
            match arguments.json {
                true => crate::output::answer(outcome.json())?,
                false => outcome.show()?,
            }
        }
        match course.ending {
            Ending::NotFinite(error) => Err(error.into()),
            Ending::InOrder | Ending::Failed(_) => Ok(crate::output::flush()?),
        }
    };
    rest().map_err(|error| match error.exit() == Exit::NotFinite {
        true => error,
        false => error.context(said(path, done)),
    })?;
    Ok(interrupt::code_of(signal))
}

/// Loads the weights from which the run goes on.
fn resume(arguments: &Arguments, session: &mut Session, step: &str) -> Result<()> {
    let Some(path) = &arguments.resume else { return Ok(()) };
    weights::load(path, session, step)?;
    if session.leads() && !arguments.json {
        say!("resuming after {} steps from {}", session.next_step, path.display())?;
    }
    Ok(())
}

/// The last evaluation; the run ends at a loss that is not finite.
fn evaluate(
    arguments: &Arguments,
    session: &mut Session,
    data: &mut Dataset,
    stepped: bool,
    course: &mut Course,
) -> Result<Option<Evaluation>> {
    let evaluation = crate::train::evaluation(arguments, session, data, stepped)?;
    if let Some(Evaluation { loss, .. }) = evaluation
        && !loss.is_finite()
        && !arguments.keep_going
    {
        course.ending = run::not_finite_at(arguments, session.next_step, run::VALIDATION, loss);
    }
    Ok(evaluation)
}

/// The signal that asked any rank to end; zero if none did.
fn signal_of_any(session: &Session) -> Result<i32> {
    // A batch system may ask only the processes of one computer.
    Ok(session.largest(interrupt::signal().into())? as i32)
}

/// Most resident bytes of each process.
fn processes(session: &Session, transport: Transport, own: Resident) -> Result<Vec<Resident>> {
    if transport == Transport::Thread {
        return Ok(vec![own]);
    }
    let all = session.gather(&serde_json::to_vec(&own)?)?;
    Ok(all.iter().map(|said| serde_json::from_slice(said)).collect::<Result<_, _>>()?)
}
