//! Random training graphs, for every property test. Invariant: whatever the recipe, the graph obeys
//! all rules of tightfit-graph/1, so a test that fails has found a bug of a pass and not of its
//! input.
//!
//! A [`Recipe`] is plain data of small numbers, so that a failing case shrinks to a few layers and
//! can be pasted into a test. [`Recipe::graph`] turns it into one step: placeholders, a forward
//! pass, a loss, a backward pass that mirrors the forward one, and updates or gradients that leave
//! the step.
#![allow(dead_code)] // each test binary uses its part

pub mod dag;
mod emit;
mod renamed;

#[allow(unused_imports)] // each test binary uses its part
pub use self::renamed::renamed;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::profile::Profile;

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `aten.relu.default`: may overwrite its input; its output is saved.
    Relu,
    /// `aten.add.Tensor` of two activations: nothing is saved.
    Add,
    /// `aten.mul.Tensor` of two activations: both are saved.
    Mul,
    /// A product with a parameter, of another size than its input: input and parameter are saved.
    Linear,
    /// Output, statistics and an output that nothing uses: input and statistics are saved.
    Norm,
    /// The same storage under another shape.
    View,
    /// Every other element of the same storage.
    Slice,
    /// Two halves, each in a storage of its own.
    Split,
    /// `aten.native_dropout.default` with a seed slot: the mask is saved.
    Dropout,
    /// Writes a batch statistic into a buffer of the model.
    Track,
    /// Writes an activation over another one.
    Overwrite,
    /// An output of its own beside a view of the input.
    FreshAndView,
}

/// One layer. Indices wrap around, so every number is legal.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// What it computes.
    pub kind: Kind,
    /// First operand: how many activations back.
    pub first: u8,
    /// Second operand: how many activations back.
    pub second: u8,
    /// Size of what it makes, where that is free.
    pub size: u8,
    /// Measured milliseconds; absent: the roofline.
    pub milliseconds: Option<u8>,
    /// Transient bytes, where no operator table knows better.
    pub workspace: u8,
    /// Module number.
    pub module: u8,
}

/// How the step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updates {
    /// Gradients are outputs; the loss gradient is a tangent.
    Leave,
    /// `tightfit.sgd` without momentum.
    Sgd,
    /// `tightfit.sgd` with momentum.
    Momentum,
    /// `tightfit.adamw`.
    Adamw,
}

/// A graph to be.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Sizes of the tensors of the batch; at least one is made.
    pub batch: Vec<u8>,
    /// The forward pass.
    pub layers: Vec<Layer>,
    /// The end.
    pub updates: Updates,
    /// Optimizer nodes wait for the norm of all gradients.
    pub clip: bool,
    /// Activations that outlive the step: how many activations back.
    pub kept: Vec<u8>,
    /// A forward node that stands behind the first backward node.
    pub late_metric: bool,
    /// A node behind the updates that reads an updated parameter.
    pub epilogue: bool,
    /// A placeholder that nothing reads.
    pub unread: bool,
}

impl Recipe {
    /// The graph.
    pub fn graph(&self) -> Graph {
        emit::graph(self)
    }
}

/// Recipes of up to `most` layers.
pub fn recipes(most: usize) -> impl Strategy<Value = Recipe> {
    let batch = prop::collection::vec(0u8..9, 0..3);
    let updates = prop_oneof![
        Just(Updates::Leave),
        Just(Updates::Sgd),
        Just(Updates::Momentum),
        Just(Updates::Adamw)
    ];
    let rarely = || prop::bool::weighted(0.15);
    let kept = prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec(0u8..20, 1..4)];
    let ends = (updates, rarely(), kept, rarely(), rarely(), rarely());
    (batch, prop::collection::vec(layers(), 0..=most), ends).prop_map(
        |(batch, layers, (updates, clip, kept, late_metric, epilogue, unread))| Recipe {
            batch,
            layers,
            updates,
            clip,
            kept,
            late_metric,
            epilogue,
            unread,
        },
    )
}

fn layers() -> impl Strategy<Value = Layer> {
    let kind = prop_oneof![
        5 => Just(Kind::Relu),
        2 => Just(Kind::Add),
        2 => Just(Kind::Mul),
        7 => Just(Kind::Linear),
        2 => Just(Kind::Norm),
        1 => Just(Kind::View),
        1 => Just(Kind::Slice),
        1 => Just(Kind::Split),
        2 => Just(Kind::Dropout),
        1 => Just(Kind::Track),
        1 => Just(Kind::Overwrite),
        1 => Just(Kind::FreshAndView),
    ];
    // Mostly the newest activation, sometimes an older one: chains with skips.
    let back = || prop_oneof![3 => Just(0u8), 1 => 0u8..6];
    // Mostly one size, as in a stack of equal layers: where one tensor dwarfs all others, there is
    // nothing to plan.
    let size = || prop_oneof![3 => Just(8u8), 1 => 0u8..16];
    let milliseconds = prop::option::weighted(0.7, 0u8..20);
    let workspace = prop_oneof![3 => Just(0u8), 1 => 0u8..200];
    (kind, back(), back(), size(), milliseconds, workspace, 0u8..6).prop_map(
        |(kind, first, second, size, milliseconds, workspace, module)| Layer {
            kind,
            first,
            second,
            size,
            milliseconds,
            workspace,
            module,
        },
    )
}

/// The machines that properties are tested on: one without and one with the engine's reuse of dying
/// inputs.
pub fn machines() -> [Machine; 2] {
    [Machine::preset("a100-80gb").unwrap(), Machine::unmeasured_cpu(2)]
}

/// The profiles of a graph on [`machines`].
pub fn profiles(graph: &Graph) -> [Profile; 2] {
    machines().map(|machine| Profile::new(graph, &machine))
}

/// `cases` cases from a fixed seed, so that a test that passed passes again. `PROPTEST_CASES` and
/// `PROPTEST_RNG_SEED` in the environment send the same tests on a longer search.
pub fn config(cases: u32) -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}
