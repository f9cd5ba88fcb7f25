//! Links between nodes, and a graph's list of modules: whose derivative a node computes, what it
//! computes again, what it may overwrite, which modules are never called. Invariant: each rule is
//! broken once.
//!
//! Tier: quick, since it takes less than a second.

use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};
use tightfit::analysis::modules::ModuleTree;
use tightfit::graph::{read, write};

/// A forward pass with a dropout that runs again in the backward pass.
fn valid() -> Json {
    let value = |id: u32| json!({ "id": id, "shape": [4], "dtype": "f32", "storage": id });
    json!({
        "format": "tightfit-graph/1",
        "name": "links",
        "modules": ["", "layers.0", "layers.10", "mlp.up"],
        "uncalled": ["layers"],
        "storages": [16, 16, 16, 16, 16],
        "nodes": [
            { "name": "x", "op": "placeholder", "phase": "input", "outputs": [value(0)] },
            { "name": "drop", "op": "test.drop", "phase": "forward", "module": 1, "inputs": [0],
              "outputs": [value(1)], "random": true, "seed_slot": 0 },
            { "name": "loss", "op": "test.loss", "phase": "loss", "inputs": [1],
              "outputs": [value(2)] },
            { "name": "again", "op": "test.drop", "phase": "backward", "module": 1, "inputs": [0],
              "outputs": [value(3)], "random": true, "seed_slot": 0, "recomputes": "drop" },
            { "name": "grad", "op": "test.grad", "phase": "backward", "inputs": [3],
              "outputs": [value(4)], "differentiates": "drop" },
        ],
        "outputs": [2, 4],
        "output_names": ["loss", "x"]
    })
}

fn verdict(graph: &Json) -> String {
    match read(graph.to_string().as_bytes()) {
        Ok(_) => "a graph".to_string(),
        Err(error) => error.to_string(),
    }
}

/// Sets one field of one node.
fn node(index: usize, field: &str, value: Json, expected: Expect) {
    let mut graph = valid();
    assert_eq!(verdict(&graph), "a graph");
    graph["nodes"][index][field] = value;
    expected.assert_eq(&verdict(&graph));
}

#[test]
fn links_are_read_and_written() {
    let graph = read(valid().to_string().as_bytes()).unwrap();
    let id = |name| graph.node_named(name);
    assert_eq!(graph.nodes()[id("grad").unwrap()].differentiates, id("drop"));
    assert_eq!(graph.nodes()[id("again").unwrap()].recomputes, id("drop"));
    assert_eq!(graph.uncalled(), Some(&["layers".to_string()][..]));
    assert_eq!(read(write(&graph).to_string().as_bytes()).unwrap(), graph);
}

#[test]
fn what_may_be_overwritten() {
    node(4, "overwrites", json!([3]), expect!["a graph"]);
    let twice = expect![[
        "node `grad` may overwrite output 0 of `again`; such values are inputs of the node, each \
         named once"
    ]];
    node(4, "overwrites", json!([3, 3]), twice);
    let other = expect![[
        "node `grad` may overwrite output 0 of `drop`; such values are inputs of the node, each \
         named once"
    ]];
    node(4, "overwrites", json!([1]), other);
    node(4, "overwrites", json!([9]), expect!["node `grad` reads value 9, which no node produces"]);
}

#[test]
fn names_of_outputs() {
    let graph = read(valid().to_string().as_bytes()).unwrap();
    assert_eq!(graph.output_names().unwrap(), ["loss", "x"]);
    let mut graph = valid();
    graph["output_names"] = json!(["loss"]);
    expect!["the graph names 1 outputs, but has 2"].assert_eq(&verdict(&graph));
}

#[test]
fn second_captures() {
    let verdict = |seen: Json| {
        let mut graph = valid();
        let nodes = graph["nodes"].as_array_mut().unwrap();
        let drop = nodes.iter_mut().find(|node| node["name"] == "drop").unwrap();
        drop["args"] = json!([null, 0.5]);
        graph["recaptures"] = json!({ "batch": seen });
        verdict(&graph)
    };
    let number =
        |node: &str, argument: u64| json!({ "node": node, "argument": argument, "number": 1 });
    assert_eq!(verdict(json!({ "size": 9, "numbers": [number("drop", 1)] })), "a graph");
    assert_eq!(verdict(json!({ "difference": "another operator" })), "a graph");
    for (seen, said) in [
        (json!({}), "neither a size nor a difference"),
        (json!({ "size": 1 }), "size 1; the least is 2"),
        (json!({ "size": 9, "grid": 3 }), "multiples of 3 are known, and no difference"),
        (json!({ "size": 9, "between": [2, 8] }), "size 9 was seen between 2 and 8"),
        (json!({ "size": 9, "between": [1, 9] }), "size 9 was seen between 1 and 9"),
        (json!({ "size": 9, "numbers": [number("drop", 0)] }), "argument 0 of node `drop`"),
        (json!({ "size": 9, "numbers": [number("drop", 99)] }), "argument 99 of node `drop`"),
        (json!({ "size": 9, "numbers": [number("other", 1)] }), "node `other`"),
        (json!({ "size": 9, "numbers": [number("drop", 1), number("drop", 1)] }), "or it has two"),
    ] {
        let found = verdict(seen);
        assert!(found.contains(said), "{found}");
    }
}

#[test]
fn derivatives() {
    node(
        4,
        "differentiates",
        json!("nobody"),
        expect![["node `grad`: differentiates names `nobody`, but no node before it is called so"]],
    );
    node(
        4,
        "differentiates",
        json!("x"),
        expect![[
            "node `grad` says that it differentiates `x`: only a backward node does, and what it \
         names is a forward or loss node before it"
        ]],
    );
    node(
        2,
        "differentiates",
        json!("drop"),
        expect![[
            "node `loss` says that it differentiates `drop`: only a backward node does, and what \
         it names is a forward or loss node before it"
        ]],
    );
    node(
        4,
        "differentiates",
        json!("grad"),
        expect![["node `grad`: differentiates names `grad`, but no node before it is called so"]],
    );
}

#[test]
fn recomputations() {
    node(
        3,
        "recomputes",
        json!(null),
        expect![["nodes `drop` and `again` draw with the same seed slot 0"]],
    );
    node(
        3,
        "seed_slot",
        json!(1),
        expect![[
            "node `again` says that it recomputes `drop`: that is a node before it of the same \
         operator and seed slot, no recomputation itself, and neither of them mutates"
        ]],
    );
    node(
        3,
        "op",
        json!("test.other"),
        expect![[
            "node `again` says that it recomputes `drop`: that is a node before it of the same \
         operator and seed slot, no recomputation itself, and neither of them mutates"
        ]],
    );
    node(
        4,
        "recomputes",
        json!("x"),
        expect![["node `grad` says that it recomputes `x`: that is a node before it of the same \
         operator and seed slot, no recomputation itself, and neither of them mutates"]],
    );
    node(
        0,
        "recomputes",
        json!("again"),
        expect![["node `x`: recomputes names `again`, but no node before it is called so"]],
    );
}

#[test]
fn modules_that_are_never_called() {
    node(3, "module", json!(0), expect!["a graph"]);
    let mut graph = valid();
    graph["uncalled"] = json!(["layers", "layers.0"]);
    expect!["node `drop` belongs to module `layers.0`, which is listed as never called"]
        .assert_eq(&verdict(&graph));

    let called = |graph: &Json| -> Vec<(String, bool)> {
        let tree = ModuleTree::new(&read(graph.to_string().as_bytes()).unwrap());
        tree.branches().values().map(|branch| (branch.path.clone(), branch.is_called)).collect()
    };
    let path = |(path, is_called): (&str, bool)| (path.to_string(), is_called);
    let mut expected = [
        ("", true),
        ("layers", false),
        ("layers.0", true),
        ("layers.10", true),
        ("mlp", true),
        ("mlp.up", true),
    ]
    .map(path);
    assert_eq!(called(&valid()), expected);
    // A file that does not say: numbered children count as those of a list.
    let mut silent = valid();
    silent.as_object_mut().unwrap().remove("uncalled");
    assert_eq!(called(&silent), expected);
    // A file that says otherwise is taken at its word.
    let mut other = valid();
    other["uncalled"] = json!(["mlp", "mlp.up"]);
    expected[1].1 = true;
    expected[4].1 = false;
    expected[5].1 = false;
    assert_eq!(called(&other), expected);
}
