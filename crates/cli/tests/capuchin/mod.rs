//! Capuchin through the program: what `plan --explain` prints is what replaying it gives.
//! Invariant: figures are read from the program's own output, and judged by code that shares
//! nothing with it but the graph, the simulation and the rewriting.

mod cases;
#[path = "../../../planner/tests/fixtures/generator/mod.rs"]
mod generator;
mod oracle;
mod page;
mod replay;

use std::path::Path;

use serde_json::Value as Json;

/// The program's output and exit code.
struct Answer {
    code: i32,
    json: Json,
    stderr: String,
}

/// Plans with Capuchin and has the plan explained, on an A100.
fn explained(folder: &Path, graph: &str, budget: &str, variant: &str) -> Answer {
    let ran = crate::program::run(
        folder,
        &format!(
            "plan {graph} --budget {budget} --planner capuchin --variant {variant} --machine \
             a100-80gb --explain --json -o FOLDER/plan.json"
        ),
    );
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stderr);
    Answer { code: ran.code.unwrap(), json: ran.result(), stderr: ran.stderr }
}

fn list(json: &Json) -> &[Json] {
    json.as_array().unwrap_or_else(|| panic!("not a list: {json}"))
}

fn text(json: &Json) -> &str {
    json.as_str().unwrap_or_else(|| panic!("not a text: {json}"))
}

fn number(json: &Json) -> u64 {
    json.as_u64().unwrap_or_else(|| panic!("not a number of bytes: {json}"))
}

/// The row of a list whose `node` has this name.
fn row<'a>(rows: &'a Json, node: &str) -> &'a Json {
    let row = list(rows).iter().find(|row| row["node"] == node);
    row.unwrap_or_else(|| panic!("no row for {node}"))
}

#[track_caller]
fn close(found: &Json, expected: f64, what: &str) {
    let found = found.as_f64().unwrap_or(f64::INFINITY);
    assert!(
        found == expected || (found - expected).abs() <= 1e-9 * expected.abs(),
        "{what}: {found}, expected {expected}"
    );
}
