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

#[test]
fn a_search_is_compared_with_the_best_that_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let known = |folder: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(folder.join("known.json")).unwrap()).unwrap()
    };
    let arguments = "curve corpus/synthetic/tf2.json.gz --budgets 0.05,0.6 --deadline 500ms \
                     --known FOLDER/known.json --lower";
    let ran = bench(arguments, folder);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let of_graph = known(folder)["tf2"].clone();
    let seconds = of_graph["step_seconds"].as_object().unwrap();
    assert_eq!(seconds.len(), 2, "a budget below the smallest is not searched: {seconds:?}");
    assert!(text(&ran.stdout).contains("| tf2 | tight |"), "{}", text(&ran.stdout));
    // A plan that is known to be faster stays known, and is what others are compared with.
    let largest = seconds.iter().max_by_key(|(budget, _)| budget.parse::<u64>().unwrap());
    let (budget, least) = largest.unwrap();
    let faster = least.as_f64().unwrap() / 2.0;
    let mut changed = known(folder);
    changed["tf2"]["step_seconds"][budget] = faster.into();
    std::fs::write(folder.join("known.json"), changed.to_string()).unwrap();
    let ran = bench(arguments, folder);
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    assert_eq!(known(folder)["tf2"]["step_seconds"][budget], faster);
    let of_budget = text(&ran.stdout).lines().find(|line| line.starts_with("| tf2 | 0.6 |"));
    let excess: f64 = of_budget.unwrap().split('|').rev().nth(1).unwrap().trim().parse().unwrap();
    assert!(excess > 10.0, "{of_budget:?}");
    std::fs::write(folder.join("known.json"), "[]").unwrap();
    assert!(!bench(arguments, folder).status.success());
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
