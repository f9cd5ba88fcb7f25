//! Failures for programs. Invariant: with `--json` each failure is one object on standard output,
//! the last line, with the exit code and the sentences of standard error; a refused budget has the
//! figures of its proof.
//!
//! Tier: quick, since it takes 2 s.

use serde_json::Value;

use crate::program::{folder, run};

fn failure(arguments: &str) -> Value {
    let ran = run(folder().path(), arguments);
    let failure = ran.result();
    assert_eq!(failure["format"], "tightfit-failure/1", "{arguments}");
    assert_eq!(failure["exit_code"], ran.code.unwrap(), "{arguments}");
    let said = failure["error"].as_str().unwrap();
    assert!(ran.stderr.contains(&format!("error: {said}")), "{arguments}: {}", ran.stderr);
    failure
}

fn bytes(failure: &Value, key: &str) -> u64 {
    failure[key].as_u64().unwrap_or_else(|| panic!("`{key}` of {failure}"))
}

#[test]
fn a_refused_budget() {
    const LLAMA: &str = "corpus/graphs/llama_1b_b2_s2048.json.gz";
    for arguments in [
        format!("plan {LLAMA} --budget 3GiB --planner chen --json"),
        format!("plan {LLAMA} --budget 3GiB --planner capuchin --explain --json"),
        "train corpus/steps/mlp-digits --budget 9MB --steps 1 --threads 2 --json".to_string(),
        "train corpus/steps/mlp-digits --budget 1MB --steps 1 --threads 2 --json".to_string(),
    ] {
        let failure = failure(&arguments);
        assert_eq!(failure["feasible"], false);
        let (needed, reached) = (bytes(&failure, "needed_bytes"), bytes(&failure, "reached_bytes"));
        let budget = bytes(&failure, "budget_bytes");
        assert!(needed <= reached && budget < reached, "{failure}");
        assert_eq!(failure["proven"], budget < needed, "{failure}");
        assert!(failure["node"].is_string() && failure["module"].is_string(), "{failure}");
        let alive = failure["alive"].as_array().unwrap();
        assert!(alive.iter().all(|it| it["name"].is_string() && it["bytes"].is_u64()));
        let sum: u64 = alive.iter().map(|it| bytes(it, "bytes")).sum();
        assert!(sum >= bytes(&failure, "peak_bytes"), "{failure}");
    }
    for verb in ["sac", "shard --world-size 8 --bandwidth 300GB --latency 10us"] {
        let failure = failure(&format!("{verb} {LLAMA} --budget 2GiB --json"));
        assert_eq!(failure["feasible"], false);
        assert!(bytes(&failure, "reached_bytes") > bytes(&failure, "budget_bytes"));
        assert!(!failure["alive"].as_array().unwrap().is_empty());
    }
}

#[test]
fn other_failures_say_nothing_of_budgets() {
    for (arguments, code) in [
        ("plan nowhere.json --budget 1GiB --json", 4),
        ("plan corpus/steps/mlp-digits --budget 0 --json", 8),
        ("modules Cargo.toml --json", 5),
        ("plan corpus/steps/mlp-digits --json", 2),
        ("plan corpus/steps/mlp-digits --budget 90% --planner nobody --json", 2),
    ] {
        let failure = failure(arguments);
        assert_eq!(failure["exit_code"], code);
        assert!(failure.get("feasible").is_none());
    }
}
