//! Random graphs by the generators of the property tests. Invariant: the same word gives the same
//! graph.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value as Json;
use tightfit::graph::{Graph, write};

/// Graphs of any operators, for planning.
#[allow(clippy::unwrap_used)] // the files of tests
#[path = "../../crates/planner/tests/fixtures/generator/mod.rs"]
mod planned;

/// Graphs of operators that the engine executes.
#[allow(clippy::unwrap_used, dead_code)] // the files of tests
#[path = "../../crates/engine/tests/generator/mod.rs"]
mod executed;

fn drawn<T>(strategy: impl Strategy<Value = T>, word: u64) -> Option<T> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&word.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    strategy.new_tree(&mut runner).ok().map(|tree| tree.current())
}

/// A graph with up to `layers` layers that the engine can execute.
pub fn executable(layers: usize, word: u64) -> Option<Graph> {
    drawn(executed::recipes(layers), word).map(|recipe| recipe.graph())
}

/// Any graph with up to `layers` layers, as a document.
pub fn document(layers: usize, word: u64) -> Option<Json> {
    drawn(planned::recipes(layers), word).map(|recipe| write(&recipe.graph()))
}
