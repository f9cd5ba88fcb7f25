//! Steps whose loss is computed in chunks of rows: planned, checked and trained as the same step.
//!
//! Tier: quick, 6 s.

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
    let whole = weights("whole", "--budget 100% --threads 1");
    for (name, options) in [
        ("two", "--budget 100% --threads 2 --split 2"),
        ("four", "--budget 60% --threads 1 --split 4"),
        ("eight", "--budget 100% --threads 2 --split 8"),
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
    let (whole, chunks) = (smallest(""), smallest("--split 8 -o FOLDER/p"));
    assert!(chunks * 10 < whole * 7, "{chunks} {whole}");
    run(folder.path(), &format!("check {graph} FOLDER/p --split 8")).done();
    let other = run(folder.path(), &format!("check {graph} FOLDER/p"));
    assert_eq!(other.code, Some(5), "{}", other.stderr);
}

/// A larger step has more chunks, so it is divided once it has its size.
#[test]
fn more_samples_fit_if_the_loss_is_in_chunks() {
    let graph = "corpus/graphs/cuda/gpt2_small_b8_s512.json.gz";
    let largest = |options: &str| {
        let asked = format!("largest {graph} --budget 3GiB --iterations 200 --json {options}");
        run(folder().path(), &asked).done().result()["size"].as_u64().unwrap()
    };
    assert!(largest("--split 8") > largest(""));
}

#[test]
fn what_cannot_be_divided_is_refused() {
    for (arguments, said) in [
        ("plan corpus/steps/gpt-nano --budget 50% --split 2", "a loss of 256 rows"),
        ("plan corpus/steps/gpt-nano --budget 50% --split 1", "give `off`"),
        ("plan corpus/steps/gpt-nano --budget 50% --split some", "give `off`"),
        ("plan corpus/graphs/cuda/bert_base_b16_s512.json.gz --budget 50% --split 2", "addmm_73"),
    ] {
        let ran = run(folder().path(), arguments);
        assert_eq!(ran.code, Some(2), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{arguments}: {}", ran.stderr);
    }
}
