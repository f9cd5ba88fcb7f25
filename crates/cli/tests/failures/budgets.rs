//! Budgets that are too small, too large or no budgets. Invariant: a refusal carries a proof, and
//! the budget that it names is enough.

use expect_test::{Expect, expect};

use crate::Case;
use crate::program::{folder, run};

#[test]
fn a_budget_too_small_is_refused_with_a_proof() {
    let message = expect![[r#"
        error: no plan fits 2.0 MiB (2097152 bytes); the smallest budget known to be \
        feasible is 3.1 MiB (3286080 bytes), and no schedule needs less than 2.9 MiB
        it binds at node `mm_1` (module `lm_head`), where these are alive:
           832.0 KiB  what the matrix product packs (reserve, the root module)
           256.0 KiB  _log_softmax_backward_data (backward, the root module)
           256.0 KiB  gelu_1 (forward, module `h.1.mlp`)
            64.0 KiB  add_4 (forward, module `h.1`)
            64.0 KiB  addmm_1 (forward, module `h.0.attn.proj`)
            64.0 KiB  h.0.mlp.fc.weight (parameter, module `h.0.mlp.fc`)
            64.0 KiB  h.0.mlp.fc.weight.exp_avg (state, module `h.0.mlp.fc`)
            64.0 KiB  h.0.mlp.fc.weight.exp_avg_sq (state, module `h.0.mlp.fc`)
            64.0 KiB  h.0.mlp.proj.weight (parameter, module `h.0.mlp.proj`)
            64.0 KiB  h.0.mlp.proj.weight.exp_avg (state, module `h.0.mlp.proj`)
             1.3 MiB  in 86 smaller ones
    "#]];
    Case::new().fails(
        "train corpus/steps/gpt-nano --budget 2MiB --steps 1 --threads 2 --save FOLDER/weights",
        3,
        message,
    );
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
                     --threads 2"
                ),
            )
        };
        let refused = train("1600000").stderr;
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
        feasible is 128 B (128 bytes), and no schedule needs less than 128 B
        it binds at node `y` (the root module), where these are alive:
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
        "100KiB",
        expect![[r#"
        error: a budget of 100.0 KiB is less than the 832.0 KiB that the matrix \
        product needs beside the slab
    "#]],
    );
    plan(
        "1000TiB",
        expect![[r#"
        error: a budget of 1000.0 TiB is more than this machine's memory of …
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

// What a planner cannot do says nothing about the budget.

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

/// The published rule of Capuchin predicts that its choices suffice, and they do not.
#[test]
fn a_wrong_prediction_is_refused_with_what_happens() {
    let message = expect![[r#"
        error: no plan was found that fits 2.4 GiB (2603823923 bytes); the smallest \
        budget known to be feasible is 2.9 GiB (3120562176 bytes), and no schedule \
        needs less than 1.2 GiB
        activations chosen: 5; the predicted peak is 2.4 GiB (2550136832 bytes); the \
        simulated peak is 2.6 GiB (2818572288 bytes)
        it binds at node `n25` (the root module), where these are alive:
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

/// Time that is up proves nothing, whoever plans.
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
