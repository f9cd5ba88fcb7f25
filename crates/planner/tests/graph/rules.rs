//! Every way in which bytes are not a graph, with the message shown to the user. Invariant: each
//! variant of [`ReadError`] and [`GraphError`] has a test here ([`variant`] panics at one that has
//! none) or, if it is a limit, in `limits`; and no bytes whatever make the reader panic.
//!
//! Tier: quick with a part of the cases, 3 s; full with all of them.

use std::io::Write;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tightfit::Request;
use tightfit::effort::Effort;
use tightfit::graph::{self, GraphBuilder, GraphError, NodeSpec, Phase, ReadError, ValueSpec};
use tightfit::id::ValueId;
use tightfit::tensor::DType;
use tightfit::units::Bytes;

use crate::fixtures::generator;

/// Two placeholders, a product, a loss, its gradient and an update: nodes 0 to 5, values 0 to 5,
/// and 6 after the update.
fn valid() -> Json {
    let value =
        |id: u32, storage: u32| json!({"id": id, "shape": [4], "dtype": "f32", "storage": storage});
    json!({
        "format": "tightfit-graph/1",
        "name": "valid",
        "modules": ["", "layer"],
        "storages": [16, 16, 16, 16, 16, 16],
        "nodes": [
            {"name": "x", "op": "placeholder", "phase": "input", "outputs": [value(0, 0)]},
            {"name": "w", "op": "placeholder", "phase": "parameter", "parameter": "layer.w",
             "outputs": [value(1, 1)]},
            {"name": "mul", "op": "aten.mul.Tensor", "phase": "forward", "module": 1,
             "inputs": [0, 1], "args": [{"value": 0}, {"value": 1}], "outputs": [value(2, 2)]},
            {"name": "loss", "op": "test.loss", "phase": "loss", "inputs": [2],
             "outputs": [value(3, 3)]},
            {"name": "grad", "op": "test.grad", "phase": "backward", "inputs": [0],
             "outputs": [value(4, 4), null]},
            {"name": "update", "op": "tightfit.sgd", "phase": "optimizer", "inputs": [1, 4],
             "mutates": true, "args": [{"value": 1}, {"value": 4}],
             "outputs": [value(5, 1), null]},
        ],
        "outputs": [3]
    })
}

fn bytes(graph: &Json) -> Vec<u8> {
    graph.to_string().into_bytes()
}

fn verdict(bytes: &[u8]) -> String {
    match graph::read(bytes) {
        Ok(_) => "a graph".to_string(),
        Err(error) => format!("{}: {error}", variant(&error)),
    }
}

/// Sets the field that a JSON pointer names, appending if it ends in `-`, and expects a message.
fn with(pointer: &str, value: Json, expected: Expect) {
    let mut graph = valid();
    assert_eq!(verdict(&bytes(&graph)), "a graph");
    set(&mut graph, pointer, value);
    expected.assert_eq(&verdict(&bytes(&graph)));
}

fn set(graph: &mut Json, pointer: &str, value: Json) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match graph.pointer_mut(parent).unwrap() {
        Json::Object(object) => drop(object.insert(field.to_string(), value)),
        Json::Array(list) if field == "-" => list.push(value),
        Json::Array(list) => list[field.parse::<usize>().unwrap()] = value,
        other => panic!("{pointer} lies in {other}"),
    }
}

fn variant(error: &ReadError) -> &'static str {
    match error {
        ReadError::Gzip(_) => "Gzip",
        ReadError::Excess(_) => "Excess",
        ReadError::Operands { .. } => "Operands",
        ReadError::Json(_) => "Json",
        ReadError::Version { .. } => "Version",
        ReadError::Size { .. } => "Size",
        ReadError::StorageSize { .. } => "StorageSize",
        ReadError::Phase { .. } => "Phase",
        ReadError::DType { .. } => "DType",
        ReadError::DanglingInput { .. } => "DanglingInput",
        ReadError::DuplicateValue { .. } => "DuplicateValue",
        ReadError::DanglingOutput { .. } => "DanglingOutput",
        ReadError::Argument { .. } => "Argument",
        ReadError::Nesting { .. } => "Nesting",
        ReadError::Rule(rule) => match rule {
            GraphError::NoModules => "NoModules",
            GraphError::DuplicateName { .. } => "DuplicateName",
            GraphError::UnknownModule { .. } => "UnknownModule",
            GraphError::UnknownStorage { .. } => "UnknownStorage",
            GraphError::ReadBeforeProduced { .. } => "ReadBeforeProduced",
            GraphError::DuplicateInput { .. } => "DuplicateInput",
            GraphError::ArgumentNotInput { .. } => "ArgumentNotInput",
            GraphError::Placeholder { .. } => "Placeholder",
            GraphError::PlaceholderPhase { .. } => "PlaceholderPhase",
            GraphError::DuplicateParameter { .. } => "DuplicateParameter",
            GraphError::DoesNotFit { .. } => "DoesNotFit",
            GraphError::TooManyElements { .. } => "TooManyElements",
            GraphError::StrideCount { .. } => "StrideCount",
            GraphError::NotContiguous { .. } => "NotContiguous",
            GraphError::TwoProducers { .. } => "TwoProducers",
            GraphError::MutatesNothing { .. } => "MutatesNothing",
            GraphError::MutatedOutputs { .. } => "MutatedOutputs",
            GraphError::MutatesWithoutOutput { .. } => "MutatesWithoutOutput",
            GraphError::ReadsOverwritten { .. } => "ReadsOverwritten",
            GraphError::Seconds { .. } => "Seconds",
            GraphError::TotalSeconds { .. } => "TotalSeconds",
            GraphError::Stream { .. } => "Stream",
            GraphError::SeedWithoutRandom { .. } => "SeedWithoutRandom",
            GraphError::DuplicateSeedSlot { .. } => "DuplicateSeedSlot",
            GraphError::UnknownOutput { .. } => "UnknownOutput",
            GraphError::OutputOverwritten { .. } => "OutputOverwritten",
            GraphError::TooLarge => "TooLarge",
            other => panic!("a rule without a test: {other}"),
        },
        other => panic!("a variant without a test: {other}"),
    }
}

#[test]
fn damaged_gzip() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&bytes(&valid())).unwrap();
    let mut packed = packed.finish().unwrap();
    assert_eq!(verdict(&packed), "a graph");
    expect!["Gzip: the gzip data is damaged or cut short: incomplete deflate stream"]
        .assert_eq(&verdict(&packed[..packed.len() / 2]));
    let checksum = packed.len() - 8;
    packed[checksum] ^= 0xff;
    expect![
        "Gzip: the gzip data is damaged or cut short: corrupt gzip stream does not have a \
        matching checksum"
    ]
    .assert_eq(&verdict(&packed));
}

#[test]
fn not_json() {
    expect!["Json: not a tightfit-graph/1 file: EOF while parsing a value at line 1 column 0"]
        .assert_eq(&verdict(b""));
    expect!["Json: not a tightfit-graph/1 file: expected value at line 1 column 1"]
        .assert_eq(&verdict(b"PK\x03\x04"));
    expect!["Json: not a tightfit-graph/1 file: EOF while parsing a string at line 1 column 300"]
        .assert_eq(&verdict(&bytes(&valid())[..300]));
    expect!["Json: not a tightfit-graph/1 file: missing field `storages` at line 1 column 47"]
        .assert_eq(&verdict(br#"{"format": "tightfit-graph/1", "modules": [""]}"#));
    with(
        "/nodes/2/seconds",
        json!("fast"),
        expect![
            "Json: not a tightfit-graph/1 file: invalid type: string \"fast\", expected f64 at \
             line 1 column 505"
        ],
    );
    with(
        "/nodes/2/inputs",
        json!([-1]),
        expect![
            "Json: not a tightfit-graph/1 file: invalid value: integer `-1`, expected u64 at line \
             1 column 362"
        ],
    );
}

#[test]
fn another_version() {
    with(
        "/format",
        json!("tightfit-graph/2"),
        expect![
            "Version: the format is \"tightfit-graph/2\", but this program reads \
             \"tightfit-graph/1\""
        ],
    );
    with(
        "/format",
        json!(1),
        expect![[r#"Version: the format is 1, but this program reads "tightfit-graph/1""#]],
    );
    expect![[r#"Version: the format is missing, but this program reads "tightfit-graph/1""#]]
        .assert_eq(&verdict(b"{}"));
}

#[test]
fn sizes() {
    with(
        "/nodes/2/flops",
        json!(-1),
        expect![
            "Size: node `mul`: flops is -1, but must be a whole number from 0 to \
             1152921504606846976"
        ],
    );
    with(
        "/nodes/2/workspace",
        json!(1.5),
        expect![
            "Size: node `mul`: workspace is 1.5, but must be a whole number from 0 to \
             1152921504606846976"
        ],
    );
    with(
        "/nodes/2/bytes_read",
        json!(u64::MAX),
        expect![
            "Size: node `mul`: bytes_read is 18446744073709551615, but must be a whole number \
             from 0 to 1152921504606846976"
        ],
    );
    with(
        "/nodes/2/outputs/0/shape",
        json!([-4]),
        expect![
            "Size: node `mul`: shape is -4, but must be a whole number from 0 to \
             1152921504606846976"
        ],
    );
    with(
        "/nodes/2/outputs/0/storage",
        json!(1u64 << 40),
        expect![
            "Size: node `mul`: storage is 1099511627776, but must be a whole number from 0 to \
             4294967294"
        ],
    );
    with(
        "/nodes/2/module",
        json!(1u64 << 40),
        expect![
            "Size: node `mul`: module is 1099511627776, but must be a whole number from 0 to \
             4294967294"
        ],
    );
    with(
        "/storages/2",
        json!(-16),
        expect![
            "StorageSize: storage 2: its size is -16, but must be a whole number from 0 to \
             1152921504606846976"
        ],
    );
    with(
        "/storages/2",
        json!(1e30),
        expect![
            "StorageSize: storage 2: its size is 1e+30, but must be a whole number from 0 to \
             1152921504606846976"
        ],
    );
    // Each is allowed, but all together are not.
    with(
        "/storages",
        json!([1u64 << 60, 16, 16, 16, 16, 16]),
        expect![
            "TooLarge: the graph's storages and workspaces add up to more than 2^60 bytes, or one \
             node's operations or traffic exceed 2^60"
        ],
    );
}

#[test]
fn names_that_do_not_exist() {
    with(
        "/nodes/2/phase",
        json!("foreward"),
        expect![
            "Phase: node `mul`: phase `foreward` does not exist; the phases are parameter, \
             buffer, state, input, tangent, forward, loss, backward, optimizer"
        ],
    );
    with(
        "/nodes/2/outputs/0/dtype",
        json!("c64"),
        expect![
            "DType: node `mul`, value 2: element type `c64` is not supported; the types are f64, \
             f32, f16, bf16, i64, i32, i16, i8, u64, u8, bool"
        ],
    );
    with(
        "/nodes/2/module",
        json!(2),
        expect!["UnknownModule: node `mul` belongs to module 2, but the graph has 2 modules"],
    );
    with(
        "/nodes/2/outputs/0/storage",
        json!(6),
        expect![
            "UnknownStorage: node `mul`, output 0: storage 6 does not exist (the graph has 6 \
             storages)"
        ],
    );
    with(
        "/modules",
        json!([]),
        expect!["NoModules: the graph has no modules: the first one must be the root"],
    );
}

#[test]
fn values_that_do_not_exist() {
    with(
        "/nodes/2/inputs",
        json!([0, 99]),
        expect!["DanglingInput: node `mul` reads value 99, which no node produces"],
    );
    with(
        "/nodes/2/args/1",
        json!({"value": 99}),
        expect!["DanglingInput: node `mul` reads value 99, which no node produces"],
    );
    with(
        "/outputs",
        json!([99]),
        expect!["DanglingOutput: output 99 of the graph is not produced by any node"],
    );
    with(
        "/nodes/3/outputs/0/id",
        json!(2),
        expect!["DuplicateValue: node `loss`: value 2 is already produced by another node"],
    );
    // A cycle: the product reads its own loss.
    with(
        "/nodes/2/inputs",
        json!([0, 3]),
        expect![
            "ReadBeforeProduced: node `mul` reads value 3 before it is produced: nodes must come \
             after what they read (is there a cycle?)"
        ],
    );
}

#[test]
fn inputs_and_arguments() {
    with(
        "/nodes/2/inputs",
        json!([0, 1, 0]),
        expect!["DuplicateInput: node `mul` lists output 0 of `x` twice among its inputs"],
    );
    with(
        "/nodes/3/args",
        json!([{"value": 0}]),
        expect![
            "ArgumentNotInput: node `loss`: its arguments mention output 0 of `x`, which is not \
             among its inputs"
        ],
    );
    with(
        "/nodes/3/kwargs",
        json!({"weight": [{"value": 1}]}),
        expect![
            "ArgumentNotInput: node `loss`: its arguments mention output 0 of `w`, which is not \
             among its inputs"
        ],
    );
    with(
        "/nodes/3/args",
        json!([{"tensor": 2}]),
        expect![
            "Argument: node `loss`: an argument is {\"tensor\":2}, which is neither a constant, a \
             list nor {\"value\": id}"
        ],
    );
    let deep = (0..17).fold(json!(0), |list, _| json!([list]));
    with(
        "/nodes/3/args",
        json!([deep]),
        expect!["Nesting: node `loss`: the lists of an argument nest more than 16 deep"],
    );
    let deeper = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let text = valid()
        .to_string()
        .replace(r#""args":[{"value":0},{"value":1}]"#, &format!(r#""args":{deeper}"#));
    expect!["Json: not a tightfit-graph/1 file: recursion limit exceeded at line 1 column 449"]
        .assert_eq(&verdict(text.as_bytes()));
}

#[test]
fn names_are_unique() {
    with(
        "/nodes/3/name",
        json!("mul"),
        expect!["DuplicateName: two nodes are called `mul`: node names are unique"],
    );
    let second = json!({"name": "v", "op": "placeholder", "phase": "state", "parameter": "layer.w",
        "outputs": [{"id": 9, "shape": [4], "dtype": "f32", "storage": 5}]});
    with(
        "/nodes/-",
        second,
        expect![
            "DuplicateParameter: nodes `w` and `v` both hold `layer.w`: names in the model are \
             unique"
        ],
    );
}

#[test]
fn placeholders() {
    with(
        "/nodes/0/op",
        json!("aten.relu.default"),
        expect![
            "Placeholder: node `x`: a placeholder must have op `placeholder`, one output and no \
             inputs, and must not mutate (op `aten.relu.default`, 0 inputs, 1 outputs)"
        ],
    );
    with(
        "/nodes/1/inputs",
        json!([0]),
        expect![
            "Placeholder: node `w`: a placeholder must have op `placeholder`, one output and no \
             inputs, and must not mutate (op `placeholder`, 1 inputs, 1 outputs)"
        ],
    );
    with(
        "/nodes/1/outputs",
        json!([null]),
        expect!["DanglingInput: node `mul` reads value 1, which no node produces"],
    );
    with(
        "/nodes/0/phase",
        json!("forward"),
        expect![
            "PlaceholderPhase: node `x` has op `placeholder`, but its phase `forward` is one that \
             computes"
        ],
    );
}

#[test]
fn values_lie_within_their_storage() {
    with(
        "/nodes/2/outputs/0/shape",
        json!([5]),
        expect![
            "DoesNotFit: node `mul`, output 0: shape [5] of f32 from element 0 needs 20 bytes, \
             but storage 2 holds 16"
        ],
    );
    with(
        "/nodes/2/outputs/0/offset",
        json!(1),
        expect![
            "DoesNotFit: node `mul`, output 0: shape [4] of f32 from element 1 needs 20 bytes, \
             but storage 2 holds 16"
        ],
    );
    let strided = |shape: Json, strides: Json| {
        json!({
            "id": 2, "shape": shape, "dtype": "f32", "storage": 2, "contiguous": false,
            "strides": strides,
        })
    };
    with(
        "/nodes/2/outputs/0",
        strided(json!([2, 2]), json!([3, 1])),
        expect![
            "DoesNotFit: node `mul`, output 0: shape [2, 2] of f32 with strides [3, 1] from \
             element 0 needs 20 bytes, but storage 2 holds 16"
        ],
    );
    with(
        "/nodes/2/outputs/0",
        strided(json!([2, 2]), json!([1])),
        expect![
            "StrideCount: node `mul`, output 0: its 2 dimensions need as many strides, but there \
             are 1"
        ],
    );
    let most = 1u64 << 60;
    with(
        "/nodes/2/outputs/0",
        strided(json!([most]), json!([most])),
        expect![
            "DoesNotFit: node `mul`, output 0: shape [1152921504606846976] of f32 with strides \
             [1152921504606846976] from element 0 needs 5316911983139663487003542222693990404 \
             bytes, but storage 2 holds 16"
        ],
    );
    // An expanded value takes no bytes, and neither does a value with an extent of zero, but their
    // elements are counted.
    with(
        "/nodes/2/outputs/0",
        strided(json!([1u64 << 31, 1u64 << 31]), json!([0, 0])),
        expect![
            "TooManyElements: node `mul`, output 0: shape [2147483648, 2147483648] is too large: \
             extents other than 0 may multiply to 2^60 at most"
        ],
    );
    with(
        "/nodes/2/outputs/0/shape",
        json!([1u64 << 40, 1u64 << 40, 0]),
        expect![
            "TooManyElements: node `mul`, output 0: shape [1099511627776, 1099511627776, 0] is \
             too large: extents other than 0 may multiply to 2^60 at most"
        ],
    );
    with(
        "/nodes/2/outputs/0/strides",
        json!([2]),
        expect![
            "NotContiguous: node `mul`, output 0: it is marked contiguous, but its strides are \
             [2] for shape [4]"
        ],
    );
}

#[test]
fn expanded_and_empty_values_fit_anywhere() {
    with("/nodes/2/outputs/0/shape", json!([7, 0]), expect![["a graph"]]);
    let expanded = json!({
        "id": 2, "shape": [1000, 4], "dtype": "f32", "storage": 2, "contiguous": false,
        "strides": [0, 1],
    });
    with("/nodes/2/outputs/0", expanded, expect![["a graph"]]);
}

#[test]
fn storages_have_one_producer() {
    with(
        "/nodes/3/outputs/0/storage",
        json!(1),
        expect![
            "TwoProducers: node `loss`, output 0: storage 1 was already produced by `w`, of which \
             this node reads nothing"
        ],
    );
}

#[test]
fn mutations() {
    with(
        "/nodes/5/outputs/0/storage",
        json!(5),
        expect![
            "MutatesNothing: node `update` mutates, but its output 0 does not lie in a storage of \
             its inputs"
        ],
    );
    let second = json!({"id": 6, "shape": [4], "dtype": "f32", "storage": 1});
    with(
        "/nodes/5/outputs/1",
        second,
        expect![
            "MutatedOutputs: node `update` mutates storage 1, but has 2 outputs in it: there must \
             be one, its new version"
        ],
    );
    with(
        "/nodes/5/outputs",
        json!([null, null]),
        expect![
            "MutatesWithoutOutput: node `update` mutates, but has no outputs: one is needed for \
             each storage written"
        ],
    );
    let late = json!({
        "name": "late", "op": "test.late", "phase": "optimizer", "inputs": [1], "outputs": [],
    });
    with(
        "/nodes/-",
        late,
        expect![
            "ReadsOverwritten: node `late` reads output 0 of `w`, which `update` has overwritten"
        ],
    );
    with(
        "/outputs",
        json!([1]),
        expect![
            "OutputOverwritten: output 0 of `w` is to outlive the step, but `update` overwrites it"
        ],
    );
}

#[test]
fn seconds_are_finite() {
    with(
        "/nodes/2/seconds",
        json!(-1e-3),
        expect![
            "Seconds: node `mul`: run time -0.001 is not a finite, non-negative number of seconds"
        ],
    );
    // JSON has no NaN; a number that is too large for a double is not one either.
    let seconds = |text: &str| {
        valid().to_string().replacen(
            r#""phase":"forward""#,
            &format!(r#""phase":"forward","seconds":{text}"#),
            1,
        )
    };
    expect!["Json: not a tightfit-graph/1 file: expected value at line 1 column 500"]
        .assert_eq(&verdict(seconds("NaN").as_bytes()));
    expect!["Json: not a tightfit-graph/1 file: number out of range at line 1 column 504"]
        .assert_eq(&verdict(seconds("1e999").as_bytes()));
    let mut node = NodeSpec::new("node", "test.node", Phase::Forward);
    node.seconds = Some(tightfit::units::Seconds(f64::NAN));
    let mut builder = GraphBuilder::new("nan");
    builder.node(node, &[]);
    expect!["node `node`: run time NaN is not a finite, non-negative number of seconds"]
        .assert_eq(&builder.build().unwrap_err().to_string());
}

#[test]
fn seeds() {
    with(
        "/nodes/2/seed_slot",
        json!(3),
        expect!["SeedWithoutRandom: node `mul` has seed slot 3, but is not marked random"],
    );
    let mut graph = valid();
    for node in [2, 3] {
        set(&mut graph, &format!("/nodes/{node}/random"), json!(true));
        set(&mut graph, &format!("/nodes/{node}/seed_slot"), json!(3));
    }
    expect!["DuplicateSeedSlot: nodes `mul` and `loss` draw with the same seed slot 3"]
        .assert_eq(&verdict(&bytes(&graph)));
    let mut graph = valid();
    set(&mut graph, "/nodes/2/stream", json!(true));
    let refused = expect![[
        "Stream: node `mul` says that it draws from the running generator; such a node is random \
         and has no seed slot, or sends or receives"
    ]];
    refused.assert_eq(&verdict(&bytes(&graph)));
    set(&mut graph, "/nodes/2/random", json!(true));
    assert_eq!(verdict(&bytes(&graph)), "a graph");
    set(&mut graph, "/nodes/2/seed_slot", json!(3));
    refused.assert_eq(&verdict(&bytes(&graph)));
}

/// A file cannot name such a value: its ids are looked up first.
#[test]
fn ids_that_only_a_program_can_get_wrong() {
    let mut builder = GraphBuilder::new("dangling");
    let storage = builder.storage(Bytes(4));
    let mut node = NodeSpec::new("node", "test.node", Phase::Forward);
    builder.node(node.clone(), &[Some(ValueSpec::contiguous(&[1], DType::F32, storage))]);
    let nowhere = ValueId::from_u32(7);
    let mut unknown_output = builder.clone();
    unknown_output.output(nowhere);
    expect!["value 7 is to outlive the step, but no node produces it"]
        .assert_eq(&unknown_output.build().unwrap_err().to_string());
    node.name = "reader".to_string();
    node.args = vec![tightfit::tensor::Argument::Value(nowhere)];
    let mut unknown_argument = builder.clone();
    unknown_argument.node(node.clone(), &[]);
    expect!["node `reader`: its arguments mention unknown value 7, which is not among its inputs"]
        .assert_eq(&unknown_argument.build().unwrap_err().to_string());
    node.inputs = vec![nowhere];
    builder.node(node, &[]);
    expect![
        "node `reader` reads value 7 before it is produced: nodes must come after what they \
        read (is there a cycle?)"
    ]
    .assert_eq(&builder.build().unwrap_err().to_string());
}

/// Files written by hand: unknown keys, and everything optional left out.
#[test]
fn unknown_keys_are_ignored_and_most_keys_may_be_absent() {
    with("/nodes/2/colour", json!("blue"), expect![["a graph"]]);
    let least = br#"{
        "format": "tightfit-graph/1", "modules": [""], "storages": [], "nodes": [], "outputs": []
    }"#;
    expect![["a graph"]].assert_eq(&verdict(least));
}

/// Plans name their graph by this hash: it must not change with the order of keys in a file, or
/// between versions.
#[test]
fn the_hash_of_a_graph_is_its_own() {
    let graph = graph::read(&bytes(&valid())).unwrap();
    expect!["6ecc2db842e0c7840e269e1b6240b122d39bd1d23dc33d7dd6268c934019a6c0"]
        .assert_eq(graph.hash());
}

/// A small file with every feature of the format.
fn rich() -> Vec<u8> {
    use crate::fixtures::generator::{Kind, Layer, Recipe, Updates};
    let kinds = [
        Kind::Linear,
        Kind::Norm,
        Kind::Slice,
        Kind::Relu,
        Kind::Dropout,
        Kind::Track,
        Kind::Split,
        Kind::View,
        Kind::FreshAndView,
    ];
    let layer = |kind| Layer {
        kind,
        first: 0,
        second: 1,
        size: 5,
        milliseconds: Some(3),
        workspace: 7,
        module: 2,
    };
    let recipe = Recipe {
        batch: vec![3],
        layers: kinds.into_iter().map(layer).collect(),
        updates: Updates::Adamw,
        clip: true,
        kept: vec![0],
        late_metric: true,
        epilogue: true,
        unread: true,
    };
    bytes(&graph::write(&recipe.graph()))
}

/// Ways in which a file is damaged.
#[derive(Clone, Debug)]
enum Damage {
    Byte(prop::sample::Index, u8),
    /// A digit for a digit: it stays JSON, with other ids and sizes.
    Digit(prop::sample::Index, u8),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    Truncate(prop::sample::Index),
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match self {
            Damage::Byte(at, byte) => bytes[at.index(length)] = *byte,
            Damage::Digit(at, digit) => {
                let digits: Vec<usize> =
                    (0..length).filter(|&i| bytes[i].is_ascii_digit()).collect();
                if !digits.is_empty() {
                    bytes[digits[at.index(digits.len())]] = b'0' + digit % 10;
                }
            }
            Damage::Remove(at, count) => {
                drop(bytes.drain(at.index(length)..(at.index(length) + count).min(length)))
            }
            Damage::Repeat(at, count) => {
                let end = (at.index(length) + count).min(length);
                let part = bytes[at.index(length)..end].to_vec();
                bytes.splice(end..end, part);
            }
            Damage::Truncate(at) => bytes.truncate(at.index(length)),
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        6 => (at(), any::<u8>()).prop_map(|(at, digit)| Damage::Digit(at, digit)),
        1 => (at(), 1usize..40).prop_map(|(at, count)| Damage::Remove(at, count)),
        1 => (at(), 1usize..40).prop_map(|(at, count)| Damage::Repeat(at, count)),
        1 => at().prop_map(Damage::Truncate),
    ]
}

proptest! {
    #![proptest_config(tightfit_testing::config(4000))]

    #[test]
    fn damaged_files_are_errors_and_not_panics(
        damages in prop::collection::vec(damage(), 1..5),
        pack in any::<bool>(),
    ) {
        let mut file = rich();
        if pack {
            let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packed.write_all(&file).unwrap();
            file = packed.finish().unwrap();
        }
        for damage in damages {
            damage.apply(&mut file);
        }
        if let Ok(graph) = graph::read(&file) {
            // Any graph that is accepted can be planned.
            for profile in generator::profiles(&graph) {
                tightfit::unplanned(&graph, &profile).unwrap();
                let effort = Effort::work(1, 3_000);
                let request = Request { effort, ..Request::default() };
                tightfit::fit(&graph, &profile, &request).unwrap();
            }
        }
    }
}
