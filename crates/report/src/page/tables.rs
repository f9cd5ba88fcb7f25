//! The tables of a page. Invariant: a table that leaves rows out says how many they are and what
//! they sum up to.

use std::collections::BTreeMap;
use std::fmt::Write;

use tightfit::units::{Bytes, Seconds};

use crate::axis::{duration, escape};
use crate::course::{Course, tensor_name};
use crate::frontier::FrontierPoint;
use crate::savings::Saving;

/// Most rows of a table.
const ROWS: usize = 20;

/// A table with a caption. The first `text` columns are text, the others figures; everything after
/// the first line of a cell is set small.
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
            let _ = write!(html, "<td{}>{}", class(column), breakable(lines.next().unwrap_or("")));
            lines.for_each(|line| html.push_str(&format!("<small>{}</small>", breakable(line))));
            html.push_str("</td>");
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody>\n</table></div>\n");
    html
}

/// Text whose lines may break after the dots and underscores of names, but not elsewhere in them.
fn breakable(text: &str) -> String {
    let is_name = |word: &str| word.chars().any(|c| c.is_alphabetic());
    let words = text.split(' ').map(|word| match is_name(word) {
        true => escape(word).replace('.', ".<wbr>").replace('_', "_<wbr>"),
        false => escape(word),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Names may contain anything, line ends included.
fn one_line(name: &str) -> String {
    name.replace(['\n', '\r'], " ")
}

/// A number with up to two decimals, as many as it needs.
pub fn short(number: f64) -> String {
    let text = format!("{number:.2}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_string() } else { short.to_string() }
}

/// Savings of one operator in layers that are alike.
struct Alike<'a> {
    first: &'a Saving,
    /// The module, with a star in place of the layer's number.
    module: String,
    count: usize,
    saved: Bytes,
    seconds: Seconds,
}

/// Savings, grouped if they differ only in the number of their layer; the largest first.
fn alike<'a>(planned: &Course<'_>, all: &'a [Saving]) -> Vec<Alike<'a>> {
    let graph = planned.graph;
    let mut places: BTreeMap<_, usize> = BTreeMap::new();
    let mut groups: Vec<Alike> = Vec::new();
    for saving in all {
        let home = graph.fresh(saving.node).iter().find_map(|&storage| planned.homes[storage]);
        let module = home.map_or(graph.module_of(saving.node), |home| &graph.modules()[home]);
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let parts = module.split('.').map(|part| if is_number(part) { "*" } else { part });
        let pattern = parts.collect::<Vec<_>>().join(".");
        let op = &graph.nodes()[saving.node].op;
        let key = (op, pattern.clone(), saving.saved, saving.bytes, saving.recomputed);
        let place = *places.entry(key).or_insert_with(|| {
            let (saved, seconds, count) = (Bytes::ZERO, Seconds(0.0), 0);
            groups.push(Alike { first: saving, module: module.to_string(), count, saved, seconds });
            groups.len() - 1
        });
        let group = &mut groups[place];
        group.count += 1;
        group.saved += saving.saved;
        group.seconds = group.seconds + saving.seconds;
        if group.count > 1 {
            group.module = pattern;
        }
    }
    groups.sort_by(|a, b| b.saved.cmp(&a.saved).then(b.seconds.0.total_cmp(&a.seconds.0)));
    groups
}

/// The largest savings and what they cost; `name` is the plan's if there are several.
pub fn savings(planned: &Course<'_>, name: Option<&&str>, all: &[Saving]) -> String {
    let graph = planned.graph;
    let row = |group: &Alike| {
        let saving = group.first;
        let how = match (saving.recomputed, saving.saved > Bytes::ZERO) {
            (0, _) => "gone earlier or made later".to_string(),
            (1, _) => "recomputed".to_string(),
            (times, _) => format!("recomputed {times} times"),
        };
        let (made, each) = match group.count {
            1 => (one_line(tensor_name(graph, saving.node)), ""),
            count => (format!("{count} × {}", graph.nodes()[saving.node].op), " each"),
        };
        vec![
            format!("{made}\n{}", group.module),
            format!("{how}\n{}{each}", saving.bytes),
            group.saved.to_string(),
            if saving.recomputed > 0 { duration(group.seconds.0) } else { "–".to_string() },
        ]
    };
    let groups = alike(planned, all);
    let mut rows: Vec<Vec<String>> = groups.iter().take(ROWS).map(row).collect();
    let rest = groups.get(ROWS..).unwrap_or_default();
    if !rest.is_empty() {
        let saved: Bytes = rest.iter().map(|group| group.saved).sum();
        let seconds: Seconds = rest.iter().map(|group| group.seconds).sum();
        let count: usize = rest.iter().map(|group| group.count).sum();
        let name = format!("{count} more");
        rows.push(vec![name, String::new(), saved.to_string(), duration(seconds.0)]);
    }
    let heads = ["made by", "under the plan", "saved at the peak", "takes"];
    let of = name.map_or(String::new(), |name| format!(": {}", escape(name)));
    let caption = "Tensors that the plan does not hold where the unplanned step peaks, or that it \
                   makes again; a star stands for the number of the layer";
    format!(
        "<section aria-label=\"The largest savings{of}\">\n<h2>The largest savings{of}</h2>\n\
         {}</section>\n",
        table(caption, &heads, 2, &rows)
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
        table("More time than unplanned, by budget", &heads, 0, &rows)
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
