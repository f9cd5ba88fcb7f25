//! Steps with a batch of another size: planned, checked, measured and trained as the same step.
//!
//! Tier: quick, 3 s.

use crate::program::{folder, run, train};

#[test]
fn a_plan_is_for_the_size_that_it_was_made_for() {
    let (folder, graph) = (folder(), "corpus/graphs/cuda/llama_1b_b2_s2048.json.gz");
    let options = "--iterations 500 --budget";
    let as_captured = run(folder.path(), &format!("plan {graph} {options} 70% --json")).done();
    let larger =
        run(folder.path(), &format!("plan {graph} --batch 6 {options} 60% -o FOLDER/p --json"))
            .done();
    let peak = |ran: &serde_json::Value| ran["unplanned_peak_bytes"].as_u64().unwrap();
    let (before, after) = (peak(&as_captured.result()), peak(&larger.result()));
    assert!(after > 2 * before && after < 3 * before, "{before} {after}");
    run(folder.path(), &format!("check {graph} FOLDER/p --batch 6")).done();
    let other = run(folder.path(), &format!("check {graph} FOLDER/p"));
    assert_eq!(other.code, Some(5), "{}", other.stderr);
    run(folder.path(), &format!("plan {graph} --batch 6 --length 512 {options} 100%")).done();
}

#[test]
fn a_step_trains_with_batches_of_another_size() {
    for (name, options) in [
        ("gpt-nano", "--batch 16"),
        ("gpt-nano", "--length 24"),
        ("gpt-nano", "--batch 3 --microbatches 2"),
        ("mlp-digits", "--batch 33"),
    ] {
        let arguments =
            format!("corpus/steps/{name} {options} --budget 100% --steps 3 --eval-batches 2");
        let ran = train(folder().path(), &arguments);
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
        assert_eq!(ran.losses().len(), 3, "{options}");
        assert!(!ran.stderr.contains("could not be tried"), "{}", ran.stderr);
    }
}

#[test]
fn a_size_of_which_nothing_is_known_is_refused_by_name() {
    let refused = |arguments: &str, code: i32, said: &str| {
        let ran = run(folder().path(), arguments);
        assert_eq!(ran.code, Some(code), "{arguments}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{arguments}: {}", ran.stderr);
    };
    refused("plan corpus/steps/gpt-nano --batch 1 --budget 50%", 2, "1 is not in 2..");
    let longer = "plan corpus/graphs/cuda/bert_base_b16_s512.json.gz --length 640 --budget 50%";
    refused(longer, 2, "position_ids");
    let wider = "train corpus/steps/mlp-digits --length 65 --budget 100%";
    refused(wider, 2, "layers.0.weight");
    let huge = "plan corpus/steps/gpt-nano --batch 9999999999999999999 --budget 50%";
    refused(huge, 2, "too large");
}
