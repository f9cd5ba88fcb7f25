//! Reading the corpus from tests.
#![allow(dead_code)] // each test binary uses its part

use std::path::PathBuf;

use tightfit::graph::{self, Graph};

/// A file of the corpus.
pub fn path(relative: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../corpus").join(relative)
}

/// One of the planning graphs.
pub fn graph(name: &str) -> Graph {
    let path = path(&format!("graphs/{name}.json.gz"));
    graph::read(&std::fs::read(&path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
