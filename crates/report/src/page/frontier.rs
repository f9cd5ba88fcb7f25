//! Time by budget, as a plot and as a table. Invariant: the axes reach around every point that is
//! drawn; only points of the frontier are joined by a line.

use std::fmt::Write;

use super::plot::Frame;
use super::{Report, tables};
use crate::axis::{FEW, escape, percents, ticks};
use crate::frontier::{Axes, FrontierPoint, line};
use crate::stack::SIDE;

/// Time over budget, with the bound; nothing without other budgets.
pub fn section(report: &Report<'_>) -> String {
    let mut points = report.frontier.to_vec();
    if points.is_empty() {
        return String::new();
    }
    points.sort_by_key(|point| point.budget);
    let own = own(report);
    let axes = Axes::around(points.iter().chain(&own), 0.04, 1.1);
    let (shapes, key) = marks(&points, &own, &axes);
    let frame = Frame {
        shapes,
        vertical: percents(axes.top)
            .into_iter()
            .map(|share| (share / axes.top, format!("{} %", tables::short(share * 100.0))))
            .collect(),
        horizontal: ticks(axes.low, axes.high, FEW)
            .into_iter()
            .map(|bytes| (axes.across(bytes), bytes.to_string()))
            .collect(),
        label: "Time by budget; the table below has the numbers".to_string(),
        key: String::new(),
    };
    format!(
        "<section aria-labelledby=\"frontier\">\n<h2 id=\"frontier\">Time by \
         budget</h2>\n<p>{}</p>\n<figure>\n<figcaption>{key}</figcaption>\n\
         {}</figure>\n{}</section>\n",
        escape(&summary(report, &points)),
        frame.html(),
        tables::frontier(&points)
    )
}

/// The plans of the page as points.
fn own(report: &Report<'_>) -> Vec<FrontierPoint> {
    let unplanned = report.unplanned.seconds.0.max(f64::MIN_POSITIVE);
    report
        .planned
        .iter()
        .map(|plan| FrontierPoint {
            budget: plan.course.budget + report.reserve,
            overhead: plan.course.seconds.0 / unplanned - 1.0,
            bound: None,
        })
        .collect()
}

/// The elements of the drawing, and the key to them.
fn marks(points: &[FrontierPoint], own: &[FrontierPoint], axes: &Axes) -> (String, String) {
    let x = |point: &FrontierPoint| axes.across(point.budget) * f64::from(SIDE);
    let y = |share: f64| axes.down(share) * f64::from(SIDE);
    let place = |point: &FrontierPoint| (x(point), y(point.overhead));
    let plans: Vec<(f64, f64)> = points.iter().map(place).collect();
    let bounds: Vec<(f64, f64)> =
        points.iter().filter_map(|point| Some((x(point), y(point.bound?)))).collect();
    let mut shapes = format!(
        "<path class=\"line\" d=\"{}\"/><path class=\"dots\" d=\"{}\"/>",
        line(&plans),
        dots(&plans)
    );
    let mut key = "<i class=\"dot\"></i>a plan".to_string();
    if !bounds.is_empty() {
        let _ = write!(shapes, "<path class=\"limit\" d=\"{}\"/>", line(&bounds));
        key.push_str(
            " <span class=\"key\"><svg viewBox=\"0 0 24 4\" aria-hidden=\"true\"><path \
            class=\"limit\" d=\"M0 2H24\"/></svg>no schedule is faster</span>",
        );
    }
    if !own.is_empty() {
        let places: Vec<(f64, f64)> = own.iter().map(place).collect();
        let _ = write!(shapes, "<path class=\"own\" d=\"{}\"/>", dots(&places));
        let whose = if own.len() > 1 { "these plans" } else { "this plan" };
        let _ = write!(key, " <span class=\"key\"><i class=\"dot own\"></i>{whose}</span>");
    }
    (shapes, key)
}

/// A dot at each place, as a path.
fn dots(places: &[(f64, f64)]) -> String {
    places.iter().map(|(x, y)| format!("M{x:.1} {y:.1}h0")).collect()
}

fn summary(report: &Report<'_>, points: &[FrontierPoint]) -> String {
    let peak = report.unplanned.peak.0.max(1) as f64;
    let share = |point: &FrontierPoint| {
        format!(
            "{} ({:.0} % of the unplanned peak)",
            point.budget,
            point.budget.0 as f64 / peak * 100.0
        )
    };
    let mut text = String::from("The additional time of a step, by budget.");
    if let Some(cheap) = points
        .iter()
        .find(|point| point.overhead < 0.01)
        .filter(|cheap| cheap.budget < report.unplanned.peak)
    {
        let _ = write!(text, " {} costs less than 1 % more time.", share(cheap));
    }
    if let Some(least) = points.first() {
        let _ = write!(
            text,
            " The smallest budget that the planner reached is {}, at {:+.1} % of time.",
            share(least),
            least.overhead * 100.0
        );
    }
    text
}
