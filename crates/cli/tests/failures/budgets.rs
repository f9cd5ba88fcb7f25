//! Budgets that are too small, too large or no budgets. Invariant: a refusal carries a proof, and
//! the budget that it names is enough.
//!
//! Tier: quick, since it takes 2 s.

use expect_test::{Expect, expect};

use super::Case;
use crate::program::{folder, run};

/// The same search on every machine, however busy it is.
const WORK: &str = "--iterations 1000000";

/// Bytes of the smallest budget, and the part of them that is not the slab's, which depends on the
/// processor's caches.
fn smallest(step: &str) -> (u64, u64) {
    let arguments = format!("plan corpus/steps/{step} --budget min --threads 2 --json {WORK}");
    let planned = run(folder().path(), &arguments).done().result();
    let bytes = |key: &str| planned[key].as_u64().unwrap();
    (bytes("budget_bytes"), bytes("reserve_bytes"))
}

#[test]
fn a_budget_too_small_is_refused_with_a_proof() {
    let (least, reserve) = smallest("gpt-nano");
    let asked = reserve + (1 << 20);
    let arguments = format!(
        "train corpus/steps/gpt-nano --budget {asked} --steps 1 --threads 2 --save FOLDER/weights \
         {WORK}"
    );
    let folder = folder();
    let refused = run(folder.path(), &arguments);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(3), ""), "{}", refused.stderr);
    let message = &refused.stderr;
    for words in [format!("({asked} bytes)"), format!("({least} bytes)")] {
        assert!(message.contains(&words), "`{words}` is missing from\n{message}");
    }
    for words in [
        "the plan for that peaks at node `_log_softmax_backward_data` (the root module), where \
         these are alive:",
        "MiB  the process itself (reserve)",
        "what the matrix product packs (reserve)",
        "256.0 KiB  _log_softmax (loss, the root module)",
    ] {
        assert!(message.contains(words), "`{words}` is missing from\n{message}");
    }
    assert!(!folder.path().join("weights").exists());
}

#[test]
fn the_budget_that_a_refusal_names_is_enough() {
    let folder = folder();
    for step in ["gpt-nano", "mlp-digits"] {
        let train = |budget: &str| {
            run(
                folder.path(),
                &format!(
                    "train corpus/steps/{step} --budget {budget} --steps 1 --eval-batches 0 \
                     --threads 2 {WORK}"
                ),
            )
        };
        let (least, reserve) = smallest(step);
        let refused = train(&((least + reserve) / 2).to_string()).stderr;
        let bytes: u64 = refused
            .split("feasible is")
            .nth(1)
            .and_then(|rest| rest.split(['(', ' ']).nth(4))
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(train(&bytes.to_string()).code, Some(0), "{step}: {bytes} of {refused}");
    }
}

#[test]
fn a_graph_that_fits_nowhere_is_refused_with_a_proof() {
    Case::new().graph(|_| ()).fails(
        "plan FOLDER/graph.json --budget 100 -o FOLDER/plan --svg FOLDER/memory.svg",
        3,
        expect![[r#"
            error: no plan fits 100 B (100 bytes); the smallest budget known to be \
            feasible is 128 B (128 bytes), and no schedule needs less than 128 B (128 bytes)
            the plan for that peaks at node `y` (the root module), where these are alive:
                    64 B  x (input, the root module)
                    64 B  y (forward, the root module)
        "#]],
    );
}

#[test]
fn budgets_that_make_no_sense() {
    let case = Case::new();
    let plan = |budget: &str, message: Expect| {
        case.fails(&format!("plan corpus/steps/gpt-nano --threads 2 --budget {budget}"), 8, message)
    };
    plan(
        "0",
        expect![[r#"
        error: a budget of zero leaves no memory for anything; write bytes, 320MiB, \
        2.5GB, 60% or min
    "#]],
    );
    plan(
        "0%",
        expect![[r#"
        error: a budget of zero leaves no memory for anything; write bytes, 320MiB, \
        2.5GB, 60% or min
    "#]],
    );
    plan(
        "plenty",
        expect![[r#"
        error: `plenty` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "-5MiB",
        expect![[r#"
        error: `-5MiB` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "nan",
        expect![[r#"
        error: `nan` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "1000TiB",
        expect![[r#"
        error: a budget of 1000.0 TiB is more than this machine's memory of …
    "#]],
    );
    // A share that exceeds any number of bytes.
    plan(
        "1e300%",
        expect![[r#"
            error: a budget of 1024.0 PiB is more than this machine's memory of …
        "#]],
    );
    plan(
        "99999999999999999999",
        expect![[r#"
        error: `99999999999999999999` is not a budget; write bytes, 320MiB, 2.5GB, 60% \
        or min
    "#]],
    );
}

/// A share may leave less than the matrix product packs; the smallest budget is named.
#[test]
fn a_budget_below_what_is_packed() {
    let (_, reserve) = smallest("gpt-nano");
    let arguments = format!("plan corpus/steps/gpt-nano --threads 2 --budget {}", reserve - 1);
    let ran = run(folder().path(), &arguments);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("the smallest budget known to be feasible is "), "{}", ran.stderr);
}

/// The process itself takes more: no plan would help, and the answer is the same.
#[test]
fn a_budget_below_what_the_process_takes() {
    let ran = run(folder().path(), "plan corpus/steps/gpt-nano --threads 2 --budget 100KiB");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("error: no plan fits 100.00 KiB"), "{}", ran.stderr);
    assert!(ran.stderr.contains("the smallest budget known to be feasible is "), "{}", ran.stderr);
    assert!(ran.stderr.contains("the process itself"), "{}", ran.stderr);
}

// A limitation of a planner says nothing about the budget.

#[test]
fn a_step_too_large_for_a_planner_is_wrong_usage() {
    Case::new().fails(
        "plan corpus/steps/gpt-nano --budget 60% --threads 2 --planner exact -o FOLDER/plan",
        2,
        expect![[r#"
            error: 104 nodes run in this step, and this planner takes 80 at most; choose \
            another planner, such as `auto`
        "#]],
    );
}

#[test]
fn a_solver_without_an_answer_has_proven_nothing() {
    let ran = run(
        folder().path(),
        "sac corpus/graphs/gpt2_small_b8_s512.json.gz --budget 50% --deadline 0s",
    );
    // The reason is in the solver's words.
    assert!(ran.stderr.starts_with("error: the solver found no plan: "), "{}", ran.stderr);
    assert_eq!(ran.code, Some(10), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}

/// Capuchin's published rule predicts that its choices suffice, but they do not.
#[test]
fn a_wrong_prediction_is_refused_with_what_happens() {
    let message = expect![[r#"
        error: no plan was found that fits 2.43 GiB (2603823923 bytes); the smallest \
        budget known to be feasible for capuchin-published is 2.91 GiB (3120562176 \
        bytes), and no schedule needs less than 1.25 GiB (1342177280 bytes)
        activations chosen: 5; the predicted peak is 2.4 GiB (2550136832 bytes); the \
        simulated peak is 2.6 GiB (2818572288 bytes)
        the plan for that peaks at node `n25` (the root module), where these are alive:
           512.0 MiB  n18 (forward, the root module)
           256.0 MiB  n1 (forward, the root module)
           256.0 MiB  n13 (forward, the root module)
           256.0 MiB  n19 (forward, the root module)
           256.0 MiB  n21 (forward, the root module)
           256.0 MiB  n24 (backward, the root module)
           256.0 MiB  n25 (backward, the root module)
           256.0 MiB  n3 (forward, the root module)
           128.0 MiB  n14 (forward, the root module)
           128.0 MiB  n16 (forward, the root module)
           416.0 MiB  in 5 smaller ones
    "#]];
    Case::new().fails(
        "plan corpus/synthetic/unet2_1.json.gz --budget 80% --planner capuchin --variant published",
        10,
        message,
    );
}

/// Running out of time proves nothing, with any planner.
#[test]
fn a_planner_that_runs_out_of_time_has_proved_nothing() {
    let folder = folder();
    for arguments in [
        "plan corpus/synthetic/chain24.json.gz --budget 30% --planner exact --deadline 0s",
        "pareto corpus/synthetic/chain24.json.gz --planner exact --deadline 0s",
        "shard corpus/synthetic/modules-24.json --budget 50% --deadline 0s --world-size 8 \
         --bandwidth 100GB/s --latency 20us",
    ] {
        let ran = run(folder.path(), arguments);
        assert!(ran.stderr.contains("give it more time"), "{arguments}: {}", ran.stderr);
        assert_eq!(ran.code, Some(10), "{arguments}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments}");
    }
}

/// A table of one unplanned point would say that nothing smaller is possible.
#[test]
fn a_frontier_of_a_planner_that_refuses_the_step_is_refused() {
    let ran = run(
        folder().path(),
        "pareto corpus/graphs/resnet50_b32.json.gz --planner exact --points 3",
    );
    assert!(ran.stderr.contains("this planner takes 80 at most"), "{}", ran.stderr);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
}
