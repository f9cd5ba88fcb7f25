//! Capuchin's choices, as table and as JSON. Invariant: the choices shown are those of the plan
//! that is shown: they end with its sequence of runs, and with its peak.

use serde_json::{Value, json};
use tightfit::FitError;
use tightfit::graph::Graph;
use tightfit::id::NodeId;
use tightfit::plan::published::capuchin::{
    Candidate, Choice, End, Explanation, Figures, Rule, explain,
};
use tightfit::plan::{Infeasible, Instance, Planner, Retention, base_order, simulate};
use tightfit::profile::Profile;
use tightfit::units::Bytes;
use tightfit_engine::{FittedGraph, FittingError};

use crate::failure::{Failure, Result};
use crate::output;
use crate::table::{Cell, Table};

/// How many names of a list a table shows.
const LISTED: usize = 3;

const CANDIDATES: [&str; 7] =
    ["candidate", "size", "MSPS", "ms again", "last forward", "first backward", "made from"];

const USUAL_CANDIDATES: [&str; 5] = ["candidate", "size", "MSPS", "ms again", "made from"];

const CHOICES: [&str; 9] =
    ["choice", "size", "MSPS", "ms again", "times", "ms in all", "saved", "peak", "mode"];

const PUBLISHED_CHOICES: [&str; 10] = [
    "choice",
    "size",
    "MSPS",
    "ms again",
    "times",
    "ms in all",
    "saved",
    "peak",
    "remaining",
    "predicted",
];

/// The columns of both kinds of choices in a line of usual width.
const USUAL_CHOICES: [&str; 8] =
    ["choice", "size", "MSPS", "saved", "peak", "mode", "remaining", "predicted"];

const ENDS: [&str; 4] = ["chosen", "recomputed", "yields", "intermediates"];

/// An explanation, with the graph that it is about.
pub struct Explained<'a> {
    graph: &'a Graph,
    rule: Rule,
    explanation: Explanation,
}

/// Why the planner recomputes what a plan recomputes; `None` for planners other than Capuchin.
pub fn of_plan<'a>(
    graph: &'a Graph,
    profile: &Profile,
    planner: Planner,
    planned: &FittedGraph,
) -> Result<Option<Explained<'a>>> {
    let order = base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let budget = planned.slab();
    let rule = match planner {
        Planner::Capuchin => Rule::Ours { budget },
        Planner::CapuchinPublished => {
            let unplanned = simulate(graph, profile, &(&order).into()).curve.peak;
            Rule::Published { need: unplanned.saturating_sub(budget) }
        }
        _ => return Ok(None),
    };
    let runs = planned.fitted.schedule().runs();
    let explanation = explain(instance, rule, Some(&runs));
    if explanation.runs != runs || explanation.peak() != planned.fitted.timeline().peak {
        return Err(Failure::other(
            "the choices that were found do not make the plan; please report this",
        ));
    }
    Ok(Some(Explained { graph, rule, explanation }))
}

/// How far the planner came before it refused a budget; `None` if the refusal has another reason,
/// and for planners other than Capuchin.
pub fn of_refusal<'a>(
    graph: &'a Graph,
    profile: &Profile,
    planner: Planner,
    error: &FittingError,
) -> Option<(Explained<'a>, Infeasible)> {
    let FittingError::Fit(error) = error else { return None };
    let proof = FitError::infeasible(error)?;
    let rule = match (planner, proof.prediction) {
        (Planner::Capuchin, _) => Rule::Ours { budget: Bytes::ZERO },
        (Planner::CapuchinPublished, Some(prediction)) => Rule::Published { need: prediction.need },
        _ => return None,
    };
    let order = base_order(graph, profile);
    let instance = Instance::new(graph, profile, &order);
    let explanation = explain(instance, rule, None);
    Some((Explained { graph, rule, explanation }, proof.clone()))
}

impl Explained<'_> {
    fn name(&self, node: NodeId) -> &str {
        &self.graph.nodes()[node].name
    }

    fn names(&self, nodes: &[NodeId]) -> Vec<&str> {
        nodes.iter().map(|&node| self.name(node)).collect()
    }

    /// All of it.
    pub fn json(&self) -> Value {
        let explanation = &self.explanation;
        let candidates: Vec<Value> =
            explanation.candidates.iter().map(|row| self.candidate_json(row)).collect();
        let choices: Vec<Value> =
            explanation.choices.iter().map(|choice| self.choice_json(choice)).collect();
        let mut result = json!({
            "variant": match self.rule {
                Rule::Ours { .. } => "ours",
                Rule::Published { .. } => "published",
            },
            "unplanned_peak_bytes": explanation.unplanned_peak,
            "unplanned_step_seconds": explanation.unplanned_step,
            "candidates": candidates,
            "choices": choices,
            "peak_bytes": explanation.peak(),
        });
        if let Rule::Published { need } = self.rule {
            result["need_bytes"] = json!(need);
            result["ends"] = explanation.ends.iter().map(|end| self.end_json(end)).collect();
        }
        result
    }

    fn candidate_json(&self, row: &Candidate) -> Value {
        let mut result = self.figures_json(row.node, &row.figures);
        let node = &self.graph.nodes()[row.node];
        result["op"] = json!(node.op);
        result["module"] = json!(self.graph.module_of(row.node));
        result["bytes"] = json!(row.bytes);
        result["activation_sources"] = json!(self.names(&row.activation_sources));
        result["parameter_sources"] = json!(self.names(&row.parameter_sources));
        result["other_sources"] = json!(self.names(&row.other_sources));
        result["last_forward_access"] = json!(self.name(row.last_forward_access));
        result["first_backward_access"] = json!(self.name(row.first_backward_access));
        result
    }

    /// Infinitely many bytes per second cannot be a number in JSON, so they are `null`.
    fn figures_json(&self, node: NodeId, figures: &Figures) -> Value {
        json!({
            "node": self.name(node),
            "recompute_seconds": figures.recompute_time,
            "executions": figures.executions,
            "execution_seconds": figures.execution_time,
            "msps": figures.msps,
        })
    }

    fn choice_json(&self, choice: &Choice) -> Value {
        let mut result = self.figures_json(choice.node, &choice.figures);
        result["bytes"] = json!(choice.bytes);
        result["saved_bytes"] = json!(saved(choice));
        result["peak_bytes"] = json!(choice.peak);
        result["step_seconds"] = json!(choice.step);
        result["mode"] = json!(mode(choice.retention));
        let changed =
            choice.changed.iter().map(|(node, figures)| self.figures_json(*node, figures));
        result["changed"] = changed.collect();
        if let Some((remaining, predicted)) = choice.remaining.zip(choice.predicted) {
            result["remaining_bytes"] = json!(remaining);
            result["predicted_peak_bytes"] = json!(predicted);
        }
        result
    }

    fn end_json(&self, end: &End) -> Value {
        json!({
            "node": self.name(end.node),
            "activation_sources": self.names(&end.activation_sources),
            "parameter_sources": self.names(&end.parameter_sources),
            "intermediates": self.names(&end.intermediates),
            "outputs": self.names(&end.outputs),
            "is_top": end.is_top,
        })
    }

    /// The `top` largest candidates, and all choices.
    pub fn print(&self, top: usize) -> output::Printed {
        let all = &self.explanation.candidates;
        let mut largest: Vec<&Candidate> = all.iter().collect();
        largest.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.node.cmp(&b.node)));
        say!("\ncandidates, the {} largest of {}:", top.min(all.len()), all.len())?;
        let rows = largest.into_iter().take(top).map(|row| {
            vec![
                Cell::name(self.name(row.node)),
                Cell::bytes(row.bytes),
                msps(&row.figures),
                Cell::milliseconds(row.figures.recompute_time),
                Cell::name(self.name(row.last_forward_access)),
                Cell::name(self.name(row.first_backward_access)),
                Cell::words(&self.sources(row)),
            ]
        });
        Table::new(&CANDIDATES, rows.collect()).usually(&USUAL_CANDIDATES).print(usize::MAX)?;
        self.print_choices()?;
        if !self.explanation.ends.is_empty() {
            say!()?;
            let rows = self.explanation.ends.iter().map(|end| {
                vec![
                    Cell::name(self.name(end.node)),
                    Cell::word(if end.is_top { "on its own" } else { "with another" }),
                    Cell::words(&listed(&self.names(&end.outputs))),
                    Cell::words(&listed(&self.names(&end.intermediates))),
                ]
            });
            Table::new(&ENDS, rows.collect()).print(usize::MAX)?;
        }
        Ok(())
    }

    fn print_choices(&self) -> output::Printed {
        let explanation = &self.explanation;
        let need = match self.rule {
            Rule::Ours { .. } => String::new(),
            Rule::Published { need } => format!(", of which {need} are to be saved"),
        };
        say!()?;
        tell!(
            "choices: {}; the peak before them is {}{need}",
            explanation.choices.len(),
            explanation.unplanned_peak
        )?;
        let rows = explanation.choices.iter().map(|choice| {
            let saved = saved(choice);
            let mut row = vec![
                Cell::name(self.name(choice.node)),
                Cell::bytes(choice.bytes),
                msps(&choice.figures),
                Cell::milliseconds(choice.figures.recompute_time),
                Cell::count(choice.figures.executions),
                Cell::milliseconds(choice.figures.execution_time),
                Cell::figure(saved as f64, signed(saved)),
                Cell::bytes(choice.peak),
            ];
            match choice.remaining.zip(choice.predicted) {
                None => row.push(Cell::word(mode(choice.retention))),
                Some((left, predicted)) => {
                    row.push(Cell::figure(left.0 as f64, left.to_string()));
                    row.push(Cell::bytes(predicted));
                }
            }
            row
        });
        let heads: &[&str] = match self.rule {
            Rule::Ours { .. } => &CHOICES,
            Rule::Published { .. } => &PUBLISHED_CHOICES,
        };
        Table::new(heads, rows.collect()).usually(&USUAL_CHOICES).print(usize::MAX)
    }

    fn sources(&self, row: &Candidate) -> String {
        let kinds = [
            ("activations", &row.activation_sources),
            ("parameters", &row.parameter_sources),
            ("others", &row.other_sources),
        ];
        let kinds = kinds.into_iter().filter(|(_, nodes)| !nodes.is_empty());
        let parts: Vec<String> =
            kinds.map(|(kind, nodes)| format!("{kind} {}", listed(&self.names(nodes)))).collect();
        parts.join("; ")
    }
}

/// By how much a choice lowers the peak; negative if it raises it.
fn saved(choice: &Choice) -> i64 {
    choice.peak_before.0 as i64 - choice.peak.0 as i64
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}

fn mode(retention: Retention) -> &'static str {
    match retention {
        Retention::Save => "save",
        Retention::Recompute => "recompute",
        Retention::RecomputeEachUse => "recompute each use",
        Retention::Checkpoint => "checkpoint",
    }
}

fn msps(figures: &Figures) -> Cell {
    let text = match figures.msps {
        msps if msps.is_finite() => format!("{}/s", Bytes(msps as u64)),
        _ => "free".to_string(),
    };
    Cell::figure(figures.msps, text)
}

fn listed(names: &[&str]) -> String {
    match names.len().saturating_sub(LISTED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..LISTED].join(", ")),
    }
}
