//! Plans that may also move what they hold to a tier below the device, compared with recomputation
//! alone, moving alone and Capuchin's swap. Invariant: as in the grid, peers plan each budget on
//! its own, and `auto` plans a graph's budgets as one frontier, with the tier and without it.

use std::path::Path;

use serde_json::{Value, json};
use tightfit::plan::Planner;
use tightfit::units::Bytes;
use tightfit_cli::failure::Result;

use super::subject::{Planned, Subject};
use super::{Bench, Found, graph_files};
use crate::markdown::{known, percent, table};

/// The tier, by the name of its preset.
const TIER: &str = "pcie4";
/// Equal plans may add up their seconds in another order.
const ROUNDING: f64 = 1e-12;

/// Which planner, and whether with the tier.
struct Way {
    name: &'static str,
    planner: Planner,
    with_tier: bool,
}

const RECOMPUTATION: usize = 0;
const HYBRID: usize = 3;

const WAYS: [Way; 4] = [
    Way { name: "recomputation alone", planner: Planner::Auto, with_tier: false },
    Way { name: "offload alone", planner: Planner::Offload, with_tier: true },
    Way { name: "capuchin-swap", planner: Planner::CapuchinSwap, with_tier: true },
    Way { name: "hybrid", planner: Planner::Auto, with_tier: true },
];

/// One budget of a graph.
struct Row {
    graph: String,
    fraction: f64,
    /// In the order of the ways.
    plans: Vec<Planned>,
}

/// The smallest slabs of a graph.
struct Smallest {
    graph: String,
    recomputation: Option<Bytes>,
    hybrid: Option<Bytes>,
    /// The largest working set of one node.
    working_set: Bytes,
}

/// Plans and compares.
pub fn measure(bench: &Bench, folder: &Path, fractions: &[f64]) -> Result<Found> {
    let (mut rows, mut smallest): (Vec<Row>, Vec<Smallest>) = (Vec::new(), Vec::new());
    for path in graph_files(folder)? {
        let [without, with] = [Subject::read(&path)?, Subject::read_with_tier(&path, TIER)?];
        let budgets: Vec<Bytes> = fractions.iter().map(|&part| without.budget(part)).collect();
        let mut of_graph: Vec<Row> = fractions
            .iter()
            .map(|&fraction| Row { graph: without.name.clone(), fraction, plans: Vec::new() })
            .collect();
        for way in &WAYS {
            let subject = if way.with_tier { &with } else { &without };
            let plans = match way.planner {
                Planner::Auto => subject.frontier(bench, &budgets, way.planner)?,
                peer => budgets
                    .iter()
                    .map(|&budget| subject.plan(bench, budget, peer))
                    .collect::<Result<_, _>>()?,
            };
            for (row, plan) in of_graph.iter_mut().zip(plans) {
                row.plans.push(plan);
            }
        }
        of_graph.reverse();
        rows.extend(of_graph);
        smallest.push(Smallest {
            graph: without.name.clone(),
            recomputation: without.smallest(bench, Planner::Auto)?,
            hybrid: with.smallest(bench, Planner::Auto)?,
            working_set: without.working_set(),
        });
    }
    let markdown = slowdowns(&rows) + &never_slower(&rows) + &slabs(&smallest);
    let rows: Vec<Value> = rows.iter().flat_map(plans_json).collect();
    let smallest: Vec<Value> = smallest.iter().map(Smallest::json).collect();
    Ok(Found { markdown, json: json!({ "plans": rows, "smallest": smallest }) })
}

impl Row {
    /// Seconds of a way's plan.
    fn seconds(&self, way: usize) -> Option<f64> {
        self.plans.get(way)?.figures.map(|figures| figures.step.0)
    }

    fn slowdown(&self, way: usize) -> String {
        let figures = self.plans.get(way).and_then(|plan| plan.figures);
        percent(figures.map(|figures| figures.overhead))
    }
}

fn slowdowns(rows: &[Row]) -> String {
    let names = WAYS.iter().map(|way| way.name);
    let head: Vec<&str> = ["graph", "f"].into_iter().chain(names).chain(["bound"]).collect();
    let cells = |row: &Row| {
        let hybrid = row.plans.get(HYBRID).and_then(|plan| plan.figures);
        let mut cells = vec![row.graph.clone(), row.fraction.to_string()];
        cells.extend((0..WAYS.len()).map(|way| row.slowdown(way)));
        cells.push(percent(hybrid.and_then(|figures| figures.bound)));
        cells
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let what = format!(
        "Slowdown with a tier below `{TIER}`, which recomputation alone does without; budgets as \
         above; the bound is that of the hybrid, for schedules that recompute and move."
    );
    format!("\n## With a tier\n{what}\n\n{}", table(&head, &rows))
}

/// Of budgets for which another way has a plan: is the hybrid at most as slow?
fn never_slower(rows: &[Row]) -> String {
    let mut text = "\n".to_string();
    let mut slower: Vec<Vec<String>> = Vec::new();
    for (way, Way { name, .. }) in WAYS.iter().enumerate().filter(|&(way, _)| way != HYBRID) {
        let contested: Vec<(&Row, f64)> =
            rows.iter().filter_map(|row| Some((row, row.seconds(way)?))).collect();
        let is_slower = |&&(row, other): &&(&Row, f64)| {
            row.seconds(HYBRID).is_none_or(|hybrid| hybrid > other * (1.0 + ROUNDING))
        };
        let lost: Vec<&(&Row, f64)> = contested.iter().filter(is_slower).collect();
        text += &format!(
            "The hybrid is at most as slow as {name} at {} of {} budgets where that has a plan.\n",
            contested.len() - lost.len(),
            contested.len()
        );
        slower.extend(lost.into_iter().map(|(row, _)| {
            let fraction = row.fraction.to_string();
            let (hybrid, other) = (row.slowdown(HYBRID), row.slowdown(way));
            vec![row.graph.clone(), fraction, hybrid, other, name.to_string()]
        }));
    }
    if !slower.is_empty() {
        let head = ["graph", "f", "hybrid", "the other", "which"];
        text += &format!("\nNot so:\n\n{}", table(&head, &slower));
    }
    text
}

fn slabs(smallest: &[Smallest]) -> String {
    let head = ["graph", "recomputation alone", "hybrid", "largest working set", "hybrid / that"];
    let cells = |of: &Smallest| {
        let part = of.hybrid.map(|hybrid| hybrid.0 as f64 / of.working_set.0.max(1) as f64);
        vec![
            of.graph.clone(),
            known(of.recomputation, |bytes| bytes.to_string()),
            known(of.hybrid, |bytes| bytes.to_string()),
            of.working_set.to_string(),
            known(part, |part| format!("{part:.3}")),
        ]
    };
    let rows: Vec<Vec<String>> = smallest.iter().map(cells).collect();
    let is_above = |of: &&Smallest| match (of.hybrid, of.recomputation) {
        (Some(hybrid), Some(recomputation)) => hybrid > recomputation,
        (hybrid, _) => hybrid.is_none(),
    };
    let above: Vec<&str> = smallest.iter().filter(is_above).map(|of| of.graph.as_str()).collect();
    let mut text = format!(
        "\n## The smallest slab with a tier\nBeside the largest working set of one node, below \
         which nothing fits.\n\n{}\nThe hybrid's is at most as large as that of recomputation \
         alone on {} of {} graphs.\n",
        table(&head, &rows),
        smallest.len() - above.len(),
        smallest.len()
    );
    if !above.is_empty() {
        text += &format!("Not so: {}.\n", above.join(", "));
    }
    text
}

fn plans_json(row: &Row) -> Vec<Value> {
    let one = |(way, plan): (&Way, &Planned)| {
        let mut value = plan.json();
        value["graph"] = json!(row.graph);
        value["fraction"] = json!(row.fraction);
        value["way"] = json!(way.name);
        value["tier"] = json!(way.with_tier.then_some(TIER));
        value
    };
    WAYS.iter().zip(&row.plans).map(one).collect()
}

impl Smallest {
    fn json(&self) -> Value {
        json!({
            "graph": self.graph,
            WAYS[RECOMPUTATION].name: self.recomputation,
            WAYS[HYBRID].name: self.hybrid,
            "working_set_bytes": self.working_set,
        })
    }
}
