//! Training end to end. Invariant: losses and weights depend only on step, seed and number of
//! steps, never on budget, threads, planner or interruption; and a run stays within its budget.
//!
//! Tier: quick with a part of the cases, 29 s; full with all of them.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;
use tightfit_testing::first;

use crate::program::{corpus, folder, run, train};

const STEPS: [&str; 3] = ["gpt-nano", "gpt-nano-dropout", "mlp-digits"];

fn number(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("{key}: {}", result[key]))
}

/// Losses of five steps and the weights after them.
fn trained(step: &str, arguments: &str) -> (Vec<String>, Vec<u8>) {
    let folder = folder();
    let ran = train(
        folder.path(),
        &format!(
            "corpus/steps/{step} --steps 5 --eval-batches 0 --save FOLDER/weights {arguments}"
        ),
    )
    .done();
    let losses = ran.losses();
    assert_eq!(losses.len(), 5, "{step} {arguments}");
    (losses, std::fs::read(folder.path().join("weights")).unwrap())
}

#[track_caller]
fn same(step: &str, expected: &(Vec<String>, Vec<u8>), arguments: &str) {
    let (losses, weights) = trained(step, arguments);
    assert_eq!(expected.0, losses, "{step} {arguments}");
    assert!(expected.1 == weights, "{step} {arguments}: other weights");
}

#[test]
fn budgets_threads_and_planners_do_not_change_a_bit() {
    for step in first(2, &STEPS) {
        let unplanned = trained(step, "--budget 100% --planner none");
        for budget in first(2, &["min", "87%", "100%"]) {
            for threads in first(2, &[1, 3, 2]) {
                same(step, &unplanned, &format!("--budget {budget} --threads {threads}"));
            }
        }
        for planner in first(1, &["capuchin", "chen", "auto"]) {
            same(step, &unplanned, &format!("--budget min --planner {planner}"));
        }
    }
}

/// With dropout, whose masks differ from one micro-batch to the next.
#[test]
fn accumulated_steps_do_not_depend_on_the_budget() {
    for step in ["gpt-nano-dropout", "mlp-digits"] {
        let unplanned = trained(step, "--microbatches 3 --budget 100% --planner none");
        for arguments in ["--budget 80% --threads 1", "--budget min --iterations 1000"] {
            same(step, &unplanned, &format!("--microbatches 3 {arguments}"));
        }
        assert_ne!(unplanned.0, trained(step, "--budget 100%").0, "{step}: more rows an update");
    }
}

#[test]
fn a_plan_is_for_as_many_micro_batches_as_it_was_made_with() {
    let folder = folder();
    let plan = |verb: &str, rest: &str| {
        run(folder.path(), &format!("{verb} corpus/steps/gpt-nano {rest}"))
    };
    plan("plan", "--microbatches 2 --budget 80% -o FOLDER/plan.json").done();
    let check = |rest: &str| {
        run(folder.path(), &format!("check corpus/steps/gpt-nano FOLDER/plan.json {rest}"))
    };
    check("--budget 80% --microbatches 2").done();
    let refused = check("--budget 80%");
    assert_eq!(refused.code, Some(5), "{}", refused.stderr);
    let none = run(folder.path(), "plan corpus/steps/gpt-nano --budget 80% --microbatches 0");
    assert_eq!(none.code, Some(2), "{}", none.stderr);
}

#[test]
fn a_small_budget_recomputes_and_the_whole_one_does_not() {
    for step in STEPS {
        let recomputed = |arguments: &str| {
            let result = train(
                Path::new("."),
                &format!("corpus/steps/{step} --steps 1 --eval-batches 0 {arguments}"),
            )
            .done()
            .result();
            number(&result, "recomputed_nodes")
        };
        assert_eq!(recomputed("--budget 100%"), 0, "{step}");
        for planner in ["chen", "capuchin", "auto"] {
            assert!(
                recomputed(&format!("--budget min --planner {planner}")) > 0,
                "{step} {planner}"
            );
        }
    }
    let result =
        train(Path::new("."), "corpus/steps/mlp-digits --budget 70% --steps 1").done().result();
    assert!(number(&result, "recomputed_nodes") > 0);
}

#[test]
fn a_resumed_run_is_the_unbroken_one() {
    for step in STEPS {
        let (losses, weights) = trained(step, "--budget 100%");
        let folder = folder();
        let half = |arguments: &str| {
            train(folder.path(), &format!("corpus/steps/{step} --eval-batches 0 {arguments}"))
                .done()
        };
        let first = half("--budget min --steps 3 --save FOLDER/half");
        let second = half("--budget 90% --steps 2 --resume FOLDER/half --save FOLDER/whole");
        assert_eq!(losses, [first.losses(), second.losses()].concat(), "{step}");
        assert_eq!(number(&second.result(), "steps"), 5);
        assert!(
            weights == std::fs::read(folder.path().join("whole")).unwrap(),
            "{step}: other weights"
        );
        // A file may be resumed and overwritten in one run.
        half("--budget 90% --steps 2 --resume FOLDER/half --save FOLDER/half");
        assert!(
            weights == std::fs::read(folder.path().join("half")).unwrap(),
            "{step}: other weights"
        );
    }
}

#[test]
fn evaluation_leaves_no_trace_in_training() {
    for step in STEPS {
        let folder = folder();
        let arguments =
            "--budget 87% --steps 5 --save FOLDER/weights --eval-every 2 --eval-batches 2";
        let ran = train(folder.path(), &format!("corpus/steps/{step} {arguments}")).done();
        assert_eq!(
            ran.lines().iter().filter(|line| line.get("validation_loss").is_some()).count(),
            3,
            "{step}: two on the way, one at the end"
        );
        let (losses, weights) = trained(step, "--budget 87%");
        assert_eq!(losses, ran.losses(), "{step}");
        assert!(
            weights == std::fs::read(folder.path().join("weights")).unwrap(),
            "{step}: other weights"
        );
    }
}

#[test]
fn seeds_make_the_difference() {
    let (first, again, other) = (
        trained("gpt-nano-dropout", "--budget min"),
        trained("gpt-nano-dropout", "--budget min --seed 1"),
        trained("gpt-nano-dropout", "--budget min --seed 2"),
    );
    assert!(first == again, "the default seed is 1");
    assert!(first.0.iter().zip(&other.0).all(|(a, b)| a != b));
    assert!(first.1 != other.1);
}

#[test]
fn the_learning_rate_can_be_given() {
    let usual = trained("mlp-digits", "--budget 100%");
    same("mlp-digits", &usual, "--budget 100% --lr 0.002");
    let none = trained("mlp-digits", "--budget 100% --lr 0");
    assert_eq!(usual.0[0], none.0[0]);
    assert_ne!(usual.0[1], none.0[1]);
}

#[test]
fn a_dump_holds_the_batch_and_all_gradients_and_weights() {
    for step in STEPS {
        let folder = folder();
        let text =
            std::fs::read_to_string(corpus().join("steps").join(step).join("step.json")).unwrap();
        let description: Value = serde_json::from_str(&text).unwrap();
        let arguments = "--budget 100% --steps 2 --dump FOLDER/dump --save FOLDER/weights";
        let ran = train(folder.path(), &format!("corpus/steps/{step} {arguments}")).done();
        assert_eq!(
            ran.losses(),
            trained(step, "--budget 100%").0[..2],
            "{step}: a dump changes no bit"
        );
        let (dump, weights) = (
            std::fs::read(folder.path().join("dump")).unwrap(),
            std::fs::read(folder.path().join("weights")).unwrap(),
        );
        let (dump, weights) =
            (SafeTensors::deserialize(&dump).unwrap(), SafeTensors::deserialize(&weights).unwrap());
        for name in description["parameters"].as_object().unwrap().keys() {
            let gradient = dump
                .tensor(&format!("gradient.{name}"))
                .unwrap_or_else(|_| panic!("{step}: no gradient of {name}"));
            assert_eq!(gradient.shape(), weights.tensor(name).unwrap().shape(), "{step} {name}");
            assert!(
                gradient.data().iter().any(|&byte| byte != 0),
                "{step}: the gradient of {name} is zero"
            );
        }
        for (name, tensor) in weights.tensors() {
            assert!(dump.tensor(&format!("updated.{name}")).unwrap() == tensor, "{step} {name}");
        }
        assert_eq!(
            dump.tensor("batch.input").unwrap().shape()[0],
            dump.tensor("batch.target").unwrap().shape()[0]
        );
        assert_eq!(
            dump.len(),
            2 + description["parameters"].as_object().unwrap().len() + weights.len()
        );
    }
}

#[test]
fn a_dump_without_a_step_holds_no_stale_gradients() {
    let folder = folder();
    train(folder.path(), "corpus/steps/gpt-nano --budget 100% --steps 1 --save FOLDER/weights")
        .done();
    train(
        folder.path(),
        "corpus/steps/gpt-nano --budget 100% --steps 0 --resume FOLDER/weights --dump FOLDER/dump",
    )
    .done();
    let dump = std::fs::read(folder.path().join("dump")).unwrap();
    assert!(
        SafeTensors::deserialize(&dump)
            .unwrap()
            .names()
            .iter()
            .all(|name| name.starts_with("updated."))
    );
}

#[test]
fn digits_are_learned_in_seventy_percent_of_the_memory() {
    let ran = train(Path::new("."), "corpus/steps/mlp-digits --budget 70% --steps 200").done();
    let losses: Vec<f64> = ran.losses().iter().map(|loss| loss.parse().unwrap()).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let decades: Vec<f64> = losses.chunks(50).map(mean).collect();
    assert!(decades.is_sorted_by(|a, b| a > b), "{decades:?}");
    let accuracy = ran.result()["validation_accuracy"].as_f64().unwrap();
    assert!(accuracy >= 0.95, "{accuracy}");
}

#[test]
fn text_is_learned() {
    for step in ["gpt-nano", "gpt-nano-dropout"] {
        let ran =
            train(Path::new("."), &format!("corpus/steps/{step} --budget min --steps 60")).done();
        let losses: Vec<f64> = ran.losses().iter().map(|loss| loss.parse().unwrap()).collect();
        assert!(
            (losses[0] - 256f64.ln()).abs() < 0.1,
            "{step}: {} at first, not ln 256",
            losses[0]
        );
        assert!(losses[50..].iter().sum::<f64>() / 10.0 < 3.5, "{step}: {losses:?}");
        assert!(ran.result()["validation_loss"].as_f64().unwrap() < 3.5, "{step}");
    }
}

#[test]
fn a_run_stays_within_its_budget() {
    for step in STEPS {
        for budget in ["100%", "87%", "min"] {
            let result =
                train(Path::new("."), &format!("corpus/steps/{step} --budget {budget} --steps 3"))
                    .done()
                    .result();
            let number = |key| number(&result, key);
            let room = number("budget_bytes") - number("reserve_bytes");
            assert!(number("slab_bytes") <= room, "{step} {budget}");
            assert!(number("peak_bytes") <= number("high_water_bytes"), "{step} {budget}");
            assert!(number("high_water_bytes") <= room, "{step} {budget}");
            if let Some(process) = result["process_peak_bytes"].as_u64() {
                assert!(process <= number("budget_bytes"), "{step} {budget}: {process} bytes");
            }
        }
    }
}

#[test]
fn resuming_stays_within_the_budget() {
    let folder = folder();
    train(
        folder.path(),
        "corpus/steps/gpt-small --budget min --steps 0 --eval-batches 0 --save FOLDER/weights",
    )
    .done();
    let arguments = "corpus/steps/gpt-small --budget min --steps 0 --eval-batches 0 --resume \
        FOLDER/weights --save FOLDER/again";
    let result = train(folder.path(), arguments).done().result();
    let (before, after) = (
        std::fs::read(folder.path().join("weights")).unwrap(),
        std::fs::read(folder.path().join("again")).unwrap(),
    );
    assert!(before == after, "nothing was trained");
    if let Some(process) = result["process_peak_bytes"].as_u64() {
        assert!(process <= number(&result, "budget_bytes"), "{process} bytes");
    }
}

#[test]
fn people_are_told_what_happened() {
    let folder = folder();
    let ran = run(
        folder.path(),
        "train corpus/steps/mlp-digits --budget 70% --steps 2 --threads 2 --save FOLDER/weights",
    )
    .done();
    for words in [
        "unplanned peak",
        "budget",
        "planned peak",
        "recomputed",
        "slowdown",
        "measured peak",
        "validation      loss",
        "accuracy",
    ] {
        assert!(ran.stdout.contains(words), "`{words}` is missing from\n{}", ran.stdout);
    }
}

#[test]
fn a_batch_that_is_larger_than_the_data_is_told() {
    let folder = folder();
    let digits = std::fs::read_to_string(corpus().join("data/digits.csv")).unwrap();
    let few: Vec<&str> = digits.lines().take(21).collect();
    std::fs::write(folder.path().join("few.csv"), few.join("\n")).unwrap();
    let steps = "corpus/steps/mlp-digits --budget 100% --steps 1 --eval-batches 0";
    let told = |arguments: &str| {
        let ran = train(folder.path(), &format!("{steps} {arguments}")).done();
        ran.stderr.contains(" rows for training, fewer than the ")
    };
    assert!(told("--data FOLDER/few.csv"));
    assert!(!told(""));
}

#[test]
fn the_profile_of_a_run_adds_up_to_its_calls() {
    let folder = folder();
    let steps = "corpus/steps/mlp-digits --budget 100% --steps 3 --eval-batches 0";
    let result = train(folder.path(), &format!("{steps} --profile")).done().result();
    let rows = result["profile"].as_array().unwrap();
    let sum = |key: &str| rows.iter().map(|row| row[key].as_f64().unwrap()).sum::<f64>();
    assert!(sum("calls") > 40.0 && sum("seconds") > 0.0, "{rows:?}");
    let predicted = result["predicted_step_seconds"].as_f64().unwrap();
    assert!((sum("predicted_seconds") / predicted - 1.0).abs() < 1e-6, "{rows:?}");
    assert!(train(folder.path(), steps).done().result()["profile"].is_null());
}
