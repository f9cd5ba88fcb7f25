//! Steps whose loss is computed in chunks of rows: planned, checked and trained as the same step.
//!
//! Tier: quick, 10 s.

use serde_json::Value;

use crate::program::{folder, run, train};

/// The loss of 2,048 rows, in a batch of 32 texts.
const STEP: &str = "corpus/steps/gpt-nano --batch 32";

#[test]
fn chunks_change_no_bit() {
    let folder = folder();
    let weights = |name: &str, options: &str| {
        let save = format!("--save FOLDER/{name} --eval-batches 2");
        let ran = train(folder.path(), &format!("{STEP} --steps 5 {options} {save}"));
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
        (ran.losses(), std::fs::read(folder.path().join(name)).unwrap())
    };
    let whole = weights("whole", "--budget 100% --threads 1 --split off");
    for (name, options) in [
        ("two", "--budget 100% --threads 2 --split 2"),
        ("four", "--budget 60% --threads 1 --split 4"),
        ("eight", "--budget 100% --threads 2 --split 8"),
        ("totals", "--budget 100% --threads 2 --split 4:totals"),
        ("layers", "--budget 100% --threads 2 --split 1+4"),
        ("both", "--budget 100% --threads 1 --split 2:totals+4"),
        ("auto", "--budget 60% --threads 2"),
    ] {
        assert!(weights(name, options) == whole, "{options}");
    }
}

#[test]
fn chunks_need_less_and_a_plan_is_for_them() {
    let (folder, graph) = (folder(), "corpus/graphs/cuda/gpt2_small_b8_s512.json.gz");
    let smallest = |options: &str| {
        let ran = run(folder.path(), &format!("plan {graph} --budget min --json {options}"));
        ran.done().result()["budget_bytes"].as_u64().unwrap()
    };
    let (whole, chunks) = (smallest("--split off"), smallest("--split 8 -o FOLDER/p"));
    assert!(chunks * 10 < whole * 7, "{chunks} {whole}");
    run(folder.path(), &format!("check {graph} FOLDER/p --split 8")).done();
    let other = run(folder.path(), &format!("check {graph} FOLDER/p --split off"));
    assert_eq!(other.code, Some(5), "{}", other.stderr);
}

/// What is chosen is as fast as anything that was tried, and a check finds what it is.
#[test]
fn the_best_number_of_chunks_is_found() {
    let (folder, graph) = (folder(), "corpus/graphs/gpt2_small_b8_s512.json.gz");
    let planned = |budget: &str, options: &str| {
        run(folder.path(), &format!("plan {graph} --budget {budget} --json {options}"))
    };
    let asked = "--iterations 500 -o FOLDER";
    let auto = planned("60%", &format!("{asked}/p"));
    let result = auto.done().result();
    let chunks = result["split"].as_str().unwrap();
    let whole = planned("60%", "--split off --iterations 500").done().result();
    assert!(result["overhead"].as_f64() < whole["overhead"].as_f64());
    let checked = run(folder.path(), &format!("check {graph} FOLDER/p --json")).done().result();
    assert_eq!(checked["overhead"], result["overhead"]);
    run(folder.path(), &format!("check {graph} FOLDER/p --split {chunks}")).done();
    // Who asks for the same has the same.
    let given = planned("60%", &format!("--split {chunks} --iterations 500")).done().result();
    assert_eq!(given["step_seconds"], result["step_seconds"]);
    assert_eq!(given["overhead"], result["overhead"]);
    assert_eq!(given["budget_bytes"], result["budget_bytes"]);
    // One planner by name plans the step as it is.
    let chen = planned("70%", "--planner chen").done().result();
    assert_eq!(chen["split"], Value::Null);
    planned("60%", &format!("{asked}/again")).done();
    let plan = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(plan("p") == plan("again"));
    // All of it fits.
    assert_eq!(planned("100%", "").done().result()["split"], Value::Null);
    let least = |options: &str| {
        let found = planned("min", &format!("--iterations 500 {options}")).done().result();
        (found["budget_bytes"].as_u64().unwrap(), found["split"].to_string())
    };
    let (any, _) = least("");
    assert!(any * 2 < least("--split off").0);
    // Totals need less, and change bits.
    let (equal, split) = least("--bits equal");
    assert!(any < equal && !split.contains("totals"), "{split}");
    let refused = planned("400MiB", "--deadline 500ms");
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("as with --split 16"), "{}", refused.stderr);
}

/// Without a large loss, and where not the least is needed, `auto` plans as ever.
#[test]
fn a_step_without_a_large_loss_is_planned_as_it_is() {
    let folder = folder();
    let graph = "corpus/graphs/vit_b16_b32.json.gz";
    for name in ["off", "auto"] {
        let asked = "--budget 50% --iterations 2000 --split";
        run(folder.path(), &format!("plan {graph} {asked} {name} -o FOLDER/{name}")).done();
    }
    let plan = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert!(plan("off") == plan("auto"));
    // Its layers can be, which needs less.
    let smallest = |options: &str| {
        let asked = format!("plan {graph} --budget min --json --iterations 2000 {options}");
        run(folder.path(), &asked).done().result()
    };
    let [whole, layers] = ["--split off", "-o FOLDER/layers"].map(smallest);
    assert_eq!(layers["split"], "1+4");
    assert!(layers["budget_bytes"].as_u64() < whole["budget_bytes"].as_u64());
    let checked = run(folder.path(), &format!("check {graph} FOLDER/layers --json"));
    assert_eq!(checked.done().result()["overhead"], layers["overhead"]);
}

/// A larger step has more chunks, so it is divided once it has its size.
#[test]
fn more_samples_fit_if_the_loss_is_in_chunks() {
    let graph = "corpus/graphs/cuda/gpt2_small_b8_s512.json.gz";
    let largest = |options: &str| {
        let asked = format!("largest {graph} --budget 3GiB --json {options}");
        run(folder().path(), &asked).done().result()["size"].as_u64().unwrap()
    };
    let off = largest("--deadline 100ms --split off");
    let (eight, auto) = (largest("--deadline 100ms --split 8"), largest("--deadline 1s"));
    assert!(eight > 2 * off && auto > 2 * off, "{off} {eight} {auto}");
}

#[test]
fn what_cannot_be_divided_is_refused() {
    for (arguments, said) in [
        ("plan corpus/steps/gpt-nano --budget 50% --split 2", "256 rows are too few"),
        ("plan corpus/steps/gpt-nano --budget 50% --split 1", "give `off`"),
        ("plan corpus/steps/gpt-nano --budget 50% --split some", "give `off`"),
        ("plan corpus/steps/gpt-nano --budget 50% --split 8:sums", "give `off`"),
        (
            "train corpus/steps/gpt-nano --steps 1 --budget 100% --shards 2 --split auto",
            "give a number of chunks",
        ),
        ("plan corpus/graphs/resnet50_b32.json.gz --budget 50% --split 2", "32 rows are too few"),
    ] {
        let ran = run(folder().path(), arguments);
        assert_eq!(ran.code, Some(2), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{arguments}: {}", ran.stderr);
    }
}
