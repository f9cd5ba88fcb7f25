//! Steps that cannot be executed, or lack something. Invariant: the message says what is missing.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{Case, TRAIN, node};
use crate::program::run;

#[test]
fn operators_without_a_kernel() {
    let case = Case::new().step(|_, graph| {
        for name in ["relu", "relu_3"] {
            node(graph, name)["op"] = json!("aten.hardswish.default");
        }
        node(graph, "relu_7")["op"] = json!("aten.erf.default");
    });
    case.fails(
        &format!("{TRAIN} --save FOLDER/weights"),
        6,
        expect![[r#"
        error: some operators are not implemented by the engine: aten.erf.default \
        (once, first in node `relu_7`), aten.hardswish.default (2 times, first in node \
        `relu`); such a graph can be planned, but not trained
    "#]],
    );
}

#[test]
fn a_graph_for_planning_only() {
    let case =
        Case::new().step(|_, graph| node(graph, "relu")["outputs"][0]["contiguous"] = json!(false));
    case.fails(
        &format!("{TRAIN} --save FOLDER/weights"),
        6,
        expect![[r#"
        error: node `relu`: an output is not contiguous and carries no strides; this \
        graph is for planning only
    "#]],
    );
    let case = Case::new().step(|_, graph| {
        node(graph, "relu")["outputs"][0]["dtype"] = json!("f16");
    });
    case.fails(
        &format!("{TRAIN} --save FOLDER/weights"),
        6,
        expect![[r#"
        error: node `relu`: the engine computes in f32, i64 and bool, not in f16; this \
        graph is for planning only
    "#]],
    );
}

/// Batches and weights are written from the first byte of their storages on.
#[test]
fn inputs_and_parameters_that_begin_within_their_storages() {
    let shifted = |names: &[&str], message: Expect| {
        let case = Case::new().step(|_, graph| {
            for name in names {
                let output = &mut node(graph, name)["outputs"][0];
                output["offset"] = json!(16);
                let storage = output["storage"].as_u64().unwrap() as usize;
                let bytes = graph["storages"][storage].as_u64().unwrap();
                graph["storages"][storage] = json!(bytes + 64);
            }
        });
        case.fails(&format!("{TRAIN} --save FOLDER/weights"), 6, message);
    };
    shifted(
        &["input"],
        expect![[r#"
        error: node `input`: a placeholder is not contiguous from the start of its \
        storage; this graph is for planning only
    "#]],
    );
    shifted(
        &["layers_0_bias", "adamw_layers_0_bias"],
        expect![[r#"
        error: node `layers_0_bias`: a placeholder is not contiguous from the start of \
        its storage; this graph is for planning only
    "#]],
    );
}

#[test]
fn a_step_that_lacks_something() {
    let lacks = |change: fn(&mut Value, &mut Value), message: Expect| {
        Case::new().step(change).fails(TRAIN, 5, message)
    };
    lacks(
        |step, _| drop(step["parameters"].as_object_mut().unwrap().remove("head.bias")),
        expect![[r#"
        error: FOLDER/step/step.json: `parameters` does not say how `head.bias` begins
    "#]],
    );
    lacks(
        |step, _| drop(step.as_object_mut().unwrap().remove("data")),
        expect![[r#"
        error: FOLDER/step/step.json: not a tightfit-step/1 file: missing field `data` \
        at line 1 column N
    "#]],
    );
    lacks(
        |step, _| step["parameters"]["head.bias"] = json!({ "lucky": 7 }),
        expect![[r#"
        error: FOLDER/step/step.json: not a tightfit-step/1 file: unknown variant \
        `lucky`, expected one of `normal`, `uniform`, `constant`, `file` at line 1 \
        column N
    "#]],
    );
    lacks(
        |_, graph| node(graph, "input")["name"] = json!("pixels"),
        expect![[r#"
            error: FOLDER/step/step.json: the training graph has an input called `pixels`, \
            which no data fill; a step has one called `input` and one called `target`
        "#]],
    );
}

#[test]
fn a_file_of_parameters_that_is_not_there() {
    let case = Case::new().step(|step, _| {
        step["parameters"]["head.bias"] = json!({ "file": "weights.safetensors" });
    });
    case.fails(
        TRAIN,
        4,
        expect![[r#"
        error: a parameter could not be initialised: FOLDER/step/weights.safetensors: \
        No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn numbers_that_no_step_has() {
    let refused = |change: fn(&mut Value), expected: &str| {
        let case = Case::new().step(|step, _| change(step));
        let ran = run(case.folder.path(), TRAIN);
        assert_eq!(ran.code, Some(5), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    };
    refused(
        |step| step["optimizer"]["kind"] = json!("lion"),
        "`optimizer`: `kind` is \"lion\"; the engine has adamw and sgd",
    );
    for rate in [json!(-1e-3), json!(1e300)] {
        let case = Case::new().step(|step, _| step["optimizer"]["learning_rate"] = rate);
        let ran = run(case.folder.path(), TRAIN);
        assert_eq!(ran.code, Some(5), "{}", ran.stderr);
        assert!(ran.stderr.contains("a learning rate is a finite number that is not negative"));
    }
    refused(
        |step| step["parameters"]["head.bias"] = json!({ "normal": { "mean": 0.0, "std": -1.0 } }),
        "`head.bias`: `std` is -1; a standard deviation is not negative",
    );
    refused(
        |step| step["parameters"]["head.bias"] = json!({ "uniform": { "low": 2.0, "high": 1.0 } }),
        "`head.bias`: `low` is 2 and above `high`, which is 1; swap them",
    );
    refused(
        |step| step["parameters"]["head.bias"] = json!({ "constant": 1e300 }),
        "`head.bias`: `constant` is 1e300, which is no finite number in 32 bits",
    );
}

#[test]
fn data_that_is_no_object() {
    let case = Case::new().step(|step, _| step["data"] = json!(1));
    let ran = run(case.folder.path(), TRAIN);
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    assert!(ran.stderr.contains("`data` is an object whose `kind` is \"bytes\" or \"table\""));
}

#[test]
fn batches_of_another_size_than_the_graphs_take() {
    for (field, rows) in [("batch", 0), ("batch", 1_000_000_000), ("evaluation_batch", 7)] {
        let case = Case::new().step(|step, _| step["data"][field] = json!(rows));
        let ran = run(case.folder.path(), TRAIN);
        assert_eq!(ran.code, Some(7), "{}", ran.stderr);
        assert!(ran.stderr.contains(&format!("the step's data has `{field}` {rows}, but")));
    }
}

#[test]
fn missing_operators_are_named_before_a_plan_is_looked_for() {
    let train = TRAIN.replace("100%", "1MiB");
    let case = Case::new().step(|_, _| {});
    assert_ne!(run(case.folder.path(), &train).code, Some(0), "this budget is too small");
    let case = Case::new().step(|_, graph| {
        node(graph, "relu")["op"] = json!("aten.hardswish.default");
    });
    case.fails(
        &train,
        6,
        expect![[r#"
        error: 1 operator is not implemented by the engine: aten.hardswish.default \
        (once, first in node `relu`); such a graph can be planned, but not trained
    "#]],
    );
}
