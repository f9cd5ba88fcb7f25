//! The result of a run. Invariant: the same figures as JSON and in words, and what was measured
//! stands next to what was predicted.

use std::path::Path;

use serde_json::{Value, json};
use tightfit::split::Parts;
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Evaluation, FittedGraph, FittedStep, Session, Timings};

use super::ending::NotFinite;
use super::placement::Placed;
use super::profile::{self, Row};
use super::replan::Refined;
use super::resident::Resident;
use crate::figures::overhead;
use crate::output;

/// A run that has ended.
pub struct Outcome<'a> {
    /// What ran.
    pub planned: &'a FittedStep,
    /// In which parts the step was computed.
    pub parts: Parts,
    /// What was moved, if tensors were placed during the run.
    pub placed: &'a Placed,
    /// Its slab, seed and number of steps.
    pub session: &'a Session,
    /// The measured times of its steps.
    pub measured: &'a Timings,
    /// The outcome of planning once more, if that was requested.
    pub refined: Option<&'a Refined>,
    /// Where the time of these steps went, if that was requested.
    pub profile: Option<Vec<Row<'a>>>,
    /// The loss of the last step.
    pub loss: Option<f32>,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
    /// Most resident bytes of the process, or of one that measured for it.
    pub resident: Resident,
    /// Where the weights were saved.
    pub saved: Option<&'a Path>,
    /// It was asked to end early.
    pub interrupted: bool,
    /// Its result is not to be kept.
    pub ended_early: bool,
    /// Losses that were not finite.
    pub not_finite: NotFinite,
}

impl Outcome<'_> {
    /// Predicted seconds of a step.
    fn predicted(&self) -> Seconds {
        self.planned.training.fitted.timeline().seconds
    }

    /// How much more the plan takes than the unplanned step, as predicted.
    fn predicted_overhead(&self) -> f64 {
        overhead(self.predicted(), self.planned.training.unplanned.timeline().seconds)
    }

    /// The same as measured; unknown in chunks, of which the unplanned step has none.
    fn measured_overhead(&self) -> Option<f64> {
        self.measured.overhead().filter(|_| self.parts == Parts::WHOLE)
    }

    /// A measured step as a multiple of the predicted one.
    fn ratio(&self) -> Option<f64> {
        self.measured.median().map(|median| median / self.predicted().0)
    }

    /// Bytes of the tier below the slab.
    fn tier(&self) -> Bytes {
        let schedule = self.planned.training.fitted.schedule();
        match &self.planned.region {
            Some(region) => region.whole().unwrap_or(Bytes::ZERO),
            None => schedule.below.values().copied().sum(),
        }
    }

    /// Bytes that leave the slab in a step, and those that return; in the last step, if tensors are
    /// placed during the run.
    fn moved(&self) -> [Bytes; 2] {
        match &self.planned.region {
            Some(_) => self.placed.moved(),
            None => self.planned.training.fitted.schedule().moved(),
        }
    }

    /// How long a step waits for the tier, as predicted; unknown if tensors are placed during the
    /// run.
    fn predicted_stall(&self) -> Option<Seconds> {
        let planned = self.planned.region.is_none();
        planned.then(|| self.planned.training.fitted.timeline().stall())
    }

    /// The slab that the plan takes; all of it if tensors are placed during the run.
    fn slab(&self) -> Bytes {
        match &self.planned.region {
            Some(_) => self.session.slab_bytes(),
            None => self.planned.training.fitted.schedule().slab,
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let FittedGraph { fitted, budget, reserve, unplanned, .. } = &self.planned.training;
        json!({
            "budget_bytes": budget,
            "base_bytes": reserve.base,
            "packing_bytes": reserve.packing,
            "reserve_bytes": reserve.total(),
            "slab_bytes": self.slab(),
            "high_water_bytes": self.planned.high_water(),
            "peak_bytes": self.planned.peak(),
            "unplanned_peak_bytes": unplanned.timeline().peak,
            "process_peak_bytes": self.resident.largest,
            "planning_peak_bytes": self.resident.planning,
            "predicted_overhead": self.predicted_overhead(),
            "measured_overhead": self.measured_overhead(),
            "step_seconds": self.measured.median(),
            "predicted_step_seconds": self.predicted(),
            "step_ratio": self.ratio(),
            "split": (self.parts != Parts::WHOLE).then(|| self.parts.to_string()),
            "recomputed_nodes": fitted.schedule().recomputed(),
            "tier_bytes": self.tier(),
            "bytes_out": self.moved()[0],
            "bytes_back": self.moved()[1],
            "predicted_stall_seconds": self.predicted_stall(),
            "stall_seconds": self.measured.stall(),
            "planner": fitted.schedule().planner,
            "placement": self.planned.region.as_ref().map(|region| self.placed.json(region)),
            "replan": self.refined.map(|refined| refined.json(self.measured)),
            "steps": self.session.next_step,
            "seed": self.session.seed,
            "validation_loss": self.evaluation.map(|evaluation| evaluation.loss),
            "validation_accuracy": self.evaluation.and_then(|evaluation| evaluation.accuracy),
            // JSON is Unicode; a path need not be.
            "saved": self.saved.map(|path| path.to_string_lossy()),
            "interrupted": self.interrupted,
            "first_not_finite_step": self.not_finite.first,
            "profile": self.profile,
        })
    }

    /// For people.
    pub fn show(&self) -> output::Printed {
        let FittedGraph { budget, .. } = &self.planned.training;
        if let Some(rows) = &self.profile {
            profile::show(rows)?;
        }
        if self.interrupted {
            interrupted(self.session.next_step, self.saved)?;
        }
        let process = self.resident.largest;
        let process = process.map_or("unknown".to_string(), |bytes| bytes.to_string());
        row!("measured peak", self.planned.high_water(), "slab high-water mark")?;
        row!("", process, "process, the largest that was resident; budget {budget}")?;
        if let (Some(median), Some(ratio)) = (self.measured.median(), self.ratio()) {
            let predicted = output::percent(self.predicted_overhead());
            match self.measured_overhead() {
                Some(overhead) => {
                    row!("slowdown", output::percent(overhead), "measured, {predicted} predicted")?
                }
                None => row!("slowdown", predicted, "predicted")?,
            }
            row!(
                "time of a step",
                output::milliseconds(Seconds(median)),
                "measured (median), {} predicted: {ratio:.2} times as long",
                output::milliseconds(self.predicted())
            )?;
        }
        if let Some(stall) = self.measured.stall().filter(|_| self.tier() > Bytes::ZERO) {
            let predicted = self.predicted_stall().map_or(String::new(), |predicted| {
                format!(", {} predicted", output::milliseconds(predicted))
            });
            row!(
                "waiting",
                output::milliseconds(Seconds(stall)),
                "for the tier, in a step{predicted}"
            )?;
        }
        if self.planned.region.is_some() {
            self.placed.show()?;
        }
        self.refined.map_or(Ok(()), |refined| refined.show(self.measured))?;
        if let Some(loss) = self.loss {
            row!("loss", format!("{loss:.4}"), "of the last step")?;
        }
        if let Some(evaluation) = &self.evaluation {
            entry!("validation", "{}", describe(evaluation))?;
        }
        match self.saved {
            Some(path) => entry!("weights", "saved to {}", path.display()),
            None if self.ended_early => entry!("weights", "not saved"),
            // That was said before the first step.
            None => Ok(()),
        }
    }
}

/// After which step a run was interrupted, and how it goes on.
pub fn interrupted(steps: u32, saved: Option<&Path>) -> output::Printed {
    match saved {
        Some(path) => {
            tell!("interrupted after step {steps}; --resume {} goes on from there", path.display())
        }
        None => tell!("interrupted after step {steps}"),
    }
}

/// An evaluation in words.
pub fn describe(evaluation: &Evaluation) -> String {
    let accuracy = evaluation
        .accuracy
        .map_or(String::new(), |share| format!(", accuracy {:.2} %", share * 100.0));
    let (some, all) = evaluation.batches;
    let part = if some < all { format!(" ({some} of {all} batches)") } else { String::new() };
    format!("loss {:.4}{accuracy}{part}", evaluation.loss)
}
