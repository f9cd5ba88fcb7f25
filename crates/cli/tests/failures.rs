//! Everything that can be wrong with what a user gives. Invariant: each failure has its exit code,
//! one message that says what is wrong, where, and what to do; nothing goes to standard output, and
//! no file appears.
#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod program;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use program::{corpus, folder, listing, run};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with what a test prepares.
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

    /// A command that must end well.
    fn given(self, arguments: &str) -> Case {
        run(self.folder.path(), arguments).done();
        self
    }

    /// The step mlp-digits, changed, as `FOLDER/step`; its graph is plain text.
    fn step(self, change: impl FnOnce(&mut Value, &mut Value)) -> Case {
        let from = corpus().join("steps/mlp-digits");
        let mut step: Value =
            serde_json::from_slice(&std::fs::read(from.join("step.json")).unwrap()).unwrap();
        let mut graph: Value =
            serde_json::from_str(&unpacked(&from.join("train.json.gz"))).unwrap();
        step["data"]["file"] = json!(corpus().join("data/digits.csv"));
        step["training"] = json!("train.json");
        change(&mut step, &mut graph);
        std::fs::create_dir(self.path("step")).unwrap();
        std::fs::copy(from.join("eval.json.gz"), self.path("step/eval.json.gz")).unwrap();
        self.file("step/step.json", step.to_string()).file("step/train.json", graph.to_string())
    }

    /// The smallest graph that can be planned, changed, as `FOLDER/graph.json`.
    fn graph(self, change: impl FnOnce(&mut Value)) -> Case {
        let mut graph = json!({
            "format": "tightfit-graph/1", "name": "small", "modules": [""], "storages": [64, 64, 4],
            "nodes": [
                { "name": "x", "op": "placeholder", "phase": "input", "module": 0, "inputs": [], "outputs": [{ "id": 0, "shape": [16], "dtype": "f32", "storage": 0 }] },
                { "name": "y", "op": "aten.relu.default", "phase": "forward", "module": 0, "inputs": [0], "args": [{ "value": 0 }],
                  "outputs": [{ "id": 1, "shape": [16], "dtype": "f32", "storage": 1 }] },
                { "name": "loss", "op": "aten.sum.default", "phase": "loss", "module": 0, "inputs": [1], "args": [{ "value": 1 }],
                  "outputs": [{ "id": 2, "shape": [], "dtype": "f32", "storage": 2 }] },
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
        message.assert_eq(&neutral(&ran.stderr, self.folder.path()));
        assert_eq!(ran.code, Some(code), "exit code");
        assert_eq!(ran.stdout, "", "standard output holds results only");
        assert_eq!(before, listing(self.folder.path()), "a file appeared");
    }
}

/// Without what differs from machine to machine.
fn neutral(text: &str, folder: &Path) -> String {
    let text = text
        .replace(folder.to_str().unwrap(), "FOLDER")
        .replace(corpus().to_str().unwrap(), "CORPUS");
    // Columns count the characters of the paths that a changed step holds.
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

// Budgets

#[test]
fn a_budget_too_small_is_refused_with_a_proof() {
    let message = expect![[r#"
        error: no plan fits 2.0 MiB (2097152 bytes); the smallest budget known to be feasible is 3.1 MiB (3286080 bytes), and no schedule needs less than 2.9 MiB
        it binds at node `mm_1` (module `lm_head`), where these are alive:
           832.0 KiB  what the matrix product packs (reserve, the root module)
           256.0 KiB  _log_softmax_backward_data (backward, the root module)
           256.0 KiB  gelu_1 (forward, module `h.1.mlp`)
            64.0 KiB  add_4 (forward, module `h.1`)
            64.0 KiB  addmm_1 (forward, module `h.0.attn.proj`)
            64.0 KiB  h.0.mlp.fc.weight (parameter, module `h.0.mlp.fc`)
            64.0 KiB  h.0.mlp.fc.weight.exp_avg (state, module `h.0.mlp.fc`)
            64.0 KiB  h.0.mlp.fc.weight.exp_avg_sq (state, module `h.0.mlp.fc`)
            64.0 KiB  h.0.mlp.proj.weight (parameter, module `h.0.mlp.proj`)
            64.0 KiB  h.0.mlp.proj.weight.exp_avg (state, module `h.0.mlp.proj`)
             1.3 MiB  in 86 smaller ones
    "#]];
    Case::new().fails(
        "train corpus/steps/gpt-nano --budget 2MiB --steps 1 --threads 2 --save FOLDER/weights",
        3,
        message,
    );
}

#[test]
fn the_budget_that_a_refusal_names_is_enough() {
    let folder = folder();
    for step in ["gpt-nano", "mlp-digits"] {
        let train = |budget: &str| {
            run(
                folder.path(),
                &format!(
                    "train corpus/steps/{step} --budget {budget} --steps 1 --eval-batches 0 \
                     --threads 2"
                ),
            )
        };
        let refused = train("1600000").stderr;
        let bytes: u64 = refused
            .split("feasible is")
            .nth(1)
            .and_then(|rest| rest.split(['(', ' ']).nth(4))
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(train(&bytes.to_string()).code, Some(0), "{step}: {bytes} of {refused}");
    }
}

#[test]
fn a_graph_that_fits_nowhere_is_refused_with_a_proof() {
    Case::new().graph(|_| ()).fails("plan FOLDER/graph.json --budget 100 -o FOLDER/plan --svg FOLDER/memory.svg", 3, expect![[r#"
        error: no plan fits 100 B (100 bytes); the smallest budget known to be feasible is 128 B (128 bytes), and no schedule needs less than 128 B
        it binds at node `y` (the root module), where these are alive:
                64 B  x (input, the root module)
                64 B  y (forward, the root module)
    "#]]);
}

#[test]
fn budgets_that_make_no_sense() {
    let case = Case::new();
    let plan = |budget: &str, message: Expect| {
        case.fails(&format!("plan corpus/steps/gpt-nano --threads 2 --budget {budget}"), 8, message)
    };
    plan(
        "0",
        expect![[r#"
        error: a budget of zero leaves no memory for anything; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "0%",
        expect![[r#"
        error: a budget of zero leaves no memory for anything; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "plenty",
        expect![[r#"
        error: `plenty` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "-5MiB",
        expect![[r#"
        error: `-5MiB` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "nan",
        expect![[r#"
        error: `nan` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
    plan(
        "100KiB",
        expect![[r#"
        error: a budget of 100.0 KiB is less than the 832.0 KiB that the matrix product needs beside the slab
    "#]],
    );
    plan(
        "1000TiB",
        expect![[r#"
        error: a budget of 1000.0 TiB is more than this machine's memory of …
    "#]],
    );
    plan(
        "99999999999999999999",
        expect![[r#"
        error: `99999999999999999999` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min
    "#]],
    );
}

// Usage

#[test]
fn wrong_usage() {
    let case = Case::new();
    let refused = |arguments: &str, message: Expect| case.fails(arguments, 2, message);
    refused(
        "plan corpus/steps/gpt-nano --budget 1MiB --planner cleverest",
        expect![[r#"
            error: invalid value 'cleverest' for '--planner <PLANNER>': planners are none, chen, capuchin, xla, dtr, knapsack, rotor, exact, auto

            For more information, try '--help'.
        "#]],
    );
    refused(
        "plan corpus/steps/gpt-nano --budget 1MiB --machine abacus",
        expect![[r#"
        error: machine `abacus` is not known; known: cpu, a100-80gb, h100-80gb
    "#]],
    );
    refused(
        "train corpus/steps/gpt-nano --budget 100% --lr NaN",
        expect![[r#"
        error: invalid value 'NaN' for '--lr <LR>': a learning rate is a finite number that is not negative

        For more information, try '--help'.
    "#]],
    );
    refused(
        "train corpus/steps/gpt-nano --budget 100% --lr -1",
        expect![[r#"
        error: invalid value '-1' for '--lr <LR>': a learning rate is a finite number that is not negative

        For more information, try '--help'.
    "#]],
    );
}

// Files that are not there

#[test]
fn missing_files() {
    let case = Case::new();
    std::fs::create_dir(case.path("empty")).unwrap();
    let refused = |arguments: &str, message: Expect| case.fails(arguments, 4, message);
    refused(
        "plan FOLDER/nowhere.json --budget 1MiB",
        expect![[r#"
        error: FOLDER/nowhere.json: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "plan FOLDER/empty --budget 1MiB",
        expect![[r#"
        error: FOLDER/empty/step.json: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "train FOLDER/nowhere --budget 100%",
        expect![[r#"
        error: FOLDER/nowhere/step.json: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "train FOLDER/empty --budget 100%",
        expect![[r#"
        error: FOLDER/empty/step.json: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --data FOLDER/nowhere.csv",
        expect![[r#"
        error: FOLDER/nowhere.csv: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --resume FOLDER/nowhere",
        expect![[r#"
        error: FOLDER/nowhere: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "check corpus/steps/mlp-digits FOLDER/nowhere --budget 1GiB",
        expect![[r#"
        error: FOLDER/nowhere: No such file or directory (os error 2)
    "#]],
    );
    refused(
        "analyze FOLDER/nowhere.json",
        expect![[r#"
        error: FOLDER/nowhere.json: No such file or directory (os error 2)
    "#]],
    );
}

#[test]
fn files_that_cannot_be_written_are_known_before_anything_runs() {
    let case = Case::new();
    std::fs::create_dir(case.path("folder")).unwrap();
    let refused = |arguments: &str, message: Expect| case.fails(arguments, 4, message);
    // A run of this length would not end while anyone looks.
    refused(
        "train corpus/steps/mlp-digits --budget 100% --steps 4000000000 --json --save \
         FOLDER/nowhere/weights",
        expect![[r#"
            error: FOLDER/nowhere/weights could not be written: there is no folder FOLDER/nowhere
        "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --steps 4000000000 --json --save \
         FOLDER/folder",
        expect![[r#"
        error: FOLDER/folder could not be written: is a directory
    "#]],
    );
    refused(
        "train corpus/steps/mlp-digits --budget 100% --steps 4000000000 --json --dump \
         FOLDER/nowhere/dump",
        expect![[r#"
            error: FOLDER/nowhere/dump could not be written: there is no folder FOLDER/nowhere
        "#]],
    );
    refused(
        "plan corpus/steps/mlp-digits --budget 100% -o FOLDER/nowhere/plan",
        expect![[r#"
            error: FOLDER/nowhere/plan could not be written: there is no folder FOLDER/nowhere
        "#]],
    );
    refused(
        "plan corpus/steps/mlp-digits --budget 100% --svg FOLDER/nowhere/memory.svg",
        expect![[r#"
            error: FOLDER/nowhere/memory.svg could not be written: there is no folder FOLDER/nowhere
        "#]],
    );
}

#[test]
fn a_graph_cannot_be_trained_without_its_step() {
    Case::new().fails(
        "train corpus/graphs/resnet50_b32.json.gz --budget 100%",
        5,
        expect![[r#"
            error: corpus/graphs/resnet50_b32.json.gz: a step is a folder, as `tightfit.export` writes it; a graph alone can be planned, but not trained
        "#]],
    );
}

// Damaged graphs

#[test]
fn a_truncated_file() {
    let whole = packed(&unpacked(&corpus().join("steps/mlp-digits/train.json.gz")));
    let case = Case::new().file("graph.json", &whole[..whole.len() / 2]);
    case.fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: the gzip data is damaged or cut short: incomplete deflate stream
    "#]],
    );
    let case = Case::new()
        .file("graph.json", &unpacked(&corpus().join("steps/mlp-digits/train.json.gz"))[..1000]);
    case.fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: EOF while parsing a list at line 6 column N
    "#]],
    );
    Case::new().file("graph.json", "").fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: EOF while parsing a value at line 1 column N
    "#]],
    );
}

#[test]
fn other_versions() {
    Case::new().graph(|graph| graph["format"] = json!("tightfit-graph/2")).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: the format is "tightfit-graph/2", but this program reads "tightfit-graph/1"
    "#]],
    );
    Case::new().graph(|graph| graph["format"] = Value::Null).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: the format is missing, but this program reads "tightfit-graph/1"
    "#]],
    );
    Case::new().step(|step, _| step["format"] = json!("tightfit-step/0")).fails(
        TRAIN,
        5,
        expect![[r#"
        error: FOLDER/step/step.json: the format is "tightfit-step/0", but this program reads "tightfit-step/1"
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
        error: FOLDER/graph.json: node `y`, output 0: storage 3 does not exist (the graph has 3 storages)
    "#]],
    );
    Case::new().graph(|graph| node(graph, "y")["module"] = json!(1)).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y` belongs to module 1, but the graph has 1 modules
    "#]],
    );
    Case::new().graph(|graph| node(graph, "y")["args"] = json!([{ "value": 2 }])).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: node `y` reads value 2 before it is produced: nodes must come after what they read (is there a cycle?)
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
        error: FOLDER/graph.json: node `y` reads value 2 before it is produced: nodes must come after what they read (is there a cycle?)
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
        error: FOLDER/graph.json: node `y`, output 0: shape [17] of f32 from element 0 needs 68 bytes, but storage 1 holds 64
    "#]],
    );
    sized(
        |graph| node(graph, "y")["outputs"][0]["shape"] = json!([-16]),
        expect![[r#"
        error: FOLDER/graph.json: node `y`: shape is -16, but must be a whole number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| node(graph, "y")["outputs"][0]["shape"] = json!([1u64 << 40, 1u64 << 40]),
        expect![[r#"
        error: FOLDER/graph.json: node `y`, output 0: shape [1099511627776, 1099511627776] is too large: extents other than 0 may multiply to 2^60 at most
    "#]],
    );
    sized(
        |graph| graph["storages"][1] = json!(-64),
        expect![[r#"
        error: FOLDER/graph.json: storage 1: its size is -64, but must be a whole number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| graph["storages"][1] = json!(64.5),
        expect![[r#"
        error: FOLDER/graph.json: storage 1: its size is 64.5, but must be a whole number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| graph["storages"][1] = json!("NaN"),
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: invalid type: string "NaN", expected a JSON number at line 1 column N
    "#]],
    );
    sized(
        |graph| node(graph, "y")["workspace"] = json!(-1),
        expect![[r#"
        error: FOLDER/graph.json: node `y`: workspace is -1, but must be a whole number from 0 to 1152921504606846976
    "#]],
    );
    sized(
        |graph| node(graph, "y")["seconds"] = json!(-1.0),
        expect![[r#"
        error: FOLDER/graph.json: node `y`: run time -1 is not a finite, non-negative number of seconds
    "#]],
    );
}

#[test]
fn a_number_that_json_does_not_have() {
    Case::new().file("graph.json", r#"{"format": "tightfit-graph/1", "storages": [NaN]}"#).fails(
        PLAN_SMALL,
        5,
        expect![[r#"
        error: FOLDER/graph.json: not a tightfit-graph/1 file: expected value at line 1 column N
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

// Steps that cannot be executed

#[test]
fn operators_without_a_kernel() {
    let case = Case::new().step(|_, graph| {
        for name in ["relu", "relu_3"] {
            node(graph, name)["op"] = json!("aten.hardswish.default");
        }
        node(graph, "relu_7")["op"] = json!("aten.erf.default");
    });
    case.fails(&format!("{TRAIN} --save FOLDER/weights"), 6, expect![[r#"
        error: some operators are not implemented by the engine: aten.erf.default (once, first in node `relu_7`), aten.hardswish.default (2 times, first in node `relu`); such a graph can be planned, but not trained
    "#]]);
}

#[test]
fn a_graph_for_planning_only() {
    let case =
        Case::new().step(|_, graph| node(graph, "relu")["outputs"][0]["contiguous"] = json!(false));
    case.fails(
        &format!("{TRAIN} --save FOLDER/weights"),
        6,
        expect![[r#"
        error: node `relu`: an output is not contiguous and carries no strides; this graph is for planning only
    "#]],
    );
    let case = Case::new().step(|_, graph| {
        node(graph, "relu")["outputs"][0]["dtype"] = json!("f16");
    });
    case.fails(
        &format!("{TRAIN} --save FOLDER/weights"),
        6,
        expect![[r#"
        error: node `relu`: the engine computes in f32, i64 and bool, not in f16; this graph is for planning only
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
        error: FOLDER/step/step.json: not a tightfit-step/1 file: missing field `data` at line 1 column N
    "#]],
    );
    lacks(
        |step, _| step["parameters"]["head.bias"] = json!({ "file": "weights.safetensors" }),
        expect![[r#"
        error: a parameter could not be initialised: FOLDER/step/weights.safetensors: No such file or directory (os error 2)
    "#]],
    );
    lacks(
        |step, _| step["parameters"]["head.bias"] = json!({ "lucky": 7 }),
        expect![[r#"
        error: FOLDER/step/step.json: not a tightfit-step/1 file: unknown variant `lucky`, expected one of `normal`, `uniform`, `constant`, `file` at line 1 column N
    "#]],
    );
    lacks(
        |_, graph| node(graph, "input")["name"] = json!("pixels"),
        expect![[r#"
        error: FOLDER/step/step.json: the training graph has no input called `input`
    "#]],
    );
}

// Data

#[test]
fn data_other_than_the_step_was_made_with() {
    let case = Case::new().file("digits.csv", "not the digits");
    let file = case.path("digits.csv");
    case.step(|step, _| step["data"]["file"] = json!(file)).fails(TRAIN, 7, expect![[r#"
        error: FOLDER/digits.csv: not the file that the step was made with (SHA-256 bc9e439a945b9624d3beb454d953b735b333133d510d29ddc3ce071d285f64cc, expected 067c897c3866e1f112d70ccf18ba908a8bc1fbb9ec051530b8ad86070265d299); pass it with --data to use it all the same
    "#]]);
}

#[test]
fn a_table_with_a_bad_cell() {
    let digits = std::fs::read_to_string(corpus().join("data/digits.csv")).unwrap();
    let table = |line: usize, change: &dyn Fn(&str) -> String| {
        let lines: Vec<String> = digits
            .lines()
            .enumerate()
            .map(|(i, text)| if i + 1 == line { change(text) } else { text.to_string() })
            .collect();
        Case::new().file("table.csv", lines.join("\n"))
    };
    let arguments = format!("{TRAIN_DIGITS} --data FOLDER/table.csv");
    table(7, &|line| line.replacen(',', ",x", 1)).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 7 of FOLDER/table.csv: `x0` is not a number
    "#]],
    );
    table(7, &|line| line.replacen(',', ",nan,", 1).rsplit_once(',').unwrap().0.to_string()).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 7 of FOLDER/table.csv: `nan` is not a number
    "#]],
    );
    table(1700, &|line| format!("{line},0")).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 1700 of FOLDER/table.csv: 66 columns, expected 64 features and a class
    "#]],
    );
    table(3, &|line| format!("{}-1", &line[..line.len() - 1])).fails(
        &arguments,
        7,
        expect![[r#"
        error: line 3 of FOLDER/table.csv: `-1` is not a class
    "#]],
    );
}

#[test]
fn a_class_that_the_model_does_not_have() {
    let digits = std::fs::read_to_string(corpus().join("data/digits.csv")).unwrap();
    let lines: Vec<String> = digits
        .lines()
        .enumerate()
        .map(
            |(i, line)| {
                if i == 0 { line.to_string() } else { format!("{}10", &line[..line.len() - 1]) }
            },
        )
        .collect();
    let case = Case::new().file("table.csv", lines.join("\n"));
    case.fails(
        &format!("{TRAIN_DIGITS} --data FOLDER/table.csv --json --save FOLDER/weights"),
        7,
        expect![[r#"
            error: step 1: the batch holds an index outside its table, or a class that the model does not have
        "#]],
    );
}

#[test]
fn a_text_shorter_than_a_window() {
    let case = Case::new().file("short.txt", "In the beginning was the Word");
    case.fails(
        "train corpus/steps/gpt-nano --budget 100% --steps 1 --data FOLDER/short.txt",
        7,
        expect![[r#"
        error: FOLDER/short.txt: 29 bytes are too few for windows of 64 in both splits
    "#]],
    );
    let case = Case::new().file("table.csv", "");
    case.fails(
        &format!("{TRAIN_DIGITS} --data FOLDER/table.csv"),
        7,
        expect![[r#"
        error: FOLDER/table.csv: 0 rows are too few for both splits
    "#]],
    );
}

#[test]
fn data_of_another_shape() {
    let case = Case::new().step(|step, _| {
        step["data"] = json!({
            "kind": "bytes", "file": corpus().join("data/kjv.txt"), "window": 64, "batch": 4, "sampling_seed": 1, "validation": { "last_fraction": 0.1 },
        })
    });
    case.fails(
        TRAIN,
        7,
        expect![[r#"
        error: the model's `input` is [720, 64] of f32, but the data gives windows of 64 in i64
    "#]],
    );
}

// Weights

#[test]
fn weights_of_another_step() {
    let case = Case::new().given(
        "train corpus/steps/gpt-nano --budget 100% --steps 0 \
        --eval-batches 0 --threads 2 --save FOLDER/weights",
    );
    case.fails(
        &format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again"),
        5,
        expect![[r#"
        error: FOLDER/weights: the weights are of `gpt-nano`, the step is `mlp-digits`
    "#]],
    );
}

#[test]
fn weights_of_another_shape() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    let saved = std::fs::read(case.path("weights")).unwrap();
    let metadata = SafeTensors::read_metadata(&saved).unwrap().1.metadata().clone();
    let tensors = SafeTensors::deserialize(&saved).unwrap();
    // As another program writes it, with `head.bias` of another shape or left out.
    let rewritten = |shape: Option<&[usize]>| {
        let views = tensors.iter().filter_map(|(name, tensor)| match name {
            "head.bias" => Some((
                name,
                TensorView::new(tensor.dtype(), shape?.to_vec(), tensor.data()).unwrap(),
            )),
            _ => Some((name, tensor)),
        });
        safetensors::serialize(views, metadata.clone()).unwrap()
    };
    let arguments = format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again");
    let case = case.file("weights", rewritten(Some(&[2, 5])));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: `head.bias`: F32 of shape [2, 5], the step needs F32 of [10]
    "#]],
    );
    let case = case.file("weights", rewritten(None));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: `head.bias`: missing
    "#]],
    );
    case.file("weights", rewritten(Some(&[10]))).given(&arguments);
}

#[test]
fn damaged_weights() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    let whole = std::fs::read(case.path("weights")).unwrap();
    let arguments = format!("{TRAIN_DIGITS} --resume FOLDER/weights --save FOLDER/again");
    let case = case.file("weights", &whole[..whole.len() - 4]);
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: not a whole safetensors file: it should have 613488 bytes, but has 613484
    "#]],
    );
    let case = case.file("weights", &whole[..100]);
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: not a whole safetensors file: its header should have 6640 bytes, the file has 100
    "#]],
    );
    let case = case.file("weights", "");
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: not a whole safetensors file: it has 0 bytes, less than the size of a header
    "#]],
    );
    let case = case.given(&format!("{TRAIN_DIGITS} --dump FOLDER/weights"));
    case.fails(
        &arguments,
        5,
        expect![[r#"
        error: FOLDER/weights: these are not weights that this program saved (its metadata has no `format`)
    "#]],
    );
}

#[test]
fn a_seed_that_contradicts_the_run_that_is_resumed() {
    let case = Case::new().given(&format!("{TRAIN_DIGITS} --save FOLDER/weights"));
    case.fails(
        &format!("{TRAIN_DIGITS} --resume FOLDER/weights --seed 2"),
        1,
        expect![[r#"
        error: --seed 2 contradicts FOLDER/weights, whose run has seed 1
    "#]],
    );
}

// Plans

#[test]
fn a_plan_for_another_graph() {
    let case =
        Case::new().given("plan corpus/steps/gpt-nano --budget 90% --threads 2 -o FOLDER/plan");
    case.fails("check corpus/steps/mlp-digits FOLDER/plan --budget 1GiB --threads 2", 5, expect![[r#"
        error: FOLDER/plan: the plan was made for another graph: it names hash 1ad68e543dc3beb083288768e5c2ae69f929b8ead0d4663a6058782757a7ab8c, the graph's is 18482c618d6742eb20458208cc73e42c6a56686e8025a241e99eccfe16bffaee; pass that graph, or plan this one
    "#]]);
}

#[test]
fn a_tampered_plan() {
    let case =
        Case::new().given("plan corpus/steps/mlp-digits --budget 90% --threads 2 -o FOLDER/plan");
    let plan: Value = serde_json::from_slice(&std::fs::read(case.path("plan")).unwrap()).unwrap();
    let tampered = |change: &dyn Fn(&mut Value)| {
        let mut plan = plan.clone();
        change(&mut plan);
        Case::new().file("plan", plan.to_string())
    };
    let check = "check corpus/steps/mlp-digits FOLDER/plan --budget 1GiB --threads 2";
    tampered(&|plan| drop(plan["instructions"].as_array_mut().unwrap().remove(0))).fails(
        check,
        9,
        expect![[r#"
        error: instruction 0: `relu` reads `addmm` from buffer80, which holds nothing
    "#]],
    );
    tampered(&|plan| drop(plan["instructions"].as_array_mut().unwrap().pop())).fails(
        check,
        9,
        expect![[r#"
        error: buffer163 still holds what `sum_13` made (version 0) at the end of the step
    "#]],
    );
    tampered(&|plan| plan["buffers"][0][0] = json!(4)).fails(
        check,
        9,
        expect![[r#"
        error: instruction 0: `layers_0_weight` needs 16384 bytes for its value, but buffer0 has 4
    "#]],
    );
    tampered(&|plan| plan["buffers"][1][1] = plan["buffers"][0][1].clone()).fails(
        check,
        9,
        expect![[r#"
        error: instruction 0: buffer1 overlaps buffer0, which is held
    "#]],
    );
    tampered(&|plan| plan["slab_bytes"] = json!(1000)).fails(
        check,
        9,
        expect![[r#"
        error: buffer0 ends at byte 16384, outside the slab of 1000 bytes
    "#]],
    );
    tampered(&|plan| plan["instructions"][0][1] = json!("nobody")).fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: the plan names node `nobody`, which the graph does not have
    "#]],
    );
    tampered(&|plan| plan["instructions"][0] = json!(["skip", 1])).fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: instruction 0 is not one of ["run"|"recompute", node, inputs, outputs, workspace] and ["free", buffer]
    "#]],
    );
    tampered(&|plan| plan["format"] = json!("tightfit-plan/9")).fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: the format is "tightfit-plan/9", but this program reads "tightfit-plan/1"
    "#]],
    );
    Case::new().file("plan", "{").fails(
        check,
        5,
        expect![[r#"
        error: FOLDER/plan: not a tightfit-plan/1 file: EOF while parsing an object at line 1 column N
    "#]],
    );
}

#[test]
fn no_steps_are_no_failure() {
    let folder = folder();
    let ran = run(
        folder.path(),
        "train corpus/steps/mlp-digits --budget 100% --steps 0 --threads \
        2 --json --save FOLDER/weights",
    )
    .done();
    assert_eq!(ran.losses(), [""; 0]);
    assert_eq!(ran.result()["steps"], 0);
    assert_eq!(listing(folder.path()), ["weights"]);
}
