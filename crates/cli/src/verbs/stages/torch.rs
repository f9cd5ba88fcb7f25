//! A planned pipeline for PyTorch. Invariant: every stage but the first begins with the call of a
//! module, by which a trace of the same model finds the cut again.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tightfit::id::{SecondaryMap, StageId};
use tightfit::pipeline::{Entry, assign, is_within, write_csv};

use super::answer::{Answer, Found};

/// The format of the document.
const FORMAT: &str = "tightfit-stages/1";

impl Answer<'_> {
    /// The fastest plan as `tightfit.distributed` reads it; null if none was found in time.
    pub fn for_torch(&self) -> Value {
        let Some(best) = self.found.first().map(Found::plan) else { return Value::Null };
        let begins = |entry: &Entry| json!({ "module": entry.module, "call": entry.call });
        let stages = best.rows.placement.iter().map(|(stage, rank)| {
            let layers = Answer::layers(best, stage).map(|layer| {
                json!({
                    "begins": self.cut[layer].begins.as_ref().map(begins),
                    "recomputed": best.recomputed[layer],
                })
            });
            json!({
                "stage": stage.as_u32(),
                "rank": rank.as_u32(),
                "span": self.span(Answer::layers(best, stage)),
                "layers": layers.collect::<Vec<_>>(),
            })
        });
        json!({
            "format": FORMAT,
            "graph": self.graph.name(),
            "schedule": best.schedule,
            "micro_batches": best.rows.micro_batches,
            "step_seconds": best.makespan,
            "bubble": best.bubble,
            "budget_bytes": self.budget,
            "peak_bytes": best.peaks.values().collect::<Vec<_>>(),
            "stages": stages.collect::<Vec<_>>(),
            "module_fqns_per_model_part": self.modules(),
            "csv": write_csv(&best.rows),
        })
    }

    /// For each stage the modules that lie in it as a whole, the outermost ones; what a module that
    /// spans several stages computes itself is in none.
    fn modules(&self) -> Vec<Vec<String>> {
        let graph = self.graph;
        let Some(best) = self.found.first().map(Found::plan) else { return Vec::new() };
        let of_forward = assign(&self.cut, &best.ends);
        let mut stages: SecondaryMap<_, BTreeSet<StageId>> = SecondaryMap::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| node.phase.is_forward()) {
            for (module, name) in graph.modules() {
                if is_within(&graph.modules()[node.module], name) {
                    stages[module].insert(of_forward[id]);
                }
            }
        }
        let mut parts = vec![Vec::new(); best.rows.placement.len()];
        let mut taken: Vec<&str> = Vec::new();
        // Outer modules have shorter names than the modules in them.
        let mut modules: Vec<_> = graph.modules().iter().filter(|(_, n)| !n.is_empty()).collect();
        modules.sort_by_key(|(_, name)| name.len());
        for (module, name) in modules {
            let is_part = taken.iter().any(|outer| is_within(name, outer));
            if let Some(&stage) = stages[module].first()
                && stages[module].len() == 1
                && !is_part
            {
                taken.push(name);
                parts[stage.as_u32() as usize].push((module, name.clone()));
            }
        }
        let in_order = parts.into_iter().map(|mut part| {
            part.sort_by_key(|&(module, _)| module);
            part.into_iter().map(|(_, name)| name).collect()
        });
        in_order.collect()
    }
}
