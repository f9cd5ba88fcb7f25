//! Steps that cannot be executed, or lack something. Invariant: the message says what is missing.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use crate::{Case, TRAIN, node};

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
        |step, _| step["parameters"]["head.bias"] = json!({ "file": "weights.safetensors" }),
        expect![[r#"
        error: a parameter could not be initialised: FOLDER/step/weights.safetensors: \
        No such file or directory (os error 2)
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
        error: FOLDER/step/step.json: the training graph has no input called `input`
    "#]],
    );
}
