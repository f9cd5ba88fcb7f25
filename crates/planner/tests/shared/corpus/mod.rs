//! Reading the corpus from tests.
#![allow(dead_code)] // each test binary uses its part

use std::path::PathBuf;

use tightfit::graph::{self, Graph};
use tightfit::machine::Machine;
use tightfit::profile::Profile;

/// The planning graphs.
pub const GRAPHS: [&str; 7] = [
    "bert_base_drop_b16_s512",
    "gpt2_medium_b4_s1024",
    "gpt2_small_b8_s512",
    "llama_1b_b2_s2048",
    "mobilenet_v3_large_b64",
    "resnet50_b32",
    "vit_b16_b32",
];

/// A file of the corpus.
pub fn path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../corpus").join(relative)
}

/// One of the planning graphs.
pub fn graph(name: &str) -> Graph {
    let path = path(&format!("graphs/{name}.json.gz"));
    graph::read(&std::fs::read(&path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The training graph of a step.
pub fn step(name: &str) -> Graph {
    graph::read(&std::fs::read(path(&format!("steps/{name}/train.json.gz"))).unwrap()).unwrap()
}

/// What a graph costs on the machine that the planning graphs are planned for.
pub fn profile(graph: &Graph) -> Profile {
    Profile::new(graph, &Machine::preset("a100-80gb").unwrap())
}
