//! Every graph at every budget with every planner. Invariant: peers plan each budget on its own, as
//! they were published; `auto` plans a graph's budgets as one frontier.

use std::path::Path;

use serde_json::{Value, json};
use tightfit::plan::Planner;
use tightfit_cli::failure::Result;
use tightfit_cli::figures::Figures;

use super::subject::{Planned, Subject};
use super::{Bench, Found, graph_files};
use crate::markdown::{percent, points, ratio, seconds, table};

/// What all planners achieved for one budget.
struct Row {
    graph: String,
    fraction: f64,
    /// In the order of the planners.
    plans: Vec<Planned>,
}

impl Row {
    fn of(&self, planner: Planner) -> Option<&Planned> {
        self.plans.iter().find(|plan| plan.planner == planner)
    }

    fn auto(&self) -> Option<(&Planned, Figures)> {
        self.of(Planner::Auto).and_then(|plan| Some((plan, plan.figures?)))
    }

    /// The fastest plan of all planners but `auto`.
    fn best_peer(&self) -> Option<(&Planned, Figures)> {
        let peers = self.plans.iter().filter(|plan| plan.planner != Planner::Auto);
        peers
            .filter_map(|plan| Some((plan, plan.figures?)))
            .min_by(|a, b| a.1.step.0.total_cmp(&b.1.step.0))
    }
}

/// Plans and sums up.
pub fn measure(
    bench: &Bench,
    folder: &Path,
    planners: &[Planner],
    fractions: &[f64],
) -> Result<Found> {
    let mut rows: Vec<Row> = Vec::new();
    for path in graph_files(folder)? {
        let subject = Subject::read(&path)?;
        let budgets: Vec<_> = fractions.iter().map(|&fraction| subject.budget(fraction)).collect();
        let first = rows.len();
        rows.extend(fractions.iter().map(|&fraction| Row {
            graph: subject.name.clone(),
            fraction,
            plans: Vec::new(),
        }));
        for &planner in planners {
            let plans = match planner {
                Planner::Auto => subject.frontier(bench, &budgets, planner)?,
                peer => budgets
                    .iter()
                    .map(|&budget| subject.plan(bench, budget, peer))
                    .collect::<Result<_, _>>()?,
            };
            for (row, plan) in rows[first..].iter_mut().zip(plans) {
                row.plans.push(plan);
            }
        }
        rows[first..].reverse();
    }
    let auto = planners.contains(&Planner::Auto);
    let mut markdown = by_planner(&rows, planners);
    markdown += &summary(&rows, planners);
    if auto {
        markdown += &details(&rows);
        markdown += &gaps(&rows, fractions);
        markdown += &against_peers(&rows);
    }
    Ok(Found { markdown, json: rows.iter().flat_map(plans_json).collect() })
}

fn by_planner(rows: &[Row], planners: &[Planner]) -> String {
    let head: Vec<&str> =
        ["graph", "f"].into_iter().chain(planners.iter().map(|planner| planner.name())).collect();
    let cells = |row: &Row| {
        let plans =
            row.plans.iter().map(|plan| percent(plan.figures.map(|figures| figures.overhead)));
        [row.graph.clone(), row.fraction.to_string()].into_iter().chain(plans).collect()
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let what = "Slowdown by planner; budget = static + f · (unplanned peak − static); – where the \
        planner has no plan.";
    format!("\n## Slowdown\n{what}\n\n{}", table(&head, &rows))
}

fn details(rows: &[Row]) -> String {
    let head = [
        "graph",
        "f",
        "slowdown",
        "bound",
        "gap (points)",
        "first plan (s)",
        "final plan (s)",
        "peak / budget",
        "slab / peak",
    ];
    let cells = |row: &Row| {
        let plan = row.of(Planner::Auto);
        let figures = plan.and_then(|plan| plan.figures);
        vec![
            row.graph.clone(),
            row.fraction.to_string(),
            percent(figures.map(|figures| figures.overhead)),
            percent(figures.and_then(|figures| figures.bound)),
            points(figures.and_then(|figures| figures.gap)),
            seconds(plan.map(|plan| plan.first)),
            seconds(plan.map(|plan| plan.total)),
            plan.map_or(String::new(), |plan| {
                ratio(figures.map(|figures| figures.peak), plan.budget)
            }),
            figures.map_or("–".to_string(), |figures| ratio(Some(figures.slab), figures.peak)),
        ]
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    format!("\n## Plans of `auto`\n\n{}", table(&head, &rows))
}

fn summary(rows: &[Row], planners: &[Planner]) -> String {
    let head = ["planner", "feasible", "mean (s)", "longest (s)", "worst slab / peak"];
    let cells = |&planner: &Planner| {
        let plans: Vec<&Planned> = rows.iter().filter_map(|row| row.of(planner)).collect();
        let feasible: Vec<Figures> = plans.iter().filter_map(|plan| plan.figures).collect();
        let longest = plans.iter().map(|plan| plan.total.0).fold(0.0, f64::max);
        let worst = feasible
            .iter()
            .map(|figures| figures.slab.0 as f64 / figures.peak.0.max(1) as f64)
            .fold(0.0, f64::max);
        vec![
            planner.name().to_string(),
            format!("{} of {}", feasible.len(), plans.len()),
            format!("{:.3}", mean(plans.iter().map(|plan| plan.total.0)).unwrap_or(0.0)),
            format!("{longest:.3}"),
            if feasible.is_empty() { "–".to_string() } else { format!("{worst:.4}") },
        ]
    };
    let rows: Vec<Vec<String>> = planners.iter().map(cells).collect();
    format!("\n## Planners\n\n{}", table(&head, &rows))
}

fn gaps(rows: &[Row], fractions: &[f64]) -> String {
    let cells = |&fraction: &f64| {
        let figures =
            rows.iter().filter(|row| row.fraction == fraction).filter_map(|row| row.auto());
        let gaps: Vec<f64> = figures.filter_map(|(_, figures)| figures.gap).collect();
        let worst = gaps.iter().copied().reduce(f64::max);
        vec![
            fraction.to_string(),
            gaps.len().to_string(),
            points(mean(gaps.iter().copied())),
            points(worst),
        ]
    };
    let rows: Vec<Vec<String>> = fractions.iter().rev().map(cells).collect();
    format!(
        "\n## Gap of `auto` by budget\n\n{}",
        table(&["f", "plans with a bound", "mean gap (points)", "worst gap (points)"], &rows)
    )
}

/// Of budgets for which a peer has a plan: is that of `auto` at most as slow?
fn against_peers(rows: &[Row]) -> String {
    let contested: Vec<_> = rows.iter().filter_map(|row| Some((row, row.best_peer()?))).collect();
    let lost = |(row, (peer, best)): &(&Row, (&Planned, Figures))| {
        // Equal plans may add up their seconds in another order.
        let beaten = row.auto().is_none_or(|(_, auto)| auto.step.0 > best.step.0 * (1.0 + 1e-12));
        let auto = percent(row.auto().map(|(_, figures)| figures.overhead));
        let best = percent(Some(best.overhead));
        beaten.then(|| {
            vec![
                row.graph.clone(),
                row.fraction.to_string(),
                auto,
                best,
                peer.planner.name().to_string(),
            ]
        })
    };
    let lost: Vec<Vec<String>> = contested.iter().filter_map(lost).collect();
    let kept = contested.len() - lost.len();
    let mut text = format!(
        "\n`auto` is at most as slow as the best peer at {kept} of {} budgets where a peer has a \
         plan.\n",
        contested.len()
    );
    if !lost.is_empty() {
        text += &format!(
            "\nNot so:\n\n{}",
            table(&["graph", "f", "auto", "best peer", "which"], &lost)
        );
    }
    text
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0usize, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / count as f64)
}

fn plans_json(row: &Row) -> Vec<Value> {
    let one = |plan: &Planned| {
        let mut value = plan.json();
        value["graph"] = json!(row.graph);
        value["fraction"] = json!(row.fraction);
        value
    };
    row.plans.iter().map(one).collect()
}
