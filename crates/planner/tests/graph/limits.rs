//! Graphs at and beyond the limits for reading. Invariant: a node with as many operands as allowed
//! is checked against every rule in time proportional to their number, which a quadratic check
//! would not finish in; beyond a limit the message names it.
//!
//! Tier: quick, since it takes 4 s.

use serde_json::{Value as Json, json};
use tightfit::graph;

/// Operands of a node, which form about 10^9 pairs.
const WIDE: usize = 60_000;

fn value(id: usize) -> Json {
    json!({ "id": id, "shape": [4], "dtype": "f32", "storage": id })
}

fn file(nodes: Vec<Json>, storages: usize) -> Json {
    json!({
        "format": "tightfit-graph/1", "name": "wide", "modules": [""],
        "storages": vec![64; storages], "nodes": nodes, "outputs": [0],
    })
}

fn verdict(file: &Json) -> String {
    match graph::read(file.to_string().as_bytes()) {
        Ok(_) => "a graph".to_string(),
        Err(error) => error.to_string(),
    }
}

/// One node that splits an input into [`WIDE`] parts, and one that joins them again.
fn split_and_joined() -> Json {
    let parts: Vec<usize> = (1..=WIDE).collect();
    let named: Vec<Json> = parts.iter().map(|part| json!({ "value": part })).collect();
    let nodes = vec![
        json!({ "name": "x", "op": "placeholder", "phase": "input", "outputs": [value(0)] }),
        json!({
            "name": "split", "op": "test.split", "phase": "forward", "inputs": [0],
            "outputs": parts.iter().map(|&part| value(part)).collect::<Vec<_>>(),
        }),
        json!({
            "name": "join", "op": "test.join", "phase": "loss", "inputs": parts, "args": named,
            "overwrites": parts, "outputs": [value(WIDE + 1)],
        }),
    ];
    file(nodes, WIDE + 2)
}

#[test]
fn a_wide_node_is_held_to_every_rule() {
    let mut file = split_and_joined();
    assert_eq!(verdict(&file), "a graph");
    file["nodes"][2]["overwrites"][WIDE - 1] = json!(1);
    assert_eq!(
        verdict(&file),
        "node `join` may overwrite output 0 of `split`; such values are inputs of the node, each \
         named once"
    );
    file["nodes"][2]["args"][WIDE - 1] = json!({ "value": 0 });
    file["nodes"][2]["overwrites"] = json!([]);
    assert_eq!(
        verdict(&file),
        "node `join`: its arguments mention output 0 of `x`, which is not among its inputs"
    );
    file["nodes"][2]["inputs"][WIDE - 1] = json!(1);
    assert_eq!(verdict(&file), "node `join` lists output 0 of `split` twice among its inputs");
}

#[test]
fn a_wide_node_that_mutates_writes_each_storage_once() {
    let mut file = split_and_joined();
    let join = &mut file["nodes"][2];
    join["mutates"] = json!(true);
    let written =
        |id: usize| json!({ "id": WIDE + id, "shape": [4], "dtype": "f32", "storage": id });
    join["outputs"] = (1..=WIDE).map(written).collect();
    assert_eq!(verdict(&file), "a graph");
    file["nodes"][2]["outputs"][WIDE - 1]["storage"] = json!(1);
    assert_eq!(
        verdict(&file),
        "node `join` mutates storage 1, but has 2 outputs in it: there must be one, its new version"
    );
}

#[test]
fn run_times_add_up_to_what_a_step_may_take() {
    let node = |id: usize, seconds: f64| {
        json!({
            "name": format!("x{id}"), "op": "test.make", "phase": "forward",
            "outputs": [value(id)], "seconds": seconds,
        })
    };
    let of = |seconds: [f64; 2]| verdict(&file(vec![node(0, seconds[0]), node(1, seconds[1])], 2));
    assert_eq!(of([5e11, 5e11]), "a graph");
    // Each is finite, and so large that their sum is not.
    for seconds in [[1e308, 1e308], [6e11, 5e11]] {
        let refused = of(seconds);
        assert!(
            refused.contains("those of the graph add up to more than 1e12 seconds"),
            "{refused}"
        );
    }
}

#[test]
fn what_is_beyond_a_limit_is_refused_with_it() {
    let node = |key: &str, part: Json, count: usize| {
        let mut node =
            json!({ "name": "x", "op": "placeholder", "phase": "input", "outputs": [value(0)] });
        *node.pointer_mut(key).unwrap() = Json::Array(vec![part; count]);
        verdict(&file(vec![node], 1))
    };
    let shape = "/outputs/0/shape";
    assert_eq!(node(shape, json!(1), 64), "a graph");
    let refused = node(shape, json!(1), 65);
    assert!(refused.contains("a list has more than 64 parts"), "{refused}");
    let outputs = node("/outputs", Json::Null, (1 << 17) + 1);
    assert!(outputs.contains("a list has more than 131072 parts"), "{outputs}");

    let mut small = file(Vec::new(), 0);
    small["outputs"] = json!([]);
    small["source"] = Json::Array(vec![json!([]); 4095]);
    assert_eq!(verdict(&small), "a graph");
    small["source"] = Json::Array(vec![json!([]); 4096]);
    assert!(verdict(&small).contains("a value has more parts than are read"));
    small["source"] = json!("x".repeat(1 << 20));
    assert!(verdict(&small).contains("a value has more parts than are read"));
    small["source"] = Json::Null;
    small["name"] = json!("x".repeat(1 << 20));
    assert_eq!(verdict(&small), "a graph");
    small["name"] = json!("x".repeat((1 << 20) + 1));
    assert!(verdict(&small).contains("a string has more than 1048576 bytes"));
}

#[test]
fn a_long_text_is_read_through_a_window() {
    let mut long = split_and_joined();
    assert!(long.to_string().len() < 16 << 20);
    let short = graph::read(long.to_string().as_bytes()).unwrap();
    // Ignored, but it makes the text longer than what is held in memory.
    long["about"] = json!("\\\"x".repeat(8 << 20));
    assert!(long.to_string().len() > 16 << 20);
    let text = long.to_string();
    let read = graph::read_from(text.as_bytes()).unwrap_err().to_string();
    assert_eq!(read, "a string of more than 6291456 bytes is not read; no real one is that long");
    long["about"] = json!(vec!["\\\"xxxxxxxxxxxxxxxx"; 1 << 20]);
    assert_eq!(graph::read_from(long.to_string().as_bytes()).unwrap(), short);
    // Cut off at the end of the text, not of the file.
    let cut = &long.to_string()[..20 << 20];
    let read = graph::read_from(cut.as_bytes()).unwrap_err().to_string();
    assert!(read.starts_with("not a tightfit-graph/1 file: EOF while parsing"), "{read}");
}

#[test]
fn what_the_system_says_is_passed_on() {
    struct Broken;
    impl std::io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let error = graph::read_from(Broken).unwrap_err();
    assert!(matches!(error, graph::ReadError::Io(_)), "{error}");
    assert_eq!(error.to_string(), "the disk is gone");
}
