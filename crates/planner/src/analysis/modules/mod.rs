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

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
        let mut given = BTreeMap::new();
        for stats in stats {
            figures(&stats)?;
            match given.entry(stats.name.clone()) {
                Entry::Vacant(free) => drop(free.insert(stats)),
                Entry::Occupied(_) => {
                    return Err(ModuleInfoError::Duplicate {
                        module: stats.name,
                        place: "`mod_stats`",
                    });
                }
            }
        }
        let mut index: BTreeMap<&str, ModuleIndex> = BTreeMap::new();
        for (at, name) in orders.forward_pre.iter().enumerate() {
            if !given.contains_key(name) {
                return Err(ModuleInfoError::NoStatistics {
                    module: name.clone(),
                    order: "fw_pre_order",
                });
            }
            if index.insert(name, ModuleIndex::new(at)).is_some() {
                return Err(ModuleInfoError::Duplicate {
                    module: name.clone(),
                    place: "fw_pre_order",
                });
            }
        }
        if let Some(left) = given.keys().find(|name| !index.contains_key(name.as_str())) {
            return Err(ModuleInfoError::NotOrdered {
                module: left.clone(),
                order: "fw_pre_order",
            });
        }
        let modules: PrimaryMap<ModuleIndex, ModuleStats> =
            orders.forward_pre.iter().filter_map(|name| given.remove(name)).collect();
        let Some(root) = modules.values().next() else { return Err(ModuleInfoError::Empty) };

        let mut parent = SecondaryMap::new();
        for (module, stats) in &modules {
            let above = above(&stats.name).find_map(|ancestor| index.get_key_value(ancestor));
            match above {
                Some((&ancestor, &above)) if above > module => {
                    let (module, ancestor) = (stats.name.clone(), ancestor.to_string());
                    return Err(ModuleInfoError::Cycle {
                        module,
                        ancestor,
                        when: "before",
                        order: "fw_pre_order",
                    });
                }
                None if module.index() > 0 => {
                    return Err(ModuleInfoError::SecondRoot {
                        module: stats.name.clone(),
                        root: root.name.clone(),
                    });
                }
                above => parent[module] = above.map(|(_, &above)| above),
            }
        }
        let forward_post = ordered(&orders.forward_post, &index, "fw_post_order")?;
        let backward_pre = ordered(&orders.backward_pre, &index, "bw_pre_order")?;
        let backward_post = ordered(&orders.backward_post, &index, "bw_post_order")?;
        present(&modules, &forward_post, "fw_post_order", |_| true)?;
        for (order, name) in [(&backward_pre, "bw_pre_order"), (&backward_post, "bw_post_order")] {
            present(&modules, order, name, |stats| !order.is_empty() && stats.backward.0 > 0.0)?;
        }
        let mut position = SecondaryMap::new();
        for (at, &module) in (0..).zip(&forward_post) {
            position[module] = at;
        }
        for (module, stats) in &modules {
            if let Some(above) = parent[module].filter(|&above| position[above] < position[module])
            {
                let ancestor = modules[above].name.clone();
                return Err(ModuleInfoError::Cycle {
                    module: stats.name.clone(),
                    ancestor,
                    when: "after",
                    order: "fw_post_order",
                });
            }
        }
        let mut milliseconds = SecondaryMap::new();
        for (module, stats) in &modules {
            let times = [stats.forward, stats.backward, stats.checkpointing_seconds];
            milliseconds[module] = times.map(format::milliseconds);
        }
        Ok(ModuleInfo {
            modules,
            forward_post,
            backward_pre,
            backward_post,
            position,
            parent,
            milliseconds,
        })
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

/// The names that may contain `name`, nearest first: its prefixes of whole components.
fn above(name: &str) -> impl Iterator<Item = &str> {
    name.rmatch_indices('.').map(|(at, _)| &name[..at])
}

/// Converts an order to indices.
fn ordered(
    names: &[String],
    index: &BTreeMap<&str, ModuleIndex>,
    order: &'static str,
) -> Result<Vec<ModuleIndex>, ModuleInfoError> {
    let mut seen: SecondaryMap<ModuleIndex, bool> = SecondaryMap::new();
    let place = |name: &String| {
        let &module = index
            .get(name.as_str())
            .ok_or_else(|| ModuleInfoError::NoStatistics { module: name.clone(), order })?;
        if std::mem::replace(&mut seen[module], true) {
            return Err(ModuleInfoError::Duplicate { module: name.clone(), place: order });
        }
        Ok(module)
    };
    names.iter().map(place).collect()
}

/// Refuses an order that lacks a module that must be there.
fn present(
    modules: &PrimaryMap<ModuleIndex, ModuleStats>,
    order: &[ModuleIndex],
    name: &'static str,
    must: impl Fn(&ModuleStats) -> bool,
) -> Result<(), ModuleInfoError> {
    let mut seen: SecondaryMap<ModuleIndex, bool> = SecondaryMap::new();
    order.iter().for_each(|&module| seen[module] = true);
    match modules.iter().find(|&(module, stats)| must(stats) && !seen[module]) {
        Some((_, stats)) => {
            Err(ModuleInfoError::NotOrdered { module: stats.name.clone(), order: name })
        }
        None => Ok(()),
    }
}

/// Refuses names, figures and curves that are invalid.
fn figures(stats: &ModuleStats) -> Result<(), ModuleInfoError> {
    if stats.name.split('.').any(str::is_empty) {
        return Err(ModuleInfoError::Name { module: stats.name.clone() });
    }
    let refuse = |field, found: String, expected| {
        Err(ModuleInfoError::Figure { module: stats.name.clone(), field, found, expected })
    };
    let bytes = [
        ("param_per_module", stats.parameters),
        ("grad_per_module", stats.gradients),
        ("grad_total", stats.total_gradients),
        ("act_fw_per_module", stats.forward_activations),
        ("act_bw_per_module", stats.backward_activations),
        ("act_grad_per_module", stats.activation_gradients),
        ("act_total", stats.total_activations),
        ("input_per_module", stats.input),
        ("output_per_module", stats.output),
        ("sac_memory", stats.checkpointing_bytes),
    ];
    if let Some((field, bytes)) = bytes.into_iter().find(|&(_, bytes)| bytes > LARGEST) {
        return refuse(field, bytes.0.to_string(), "at most 16 TiB");
    }
    let seconds = [
        ("fw_runtime_per_module", stats.forward),
        ("bw_runtime_per_module", stats.backward),
        ("sac_runtime", stats.checkpointing_seconds),
    ];
    if let Some((field, seconds)) =
        seconds.into_iter().find(|(_, seconds)| !(0.0..=1e9).contains(&seconds.0))
    {
        return refuse(field, format!("{} s", seconds.0), "a time from 0 to 1e9 seconds");
    }
    let curve = &stats.tradeoff;
    let slopes = curve.segments.iter().map(|segment| ("slopes", segment.slope));
    let intercepts = curve.segments.iter().map(|segment| ("intercepts", segment.intercept));
    if let Some((field, found)) = slopes.chain(intercepts).find(|(_, x)| !(-1e9..=1e9).contains(x))
    {
        return refuse(field, found.to_string(), "a number of at most 1e9 either way");
    }
    let breakpoints = curve.breakpoints.iter().map(|&at| ("breakpoints", at));
    let points = curve.points.iter().flat_map(|&(x, y)| [x, y]).map(|x| ("tradeoff_curve", x));
    if let Some((field, found)) = breakpoints.chain(points).find(|(_, x)| !(0.0..=1e9).contains(x))
    {
        return refuse(field, found.to_string(), "a share from 0 to 1e9");
    }
    let (segments, found) = (curve.segments.len(), curve.breakpoints.len());
    if found > 0 && found != segments + 1 {
        let (what, expected) = ("breakpoints", segments + 1);
        return Err(ModuleInfoError::Curve {
            module: stats.name.clone(),
            segments,
            found,
            what,
            expected,
        });
    }
    Ok(())
}
