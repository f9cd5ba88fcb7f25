//! `plan`, `check` and `analyze` agree with each other. Invariant: what one verb says is what
//! another one finds.
//!
//! Tier: quick with a part of the cases, 7 s; full with all of them.

use std::path::Path;

use serde_json::{Value, json};
use tightfit_testing::first;

use crate::program::{BY_SIZE, GRAPHS, corpus, folder, run, tags};

const STEPS: [&str; 3] = ["gpt-nano", "gpt-nano-dropout", "mlp-digits"];

fn plan(arguments: &str) -> Value {
    run(Path::new("."), &format!("plan {arguments} --json")).done().result()
}

fn bytes(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("{key}: {}", result[key]))
}

#[test]
fn every_graph_of_the_corpus_is_planned_at_eighty_percent() {
    let mut files = crate::program::listing(&corpus().join("graphs"));
    // Those for CUDA are planned by the planner's own tests.
    files.retain(|name| name != "cuda");
    assert_eq!(files, GRAPHS.map(|name| format!("{name}.json.gz")));
    for name in first(2, &BY_SIZE) {
        let result =
            plan(&format!("corpus/graphs/{name}.json.gz --budget 80% --machine a100-80gb"));
        for key in ["graph", "machine", "planner"] {
            assert!(result[key].as_str().is_some_and(|text| !text.is_empty()), "{name}: {key}");
        }
        let keys = [
            "budget_bytes",
            "peak_bytes",
            "static_bytes",
            "unplanned_peak_bytes",
            "slab_bytes",
            "recomputed_nodes",
        ];
        for key in keys {
            assert!(result[key].as_u64().is_some(), "{name}: {key} is {}", result[key]);
        }
        for key in ["unplanned_step_seconds", "step_seconds", "overhead", "planning_seconds"] {
            assert!(
                result[key].as_f64().is_some_and(|x| x.is_finite() && x >= 0.0),
                "{name}: {key} is {}",
                result[key]
            );
        }
        let [budget, peak, fixed, unplanned, slab, _] = keys.map(|key| bytes(&result, key));
        assert_eq!(budget, (unplanned as f64 * 0.8) as u64, "{name}");
        assert!(
            fixed <= peak && peak <= slab && slab <= budget && budget < unplanned,
            "{name}: {result}"
        );
        let (before, after) = (
            result["unplanned_step_seconds"].as_f64().unwrap(),
            result["step_seconds"].as_f64().unwrap(),
        );
        assert!(
            (after / before - 1.0 - result["overhead"].as_f64().unwrap()).abs() < 1e-9,
            "{name}: {result}"
        );
        assert_eq!(result["machine"], "a100-80gb");
    }
}

#[test]
fn the_whole_budget_recomputes_nothing() {
    let steps = STEPS.map(|name| format!("corpus/steps/{name} --threads 2"));
    let graphs = GRAPHS.map(|name| format!("corpus/graphs/{name}.json.gz"));
    for graph in steps.iter().chain(&graphs) {
        let result = plan(&format!("{graph} --budget 100%"));
        assert_eq!(bytes(&result, "recomputed_nodes"), 0, "{graph}");
    }
}

#[test]
fn a_plan_is_legal_in_its_own_slab_and_not_one_byte_below() {
    let folder = folder();
    let plans = STEPS
        .map(|name| format!("corpus/steps/{name}"))
        .into_iter()
        .chain(["corpus/graphs/resnet50_b32.json.gz".to_string()]);
    for graph in plans {
        let planned = run(
            folder.path(),
            &format!("plan {graph} --budget 87% --threads 2 --json -o FOLDER/plan"),
        )
        .done()
        .result();
        let slab = bytes(&planned, "slab_bytes");
        let check = |budget: u64| {
            run(
                folder.path(),
                &format!("check {graph} FOLDER/plan --budget {budget} --threads 2 --json"),
            )
        };
        // The whole budget is meant: what the process takes besides the slab is part of it.
        let least = slab + bytes(&planned, "reserve_bytes");
        for budget in [bytes(&planned, "budget_bytes"), least] {
            let checked = check(budget).done().result();
            assert_eq!(checked["legal"], true, "{graph}");
            for key in [
                "graph",
                "planner",
                "peak_bytes",
                "slab_bytes",
                "recomputed_nodes",
                "step_seconds",
                "overhead",
            ] {
                assert_eq!(checked[key], planned[key], "{graph}: {key}");
            }
        }
        let refused = check(least - 1);
        assert_eq!((refused.code, &refused.result()["exit_code"]), (Some(9), &json!(9)), "{graph}");
    }
}

#[test]
fn min_is_feasible_and_less_is_not() {
    for planner in ["none", "chen", "capuchin", "auto"] {
        for step in first(1, &STEPS) {
            let arguments = format!("corpus/steps/{step} --threads 2 --planner {planner}");
            let least = bytes(&plan(&format!("{arguments} --budget min")), "budget_bytes");
            let again = plan(&format!("{arguments} --budget {least}"));
            assert!(
                bytes(&again, "slab_bytes") + bytes(&again, "reserve_bytes") <= least,
                "{step} {planner}"
            );
            if planner == "auto" {
                continue; // It promises what it found, not that there is nothing smaller.
            }
            let refused =
                run(Path::new("."), &format!("plan {arguments} --budget {}", least - least / 100));
            let code = crate::program::code_of_refusal(&refused.stderr);
            assert_eq!(refused.code, Some(code), "{step} {planner}");
            assert!(
                refused.stderr.contains(&format!("({least} bytes)")),
                "{step} {planner}: `min` is what a refusal names\n{}",
                refused.stderr
            );
        }
    }
}

#[test]
fn two_plans_are_the_same_bytes() {
    let folder = folder();
    for output in ["first", "second"] {
        run(
            folder.path(),
            &format!(
                "plan corpus/steps/gpt-nano --budget min --threads 2 \
            --iterations 100000 -o FOLDER/{output}"
            ),
        )
        .done();
    }
    let read = |name| std::fs::read(folder.path().join(name)).unwrap();
    assert!(read("first") == read("second"));
}

/// A link is followed and permissions stay; what is not a regular file is not replaced by one.
#[test]
#[cfg(unix)]
fn what_is_written_goes_where_the_name_leads() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let folder = folder();
    let (kept, link) = (folder.path().join("kept.json"), folder.path().join("link.json"));
    std::fs::write(&kept, "old").unwrap();
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o600)).unwrap();
    symlink(&kept, &link).unwrap();
    for target in [link.display().to_string(), "/dev/null".to_string()] {
        run(Path::new("."), &format!("plan corpus/steps/mlp-digits --budget 80% -o {target}"))
            .done();
    }
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::read_to_string(&kept).unwrap().contains("tightfit-plan/1"));
    assert_eq!(std::fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn analyze_agrees_with_plan() {
    let steps = STEPS.map(|name| format!("corpus/steps/{name} --threads 2"));
    let graphs = [
        "corpus/graphs/resnet50_b32.json.gz".to_string(),
        "corpus/graphs/gpt2_small_b8_s512.json.gz".to_string(),
    ];
    for graph in steps.iter().chain(&graphs) {
        let analyzed =
            run(Path::new("."), &format!("analyze {graph} --depth 1 --json")).done().result();
        let planned = plan(&format!("{graph} --budget 100%"));
        assert_eq!(analyzed["peak_bytes"], planned["unplanned_peak_bytes"], "{graph}");
        assert_eq!(analyzed["static_bytes"], planned["static_bytes"], "{graph}");
        let (ours, theirs) = (
            analyzed["step_seconds"].as_f64().unwrap(),
            planned["unplanned_step_seconds"].as_f64().unwrap(),
        );
        assert!((ours / theirs - 1.0).abs() < 1e-9, "{graph}");
        let list = |key: &str| analyzed[key].as_array().unwrap().clone();
        // The tensors alive at the peak make up the peak.
        assert_eq!(
            list("live").iter().map(|tensor| bytes(tensor, "bytes")).sum::<u64>(),
            bytes(&analyzed, "peak_bytes"),
            "{graph}"
        );
        let modules = list("modules");
        let root = modules.iter().find(|row| row["module"] == "").unwrap();
        let runs = |node: &&Value| !node["rank"].is_null();
        assert_eq!(
            bytes(root, "nodes"),
            list("nodes").iter().filter(runs).count() as u64,
            "{graph}"
        );
        assert!(
            modules.iter().all(|row| !row["module"].as_str().unwrap().contains('.')),
            "{graph}: depth 1"
        );
        // The root sums up its children and what belongs to no child.
        for key in ["nodes", "saved_bytes"] {
            let children: u64 =
                modules.iter().filter(|row| row["module"] != "").map(|row| bytes(row, key)).sum();
            let own = |node: &&Value| runs(node) && node["module"] == "";
            let own = list("nodes").iter().filter(own).count() as u64;
            let all = bytes(root, key);
            assert!(
                if key == "nodes" { all == children + own } else { all >= children },
                "{graph}: {key} {all} {children}"
            );
        }
        // Parameters that two children share count for both of them, and once for the root.
        let largest = modules.iter().map(|row| bytes(row, "parameter_bytes")).max();
        assert_eq!(largest, Some(bytes(root, "parameter_bytes")), "{graph}");
        let seconds: f64 = list("nodes").iter().map(|node| node["seconds"].as_f64().unwrap()).sum();
        assert!((seconds / root["seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{graph}");
    }
}

#[test]
fn a_person_can_read_the_analysis() {
    let text =
        run(Path::new("."), "analyze corpus/steps/gpt-nano --threads 2 --top 3").done().stdout;
    for words in ["peak", "alive there, the 3 largest", "(root)", "h.0", "ln_f"] {
        assert!(text.contains(words), "`{words}` is missing from\n{text}");
    }
}

#[test]
fn the_drawing_is_well_formed() {
    let folder = folder();
    for graph in ["corpus/steps/gpt-nano", "corpus/graphs/resnet50_b32.json.gz"] {
        run(
            folder.path(),
            &format!("plan {graph} --budget 87% --threads 2 --svg FOLDER/memory.svg"),
        )
        .done();
        let text = std::fs::read_to_string(folder.path().join("memory.svg")).unwrap();
        let tags = tags(&text);
        assert_eq!(tags[0], "svg");
        assert_eq!(tags.iter().filter(|tag| *tag == "path").count(), 2, "before and after");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{graph}");
    }
}

/// With a tier nothing else names the smallest budget.
#[test]
fn the_smallest_budget_is_printed_to_the_byte() {
    let folder = folder();
    let asked = "corpus/graphs/cuda/vit_b16_b32.json.gz --tier pcie4 --iterations 3000";
    let plan = |rest: &str| run(folder.path(), &format!("plan {asked} {rest}")).done();
    let least = plan("--budget min --json").result()["budget_bytes"].to_string();
    let printed = plan("--budget min").stdout;
    let row = printed.lines().find(|line| line.starts_with("budget")).unwrap();
    assert!(row.ends_with(&format!(" {least} bytes")), "{row}");
    plan(&format!("--budget {least}"));
}
