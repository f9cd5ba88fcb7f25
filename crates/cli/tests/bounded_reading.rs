//! Files that are small, or endless, and unfold to more than any real one holds. Invariant: each is
//! refused with one sentence by a process that has 300 MB of address space, code and stacks
//! included; text that no field takes needs no memory, however much of it there is.
//!
//! Tier: quick, since it takes 3 s.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::program::{Ran, corpus, folder, run, tightfit};

/// Kibibytes of address space.
const MEMORY: &str = "300000";
/// Bytes of text that a small file unfolds to.
const UNFOLDED: usize = 24_000_000;

/// The program within [`MEMORY`]; a failed allocation ends it by a signal, which is no exit code.
fn limited(arguments: &[&Path]) -> Ran {
    let program = tightfit();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v $0 && exec \"$@\"", MEMORY]).arg(program.get_program());
    for (key, value) in program.get_envs() {
        shell.env(key, value.unwrap());
    }
    shell.args(arguments).output().unwrap().into()
}

#[track_caller]
fn refused(arguments: &[&Path], what: &str) {
    let ran = limited(arguments);
    assert_eq!(ran.code, Some(5), "{what}: {}", ran.stderr);
    assert!(ran.stderr.starts_with("error: ") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
}

/// A file that repeats `piece` between `before` and `after`.
fn packed(path: &Path, before: &str, piece: &str, after: &str) {
    let mut encoder = GzEncoder::new(std::fs::File::create(path).unwrap(), Compression::fast());
    encoder.write_all(before.as_bytes()).unwrap();
    let many = piece.repeat(1 << 16);
    for _ in 0..UNFOLDED / many.len() {
        encoder.write_all(many.as_bytes()).unwrap();
    }
    encoder.write_all(after.as_bytes()).unwrap();
    encoder.finish().unwrap();
}

fn graph() -> Value {
    json!({
        "format": "tightfit-graph/1", "name": "small", "modules": [""], "uncalled": [],
        "storages": [64], "source": [], "outputs": [0], "output_names": ["loss"], "junk": [],
        "nodes": [{
            "name": "x", "op": "placeholder", "phase": "input", "inputs": [], "args": [],
            "kwargs": {}, "overwrites": [],
            "outputs": [{ "id": 0, "shape": [16], "dtype": "f32", "storage": 0, "strides": [1] }],
        }],
    })
}

/// The text of the small graph, before and after the part that `pointer` leads to.
fn around(pointer: &str) -> (String, String) {
    let mut graph = graph();
    *graph.pointer_mut(pointer).unwrap() = json!("HERE");
    let text = graph.to_string();
    let (before, after) = text.split_once("\"HERE\"").unwrap();
    (before.to_string(), after.to_string())
}

#[test]
fn graphs_that_unfold_to_more_than_graphs_hold() {
    let folder = folder();
    let path = folder.path().join("graph.json.gz");
    for (pointer, open, piece, close) in [
        ("/nodes/0/args", "[", "0,", "0]"),
        ("/nodes/0/args", "[[", "0,", "0]]"),
        ("/nodes/0/args", "[", "[],", "0]"),
        ("/nodes/0/args", "[{\"value\":0,\"more\":[", "[],", "0]}]"),
        ("/nodes/0/kwargs", "{", "\"a\":0,", "\"a\":0}"),
        ("/nodes/0/inputs", "[", "0,", "0]"),
        ("/nodes/0/overwrites", "[", "0,", "0]"),
        ("/nodes/0/outputs", "[", "null,", "null]"),
        ("/nodes/0/outputs/0/shape", "[", "1,", "1]"),
        ("/nodes/0/outputs/0/strides", "[", "1,", "1]"),
        ("/nodes/0/name", "\"", "a", "\""),
        ("/nodes", "[", r#"{"name":"","op":"","phase":"input"},"#, "0]"),
        ("/modules", "[", "\"\",", "\"\"]"),
        ("/uncalled", "[", "\"\",", "\"\"]"),
        ("/output_names", "[", "\"\",", "\"\"]"),
        ("/storages", "[", "0,", "0]"),
        ("/outputs", "[", "0,", "0]"),
        ("/source", "[", "[],", "[]]"),
        ("/source", "\"", "a", "\""),
        ("/format", "[", "0,", "0]"),
    ] {
        let (before, after) = around(pointer);
        packed(&path, &(before + open), piece, &(close.to_string() + &after));
        refused(&["analyze".as_ref(), &path], &format!("{piece} in {pointer}"));
    }
}

#[test]
fn what_no_field_asks_for_is_passed_over() {
    let folder = folder();
    let path = folder.path().join("graph.json.gz");
    for (pointer, open, piece, close) in
        [("/junk", "[", "[],", "[]]"), ("/junk", "[", "\"\\\"\",", "0]"), ("/junk", "0", " ", " ")]
    {
        let (before, after) = around(pointer);
        packed(&path, &(before + open), piece, &(close.to_string() + &after));
        let ran = limited(&["analyze".as_ref(), &path]).done();
        assert!(ran.stdout.starts_with("small: "), "{}", ran.stdout);
    }
}

#[test]
fn files_without_an_end() {
    let endless = PathBuf::from("/dev/zero");
    let step = corpus().join("steps/mlp-digits");
    refused(&["analyze".as_ref(), &endless], "a graph");
    refused(&["modules".as_ref(), &endless], "statistics");
    refused(&["check".as_ref(), &step, &endless, "--budget".as_ref(), "1GiB".as_ref()], "a plan");
}

#[test]
fn plans_statistics_traces_and_steps() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let step = corpus().join("steps/mlp-digits");
    run(folder.path(), "plan corpus/steps/mlp-digits --budget 100% --threads 2 -o FOLDER/plan")
        .done();
    let many = |piece: &str| piece.repeat(UNFOLDED / piece.len());
    let with = |file: &Path, key: &str, open: &str, piece: &str, close: &str| {
        let mut json: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        json[key] = json!("HERE");
        let part = format!("{open}{}{close}", many(piece));
        std::fs::write(at("changed"), json.to_string().replace("\"HERE\"", &part)).unwrap();
        at("changed")
    };
    let within: [&Path; 4] =
        ["--budget".as_ref(), "1GiB".as_ref(), "--threads".as_ref(), "2".as_ref()];
    for (key, open, piece, close) in [
        ("instructions", "[[", "0,", "0]]"),
        ("instructions", "[[\"run\",\"x\",[", "[],", "0]]]"),
        ("placeholders", "{\"input\":[", "[],", "0]}"),
        ("buffers", "[[", "0,", "0]]"),
        ("below_bytes", "{", "\"0\":0,", "\"0\":0}"),
        ("format", "[", "[],", "0]"),
    ] {
        let plan = with(&at("plan"), key, open, piece, close);
        let arguments: [&Path; 3] = ["check".as_ref(), &step, &plan];
        refused(&[&arguments[..], &within[..]].concat(), &format!("{piece} in {key}"));
    }
    std::fs::write(at("statistics"), r#"{"mod_order": {}, "mod_stats": []}"#).unwrap();
    for (key, open, piece, close) in [
        ("mod_stats", "[{\"fqn\":[", "[],", "0]}]"),
        ("mod_stats", "[[", "0,", "0]]"),
        ("mod_order", "[", "[],", "0]"),
    ] {
        let statistics = with(&at("statistics"), key, open, piece, close);
        refused(&["modules".as_ref(), &statistics], &format!("{piece} in {key}"));
    }
    let about = json!({
        "format": "tightfit-trace/2", "graph": "", "name": "", "machine": "", "planner": "",
        "budget_bytes": 0,
        "measured": true,
    });
    std::fs::write(at("trace"), json!({ "otherData": about, "traceEvents": [] }).to_string())
        .unwrap();
    let report = at("report.html");
    for (open, piece, close) in
        [("[{\"ph\":\"X\",\"name\":\"x\",\"args\":[", "[],", "0]}]"), ("[[", "0,", "0]]")]
    {
        let trace = with(&at("trace"), "traceEvents", open, piece, close);
        let measured: [&Path; 4] = ["--measured".as_ref(), &trace, "-o".as_ref(), &report];
        let arguments: [&Path; 4] = ["report".as_ref(), &step, "--threads".as_ref(), "2".as_ref()];
        refused(&[&arguments[..], &measured[..]].concat(), piece);
    }
    std::fs::create_dir(at("step")).unwrap();
    for (key, open, piece, close) in [
        ("provenance", "[", "[],", "0]"),
        ("data", "{\"kind\":[", "[],", "0]}"),
        ("parameters", "{", "\"a\":{\"constant\":0},", "\"a\":{\"constant\":0}}"),
    ] {
        let changed = with(&step.join("step.json"), key, open, piece, close);
        std::fs::rename(changed, at("step/step.json")).unwrap();
        refused(&["analyze".as_ref(), &at("step")], &format!("{piece} in {key}"));
    }
}
