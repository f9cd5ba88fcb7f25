//! Everything that can be wrong with what a user gives. Invariant: each failure has its exit code,
//! one message that says what is wrong, where, and what to do; nothing goes to standard output but
//! the same as JSON, if that is requested, and no file appears.

mod budgets;
mod data;
mod files;
mod graphs;
mod hostile;
mod json;
mod plans;
mod steps;
mod usage;
mod weights;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use expect_test::Expect;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{corpus, folded, folder, listing, run};

/// A folder with the files that a test prepares.
struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Case {
        Case { folder: folder() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(self, name: &str, bytes: impl AsRef<[u8]>) -> Case {
        std::fs::write(self.path(name), bytes).unwrap();
        self
    }

    /// Runs a command that must succeed.
    fn given(self, arguments: &str) -> Case {
        run(self.folder.path(), arguments).done();
        self
    }

    /// The step mlp-digits, changed, as `FOLDER/step`; its graph is plain text. It may read the
    /// files in the folder.
    fn step(self, change: impl FnOnce(&mut Value, &mut Value)) -> Case {
        let from = corpus().join("steps/mlp-digits");
        let mut step: Value =
            serde_json::from_slice(&std::fs::read(from.join("step.json")).unwrap()).unwrap();
        let mut graph: Value =
            serde_json::from_str(&unpacked(&from.join("train.json.gz"))).unwrap();
        step["data"]["file"] = json!(corpus().join("data/digits.csv"));
        step["training"] = json!("train.json");
        change(&mut step, &mut graph);
        std::fs::create_dir(self.path(".git")).unwrap();
        std::fs::create_dir(self.path("step")).unwrap();
        std::fs::copy(from.join("eval.json.gz"), self.path("step/eval.json.gz")).unwrap();
        self.file("step/step.json", step.to_string()).file("step/train.json", graph.to_string())
    }

    /// The smallest graph that can be planned, changed, as `FOLDER/graph.json`.
    fn graph(self, change: impl FnOnce(&mut Value)) -> Case {
        let mut graph = json!({
            "format": "tightfit-graph/1", "name": "small", "modules": [""], "storages": [64, 64, 4],
            "nodes": [
                {
                    "name": "x", "op": "placeholder", "phase": "input", "module": 0,
                    "inputs": [],
                    "outputs": [{ "id": 0, "shape": [16], "dtype": "f32", "storage": 0 }],
                },
                {
                    "name": "y", "op": "aten.relu.default", "phase": "forward", "module": 0,
                    "inputs": [0], "args": [{ "value": 0 }],
                    "outputs": [{ "id": 1, "shape": [16], "dtype": "f32", "storage": 1 }],
                },
                {
                    "name": "loss", "op": "aten.sum.default", "phase": "loss", "module": 0,
                    "inputs": [1], "args": [{ "value": 1 }],
                    "outputs": [{ "id": 2, "shape": [], "dtype": "f32", "storage": 2 }],
                },
            ],
            "outputs": [2],
        });
        change(&mut graph);
        self.file("graph.json", graph.to_string())
    }

    /// Fails with this code and this message, and leaves no trace.
    #[track_caller]
    fn fails(&self, arguments: &str, code: i32, message: Expect) {
        let before = listing(self.folder.path());
        let ran = run(self.folder.path(), arguments);
        message.assert_eq(&folded(&neutral(&ran.stderr, self.folder.path())));
        assert_eq!(ran.code, Some(code), "exit code");
        match arguments.contains("--json") {
            true => assert_eq!(
                (ran.result()["exit_code"].as_i64(), ran.lines().len()),
                (Some(code.into()), 1)
            ),
            false => assert_eq!(ran.stdout, "", "standard output holds results only"),
        }
        assert_eq!(before, listing(self.folder.path()), "a file appeared");
    }
}

/// The text without what differs from machine to machine.
fn neutral(text: &str, folder: &Path) -> String {
    let text = text
        .replace(folder.to_str().unwrap(), "FOLDER")
        .replace(corpus().to_str().unwrap(), "CORPUS");
    // Column numbers count the characters of the paths that a changed step contains.
    let mut parts = text.split("column ");
    let first = parts.next().unwrap_or_default().to_string();
    let text = parts.fold(first, |text, part| {
        text + "column N" + part.trim_start_matches(|c: char| c.is_ascii_digit())
    });
    match text.split_once("this machine's memory of ") {
        Some((before, after)) => format!(
            "{before}this machine's memory of …{}",
            &after[after.find('\n').unwrap_or(after.len())..]
        ),
        None => text,
    }
}

fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(&std::fs::read(path).unwrap()[..])
        .read_to_string(&mut text)
        .unwrap();
    text
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// The node called `name` of a graph in JSON.
fn node<'a>(graph: &'a mut Value, name: &str) -> &'a mut Value {
    graph["nodes"].as_array_mut().unwrap().iter_mut().find(|node| node["name"] == name).unwrap()
}

const PLAN_SMALL: &str = "plan FOLDER/graph.json --budget 1MiB";
const TRAIN: &str = "train FOLDER/step --budget 100% --steps 1 --threads 2";
const TRAIN_DIGITS: &str = "train corpus/steps/mlp-digits --budget 100% --steps 1 --threads 2";
