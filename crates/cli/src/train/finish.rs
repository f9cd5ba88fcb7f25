//! The end of a run on one device: the last evaluation, the weights, the answer. Invariant:
//! whatever fails, weights that are good are saved first, and what is said of a failure says
//! whether they were.

use tightfit::exit::Exit;
use tightfit::machine::Machine;
use tightfit::split::Parts;
use tightfit_engine::{Dataset, Evaluation, FittedStep, Session, Step, weights};

use super::ending::{Ending, said};
use super::replan::Refined;
use super::resident::Resident;
use super::run::{self, Course};
use super::{Arguments, dump, evaluation, profile, report, trace};
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::{calls, interrupt, output};

/// Number of counted steps from which the next prediction learns.
const ENOUGH: usize = 3;

/// A run whose steps are over.
pub struct Finish<'a> {
    pub arguments: &'a Arguments,
    pub step: &'a Step,
    /// In which parts it is computed.
    pub parts: Parts,
    pub machine: &'a Machine,
    pub planned: &'a FittedStep,
    pub session: Session,
    pub data: Dataset,
    pub course: Course,
    pub resident: Resident,
}

impl Finish<'_> {
    /// Evaluates, saves and answers.
    pub fn finish(mut self) -> Result<ExitCode> {
        let arguments = self.arguments;
        let evaluates = matches!(self.course.ending, Ending::InOrder);
        // The last update is judged before it replaces a save, unless someone waits for the end.
        let judged = (!interrupt::raised()).then(|| self.judge(evaluates));
        if let Some(Ok(Some(Evaluation { loss, .. }))) = judged
            && !loss.is_finite()
            && !arguments.keep_going
        {
            let step = self.session.next_step;
            self.course.ending = run::not_finite_at(arguments, step, run::VALIDATION, loss);
        }
        // Whatever failed, or fails from here on, the weights are safe.
        let is_good = match self.course.ending {
            // A signal may have come right before the first step.
            Ending::InOrder => self.course.stepped || !interrupt::raised(),
            Ending::NotFinite(_) => false,
            Ending::Failed(_) => self.course.stepped,
        };
        let done = self.session.next_step;
        let saved = arguments.save.as_deref().filter(|_| is_good);
        if let Some(path) = saved
            && let Err(error) = weights::save(path, &self.session, &self.step.name)
        {
            // The first failure says why.
            let first = match (self.course.ending, judged) {
                (Ending::Failed(first), _) | (_, Some(Err(first))) => first,
                _ => error.into(),
            };
            return Err(
                first.context(format_args!("the weights after step {done} could not be saved"))
            );
        }
        let judged = judged.unwrap_or_else(|| self.judge(evaluates));
        match judged.and_then(|evaluation| self.answer(evaluation, is_good)) {
            Ok(()) => Ok(interrupt::code()),
            Err(error) if error.exit() == Exit::NotFinite => Err(error),
            Err(error) => Err(error.context(said(saved, done))),
        }
    }

    fn judge(&mut self, evaluates: bool) -> Result<Option<Evaluation>> {
        let Finish { arguments, session, data, course: Course { stepped, .. }, .. } = self;
        // This comes before the evaluation, which overwrites the gradients.
        if let Some(path) = &arguments.dump {
            dump::write(path, self.step, session, data, *stepped)?;
        }
        // A user who interrupts does not wait for an evaluation.
        match evaluates && !interrupt::raised() {
            true => evaluation(arguments, session, data, *stepped),
            false => Ok(None),
        }
    }

    /// Writes the trace, remembers what was measured, and answers.
    fn answer(mut self, evaluation: Option<Evaluation>, is_good: bool) -> Result<()> {
        let Finish { arguments, step, machine, planned, .. } = self;
        let resident = self.resident.now();
        resident.note_excess("the process", planned.training.budget);
        // What is written from here on may take the memory that the slab held.
        self.session.release();
        let measured = &self.course.measured;
        if let (Some(path), Some(fastest)) = (&arguments.trace, &self.course.fastest) {
            trace::write(path, &step.training, &planned.training.fitted, machine, fastest)?;
        }
        let before = self.course.refined.iter().filter_map(Refined::measured_before);
        for measured in before.chain([measured]) {
            if !arguments.costs.roofline && measured.steps.len() >= ENOUGH {
                let seconds = measured.call_seconds(&step.training, machine.threads);
                calls::remember(machine, seconds);
            }
        }
        if let Ending::Failed(error) = self.course.ending {
            return Err(error);
        }
        let profile =
            arguments.profile.then(|| profile::rows(&step.training, &planned.profile, measured));
        let outcome = report::Outcome {
            planned,
            parts: self.parts,
            placed: &self.course.placed,
            session: &self.session,
            measured,
            refined: self.course.refined.as_ref(),
            profile,
            loss: self.course.loss,
            evaluation,
            resident,
            saved: arguments.save.as_deref().filter(|_| is_good),
            interrupted: interrupt::raised(),
            ended_early: !is_good,
            not_finite: self.course.not_finite,
        };
        match arguments.json {
            true => output::answer(outcome.json())?,
            false => outcome.show()?,
        }
        match self.course.ending {
            Ending::NotFinite(error) => Err(error.into()),
            Ending::InOrder | Ending::Failed(_) => Ok(output::flush()?),
        }
    }
}
