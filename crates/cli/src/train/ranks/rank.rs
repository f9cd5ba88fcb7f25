//! The run of one rank. Invariant: what all ranks decide alike they decide from what all of them
//! were told; the first one, which knows what was chosen, speaks for all.

use std::path::Path;
use std::sync::Arc;

use tightfit::exit::Exit;
use tightfit_engine::transport::Link;
use tightfit_engine::{Dataset, Evaluation, Session, weights};

use super::figures::Figures;
use super::report::Outcome;
use super::share::Share;
use super::{Transport, trace};
use crate::exit_code::ExitCode;
use crate::failure::{Context, Result};
use crate::train::ending::{Ending, said};
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
    let mut course = run::run(arguments, &mut session, &mut data, None)?;
    let is_over = session.any(!matches!(course.ending, Ending::InOrder))?;
    let signal = signal_of_any(&session)?;
    let is_interrupted = signal != 0;
    let evaluation = match is_over || is_interrupted {
        true => None,
        false => evaluate(arguments, &mut session, &mut data, &mut course)?,
    };
    // All ranks have the same losses.
    let is_good = match course.ending {
        Ending::NotFinite(_) => false,
        Ending::Failed(_) => course.stepped,
        Ending::InOrder => course.stepped || !(is_over || is_interrupted),
    };
    let saved = arguments.save.as_deref().filter(|_| is_good);
    let done = session.next_step;
    if let Some(path) = saved {
        let lost = || format!("the weights after step {done} could not be saved");
        weights::save(path, &session, &step.name).with_context(lost)?;
    }
    let ended = Ended { session, course, evaluation, resident, saved, is_good, is_interrupted };
    ended.answer(arguments, share, figures).map_err(|error| match error.exit() {
        Exit::NotFinite => error,
        _ => error.context(said(saved, done)),
    })?;
    Ok(interrupt::code_of(signal))
}

/// A run whose weights are saved, if they are to be.
struct Ended<'a> {
    session: Session,
    course: Course,
    evaluation: Option<Evaluation>,
    resident: Resident,
    /// The file that has the weights.
    saved: Option<&'a Path>,
    /// The weights are good.
    is_good: bool,
    is_interrupted: bool,
}

impl Ended<'_> {
    /// Writes the trace; the first rank, which has the figures, answers.
    fn answer(
        mut self,
        arguments: &Arguments,
        share: &Share,
        figures: Option<&Figures>,
    ) -> Result<()> {
        let processes = processes(&self.session, arguments.ranks.transport, self.resident.now())?;
        if let (Some(path), Some(fastest)) = (&arguments.trace, &self.course.fastest) {
            trace::write(path, &self.session, share, fastest)?;
        }
        if let Ending::Failed(error) = self.course.ending {
            return Err(error);
        }
        // What is written from here on may take the memory that the slab held.
        self.session.release();
        if let Some(figures) = figures {
            let outcome = Outcome {
                figures,
                measured: &self.course.measured,
                loss: self.course.loss,
                evaluation: self.evaluation,
                processes,
                saved: self.saved,
                steps: self.session.next_step,
                seed: self.session.seed,
                interrupted: self.is_interrupted,
                unsaved: !self.is_good,
                not_finite: self.course.not_finite,
            };
            match arguments.json {
                true => crate::output::answer(outcome.json())?,
                false => outcome.show()?,
            }
        }
        match self.course.ending {
            Ending::NotFinite(error) => Err(error.into()),
            Ending::InOrder | Ending::Failed(_) => Ok(crate::output::flush()?),
        }
    }
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
    course: &mut Course,
) -> Result<Option<Evaluation>> {
    let evaluation = crate::train::evaluation(arguments, session, data, course.stepped)?;
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
