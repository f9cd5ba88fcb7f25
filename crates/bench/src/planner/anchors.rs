//! The points that torch.compile's memory budget and checkpointing of each block reach. Invariant:
//! a point counts as met if our plan, within that point's peak, recomputes for no longer; recorded
//! figures are rounded to a tenth of a microsecond, so the comparison allows half of that.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use tightfit::plan::Planner;
use tightfit::units::Bytes;
use tightfit_cli::failure::{Context, Result};

use super::subject::Subject;
use super::{Bench, Found, graph_files};
use crate::markdown::{known, table};

const ROUNDING_US: f64 = 0.05;

#[derive(Deserialize)]
struct Anchors {
    graphs: std::collections::BTreeMap<String, Recorded>,
}

#[derive(Deserialize)]
struct Recorded {
    points: Vec<Point>,
    per_block_checkpointing: Option<Point>,
}

#[derive(Clone, Deserialize)]
struct Point {
    /// Absent for checkpointing of each block.
    budget: Option<f64>,
    #[serde(default)]
    solver: String,
    #[serde(default)]
    estimator: String,
    peak_bytes: u64,
    recompute_us: f64,
}

impl Point {
    fn name(&self) -> String {
        let Some(budget) = self.budget else { return "checkpointing of each block".to_string() };
        format!("budget {budget}, {}, {}", self.solver, self.estimator)
    }

    /// The simulation that the points come from holds some tensors elsewhere: 0.1 % more makes up
    /// for that.
    fn ours(&self) -> Bytes {
        Bytes((u128::from(self.peak_bytes) * 1001 / 1000) as u64)
    }
}

/// A point, and what we recompute within its bytes.
struct Compared {
    graph: String,
    point: Point,
    recompute_us: Option<f64>,
}

impl Compared {
    fn met(&self) -> bool {
        self.recompute_us.is_some_and(|ours| ours <= self.point.recompute_us + ROUNDING_US)
    }

    fn won(&self) -> bool {
        self.contested()
            && self.recompute_us.is_some_and(|ours| ours < self.point.recompute_us - ROUNDING_US)
    }

    /// Whether there is anything to gain.
    fn contested(&self) -> bool {
        self.point.recompute_us > 0.0
    }
}

/// Plans each graph's points as one frontier and compares.
pub fn measure(bench: &Bench, file: &Path, graphs: &Path) -> Result<Found> {
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let anchors: Anchors =
        serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    let mut compared: Vec<Compared> = Vec::new();
    for path in graph_files(graphs)? {
        let subject = Subject::read(&path)?;
        let Some(recorded) = anchors.graphs.get(&subject.name) else { continue };
        let points = recorded.chosen(bench.quick);
        let mut budgets: Vec<Bytes> = points.iter().map(Point::ours).collect();
        budgets.sort();
        budgets.dedup();
        let plans = subject.frontier(bench, &budgets, Planner::Auto)?;
        for point in points {
            let plan = plans.iter().find(|plan| plan.budget == point.ours());
            let figures = plan.and_then(|plan| plan.figures);
            let recompute_us = figures.map(|figures| (figures.step.0 - subject.seconds.0) * 1e6);
            compared.push(Compared { graph: subject.name.clone(), point, recompute_us });
        }
    }
    Ok(Found { markdown: markdown(&compared), json: compared.iter().map(point_json).collect() })
}

impl Recorded {
    /// All points, or the tightest one: checkpointing of each block, else the smallest peak.
    fn chosen(&self, quick: bool) -> Vec<Point> {
        if !quick {
            return self.points.iter().chain(&self.per_block_checkpointing).cloned().collect();
        }
        let smallest = self.points.iter().min_by_key(|point| point.peak_bytes);
        self.per_block_checkpointing.as_ref().or(smallest).cloned().into_iter().collect()
    }
}

fn markdown(compared: &[Compared]) -> String {
    let mut names: Vec<&str> = compared.iter().map(|point| point.graph.as_str()).collect();
    names.dedup();
    let mut rows: Vec<Vec<String>> = names
        .iter()
        .map(|&name| counted(name, compared.iter().filter(|point| point.graph == name)))
        .collect();
    rows.push(counted("**all**", compared.iter()));
    let head =
        ["graph", "points", "met", "with recomputation", "of these less", "ours / theirs, mean"];
    let mut text = format!(
        "\n## torch.compile's memory budget and checkpointing of each block\nWithin the peak of \
         each point and 0.1 %.\n\n{}",
        table(&head, &rows)
    );
    let lost: Vec<Vec<String>> = compared.iter().filter(|point| !point.met()).map(lost).collect();
    if !lost.is_empty() {
        text += &format!(
            "\nLost:\n\n{}",
            table(&["graph", "point", "theirs (µs)", "ours (µs)"], &lost)
        );
    }
    text
}

fn counted<'a>(name: &str, points: impl Iterator<Item = &'a Compared>) -> Vec<String> {
    let points: Vec<&Compared> = points.collect();
    let contested: Vec<&&Compared> = points.iter().filter(|point| point.contested()).collect();
    let ratios: Vec<f64> = contested
        .iter()
        .filter_map(|point| Some(point.recompute_us? / point.point.recompute_us))
        .collect();
    let mean = (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64);
    vec![
        name.to_string(),
        points.len().to_string(),
        points.iter().filter(|point| point.met()).count().to_string(),
        contested.len().to_string(),
        contested.iter().filter(|point| point.won()).count().to_string(),
        known(mean, |mean| format!("{mean:.2}")),
    ]
}

fn lost(point: &Compared) -> Vec<String> {
    let ours = known(point.recompute_us, |us| format!("{us:.1}"));
    vec![point.graph.clone(), point.point.name(), format!("{:.1}", point.point.recompute_us), ours]
}

fn point_json(compared: &Compared) -> Value {
    let Compared { graph, point, recompute_us } = compared;
    json!({
        "graph": graph,
        "point": point.name(),
        "budget_bytes": point.ours(),
        "theirs_us": point.recompute_us,
        "ours_us": recompute_us,
        "met": compared.met(),
        "less": compared.won(),
    })
}
