//! What came of a run on several ranks. Invariant: the same figures as JSON and in words, and what
//! was measured stands beside what was predicted.

use std::path::Path;

use serde_json::{Value, json};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Evaluation, Timings};

use super::choose::Chosen;
use crate::output;
use crate::train::ending::NotFinite;
use crate::train::report::describe;

/// A run that has ended.
pub struct Outcome<'a> {
    /// What ran.
    pub chosen: &'a Chosen,
    /// What the steps of the first rank took.
    pub measured: &'a Timings,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
    /// Most resident bytes of the process.
    pub process: Option<Bytes>,
    /// Where the weights were saved.
    pub saved: Option<&'a Path>,
    /// Steps done.
    pub steps: u32,
    /// Seed of the run.
    pub seed: u64,
    /// It was asked to end early.
    pub interrupted: bool,
    /// It ended at a loss that is not finite.
    pub ended_early: bool,
    /// Losses that were not finite.
    pub not_finite: NotFinite,
}

impl Outcome<'_> {
    /// The budgets of all ranks together.
    fn budgets(&self) -> Bytes {
        self.chosen.plans.values().map(|plan| plan.training.budget).sum()
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let Chosen { plans, rows, times, .. } = self.chosen;
        let ranks: Vec<Value> = plans
            .iter()
            .map(|(rank, plan)| {
                let (training, timeline) = (&plan.training, plan.training.fitted.timeline());
                let stages = rows.stages_of(rank);
                json!({
                    "rank": rank.as_u32(),
                    "stages": stages.iter().map(|stage| stage.as_u32()).collect::<Vec<_>>(),
                    "budget_bytes": training.budget,
                    "reserve_bytes": training.reserve.total(),
                    "slab_bytes": training.slab(),
                    "high_water_bytes": plan.high_water(),
                    "peak_bytes": plan.peak(),
                    "recomputed_nodes": training.fitted.schedule().recomputed(),
                    "predicted_seconds": timeline.seconds,
                    "predicted_waiting_seconds": times[rank].waiting,
                    "planner": training.fitted.schedule().planner,
                })
            })
            .collect();
        json!({
            "schedule": self.chosen.schedule,
            "stages": rows.placement.len(),
            "micro_batches": rows.micro_batches,
            "messages": self.chosen.divided.first_of_evaluation,
            "ranks": ranks,
            "process_peak_bytes": self.process,
            "step_seconds": self.measured.median(),
            "predicted_step_seconds": self.chosen.makespan(),
            "predicted_idle": self.chosen.idle(),
            "steps": self.steps,
            "seed": self.seed,
            "validation_loss": self.evaluation.map(|evaluation| evaluation.loss),
            "validation_accuracy": self.evaluation.and_then(|evaluation| evaluation.accuracy),
            "saved": self.saved.map(|path| path.to_string_lossy()),
            "interrupted": self.interrupted,
            "first_not_finite_step": self.not_finite.first,
        })
    }

    /// For people.
    pub fn show(&self) -> output::Printed {
        if self.interrupted {
            say!("interrupted after step {}", self.steps)?;
        }
        let process = self.process.map_or("unknown".to_string(), |bytes| bytes.to_string());
        say!(
            "{:<16}{process:>12}  process, the largest that was resident; budgets of all ranks {}",
            "measured peak",
            self.budgets()
        )?;
        if let Some(over) = self.process.and_then(|peak| peak.0.checked_sub(self.budgets().0))
            && over > 0
        {
            note!("note: the process took {} more than that", Bytes(over));
        }
        if let Some(median) = self.measured.median() {
            let predicted = self.chosen.makespan();
            say!(
                "{:<16}{:>12}  measured (median), {} predicted: {:.2} times as long",
                "time of a step",
                output::milliseconds(Seconds(median)),
                output::milliseconds(predicted),
                median / predicted.0
            )?;
        }
        if let Some(evaluation) = &self.evaluation {
            say!("{:<16}{}", "", describe(evaluation))?;
        }
        match self.saved {
            Some(path) => say!("{:<16}{}", "weights saved", path.display()),
            None if self.ended_early => say!("{:<16}{}", "weights", "not saved"),
            None => say!("{:<16}pass --save FILE to keep them", "weights dropped"),
        }
    }
}
