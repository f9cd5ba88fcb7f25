//! Steps of nanoseconds and bytes, with long names. Invariant: output about them is as informative
//! as about large ones, in rows that fit a terminal.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{folder, run};

/// A chain whose backward pass reads what the forward pass reads; a node takes some hundredths of a
/// nanosecond, times `scale`.
fn chain(scale: f64) -> TempDir {
    const NODES: usize = 6;
    let (mut storages, mut nodes) = (vec![40], vec![]);
    nodes.push(json!({
        "name": "p", "op": "placeholder", "phase": "parameter", "inputs": [],
        "outputs": [{ "id": 0, "shape": [40], "dtype": "u8", "storage": 0 }],
    }));
    let mut add = |phase: &str, at: usize, inputs: Vec<usize>| {
        let (id, bytes) = (storages.len(), 100 + at);
        storages.push(bytes);
        nodes.push(json!({
            "name": format!("a_rather_long_name_of_a_{phase}_node_{at}"),
            "op": "an_operator_of_a_library_with_a_name_that_is_long",
            "phase": phase, "inputs": inputs, "module": 1,
            "outputs": [{ "id": id, "shape": [bytes], "dtype": "u8", "storage": id }],
            "seconds": 3.37e-11 * scale * (at + 1) as f64,
        }));
        id
    };
    let mut made = vec![0];
    for at in 0..NODES {
        made.push(add("forward", at, vec![made[at]]));
    }
    let mut gradient = made[NODES];
    for at in (0..NODES).rev() {
        gradient = add("backward", at, vec![gradient, made[at]]);
    }
    let module = "a_model.of_many.layers.17.attention.with_a_very_long_name.projection";
    let graph = json!({
        "format": "tightfit-graph/1", "name": "small", "modules": ["", module],
        "storages": storages, "nodes": nodes, "outputs": [gradient],
    });
    let here = folder();
    std::fs::write(here.path().join("graph.json"), graph.to_string()).unwrap();
    here
}

fn printed(here: &TempDir, verb: &str, options: &str) -> String {
    run(here.path(), &format!("{verb} FOLDER/graph.json {options}")).done().stdout
}

#[test]
fn times_have_three_digits() {
    for (scale, has_exponent) in [(0.1, true), (1.0, false)] {
        let here = chain(scale);
        let options = "--budget min --iterations 1000";
        let result: Value =
            serde_json::from_str(&printed(&here, "plan", &format!("{options} --json"))).unwrap();
        let time = |key: &str| match result[key].as_f64().unwrap() * 1e3 {
            milliseconds if has_exponent => format!("{milliseconds:.2e}"),
            milliseconds => format!("{milliseconds:.8}"),
        };
        let (planned, unplanned) = (time("step_seconds"), time("unplanned_step_seconds"));
        assert_ne!(planned, unplanned);
        let text = printed(&here, "plan", &format!("{options} --wide"));
        assert!(text.contains(&format!("{planned} ms instead of {unplanned} ms")), "{text}");
    }
    // One nanosecond, or a thousand, without an exponent.
    for (scale, first) in [(30.0, "0.00000101"), (3e4, "0.00101")] {
        let text = printed(&chain(scale), "analyze", "--nodes");
        let row = text.lines().find(|line| line.contains("  forward ")).unwrap();
        assert!(row.contains(first), "{row}");
    }
}

#[test]
fn rows_are_aligned_and_fit_a_terminal() {
    let here = chain(1.0);
    for (verb, options, column) in [
        ("plan", "--budget min --iterations 1000 --recomputed", "operator"),
        ("analyze", "--nodes", "pass"),
        ("analyze", "", "phase"),
        ("shard", "--budget min --world-size 2 --bandwidth 1GB/s --latency 1us", "unit"),
    ] {
        let text = printed(&here, verb, options);
        let table = text.split("\n\n").find(|part| part.contains(&format!("{column}  "))).unwrap();
        let (before, rows) = table.split_once(column).unwrap();
        let head = before.lines().last().map_or(0, |line| line.chars().count());
        let rows: Vec<&str> = rows.lines().skip(1).filter(|line| line.contains("  ")).collect();
        assert!(!rows.is_empty(), "{text}");
        for row in rows {
            let cells: Vec<char> = row.chars().collect();
            assert!(cells.len() <= 80, "{verb} {options}: {row}");
            let gap = &cells[head.saturating_sub(2)..head];
            assert!(gap.iter().all(|&gap| gap == ' ') && cells[head] != ' ', "{column}: {text}");
        }
    }
    let text = printed(&here, "modules", "");
    let rows = text.split("\n\n").nth(1).unwrap().lines();
    let rows: Vec<&str> = rows.filter(|line| !line.starts_with('…')).collect();
    // Figures end below the ends of their heads.
    let width = rows[0].chars().count();
    assert!(width <= 80 && rows.iter().all(|row| row.chars().count() == width), "{text}");
}

#[test]
fn addresses_that_do_not_fit_are_named() {
    let here = chain(1.0);
    let least = printed(&here, "plan", "--budget min --iterations 1000 --json");
    let least: Value = serde_json::from_str(&least).unwrap();
    let (peak, slab) = (&least["peak_bytes"], least["slab_bytes"].as_u64().unwrap());
    assert!(peak.as_u64().unwrap() < slab - 1, "{least}");
    let plan = |budget: u64| {
        let verb = format!("plan FOLDER/graph.json --iterations 1000 --budget {budget}");
        run(here.path(), &verb)
    };
    let said = "it is addresses that do not fit";
    let ran = plan(slab - 1);
    let alive = format!("({peak} bytes) are alive at most, which is within the budget; {said}");
    assert!(ran.code == Some(10) && ran.stderr.contains(&alive), "{}", ran.stderr);
    let ran = plan(peak.as_u64().unwrap() - 1);
    assert_eq!(ran.code, Some(crate::program::code_of_refusal(&ran.stderr)));
    assert!(!ran.stderr.contains(said), "{}", ran.stderr);
}

#[test]
fn a_bound_below_the_unplanned_step_says_why() {
    let why = "(of times rounded down to picoseconds)";
    for (scale, is_below) in [(1.0, true), (1e6, false)] {
        let text = printed(&chain(scale), "plan", "--budget 100% --planner capuchin --wide");
        let bound = text.lines().find(|line| line.starts_with("bound ")).unwrap();
        assert_eq!((bound.contains(" -"), bound.contains(why)), (is_below, is_below), "{bound}");
    }
}
