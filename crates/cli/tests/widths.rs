//! Lines of usual width. Invariant: what any verb prints for people has at most 80 columns, for
//! every graph and step of the corpus; only a path may be longer. With `--wide` nothing is left
//! out.
//!
//! Tier: quick with a part of the cases, 3 s; full with all of them.

use tightfit_testing::first;

use crate::program::{BY_SIZE, folder, run};

const COLUMNS: usize = 80;

fn assert_narrow(arguments: &str) {
    let ran = run(folder().path(), arguments).done();
    assert!(!ran.stdout.is_empty(), "{arguments}");
    for line in ran.stdout.lines() {
        let is_path = line.split_whitespace().any(|word| word.matches('/').count() > 1);
        assert!(line.chars().count() <= COLUMNS || is_path, "{arguments}: {line}");
    }
}

#[test]
fn of_graphs() {
    for name in first(2, &BY_SIZE) {
        let graph = format!("corpus/graphs/{name}.json.gz");
        assert_narrow(&format!("modules {graph}"));
        assert_narrow(&format!("sac {graph} --budget 70%"));
        let link = "--world-size 8 --bandwidth 300GB --latency 10us";
        assert_narrow(&format!("shard {graph} --budget 100% {link}"));
        for what in ["", " --nodes", " --operators", " --nodes --sort idle_ms --top 50"] {
            assert_narrow(&format!("analyze {graph}{what}"));
        }
    }
}

#[test]
fn of_plans() {
    for name in ["llama_1b_b2_s2048", "resnet50_b32"] {
        let graph = format!("corpus/graphs/{name}.json.gz");
        for what in ["capuchin --explain", "capuchin-published --explain", "chen --recomputed"] {
            assert_narrow(&format!("plan {graph} --budget 80% --planner {what}"));
        }
        assert_narrow(&format!("pareto {graph} --planner chen --points 4"));
    }
}

#[test]
fn of_steps() {
    for name in first(1, &["gpt-nano", "gpt-nano-dropout", "mlp-digits"]) {
        let step = format!("corpus/steps/{name}");
        assert_narrow(&format!("plan {step} --budget 80% --recomputed"));
        assert_narrow(&format!("train {step} --budget 80% --steps 2 --profile"));
        assert_narrow(&format!("train {step} --budget 80% --steps 3 --replan=2"));
        assert_narrow(&format!("train {step} --budget 100% --steps 2 --microbatches 2 --stages 2"));
        assert_narrow(&format!("stages {step} --budget 100% --devices 2 --microbatches 2"));
    }
}

/// The wide tables have the columns that usual ones name as left out, and rows for each layer.
#[test]
fn wide() {
    let graph = "corpus/graphs/llama_1b_b2_s2048.json.gz";
    let words = |more: &str| run(folder().path(), &format!("modules {graph}{more}")).done().stdout;
    let (usual, wide) = (words(""), words(" --wide"));
    assert!(usual.contains("layers.1–14 ") && usual.contains("… and 4 more columns with --wide"));
    assert!(wide.contains("layers.7 ") && wide.contains("held back"));
    assert!(!wide.contains("1–14") && !wide.contains("--wide"));
}
