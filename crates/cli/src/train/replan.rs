//! `--replan`: a run that plans once more from what it has measured. Invariant: it goes on with
//! another plan only if that is predicted to be faster than the one that ran, both by what was
//! measured; no bit of what it computes depends on it.

use serde_json::{Value, json};
use tightfit::id::{DEVICE, LaneId};
use tightfit::profile::Profile;
use tightfit::schedule::Schedule;
use tightfit::timeline::Timeline;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{
    FitTask, FittedStep, Replanned, Session, SessionError, Step, TierFolder, Timings, process,
    replan,
};

use super::{Arguments, write_plan};
use crate::failure::Result;
use crate::figures::Moves;
use crate::{interrupt, output};

/// The inputs from which plans are made.
#[derive(Clone, Copy)]
pub struct Plans<'a> {
    /// The run's arguments.
    pub arguments: &'a Arguments,
    /// The step.
    pub step: &'a Step,
    /// The task of the first plan.
    pub task: &'a FitTask<'a>,
    /// The folder in which the tier is created.
    pub tier: Option<&'a TierFolder>,
}

/// A plan that is to be made once more, and the outcome.
pub struct Replan<'a> {
    /// After this many steps of this run.
    after: u32,
    plans: Plans<'a>,
    planned: &'a mut FittedStep,
    refined: Refined,
}

/// The outcome of planning once more.
pub enum Refined {
    /// The run ended before it was due.
    NotYet,
    /// The run stays with its plan.
    Kept {
        /// Why.
        why: String,
        /// After this many steps.
        after: u32,
        /// The figures known then.
        known: Option<Box<Known>>,
    },
    /// The run goes on with another plan.
    Taken {
        /// After this many steps.
        after: u32,
        /// The figures known then.
        known: Box<Known>,
        /// The other plan's predicted seconds, by what was measured.
        predicted: Seconds,
        /// The figures of that plan.
        figures: Figures,
    },
}

/// The figures known of the plan that ran when another one was looked for.
pub struct Known {
    /// The steps that ran with it.
    measured: Timings,
    /// Its predicted seconds, by estimates.
    estimated: Seconds,
    /// The same, from measured times.
    predicted: Seconds,
    /// The figures of the plan.
    figures: Figures,
    /// The rate of each lane: whether it leads out, as estimated, as measured.
    rates: Vec<(bool, f64, f64)>,
}

/// Counts of what a plan does in a step.
#[derive(Clone, Copy)]
pub struct Figures {
    recomputed: usize,
    moves: Moves,
}

impl Figures {
    fn of(schedule: &Schedule, timeline: &Timeline) -> Figures {
        Figures { recomputed: schedule.recomputed(), moves: Moves::of(schedule, timeline) }
    }

    fn json(&self) -> Value {
        let mut result = json!({ "recomputed_nodes": self.recomputed });
        self.moves.add_to(&mut result);
        result
    }
}

impl<'a> Replan<'a> {
    /// To be made after this many steps of this run.
    pub fn new(after: u32, plans: Plans<'a>, planned: &'a mut FittedStep) -> Replan<'a> {
        Replan { after, plans, planned, refined: Refined::NotYet }
    }

    /// Whether it is due, with this many steps done and another one to come.
    pub fn is_due(&self, done: u32) -> bool {
        done == self.after
    }

    /// The outcome.
    pub fn refined(self) -> Refined {
        self.refined
    }

    /// Plans once more, and says whether the run goes on with another plan; if so, measuring begins
    /// again.
    ///
    /// # Errors
    /// If the tier failed, or the plan cannot be written.
    pub fn refine(&mut self, session: &mut Session, measured: &mut Timings) -> Result<bool> {
        let Plans { arguments, step, task, tier } = self.plans;
        let after = self.after;
        let kept = |why: String, known| Refined::Kept { why, after, known };
        let aside = match session.set_aside(tier) {
            Ok(aside) => aside,
            Err(error) => {
                self.refined = kept(refused(session, error)?, None);
                return Ok(false);
            }
        };
        process::give_back();
        let Replanned { profile, before, found } = match replan(step, self.planned, measured, task)
        {
            Ok(replanned) => replanned,
            Err(error) => {
                session.put_back(&aside)?;
                return Err(error.into());
            }
        };
        process::settle_heap();
        let FittedStep { training, profile: estimated, .. } = &*self.planned;
        let figures = Figures::of(training.fitted.schedule(), &before);
        let mut known = Box::new(Known {
            measured: Timings::default(),
            estimated: training.fitted.timeline().seconds,
            predicted: before.seconds,
            figures,
            rates: rates(estimated, &profile),
        });
        let found = match found {
            // A search that was interrupted has not found what it would have.
            Ok(_) if interrupt::raised() => Err("interrupted".to_string()),
            Ok(found) => Ok(found),
            Err(why) => Err(why.to_string()),
        };
        let taken = found.and_then(|found| {
            let schedules = (found.training.fitted.checked(), found.evaluation.as_ref());
            match session.take_up(step, schedules, tier, &aside) {
                Ok(()) => Ok(Ok(found)),
                Err(error) => refused(session, error).map_or_else(|fatal| Ok(Err(fatal)), Err),
            }
        });
        let found = match taken {
            Ok(found) => found?,
            Err(why) => {
                session.put_back(&aside)?;
                process::settle_heap();
                self.refined = kept(why, Some(known));
                return Ok(false);
            }
        };
        *self.planned = found;
        process::settle_heap();
        known.measured = std::mem::take(measured);
        let fitted = &self.planned.training.fitted;
        let timeline = fitted.timeline();
        let (predicted, figures) = (timeline.seconds, Figures::of(fitted.schedule(), timeline));
        self.refined = Refined::Taken { after, known, predicted, figures };
        write_plan(arguments, step, self.planned)?;
        Ok(true)
    }
}

/// Why nothing was changed, if the run can go on; else the error that ends it.
fn refused(session: &Session, error: SessionError) -> Result<String> {
    if session.has_failed() { Err(error.into()) } else { Ok(error.to_string()) }
}

fn rates(estimated: &Profile, measured: &Profile) -> Vec<(bool, f64, f64)> {
    let rate = |profile: &Profile, lane: LaneId| profile.hierarchy.lanes[lane].link.bandwidth;
    let lanes = estimated.hierarchy.lanes.iter();
    lanes.map(|(id, lane)| (lane.from == DEVICE, rate(estimated, id), rate(measured, id))).collect()
}

impl Refined {
    /// The steps before the run went on with another plan.
    pub fn measured_before(&self) -> Option<&Timings> {
        match self {
            Refined::Taken { known, .. } => Some(&known.measured),
            Refined::NotYet | Refined::Kept { .. } => None,
        }
    }

    /// For programs; `steps` are those of the plan that ran to the end.
    pub fn json(&self, steps: &Timings) -> Value {
        let rates = |known: &Known| {
            let rate = |&(is_out, estimated, measured): &(bool, f64, f64)| {
                let lane = if is_out { "out" } else { "back" };
                json!({
                    "lane": lane,
                    "estimated_bytes_per_second": estimated,
                    "measured_bytes_per_second": measured,
                })
            };
            known.rates.iter().map(rate).collect::<Vec<_>>()
        };
        match self {
            Refined::NotYet => json!({ "after_steps": null, "taken": false,
                "why_not": "the run ended before" }),
            Refined::Kept { why, after, known: None } => {
                json!({ "after_steps": after, "taken": false, "why_not": why })
            }
            Refined::Kept { why, after, known: Some(known) } => json!({
                "after_steps": after,
                "taken": false,
                "why_not": why,
                "estimated_seconds": known.estimated,
                "before": known.json(steps),
                "rates": rates(known),
            }),
            Refined::Taken { after, known, predicted, figures } => json!({
                "after_steps": after,
                "taken": true,
                "why_not": null,
                "estimated_seconds": known.estimated,
                "before": known.json(&known.measured),
                "after": side(*predicted, steps, figures),
                "rates": rates(known),
            }),
        }
    }

    /// For people.
    pub fn show(&self, steps: &Timings) -> output::Printed {
        match self {
            Refined::NotYet => {
                row!("planned again", "no", "the run ended before")
            }
            Refined::Kept { why, after, known } => {
                row!("planned again", "plan kept", "after {after} steps: {why}")?;
                known.iter().try_for_each(|known| {
                    known.show_rates()?;
                    row!(
                        "",
                        output::milliseconds(known.predicted),
                        "a step, by what was measured; {} by estimates",
                        output::milliseconds(known.estimated)
                    )
                })
            }
            Refined::Taken { after, known, predicted, figures } => {
                row!(
                    "planned again",
                    "faster plan",
                    "after {after} steps, from what was measured"
                )?;
                known.show_rates()?;
                let median = |steps: &Timings| {
                    steps.median().map_or("not".to_string(), |x| output::milliseconds(Seconds(x)))
                };
                for (name, seconds, measured, does) in [
                    ("before", known.predicted, &known.measured, &known.figures),
                    ("since", *predicted, steps, figures),
                ] {
                    let moves = does.moves.words().map_or(String::new(), |it| format!("; {it}"));
                    row!(
                        "",
                        output::milliseconds(seconds),
                        "a step {name}, by what was measured; {} measured; \
                         {} calls run again{moves}",
                        median(measured),
                        does.recomputed
                    )?;
                }
                Ok(())
            }
        }
    }
}

impl Known {
    fn json(&self, steps: &Timings) -> Value {
        side(self.predicted, steps, &self.figures)
    }

    fn show_rates(&self) -> output::Printed {
        self.rates.iter().try_for_each(|&(is_out, estimated, measured)| {
            let way = if is_out { "to the tier" } else { "from the tier" };
            row!(
                "",
                Bytes(measured as u64),
                "a second {way}, {} estimated",
                Bytes(estimated as u64)
            )
        })
    }
}

/// A plan's predicted and measured seconds, and what it does.
fn side(predicted: Seconds, steps: &Timings, figures: &Figures) -> Value {
    let mut side = figures.json();
    side["predicted_step_seconds"] = json!(predicted);
    side["step_seconds"] = json!(steps.median());
    side
}
