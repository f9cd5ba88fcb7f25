//! Arguments that make no sense together or alone. Invariant: the message lists those that do.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};

use super::Case;
use crate::program::{folder, listing, run};

#[test]
fn wrong_usage() {
    let case = Case::new();
    let refused = |arguments: &str, message: Expect| case.fails(arguments, 2, message);
    refused(
        "plan corpus/steps/gpt-nano --budget 1MiB --planner cleverest",
        expect![[r#"
            error: invalid value 'cleverest' for '--planner <PLANNER>'
              [possible values: none, chen, capuchin, xla, dtr, knapsack, rotor, sac, \
            exact, auto, capuchin-published, capuchin-swap, offload, checkpoint-always, \
            checkpoint-except-last]

            For more information, try '--help'.
        "#]],
    );
    for planner in ["", " --planner auto", " --planner chen", " --planner none"] {
        let arguments = format!("plan corpus/steps/gpt-nano --budget 1MiB --variant ours{planner}");
        let name = planner.strip_prefix(" --planner ").unwrap_or("auto");
        let ran = run(case.folder.path(), &arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
        assert!(
            ran.stderr.contains(&format!("planner `{name}` has no variants")),
            "{}",
            ran.stderr
        );
    }
    refused(
        "plan corpus/steps/gpt-nano --budget 80% --planner exact --variant published",
        expect![[r#"
            error: planner `exact` has no variants; `--variant` chooses between those of \
            capuchin and goes with `--planner capuchin`
        "#]],
    );
    refused(
        "plan corpus/steps/gpt-nano --budget 80% --planner dtr --swap",
        expect![[r#"
            error: planner `dtr` has no variants; `--swap` chooses between those of \
            capuchin and goes with `--planner capuchin`
        "#]],
    );
    refused(
        "plan corpus/steps/gpt-nano --budget 80% --planner capuchin --variant cleverest",
        expect![[r#"
            error: invalid value 'cleverest' for '--variant <VARIANT>'
              [possible values: ours, published]

            For more information, try '--help'.
        "#]],
    );
    refused(
        "plan corpus/steps/gpt-nano --budget 1MiB --machine abacus",
        expect![[r#"
            error: invalid value 'abacus' for '--machine <MACHINE>'
              [possible values: cpu, a100-80gb, h100-80gb]

            For more information, try '--help'.
        "#]],
    );
    refused(
        "sac corpus/cases/module_info/module_info_torchtest_4l.json --budget 3GiB --machine cpu",
        expect![[r#"
            error: statistics of modules have times of their own: --machine is for graphs \
            and steps
        "#]],
    );
    refused(
        "train corpus/steps/gpt-nano --budget 100% --lr NaN",
        expect![[r#"
        error: invalid value 'NaN' for '--lr <LR>': a learning rate is a finite number \
        that is not negative

        For more information, try '--help'.
    "#]],
    );
    refused(
        "train corpus/steps/gpt-nano --budget 100% --lr -1",
        expect![[r#"
        error: invalid value '-1' for '--lr <LR>': a learning rate is a finite number \
        that is not negative

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn two_results_need_two_files() {
    let folder = folder();
    let ran = run(
        folder.path(),
        "plan corpus/steps/gpt-nano --budget 80% -o FOLDER/one --svg FOLDER/one",
    );
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--output and --svg name the same file"), "{}", ran.stderr);
    assert!(!folder.path().join("one").exists());
}

#[test]
fn a_drawing_does_not_replace_the_graph_that_it_is_made_from() {
    let case = Case::new().graph(|_| {});
    let before = std::fs::read(case.path("graph.json")).unwrap();
    let ran = run(case.folder.path(), "pareto FOLDER/graph.json --svg FOLDER/graph.json");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("--svg would replace"), "{}", ran.stderr);
    assert_eq!(std::fs::read(case.path("graph.json")).unwrap(), before);
}

#[test]
fn a_latency_of_the_host_needs_its_bandwidth() {
    let shard = "shard corpus/steps/gpt-nano --budget 80% --world-size 2 --bandwidth 1GB/s \
                 --latency 1us --host-latency 1us";
    let ran = run(folder().path(), shard);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--host-bandwidth <HOST_BANDWIDTH>"), "{}", ran.stderr);
}

#[test]
fn a_graph_cannot_be_trained_without_its_step() {
    Case::new().fails(
        "train corpus/graphs/resnet50_b32.json.gz --budget 100%",
        5,
        expect![[r#"
            error: corpus/graphs/resnet50_b32.json.gz: a step is a folder, as \
            `tightfit.export` writes it; a graph alone can be planned, but not trained
        "#]],
    );
}

#[test]
fn no_steps_are_no_failure() {
    let folder = folder();
    let ran = run(
        folder.path(),
        "train corpus/steps/mlp-digits --budget 100% --steps 0 --threads \
        2 --json --save FOLDER/weights",
    )
    .done();
    assert_eq!(ran.losses(), [""; 0]);
    assert_eq!(ran.result()["steps"], 0);
    assert_eq!(listing(folder.path()), ["weights"]);
}

#[test]
fn more_micro_batches_than_a_graph_can_hold() {
    let case = Case::new();
    for verb in ["plan", "train"] {
        case.fails(
            &format!("{verb} corpus/steps/gpt-nano --budget 80% --microbatches 100000"),
            2,
            expect![[r#"
                error: 100000 micro-batches of 282 nodes are more than the 1048576 nodes that \
                a graph may have; take fewer, of more rows each
            "#]],
        );
    }
}

#[test]
fn schedules_by_wrong_names() {
    let case = Case::new();
    let train = "train corpus/steps/gpt-nano --budget 90% --stages 2";
    case.fails(
        &format!("{train} --schedule gpip"),
        2,
        expect![[r#"
        error: there is no schedule `gpip`; schedules are gpipe, 1f1b, interleaved, \
        zb-h1, zb-v, v-half, v-min, greedy-v, greedy, asyncpipe, or a CSV file
    "#]],
    );
    case.fails(
        &format!("{train} --schedule orders/gpipe.csv"),
        4,
        expect![[r#"
        error: `orders/gpipe.csv` is neither a schedule nor a file: No such file or \
        directory (os error 2); schedules are gpipe, 1f1b, interleaved, zb-h1, zb-v, \
        v-half, v-min, greedy-v, greedy, asyncpipe
    "#]],
    );
}

#[test]
fn a_frontier_without_points() {
    Case::new().fails(
        "report corpus/graphs/resnet50_b32.json.gz --svg frontier --points 0 -o FOLDER/page.svg",
        2,
        expect![[r#"
            error: --svg frontier draws points; leave --points 0 out
        "#]],
    );
}

#[test]
fn bandwidths() {
    let folder = folder();
    let shard = |rate: &str| {
        let arguments = format!(
            "shard corpus/graphs/cuda/vit_b16_b32.json.gz --budget 4GiB --world-size 8 \
             --bandwidth {rate} --latency 20us --json"
        );
        run(folder.path(), &arguments)
    };
    let figures = |rate: &str| shard(rate).done().result()["step_seconds"].to_string();
    assert_eq!(figures("1e11"), figures("100GB/s"));
    for wrong in ["0", "-1", "1e999", "fast"] {
        assert_eq!(shard(wrong).code, Some(2), "{wrong}");
    }
}

/// Kernels compute in 32 bits.
#[test]
fn learning_rates_beyond_32_bits() {
    let case = Case::new();
    let train = |rate: &str| {
        let step = "train corpus/steps/mlp-digits --budget 100% --steps 0 --lr";
        run(case.folder.path(), &format!("{step} {rate}"))
    };
    assert_eq!(train("3e38").code, Some(0));
    for rate in ["4e38", "1e300", "inf"] {
        let refused = train(rate);
        assert_eq!(refused.code, Some(2), "{rate}");
        assert!(refused.stderr.contains("a learning rate is a finite number"), "{rate}");
    }
}
