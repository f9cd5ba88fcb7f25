//! Names that a terminal would obey. Invariant: whatever stands in files, what is printed holds no
//! control characters but the ends of lines, and documents still say the very names.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod program;

use program::{Ran, folder, run};
use serde_json::{Value, json};

const CLEARS: &str = "\u{1b}[2J\u{9b}31m\r\u{7}\u{7f}\u{202e}x";

#[track_caller]
fn harmless(ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(obeyed), "{text:?}");
    }
}

#[test]
fn a_terminal_obeys_no_name() {
    let folder = folder();
    let value = |id: u32| json!({ "id": id, "shape": [16], "dtype": "f32", "storage": id });
    let mut graph = json!({
        "format": "tightfit-graph/1", "name": CLEARS, "modules": ["", CLEARS],
        "storages": [64, 64, 64],
        "nodes": [
            {
                "name": CLEARS, "op": "placeholder", "phase": "parameter", "parameter": CLEARS,
                "module": 1, "outputs": [value(0)],
            },
            {
                "name": format!("{CLEARS}1"), "op": CLEARS, "phase": "forward", "module": 1,
                "inputs": [0], "outputs": [value(1)], "flops": 1_000_000,
            },
            {
                "name": format!("{CLEARS}2"), "op": CLEARS, "phase": "loss", "module": 1,
                "inputs": [1], "outputs": [value(2)],
            },
        ],
        "outputs": [2],
    });
    let path = folder.path().join("graph.json");
    std::fs::write(&path, graph.to_string()).unwrap();
    for verb in [
        "analyze FOLDER/graph.json --nodes",
        "analyze FOLDER/graph.json",
        "analyze FOLDER/graph.json --operators",
        "plan FOLDER/graph.json --budget 100% -o FOLDER/plan",
        "check FOLDER/graph.json FOLDER/plan --budget 1MiB",
    ] {
        harmless(&run(folder.path(), verb).done());
    }
    let refused = run(folder.path(), "plan FOLDER/graph.json --budget 100");
    assert_ne!(refused.code, Some(0));
    harmless(&refused);
    let document = run(folder.path(), "analyze FOLDER/graph.json --json").done();
    harmless(&document);
    let document: Value = serde_json::from_str(&document.stdout).unwrap();
    assert!(document.to_string().contains(&json!(CLEARS).to_string()), "{document}");
    graph["nodes"][1]["inputs"] = json!([7]);
    std::fs::write(&path, graph.to_string()).unwrap();
    let refused = run(folder.path(), "analyze FOLDER/graph.json");
    assert_eq!(refused.code, Some(5));
    assert!(refused.stderr.contains(r"\u001b[2J"), "{}", refused.stderr);
    harmless(&refused);
}
