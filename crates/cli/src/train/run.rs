//! The steps of a run, one after the other. Invariant: a step that has begun ends, and whatever
//! keeps others from following is left to the caller, which has weights to save; the first one is
//! not measured if others follow, since it also faults the slab's pages in, and neither is the
//! first one after another plan was looked for. On several ranks all of them run the same number of
//! steps, and the first rank speaks.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tightfit_engine::{Dataset, FastestStep, Session, SessionError, StepError, Timings};

use super::Arguments;
use super::ending::{Ending, LossNotFinite, NotFinite, unsaved};
use super::placement::{Moved, Placed};
use super::replan::{Refined, Replan};
use super::report::describe;
use crate::failure::{Failure, Result};
use crate::interrupt;

/// The result of the steps.
pub struct Course {
    /// Their measured times.
    pub measured: Timings,
    /// The loss of the last one.
    pub loss: Option<f32>,
    /// Why they ended.
    pub ending: Ending,
    /// Their losses that were not finite.
    pub not_finite: NotFinite,
    /// At least one step was done.
    pub stepped: bool,
    /// The calls of the fastest one, if a trace is to be written.
    pub fastest: Option<FastestStep>,
    /// The outcome of planning once more, if that was to be done.
    pub refined: Option<Refined>,
    /// What was moved, if tensors are placed during the run.
    pub placed: Placed,
}

/// Runs the steps, shows how they go, and evaluates when it is due; `replan` looks for another plan
/// once. Ends early if asked to, at a loss that is not finite, and when standard output accepts no
/// more.
pub fn run(
    arguments: &Arguments,
    session: &mut Session,
    data: &mut Dataset,
    replan: Option<Replan<'_>>,
) -> Result<Course> {
    let leads = session.leads();
    let begun = session.next_step;
    let bar = progress_bar(arguments, leads);
    let course = Course {
        measured: Timings::default(),
        loss: None,
        ending: Ending::InOrder,
        not_finite: NotFinite::default(),
        stepped: false,
        fastest: arguments.trace.as_ref().map(|_| FastestStep::default()),
        refined: None,
        placed: Placed::default(),
    };
    let mut steps = Steps { arguments, session, data, replan, leads, bar, course, is_cold: true };
    for done in 0..arguments.steps {
        let ends = interrupt::raised() || steps.has_ended();
        if steps.any(ends)? || !steps.replan(done)? || !steps.step(done)? {
            break;
        }
        let ends = steps.has_ended();
        if steps.any(ends)? || is_due(arguments, done + 1) && !steps.evaluate()? {
            break;
        }
    }
    let Steps { session, replan, bar, course, .. } = steps;
    // A run that ended early stays where it was.
    bar.abandon();
    if let NotFinite { first: Some(first), count } = course.not_finite
        && arguments.keep_going
        && leads
    {
        note!(
            "{count} losses of this run were NaN or infinite, the first one that of step {first}"
        );
    }
    let stepped = session.next_step > begun;
    Ok(Course { stepped, refined: replan.map(Replan::refined), ..course })
}

/// Steps that are being done.
struct Steps<'a, 'b> {
    arguments: &'a Arguments,
    session: &'a mut Session,
    data: &'a mut Dataset,
    /// Another plan is looked for.
    replan: Option<Replan<'b>>,
    /// This rank speaks for all.
    leads: bool,
    bar: ProgressBar,
    course: Course,
    /// The next step faults the slab's pages in, as the first one does.
    is_cold: bool,
}

impl Steps<'_, '_> {
    fn has_ended(&self) -> bool {
        !matches!(self.course.ending, Ending::InOrder)
    }

    /// Whether any rank ends.
    fn any(&mut self, ends: bool) -> Result<bool> {
        self.session.any(ends).map_err(|error| lost(self.arguments, error))
    }

    /// Ends the run between two steps.
    fn fail(&mut self, error: impl Into<Failure>) {
        self.course.ending = Ending::Failed(error.into());
    }

    /// Looks for another plan if that is due; whether the run goes on.
    fn replan(&mut self, done: u32) -> Result<bool> {
        let Some(replan) = self.replan.as_mut().filter(|replan| replan.is_due(done)) else {
            return Ok(true);
        };
        self.is_cold = true;
        let Course { measured, fastest, .. } = &mut self.course;
        match self.bar.suspend(|| replan.refine(self.session, measured)) {
            Ok(false) => {}
            Ok(true) => fastest.iter_mut().for_each(|fastest| *fastest = FastestStep::default()),
            // Parameters and state are not all in their places.
            Err(error) if self.session.has_failed() => return Err(error),
            Err(error) => {
                self.fail(error);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does one step and shows it; whether the run goes on.
    fn step(&mut self, done: u32) -> Result<bool> {
        let arguments = self.arguments;
        let start = Instant::now();
        let is_last = done + 1 == arguments.steps;
        let Course { measured, fastest, .. } = &mut self.course;
        let counts = !std::mem::take(&mut self.is_cold) || is_last && measured.steps.is_empty();
        let stepped = self.session.step_timed(self.data, &mut |executed| {
            if counts {
                measured.add(&executed);
            }
            if let Some(fastest) = fastest {
                fastest.add(&executed);
            }
        });
        let loss = match stepped {
            Ok(loss) => loss,
            Err(error @ (SessionError::NoMoreSteps | SessionError::Data(_))) => {
                self.fail(error);
                return Ok(false);
            }
            // No rank has begun the step.
            Err(error @ SessionError::OtherRank(_)) if !self.session.has_failed() => {
                self.fail(error);
                return Ok(false);
            }
            // It may have updated some of the weights.
            Err(error @ SessionError::Step { error: StepError::Tier(_), .. }) => {
                return Err(lost(arguments, error));
            }
            Err(error) if self.session.has_failed() => return Err(lost(arguments, error)),
            Err(error) => return Err(error.into()),
        };
        self.course.loss = Some(loss);
        let seconds = start.elapsed().as_secs_f64();
        if let Some(fastest) = &mut self.course.fastest {
            let longest = self.session.largest(seconds).map_err(|error| lost(arguments, error))?;
            fastest.end(counts, longest);
        }
        if counts {
            self.course.measured.end(seconds);
        }
        self.show(loss, seconds);
        self.judge(loss);
        Ok(true)
    }

    /// Shows a step.
    fn show(&mut self, loss: f32, seconds: f64) {
        let number = self.session.next_step;
        let moved = self.moved();
        let said = if !self.leads {
            Ok(())
        } else if self.arguments.json {
            let mut line = json!({ "step": number, "loss": loss, "seconds": seconds });
            if let Some(moved) = &moved {
                line["moved"] = moved.json();
            }
            say!("{line}")
        } else {
            match moved.filter(|moved| moved.is_new) {
                Some(moved) => self.bar.suspend(|| say!("step {number}: {moved}")),
                None => Ok(()),
            }
        };
        if let Err(error) = said {
            self.fail(error);
        }
        self.bar.set_message(format!(
            "loss {loss:.4}  {:.0} {}/s",
            self.session.units_per_step() as f64 / seconds,
            self.data.unit()
        ));
        self.bar.inc(1);
    }

    /// Ends the run at a loss that is not finite, unless it is to go on.
    fn judge(&mut self, loss: f32) {
        if loss.is_finite() {
            return;
        }
        let number = self.session.next_step;
        self.course.not_finite.add(number);
        if !self.arguments.keep_going {
            self.course.ending = not_finite_at(self.arguments, number, "loss", f64::from(loss));
        } else if self.course.not_finite.count == 1 && self.leads {
            self.bar.suspend(|| note!("step {number}: the loss is {loss}; going on, as requested"));
        }
    }

    /// What was moved since the last time, if tensors are placed during the run.
    fn moved(&mut self) -> Option<Moved> {
        self.session.take_figures().and_then(|figures| self.course.placed.add(&figures))
    }

    /// Evaluates and shows that; whether the run goes on.
    fn evaluate(&mut self) -> Result<bool> {
        let arguments = self.arguments;
        let number = self.session.next_step;
        let evaluation = match self.session.evaluate(self.data, arguments.eval_batches) {
            Ok(evaluation) => evaluation,
            Err(error) if self.session.has_failed() => return Err(lost(arguments, error)),
            Err(error) => {
                self.fail(error);
                return Ok(false);
            }
        };
        let moved = self.moved();
        let Some(evaluation) = evaluation else { return Ok(true) };
        if !evaluation.loss.is_finite() && !arguments.keep_going {
            self.course.ending = not_finite_at(arguments, number, VALIDATION, evaluation.loss);
            return Ok(false);
        }
        let said = if arguments.json {
            let mut line = json!({
                "step": number,
                "validation_loss": evaluation.loss,
                "validation_accuracy": evaluation.accuracy,
            });
            if let Some(moved) = &moved {
                line["moved"] = moved.json();
            }
            line.to_string()
        } else {
            let moved = moved.filter(|moved| moved.is_new);
            let moved = moved.map_or(String::new(), |moved| format!("; {moved}"));
            format!("step {number}: validation {}{moved}", describe(&evaluation))
        };
        if self.leads
            && let Err(error) = self.bar.suspend(|| say!("{said}"))
        {
            self.fail(error);
        }
        Ok(true)
    }
}

/// The error for a failure in the middle of a step.
fn lost(arguments: &Arguments, error: SessionError) -> Failure {
    Failure::from(error).context(unsaved(arguments.save.as_deref()))
}

/// The name of the validation data's loss, in sentences.
pub const VALIDATION: &str = "validation loss";

/// The end at a loss that is not finite.
pub fn not_finite_at(arguments: &Arguments, step: u32, what: &'static str, loss: f64) -> Ending {
    let save = arguments.save.clone();
    Ending::NotFinite(LossNotFinite { step, what, loss, save })
}

/// Whether an evaluation follows this step; the one at the end of the run comes in any case.
fn is_due(arguments: &Arguments, done: u32) -> bool {
    let every = arguments.eval_every.filter(|&every| every > 0 && arguments.eval_batches > 0);
    every.is_some_and(|every| done.is_multiple_of(every) && done < arguments.steps)
}

fn progress_bar(arguments: &Arguments, leads: bool) -> ProgressBar {
    let target = if arguments.json || !leads {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(Some(u64::from(arguments.steps)), target);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed} (eta {eta})")
    {
        bar.set_style(style);
    }
    if std::io::stderr().is_terminal() && leads {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}
