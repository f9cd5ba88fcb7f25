//! The result of a run on several ranks. Invariant: the same figures as JSON and in words, and what
//! was measured stands next to what was predicted.

use std::path::Path;

use serde_json::{Value, json};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Evaluation, Timings};

use super::figures::Figures;
use crate::output;
use crate::train::ending::NotFinite;
use crate::train::report::{describe, interrupted};
use crate::train::resident::Resident;

/// A run that has ended.
pub struct Outcome<'a> {
    /// What ran.
    pub figures: &'a Figures,
    /// The measured times of the first rank's steps.
    pub measured: &'a Timings,
    /// The loss of the last step.
    pub loss: Option<f32>,
    /// The last evaluation.
    pub evaluation: Option<Evaluation>,
    /// Most resident bytes of each process: a single one, or one per rank if ranks are processes.
    pub processes: Vec<Resident>,
    /// Where the weights were saved.
    pub saved: Option<&'a Path>,
    /// Steps done.
    pub steps: u32,
    /// Seed of the run.
    pub seed: u64,
    /// It was asked to end early.
    pub interrupted: bool,
    /// Its result is not to be kept.
    pub unsaved: bool,
    /// Losses that were not finite.
    pub not_finite: NotFinite,
}

impl Outcome<'_> {
    /// The budget of a process, by its rank: that of all ranks together if these are its threads.
    fn budget(&self, process: usize) -> Bytes {
        let mut budgets = self.figures.ranks.iter().map(|rank| rank.budget);
        match self.processes.len() {
            1 => budgets.sum(),
            _ => budgets.nth(process).unwrap_or(Bytes::ZERO),
        }
    }

    /// How long the first rank waited in a step for parameters and gradients, if ranks share them.
    fn collectives(&self) -> Option<Seconds> {
        self.figures.shards.and(self.measured.stall()).map(Seconds)
    }

    /// The same, as predicted.
    fn predicted_collectives(&self) -> Seconds {
        self.figures.ranks.first().map_or(Seconds(0.0), |rank| rank.waiting)
    }

    /// The most resident bytes of a process.
    fn largest(&self) -> Option<Bytes> {
        self.processes.iter().filter_map(|process| process.largest).max()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let figures = self.figures;
        let ranks: Vec<Value> = figures
            .ranks
            .iter()
            .enumerate()
            .map(|(rank, own)| {
                json!({
                    "rank": rank,
                    "stages": own.stages.iter().map(|stage| stage.as_u32()).collect::<Vec<_>>(),
                    "budget_bytes": own.budget,
                    "reserve_bytes": own.reserve.total(),
                    "slab_bytes": own.slab,
                    "high_water_bytes": own.high_water,
                    "peak_bytes": own.peak,
                    "recomputed_nodes": own.recomputed,
                    "predicted_seconds": own.seconds,
                    "predicted_waiting_seconds": own.waiting,
                    "planner": own.planner,
                    // Only if ranks are processes.
                    "process_peak_bytes":
                        self.processes.get(rank).filter(|_| self.processes.len() > 1)
                            .and_then(|process| process.largest),
                })
            })
            .collect();
        json!({
            "budget_bytes": figures.ranks.iter().map(|own| own.budget).max(),
            "schedule": figures.schedule,
            "stages": figures.stages,
            "shards": figures.shards,
            "micro_batches": figures.micro_batches,
            "messages": figures.messages,
            "ranks": ranks,
            "process_peak_bytes": self.largest(),
            "step_seconds": self.measured.median(),
            "predicted_step_seconds": self.figures.makespan(),
            "predicted_idle": figures.idle(),
            "waiting_seconds": self.collectives(),
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
            interrupted(self.steps, self.saved)?;
        }
        let several = self.processes.len() > 1;
        for (rank, process) in self.processes.iter().enumerate() {
            let known = process.largest.map_or("unknown".to_string(), |bytes| bytes.to_string());
            let (whose, what) = match several {
                true => (format!(" of rank{rank}"), "its budget"),
                false => (String::new(), "budgets of all ranks"),
            };
            row!(
                if rank == 0 { "measured peak" } else { "" },
                known,
                "process{whose}, the largest that was resident; {what} {}",
                self.budget(rank)
            )?;
            process.note_excess(&format!("the process{whose}"), self.budget(rank));
        }
        if let Some(median) = self.measured.median() {
            let predicted = self.figures.makespan();
            row!(
                "time of a step",
                output::milliseconds(Seconds(median)),
                "measured (median), {} predicted: {:.2} times as long",
                output::milliseconds(predicted),
                median / predicted.0
            )?;
        }
        if let Some(waiting) = self.collectives() {
            row!(
                "waiting",
                output::milliseconds(waiting),
                "for other ranks' parts of the model (mean), {} predicted",
                output::milliseconds(self.predicted_collectives())
            )?;
        }
        if let Some(loss) = self.loss {
            row!("loss", format!("{loss:.4}"), "of the last step")?;
        }
        if let Some(evaluation) = &self.evaluation {
            entry!("validation", "{}", describe(evaluation))?;
        }
        match self.saved {
            Some(path) => entry!("weights", "saved to {}", path.display()),
            None if self.unsaved => entry!("weights", "not saved"),
            // That was said before the first step.
            None => Ok(()),
        }
    }
}
