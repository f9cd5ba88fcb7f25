//! Damaged graphs. Invariant: the message names the file, the node and the rule that it breaks.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::{Case, PLAN_SMALL, TRAIN, node, packed, unpacked};
use crate::program::corpus;

#[test]
fn a_truncated_file() {
    let whole = packed(&unpacked(&corpus().join("steps/mlp-digits/train.json.gz")));
    let case = Case::new().file("graph.json", &whole[..whole.len() / 2]);
    case.fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: the gzip data is damaged or cut short: incomplete \
        deflate stream
    "#]],
    );
    let case = Case::new()
        .file("graph.json", &unpacked(&corpus().join("steps/mlp-digits/train.json.gz"))[..1000]);
    case.fails(
        PLAN_SMALL,
        5,
        expect![[r#"
            error: FOLDER/graph.json: not a tightfit-graph/1 file: EOF while parsing a \
            list at line 7 column N
        "#]],
    );
    Case::new().file("graph.json", "").fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: EOF while parsing a \
        value at line 1 column N
    "#]],
    );
}

#[test]
fn other_versions() {
    Case::new().graph(|graph| graph["format"] = json!("tightfit-graph/2")).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: the format is "tightfit-graph/2", but this program \
        reads "tightfit-graph/1"
    "#]],
    );
    Case::new().graph(|graph| graph["format"] = Value::Null).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: the format is missing, but this program reads \
        "tightfit-graph/1"
    "#]],
    );
    Case::new().step(|step, _| step["format"] = json!("tightfit-step/0")).fails(
        TRAIN,
        5,
        expect![[r#"
        error: FOLDER/step/step.json: the format is "tightfit-step/0", but this \
        program reads "tightfit-step/1"
    "#]],
    );
}

#[test]
fn ids_that_lead_nowhere() {
    Case::new().graph(|graph| graph["outputs"] = json!([7])).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: output 7 of the graph is not produced by any node
    "#]],
    );
    Case::new().graph(|graph| node(graph, "y")["inputs"] = json!([9])).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y` reads value 9, which no node produces
    "#]],
    );
    Case::new().graph(|graph| node(graph, "y")["outputs"][0]["storage"] = json!(3)).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y`, output 0: storage 3 does not exist (the \
        graph has 3 storages)
    "#]],
    );
    Case::new().graph(|graph| node(graph, "y")["module"] = json!(1)).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y` belongs to module 1, but the graph has 1 \
        modules
    "#]],
    );
    Case::new().graph(|graph| node(graph, "y")["args"] = json!([{ "value": 2 }])).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y` reads value 2 before it is produced: nodes \
        must come after what they read (is there a cycle?)
    "#]],
    );
}

#[test]
fn a_cycle() {
    let case = Case::new().graph(|graph| {
        node(graph, "y")["inputs"] = json!([2]);
        node(graph, "y")["args"] = json!([{ "value": 2 }]);
    });
    case.fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y` reads value 2 before it is produced: nodes \
        must come after what they read (is there a cycle?)
    "#]],
    );
}

#[test]
fn sizes_that_cannot_be() {
    let sized = |change: fn(&mut Value), message: Expect| {
        Case::new().graph(change).fails(PLAN_SMALL, 5, message)
    };
    sized(
        |graph| node(graph, "y")["outputs"][0]["shape"] = json!([17]),
        expect![[r#"
        error: FOLDER/graph.json: node `y`, output 0: shape [17] of f32 from element 0 \
        needs 68 bytes, but storage 1 holds 64
    "#]],
    );
    sized(
        |graph| node(graph, "y")["outputs"][0]["shape"] = json!([-16]),
        expect![[r#"
        error: FOLDER/graph.json: node `y`: shape is -16, but must be a whole number \
        from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| node(graph, "y")["outputs"][0]["shape"] = json!([1u64 << 40, 1u64 << 40]),
        expect![[r#"
        error: FOLDER/graph.json: node `y`, output 0: shape [1099511627776, \
        1099511627776] is too large: extents other than 0 may multiply to 2^60 at most
    "#]],
    );
    sized(
        |graph| graph["storages"][1] = json!(-64),
        expect![[r#"
        error: FOLDER/graph.json: storage 1: its size is -64, but must be a whole \
        number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| graph["storages"][1] = json!(64.5),
        expect![[r#"
        error: FOLDER/graph.json: storage 1: its size is 64.5, but must be a whole \
        number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| graph["storages"][1] = json!("NaN"),
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: invalid type: string \
        "NaN", expected a JSON number at line 1 column N
    "#]],
    );
    sized(
        |graph| node(graph, "y")["workspace"] = json!(-1),
        expect![[r#"
        error: FOLDER/graph.json: node `y`: workspace is -1, but must be a whole \
        number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| node(graph, "y")["seconds"] = json!(-1.0),
        expect![[r#"
        error: FOLDER/graph.json: node `y`: run time -1 is not a finite, non-negative \
        number of seconds
    "#]],
    );
}

#[test]
fn a_number_that_json_does_not_have() {
    Case::new().file("graph.json", r#"{"format": "tightfit-graph/1", "storages": [NaN]}"#).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: expected value at line \
        1 column N
    "#]],
    );
}

#[test]
fn names_that_are_not_unique() {
    Case::new().graph(|graph| node(graph, "y")["name"] = json!("x")).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: two nodes are called `x`: node names are unique
    "#]],
    );
}
