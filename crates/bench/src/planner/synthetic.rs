//! Synthetic graphs: how near to proven optima, and how time and memory grow with the graph.
//! Invariant: budgets of the small graphs are half of the unplanned peak, everything included, as
//! in the proofs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use tightfit::plan::Planner;
use tightfit::units::Bytes;
use tightfit_cli::failure::{Context, Result};
use tightfit_engine::process;

use super::subject::Subject;
use super::{Bench, Found, graph_files};
use crate::markdown::{known, percent, points, ratio, seconds, table};

#[derive(Deserialize)]
struct Optima {
    overhead_percent: BTreeMap<String, f64>,
}

/// Small graphs at half of their peak, compared with their optima.
pub fn optima(bench: &Bench, folder: &Path) -> Result<Found> {
    let file = folder.join("optima.json");
    let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
    let optima: Optima =
        serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    let (mut rows, mut json): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    for (name, optimum) in optima.overhead_percent {
        let subject = Subject::read(&folder.join(format!("{name}.json.gz")))?;
        let plan = subject.plan(bench, Bytes(subject.peak.0 / 2), Planner::Auto)?;
        let overhead = plan.figures.map(|figures| figures.overhead);
        rows.push(vec![
            name.clone(),
            subject.graph.compute_nodes().len().to_string(),
            format!("{optimum:.2}"),
            percent(overhead),
            percent(overhead.map(|overhead| overhead - optimum / 100.0)),
            percent(plan.figures.and_then(|figures| figures.bound)),
            seconds(Some(plan.first)),
            seconds(Some(plan.total)),
        ]);
        let mut value = plan.json();
        value["graph"] = json!(name);
        value["optimum_percent"] = json!(optimum);
        json.push(value);
    }
    let head = [
        "graph",
        "nodes",
        "proven optimum",
        "slowdown",
        "above it (points)",
        "bound",
        "first plan (s)",
        "final plan (s)",
    ];
    let markdown = format!(
        "\n## Small graphs with proven optima\nBudget: half of the unplanned peak.\n\n{}",
        table(&head, &rows)
    );
    Ok(Found { markdown, json: json.into() })
}

/// Long transformers: seconds and bytes that planning itself takes.
pub fn transformers(bench: &Bench, folder: &Path) -> Result<Found> {
    let is_transformer = |path: &Path| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"transformer-"))
    };
    let mut files: Vec<PathBuf> =
        graph_files(folder)?.into_iter().filter(|path| is_transformer(path)).collect();
    // Small ones first: a process does not give all its memory back.
    files.sort_by_key(|path| path.metadata().map_or(0, |file| file.len()));
    let (mut rows, mut json): (Vec<Vec<String>>, Vec<Value>) = (Vec::new(), Vec::new());
    let fractions: &[f64] = if bench.quick { &[0.5] } else { &[0.3, 0.5, 0.7] };
    for path in files.iter().take(if bench.quick { 1 } else { usize::MAX }) {
        let subject = Subject::read(path)?;
        for &fraction in fractions {
            process::restart_peak();
            let plan = subject.plan(bench, subject.budget(fraction), Planner::Auto)?;
            let memory = process::peak_resident();
            let figures = plan.figures;
            rows.push(vec![
                subject.name.clone(),
                subject.graph.nodes().len().to_string(),
                fraction.to_string(),
                percent(figures.map(|figures| figures.overhead)),
                percent(figures.and_then(|figures| figures.bound)),
                points(figures.and_then(|figures| figures.gap)),
                seconds(Some(plan.first)),
                seconds(Some(plan.total)),
                figures
                    .map_or("–".to_string(), |figures| ratio(Some(figures.slab), figures.peak)),
                known(memory, |bytes| bytes.to_string()),
            ]);
            let mut value = plan.json();
            value["graph"] = json!(subject.name);
            value["fraction"] = json!(fraction);
            value["process_peak_bytes"] = json!(memory);
            json.push(value);
        }
    }
    let head = [
        "graph",
        "nodes",
        "f",
        "slowdown",
        "bound",
        "gap (points)",
        "first plan (s)",
        "final plan (s)",
        "slab / peak",
        "process peak",
    ];
    Ok(Found {
        markdown: format!("\n## Long transformers\n\n{}", table(&head, &rows)),
        json: json.into(),
    })
}
