//! Statistics of a model's modules: the bytes that each holds and its seconds. Invariant: one tree
//! under one root, every module in it once, indexed in forward pre-order; ancestors come before
//! their descendants, and every figure is a finite number of bytes, of seconds or of a tradeoff
//! curve.
//!
//! Source of the fields: PyTorch, `torch/distributed/_tools/ilp_utils.py` (`ModStats`).

mod error;
mod format;
mod measure;
mod operators;
mod parameters;
mod read;
mod tradeoff;
mod tree;
mod verify;

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};

pub use error::ModuleInfoError;
pub use measure::{MeasuredModules, measure, measure_with_nodes};
pub use operators::{OperatorStats, OperatorStatsError, operators};
pub use parameters::{Parameters, parameters};
pub use tradeoff::{Group, Groups, Tradeoff, groups, tradeoff};
pub use tree::{Branch, ModuleTree, Span};

use crate::units::{Bytes, Seconds};

/// A module; its index is its place in the forward pre-order, so 0 is the root.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleIndex(u32);
entity_impl!(ModuleIndex, "module");

/// The bytes and seconds of one module, with all modules below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleStats {
    /// Fully qualified name: path components, joined by dots.
    pub name: String,
    /// Bytes of its parameters.
    pub parameters: Bytes,
    /// Bytes of the gradients of its parameters.
    pub gradients: Bytes,
    /// Bytes of all gradients that exist when its backward pass begins; measured on a graph, at the
    /// peak of its backward pass.
    pub total_gradients: Bytes,
    /// Bytes of activations that its forward pass leaves, without its input and its output.
    pub forward_activations: Bytes,
    /// Bytes of all activations that exist at the peak of its backward pass.
    pub backward_activations: Bytes,
    /// Bytes of gradients of activations at the peak of its backward pass.
    pub activation_gradients: Bytes,
    /// Bytes of all activations that exist when its forward pass ends, including its own.
    pub total_activations: Bytes,
    /// Bytes of its input.
    pub input: Bytes,
    /// Bytes of its output.
    pub output: Bytes,
    /// Seconds of its forward pass.
    pub forward: Seconds,
    /// Seconds of its backward pass.
    pub backward: Seconds,
    /// Contains no modules to choose from: it is never checkpointed by itself.
    pub is_leaf: bool,
    /// Seconds that are recomputed if all of it is checkpointed.
    pub checkpointing_seconds: Seconds,
    /// Bytes that its operators make in the forward pass, kept or not: discard ratios are shares of
    /// this.
    pub checkpointing_bytes: Bytes,
    /// The cost of a discard ratio.
    pub tradeoff: TradeoffCurve,
}

/// Share of a module's checkpointing seconds that is recomputed, over its discard ratio: the
/// largest of the segments, and never below 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TradeoffCurve {
    /// Its linear pieces.
    pub segments: Vec<Segment>,
    /// The discard ratios where segments begin and end, one more than segments; none if they were
    /// not recorded.
    pub breakpoints: Vec<f64>,
    /// Measured points: discard ratio and share of the seconds.
    pub points: Vec<(f64, f64)>,
}

/// A linear piece of a tradeoff curve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Segment {
    /// Share of the seconds for each unit of the discard ratio.
    pub slope: f64,
    /// Share of the seconds at discard ratio 0.
    pub intercept: f64,
}

/// The orders in which modules run, by fully qualified name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModuleOrders {
    /// By the beginning of their forward passes.
    pub forward_pre: Vec<String>,
    /// By the end of their forward passes.
    pub forward_post: Vec<String>,
    /// By the beginning of their backward passes; without modules that have none, and empty if it
    /// was not recorded.
    pub backward_pre: Vec<String>,
    /// By the end of their backward passes; likewise.
    pub backward_post: Vec<String>,
}

/// All modules of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleInfo {
    modules: PrimaryMap<ModuleIndex, ModuleStats>,
    forward_post: Vec<ModuleIndex>,
    backward_pre: Vec<ModuleIndex>,
    backward_post: Vec<ModuleIndex>,
    /// Position in the forward post-order.
    position: SecondaryMap<ModuleIndex, u32>,
    /// The nearest module above it.
    parent: SecondaryMap<ModuleIndex, Option<ModuleIndex>>,
    /// Its times as in the JSON: two different numbers of milliseconds may give the same number of
    /// seconds.
    milliseconds: SecondaryMap<ModuleIndex, Milliseconds>,
}

/// Forward pass, backward pass and checkpointing of one module, in milliseconds.
type Milliseconds = [f64; 3];

/// More bytes than any figure may have, 16 TiB; sums over tens of thousands of modules stay below
/// [`Bytes::LIMIT`].
const LARGEST: Bytes = Bytes(1 << 44);

impl ModuleInfo {
    /// Verifies statistics, given in any order, and the orders of their modules.
    pub fn new(
        stats: Vec<ModuleStats>,
        orders: &ModuleOrders,
    ) -> Result<ModuleInfo, ModuleInfoError> {
        verify::verify(stats, orders)
    }

    /// Reads the JSON of PyTorch's tools: `mod_order` and `mod_stats`, at the top level or under
    /// `module_info`; milliseconds there are seconds here. Unknown keys are ignored.
    pub fn from_json(text: &[u8]) -> Result<ModuleInfo, ModuleInfoError> {
        read::read(text)
    }

    /// The same JSON, under `module_info`. Reading it gives the same figures again.
    pub fn to_json(&self) -> String {
        self.document().to_string()
    }

    /// That JSON as a value, for callers that add to it. Each module also has its positions in the
    /// forward pre-order and post-order, `index` and `pos_fw_post_order`, as PyTorch's
    /// `parse_module_info` adds them.
    pub fn document(&self) -> serde_json::Value {
        format::document(self)
    }

    /// Which modules contain which: the row of each module has a 1 for itself and for all modules
    /// below it, in the order of their indices. PyTorch's `ad_matrix`.
    pub fn ancestor_matrix(&self) -> Vec<Vec<u8>> {
        let mut matrix = vec![vec![0; self.modules.len()]; self.modules.len()];
        for module in self.modules.keys() {
            self.lineage(module).for_each(|above| matrix[above.index()][module.index()] = 1);
        }
        matrix
    }

    /// Statistics of all modules, in forward pre-order.
    pub fn modules(&self) -> &PrimaryMap<ModuleIndex, ModuleStats> {
        &self.modules
    }

    /// The module that contains all others.
    pub fn root(&self) -> ModuleIndex {
        ModuleIndex::new(0)
    }

    /// The module with a fully qualified name.
    pub fn find(&self, name: &str) -> Option<ModuleIndex> {
        self.modules.iter().find(|(_, stats)| stats.name == name).map(|(module, _)| module)
    }

    /// Modules in the order in which their forward passes end.
    pub fn forward_post_order(&self) -> &[ModuleIndex] {
        &self.forward_post
    }

    /// Modules in the order in which their backward passes begin; empty if it was not recorded.
    pub fn backward_pre_order(&self) -> &[ModuleIndex] {
        &self.backward_pre
    }

    /// Modules in the order in which their backward passes end; empty if it was not recorded.
    pub fn backward_post_order(&self) -> &[ModuleIndex] {
        &self.backward_post
    }

    /// Position of a module in the forward post-order, from 0.
    pub fn forward_post_position(&self, module: ModuleIndex) -> usize {
        self.position[module] as usize
    }

    /// The nearest module above; `None` for the root.
    pub fn parent(&self, module: ModuleIndex) -> Option<ModuleIndex> {
        self.parent[module]
    }

    /// A module and all above it, up to the root.
    pub fn lineage(&self, module: ModuleIndex) -> impl Iterator<Item = ModuleIndex> {
        std::iter::successors(Some(module), |&module| self.parent[module])
    }

    /// Whether `upper` contains `lower`, or is it.
    pub fn contains(&self, upper: ModuleIndex, lower: ModuleIndex) -> bool {
        self.lineage(lower).any(|module| module == upper)
    }

    /// The peak without checkpointing and without sharding: the largest, over all modules, of the
    /// model's parameters with the module's total gradients, activation gradients and total
    /// activations.
    pub fn baseline_peak(&self) -> Bytes {
        let parameters = self.modules[self.root()].parameters;
        let at = |stats: &ModuleStats| {
            parameters
                + stats.total_gradients
                + stats.activation_gradients
                + stats.total_activations
        };
        self.modules.values().map(at).max().unwrap_or_default()
    }

    /// Seconds of the root's forward and backward pass.
    pub fn baseline_seconds(&self) -> Seconds {
        let root = &self.modules[self.root()];
        root.forward + root.backward
    }
}
