//! The parts of the bench as people run them.
//!
//! Tier: quick, since it takes a few seconds.

#![allow(clippy::unwrap_used)] // tests panic where they fail

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn bench(arguments: &str, folder: &Path) -> Output {
    let folder = folder.to_str().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tightfit-bench"))
        .args(arguments.split_whitespace().map(|word| word.replace("FOLDER", folder)))
        .current_dir(root())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn plans_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let graph = root().join("corpus/synthetic/tf2.json.gz");
    std::fs::copy(graph, folder.join("tf2.json.gz")).unwrap();
    let planners = "--planners none,auto --budgets 0.6,0.8 --deadline 50ms";
    let ran = bench(
        &format!(
            "planner --graphs FOLDER --parts grid,tiers,optima {planners} --json \
             FOLDER/found.json --markdown FOLDER/found.md"
        ),
        folder,
    );
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let said = text(&ran.stdout);
    assert_eq!(std::fs::read_to_string(folder.join("found.md")).unwrap(), said);
    let found = std::fs::read(folder.join("found.json")).unwrap();
    let found: Value = serde_json::from_slice(&found).unwrap();
    let grid = found["grid"].as_array().unwrap();
    assert_eq!(grid.len(), 2 * 2, "each planner at each budget");
    assert!(
        grid.iter().all(|plan| plan["graph"] == "tf2" && plan["budget_bytes"].is_u64()),
        "{grid:?}"
    );
    let with_tier = found["tiers"]["plans"].as_array().unwrap();
    assert_eq!(with_tier.len(), 4 * 2, "each way at each budget");
    let moves = |plan: &&Value| plan["tier"] == "pcie4";
    assert_eq!(with_tier.iter().filter(moves).count(), 3 * 2, "{with_tier:?}");
    let smallest = &found["tiers"]["smallest"][0];
    assert!(smallest["working_set_bytes"].as_u64() <= smallest["hybrid"].as_u64(), "{smallest}");
    assert!(smallest["hybrid"].as_u64() <= smallest["recomputation alone"].as_u64(), "{smallest}");
    assert_eq!(found["optima"].as_array().unwrap().len(), 5);
    for heading in [
        "## Slowdown",
        "## With a tier",
        "## The smallest slab with a tier",
        "## Planners",
        "## Gap of `auto` by budget",
        "## Small graphs with proven optima",
    ] {
        assert!(said.contains(heading), "`{heading}` is missing from\n{said}");
    }
}

/// The program is part of it, since what is measured runs in processes of its own.
#[test]
fn a_training_step_is_timed() {
    let folder = tempfile::tempdir().unwrap();
    let step = root().join("corpus/steps/mlp-digits");
    let ran = Command::new(env!("CARGO_BIN_EXE_tightfit-bench"))
        .arg("engine")
        .arg(step)
        .args(["--budgets", "100%", "--rounds", "1", "--steps", "2", "--json"])
        // No Python with PyTorch is found from here.
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert!(serde_json::from_slice::<Value>(&ran.stdout).is_ok());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ran = bench("planner --budgets 0.5,1.5", folder.path());
    assert_eq!(ran.status.code(), Some(2));
    let first = text(&ran.stderr).lines().next().unwrap();
    assert_eq!(
        first,
        "error: invalid value '1.5' for '--budgets <BUDGETS>': a fraction of the activation peak \
         lies between 0 and 1"
    );
    std::fs::write(folder.path().join("table.csv"), "1,2,3\n").unwrap();
    assert_eq!(bench("layout FOLDER", folder.path()).status.code(), Some(1));
}
