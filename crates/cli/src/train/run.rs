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
use super::placement::Placed;
use super::replan::Replan;
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
}

/// What is done in addition to the steps.
pub struct Also<'a, 'b> {
    /// The calls of the fastest step are kept.
    pub fastest: Option<&'a mut FastestStep>,
    /// Another plan is looked for.
    pub replan: Option<&'a mut Replan<'b>>,
    /// What was moved is counted, if tensors are placed during the run.
    pub placed: &'a mut Placed,
}

/// Runs the steps, shows how they go, and evaluates when it is due; ends early if asked to, at a
/// loss that is not finite, and when standard output accepts no more.
pub fn run(
    arguments: &Arguments,
    session: &mut Session,
    data: &mut Dataset,
    also: Also<'_, '_>,
) -> Result<Course> {
    let Also { mut fastest, mut replan, placed } = also;
    let leads = session.leads();
    let bar = progress_bar(arguments, leads);
    let mut measured = Timings::default();
    let mut not_finite = NotFinite::default();
    let mut last = None;
    let mut ending = Ending::InOrder;
    // The first step also faults the slab's pages in.
    let mut is_cold = true;
    for done in 0..arguments.steps {
        let ends = interrupt::raised() || !matches!(ending, Ending::InOrder);
        if session.any(ends).map_err(|error| lost(arguments, error))? {
            break;
        }
        if let Some(replan) = replan.as_mut().filter(|replan| replan.is_due(done)) {
            is_cold = true;
            match bar.suspend(|| replan.refine(session, &mut measured)) {
                Ok(false) => {}
                Ok(true) => {
                    fastest.iter_mut().for_each(|fastest| **fastest = FastestStep::default());
                }
                // Parameters and state are not all in their places.
                Err(error) if session.has_failed() => return Err(error),
                Err(error) => {
                    ending = Ending::Failed(error);
                    break;
                }
            }
        }
        let start = Instant::now();
        let is_last = done + 1 == arguments.steps;
        let counts = !std::mem::take(&mut is_cold) || is_last && measured.steps.is_empty();
        let stepped = session.step_timed(data, &mut |executed| {
            if counts {
                measured.add(&executed);
            }
            if let Some(fastest) = &mut fastest {
                fastest.add(&executed);
            }
        });
        let loss = match stepped {
            Ok(loss) => loss,
            Err(error @ (SessionError::NoMoreSteps | SessionError::Data(_))) => {
                ending = Ending::Failed(error.into());
                break;
            }
            // No rank has begun the step.
            Err(error @ SessionError::OtherRank(_)) if !session.has_failed() => {
                ending = Ending::Failed(error.into());
                break;
            }
            // It may have updated some of the weights.
            Err(error @ SessionError::Step { error: StepError::Tier(_), .. }) => {
                return Err(lost(arguments, error));
            }
            Err(error) if session.has_failed() => return Err(lost(arguments, error)),
            Err(error) => return Err(error.into()),
        };
        last = Some(loss);
        let seconds = start.elapsed().as_secs_f64();
        if let Some(fastest) = &mut fastest {
            let longest = session.largest(seconds).map_err(|error| lost(arguments, error))?;
            fastest.end(counts, longest);
        }
        if counts {
            measured.end(seconds);
        }
        let number = session.next_step;
        let moved = session.take_figures().and_then(|figures| placed.add(&figures));
        let said = if !leads {
            Ok(())
        } else if arguments.json {
            let mut line = json!({ "step": number, "loss": loss, "seconds": seconds });
            if let Some(moved) = &moved {
                line["moved"] = moved.json();
            }
            say!("{line}")
        } else {
            match moved.filter(|moved| moved.is_new) {
                Some(moved) => bar.suspend(|| say!("step {number}: {moved}")),
                None => Ok(()),
            }
        };
        if let Err(error) = said {
            ending = Ending::Failed(error.into());
        }
        bar.set_message(format!(
            "loss {loss:.4}  {:.0} {}/s",
            session.units_per_step() as f64 / seconds,
            data.unit()
        ));
        bar.inc(1);
        if !loss.is_finite() {
            not_finite.add(number);
            if !arguments.keep_going {
                ending = not_finite_at(arguments, number, "loss", f64::from(loss));
            } else if not_finite.count == 1 && leads {
                bar.suspend(|| note!("step {number}: the loss is {loss}; going on, as requested"));
            }
        }
        let ends = !matches!(ending, Ending::InOrder);
        if session.any(ends).map_err(|error| lost(arguments, error))? {
            break;
        }
        if !is_due(arguments, done + 1) {
            continue;
        }
        let evaluation = match session.evaluate(data, arguments.eval_batches) {
            Ok(evaluation) => evaluation,
            Err(error) if session.has_failed() => return Err(lost(arguments, error)),
            Err(error) => {
                ending = Ending::Failed(error.into());
                break;
            }
        };
        let moved = session.take_figures().and_then(|figures| placed.add(&figures));
        if let Some(evaluation) = evaluation {
            if !evaluation.loss.is_finite() && !arguments.keep_going {
                ending = not_finite_at(arguments, number, VALIDATION, evaluation.loss);
                break;
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
            if leads && let Err(error) = bar.suspend(|| say!("{said}")) {
                ending = Ending::Failed(error.into());
            }
        }
    }
    // A run that ended early stays where it was.
    bar.abandon();
    if arguments.keep_going
        && leads
        && let Some(first) = not_finite.first
    {
        let NotFinite { count, .. } = not_finite;
        note!(
            "{count} losses of this run were NaN or infinite, the first one that of step {first}"
        );
    }
    Ok(Course { measured, loss: last, ending, not_finite })
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
