//! What `tightfit stages` prints. Invariant: nothing is calculated here.

use std::ops::Range;

use serde_json::{Value, json};
use tightfit::id::{RankId, StageId};
use tightfit::pipeline::stages::{LayerCost, StagePlan};
use tightfit::pipeline::{span, write_csv};
use tightfit::units::{Bytes, Seconds};

use super::answer::{Answer, Found};
use crate::output;

impl Answer<'_> {
    /// The layers of a stage.
    pub fn layers(plan: &StagePlan, stage: StageId) -> Range<usize> {
        let number = stage.as_u32() as usize;
        let begin = number.checked_sub(1).map_or(0, |before| plan.ends[before]);
        begin..plan.ends[number]
    }

    /// A run of layers in words.
    pub fn span(&self, run: Range<usize>) -> String {
        span(self.graph, &self.cut, run)
    }

    /// All of it as one object.
    pub fn json(&self, best: &Found) -> Value {
        let plan = best.plan();
        let stages = plan.rows.placement.iter().map(|(stage, rank)| {
            let layers = Answer::layers(plan, stage);
            let seconds: Seconds = self.costs[layers.clone()].iter().map(LayerCost::seconds).sum();
            let name = |layer: usize| self.span(layer..layer + 1);
            let mut stage = json!({
                "stage": stage.as_u32(),
                "rank": rank.as_u32(),
                "layers": layers.clone().map(name).collect::<Vec<_>>(),
                "seconds": seconds,
            });
            if let Found::Layers(plan) = best {
                let again = layers.filter(|&layer| plan.recomputed[layer]);
                stage["recomputed"] = again.map(name).collect();
            }
            stage
        });
        let plans = self.found.iter().map(|found| {
            let mut plan = json!({
                "schedule": found.plan().schedule,
                "step_seconds": found.makespan(),
                "bubble": found.bubble(),
                "peak_bytes": found.peaks().values().max(),
            });
            match found {
                Found::Layers(StagePlan { recomputed, .. }) => {
                    plan["recomputed_layers"] = recomputed.iter().filter(|&&is| is).count().into();
                }
                Found::Tensors(planned) => {
                    let calls: usize = planned.ranks.values().map(|rank| rank.recomputed).sum();
                    plan["recomputed_calls"] = calls.into();
                }
            }
            plan
        });
        let unplanned = self.unplanned.iter().map(
            |(schedule, about)| json!({ "schedule": schedule, "estimated_step_seconds": about }),
        );
        let mut all = json!({
            "feasible": true,
            "schedule": plan.schedule,
            "step_seconds": best.makespan(),
            "bubble": best.bubble(),
            "budget_bytes": self.budget,
            "peak_bytes": best.peaks().values().collect::<Vec<_>>(),
            "stages": stages.collect::<Vec<_>>(),
            "plans": plans.collect::<Vec<_>>(),
            "unplanned": unplanned.collect::<Vec<_>>(),
            "csv": write_csv(&plan.rows),
        });
        if let Found::Tensors(planned) = best {
            let ranks = planned.ranks.values().map(|rank| {
                json!({
                    "peak_bytes": rank.peak,
                    "recomputed_calls": rank.recomputed,
                    "recomputation_seconds": rank.recomputation,
                    "seconds": rank.seconds,
                    "waiting_seconds": rank.waiting,
                })
            });
            all["ranks"] = ranks.collect();
        }
        all
    }

    /// All of it as a table, and which layers lie where.
    pub fn show(&self, best: &Found, machine: &str, micro_batches: u32) -> output::Printed {
        let plan = best.plan();
        let ranks = plan.rows.rows.len();
        let micro_batches = output::several(micro_batches as usize, "micro-batch", "es");
        let outside = match self.reserve {
            Bytes::ZERO => String::new(),
            reserve => format!(", {reserve} of them outside plans"),
        };
        tell!(
            "{}: {micro_batches} on {ranks} × {machine}, {} each{outside}",
            self.graph.name(),
            self.budget
        )?;
        say!(
            "{:<12}{:>14}{:>9}{:>14}{:>12}",
            "schedule",
            "step",
            "bubble",
            "largest peak",
            "recomputed"
        )?;
        for found in &self.found {
            let again = match found {
                Found::Layers(StagePlan { recomputed, .. }) => {
                    let again = recomputed.iter().filter(|&&is| is).count();
                    format!("{again} of {}", recomputed.len())
                }
                Found::Tensors(planned) => unsigned(planned.recomputed()),
            };
            say!(
                "{:<12}{:>14}{:>9}{:>14}{:>12}",
                found.plan().schedule,
                output::milliseconds(found.makespan()),
                unsigned(found.bubble()),
                found.peaks().values().max().copied().unwrap_or(Bytes::ZERO).to_string(),
                again
            )?;
        }
        if !self.unplanned.is_empty() {
            say!("≈: estimated by the model of layers; its tensors were not planned")?;
        }
        for (schedule, about) in &self.unplanned {
            say!("{schedule:<12}{:>14}", format!("≈ {}", output::milliseconds(*about)))?;
        }
        say!()?;
        tell!("{}: what lies where", plan.schedule)?;
        for rank in plan.rows.rows.keys() {
            self.show_rank(best, rank)?;
        }
        Ok(())
    }

    fn show_rank(&self, best: &Found, rank: RankId) -> output::Printed {
        let plan = best.plan();
        for (index, stage) in plan.rows.stages_of(rank).into_iter().enumerate() {
            let layers = Answer::layers(plan, stage);
            let modules = self.span(layers.clone());
            let again = match best {
                Found::Layers(plan) => {
                    match layers.clone().filter(|&layer| plan.recomputed[layer]).count() {
                        0 => String::new(),
                        count if count == layers.len() => ", recomputed".to_string(),
                        count => format!(", {count} of {} recomputed", layers.len()),
                    }
                }
                // The figure is for all its stages, so it is shown in the first line.
                Found::Tensors(planned) => match &planned.ranks[rank] {
                    rank if index == 0 && rank.recomputed > 0 => {
                        let seconds = output::milliseconds(rank.recomputation);
                        format!(", {} calls again ({seconds})", rank.recomputed)
                    }
                    _ => String::new(),
                },
            };
            let head = match index {
                0 => (rank.to_string(), best.peaks()[rank].to_string()),
                _ => (String::new(), String::new()),
            };
            let head = format!("{:<8}{:>10}  stage {}: ", head.0, head.1, stage.as_u32());
            output::sentence(&head, format_args!("{modules}{again}"))?;
        }
        Ok(())
    }
}

/// A share, without a plus sign.
fn unsigned(share: f64) -> String {
    output::percent(share).trim_start_matches('+').to_string()
}
