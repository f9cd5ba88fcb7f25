//! `plan --emit graph`: the plan as a graph, which every verb reads. Invariant: the rewritten
//! graph, as it stands, has the figures that the plan claims.
//!
//! Tier: quick, since it takes 3 s.

use std::path::Path;

use serde_json::Value;

use crate::program::{folder, run};

/// Plans and returns what was printed.
fn plan(folder: &Path, graph: &str, budget: &str, output: &str) -> Value {
    // In chunks, calls write over what they continue; a graph as it stands does not.
    let options = "--split off --emit graph --json";
    let words = format!("plan {graph} --budget {budget} {options} -o FOLDER/{output}");
    run(folder, &words).done().result()
}

#[test]
fn a_rewritten_graph_is_the_plan_as_it_stands() {
    let folder = folder();
    for (graph, budget, output) in [
        ("corpus/graphs/mobilenet_v3_large_b64.json.gz", "60%", "planned.json.gz"),
        ("corpus/graphs/gpt2_small_b8_s512.json.gz", "60%", "planned.json"),
        ("corpus/graphs/vit_b16_b32.json.gz", "100%", "planned.json.gz"),
    ] {
        let planned = plan(folder.path(), graph, budget, output);
        let file = std::fs::read(folder.path().join(output)).unwrap();
        assert_eq!(file.starts_with(&[0x1f, 0x8b]), output.ends_with(".gz"));
        let analyzed =
            run(folder.path(), &format!("analyze FOLDER/{output} --json")).done().result();
        assert_eq!(analyzed["peak_bytes"], planned["peak_bytes"], "{graph}");
        let (step, claimed) = (&analyzed["step_seconds"], &planned["step_seconds"]);
        assert!((step.as_f64().unwrap() / claimed.as_f64().unwrap() - 1.0).abs() < 1e-9);
        // Planning it once more changes nothing.
        let again = plan(folder.path(), &format!("FOLDER/{output}"), "100%", "again.json");
        for (key, before) in [("peak_bytes", "peak_bytes"), ("unplanned_peak_bytes", "peak_bytes")]
        {
            assert!(again[key].as_u64() <= planned[before].as_u64(), "{graph}: {key}");
        }
        assert_eq!(again["recomputed_nodes"], 0);
    }
}

#[test]
fn what_runs_again_is_a_node_of_its_own() {
    let folder = folder();
    let planned = plan(
        folder.path(),
        "corpus/steps/gpt-nano-dropout --threads 2 --iterations 1000000",
        "min",
        "planned.json",
    );
    let text = std::fs::read_to_string(folder.path().join("planned.json")).unwrap();
    let graph: Value = serde_json::from_str(&text).unwrap();
    let nodes = graph["nodes"].as_array().unwrap();
    let find = |name: &Value| nodes.iter().find(|node| node["name"] == *name).unwrap();
    let mut random = 0;
    let copies: Vec<&Value> = nodes.iter().filter(|node| !node["recomputes"].is_null()).collect();
    assert!(copies.len() as u64 >= planned["recomputed_nodes"].as_u64().unwrap());
    for copy in copies {
        let first = find(&copy["recomputes"]);
        let name = first["name"].as_str().unwrap();
        assert!(copy["name"].as_str().unwrap().starts_with(&format!("{name}_recomputed")));
        assert_eq!((&copy["op"], &copy["seed_slot"]), (&first["op"], &first["seed_slot"]));
        assert_eq!(copy["phase"], "backward");
        random += usize::from(copy["random"] == true);
    }
    assert!(random > 0, "no dropout is recomputed");
}

#[test]
fn what_is_written_is_asked_for_with_a_place() {
    let folder = folder();
    let graph = "corpus/graphs/vit_b16_b32.json.gz";
    let ran = run(folder.path(), &format!("plan {graph} --budget 90% --emit graph"));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--output <OUTPUT>"), "{}", ran.stderr);
    let ran =
        run(folder.path(), &format!("plan {graph} --budget 1KiB --emit graph -o FOLDER/no.json"));
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(!folder.path().join("no.json").exists());
}
