//! The tables of a page. Invariant: a table that leaves rows out says how many and what they sum up
//! to.

use std::collections::BTreeMap;
use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use crate::axis::{duration, escape};
use crate::course::{Course, tensor_name};
use crate::frontier::FrontierPoint;
use crate::savings::Saving;

/// Rows of a table, at most.
const ROWS: usize = 20;

/// A table with a caption. The first `text` columns are text, the others figures; what follows the
/// first line of a cell is set small.
fn table(caption: &str, heads: &[&str], text: usize, rows: &[Vec<String>]) -> String {
    let class = |column: usize| if column < text { "" } else { " class=\"n\"" };
    let mut html = format!(
        "<div class=\"scroll\"><table>\n<caption>{}</caption>\n<thead><tr>",
        escape(caption)
    );
    for (column, head) in heads.iter().enumerate() {
        let _ = write!(html, "<th scope=\"col\"{}>{}</th>", class(column), escape(head));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let mut lines = cell.lines();
            let _ = write!(html, "<td{}>{}", class(column), escape(lines.next().unwrap_or("")));
            lines.for_each(|line| html.push_str(&format!("<small>{}</small>", escape(line))));
            html.push_str("</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

/// Names may hold anything.
fn one_line(name: &str) -> String {
    name.replace(['\n', '\r'], " ")
}

/// A number with as many of two decimals as it needs.
pub fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_string() } else { short.to_string() }
}

/// The largest savings and what they take.
pub fn savings(planned: &Course<'_>, all: &[Saving]) -> String {
    let graph = planned.graph;
    let row = |saving: &Saving| {
        let how = match (saving.recomputed, saving.saved > Bytes::ZERO) {
            (0, _) => "gone earlier or made later".to_string(),
            (1, _) => "recomputed".to_string(),
            (times, _) => format!("recomputed {times} times"),
        };
        let module =
            planned.graph.fresh(saving.node).iter().find_map(|&storage| planned.homes[storage]);
        let module = module.map_or(graph.module_of(saving.node), |module| &graph.modules()[module]);
        vec![
            format!("{}\n{module}", one_line(tensor_name(graph, saving.node))),
            format!("{how}\n{}", saving.bytes),
            saving.saved.to_string(),
            if saving.recomputed > 0 { duration(saving.seconds.0) } else { "–".to_string() },
        ]
    };
    let mut rows: Vec<Vec<String>> = all.iter().take(ROWS).map(row).collect();
    let rest = all.get(ROWS..).unwrap_or_default();
    if !rest.is_empty() {
        let saved: Bytes = rest.iter().map(|saving| saving.saved).sum();
        let seconds: Seconds = rest.iter().map(|saving| saving.seconds).sum();
        let name = format!("{} more", rest.len());
        rows.push(vec![name, String::new(), saved.to_string(), duration(seconds.0)]);
    }
    let heads = ["made by", "under the plan", "saved at the peak", "takes"];
    format!(
        "<section aria-labelledby=\"savings\">\n<h2 id=\"savings\">The largest \
         savings</h2>\n{}</section>\n",
        table(
            "Tensors that the plan does not hold where the step as captured peaks, or that it \
             makes again",
            &heads,
            2,
            &rows
        )
    )
}

/// The points of a frontier, folded away.
pub fn frontier(points: &[FrontierPoint]) -> String {
    let percent = |share: f64| format!("{} %", short(share * 100.0));
    let known = |share: Option<f64>| share.map_or("–".to_string(), percent);
    let row = |point: &FrontierPoint| {
        let gap = point.bound.map_or("–".to_string(), |bound| {
            format!("{} points", short((point.overhead - bound) * 100.0))
        });
        vec![point.budget.to_string(), percent(point.overhead), known(point.bound), gap]
    };
    let rows: Vec<Vec<String>> = points.iter().rev().map(row).collect();
    let heads = ["budget", "more time", "at least", "gap"];
    format!(
        "<details><summary>As a table</summary>\n{}</details>\n",
        table("More time than as captured, by budget", &heads, 0, &rows)
    )
}

/// Predicted and measured seconds by operator, the longest first.
pub fn operators(course: &Course<'_>, times: &[(Seconds, Seconds)]) -> String {
    let mut sums: BTreeMap<&str, (u64, f64, f64)> = BTreeMap::new();
    for (call, (_, measured)) in course.calls.iter().zip(times) {
        let sum = sums.entry(&course.graph.nodes()[call.node].op).or_default();
        *sum = (sum.0 + 1, sum.1 + call.seconds.0, sum.2 + measured.0);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.2.total_cmp(&a.1.2));
    let row = |name: String, (calls, predicted, measured): (u64, f64, f64)| {
        let ratio = if predicted > 0.0 {
            format!("{:.2}", measured / predicted)
        } else {
            "–".to_string()
        };
        vec![name, calls.to_string(), duration(predicted), duration(measured), ratio]
    };
    let mut rows: Vec<Vec<String>> =
        sums.iter().take(ROWS).map(|(op, sum)| row(op.to_string(), *sum)).collect();
    if let Some(rest) = sums.get(ROWS..).filter(|rest| !rest.is_empty()) {
        let sum = rest
            .iter()
            .fold((0, 0.0, 0.0), |all, (_, one)| (all.0 + one.0, all.1 + one.1, all.2 + one.2));
        rows.push(row(format!("{} more", rest.len()), sum));
    }
    table(
        "Time by operator",
        &["operator", "calls", "predicted", "measured", "measured / predicted"],
        1,
        &rows,
    )
}

/// Bytes of modules at the peaks, folded away.
pub fn modules(heads: &[&str], rows: &[Vec<String>]) -> String {
    format!(
        "<details><summary>As a table</summary>\n{}</details>\n",
        table("Bytes at the peak, by module", heads, 1, rows)
    )
}
