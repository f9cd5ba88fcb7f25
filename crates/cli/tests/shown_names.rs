//! Names that a terminal would obey. Invariant: whatever names files contain, what is printed holds
//! no control characters but the ends of lines, and documents still have the exact names.
//!
//! Tier: quick, since it takes less than a second.

use serde_json::{Value, json};

use crate::program::{Ran, folder, run};

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

/// Colour is for terminals, and on request; the words are the same.
#[test]
fn colour_is_where_it_is_asked_for() {
    let graph = "corpus/graphs/resnet50_b32.json.gz";
    let folder = folder();
    let colourless = |text: &str| {
        let parts = text.split('\u{1b}').enumerate();
        parts
            .map(|(at, part)| if at == 0 { part } else { part.split_once('m').unwrap().1 })
            .collect()
    };
    for (verb, code) in [
        (format!("modules {graph}"), 0),
        ("plan nothing --budget 60%".to_string(), 4),
        (format!("plan {graph}"), 2),
        ("plan --help".to_string(), 0),
    ] {
        let of = |color: &str| run(folder.path(), &format!("{verb}{color}"));
        let (piped, always) = (of(""), of(" --color always"));
        let never = of(" --color=never");
        assert_eq!((piped.code, always.code, never.code), (Some(code), Some(code), Some(code)));
        for (piped, always, never) in [
            (&piped.stdout, &always.stdout, &never.stdout),
            (&piped.stderr, &always.stderr, &never.stderr),
        ] {
            assert!(!piped.contains('\u{1b}') && !never.contains('\u{1b}'), "{verb}: {piped:?}");
            assert_eq!(piped.is_empty(), always.is_empty(), "{verb}");
            assert_eq!(piped.is_empty(), !always.contains('\u{1b}'), "{verb}: {always:?}");
            if code != 2 {
                let colourless: String = colourless(always);
                assert_eq!(colourless, *piped, "{verb}");
            }
        }
    }
}
