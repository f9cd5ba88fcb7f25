//! Which parameters are gathered together. Invariant: a parameter belongs to one unit, that of the
//! innermost module which is one.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Phase};
use crate::id::NodeId;

/// Modules that gather their parameters by themselves, by their fully qualified names; what belongs
/// to none of them is the root's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units(Vec<String>);

impl Units {
    /// These modules, and the root.
    pub fn new(modules: impl IntoIterator<Item = String>) -> Units {
        let mut modules: Vec<String> = modules.into_iter().collect();
        // The innermost comes first.
        modules.sort_by_key(|name| std::cmp::Reverse(name.len()));
        Units(modules)
    }

    /// Their names.
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// The unit of a node, by a number that no other unit has.
    pub(super) fn unit_of(&self, graph: &Graph, node: NodeId) -> usize {
        let module = graph.module_of(node);
        let is_within = |unit: &String| {
            let rest = module.strip_prefix(unit.as_str());
            rest.is_some_and(|rest| unit.is_empty() || rest.is_empty() || rest.starts_with('.'))
        };
        self.0.iter().position(is_within).unwrap_or(self.0.len())
    }

    /// Before which node parameters are gathered first, unit by unit: before the first one that
    /// reads any of the unit; or, to overlap, before that of the unit before it.
    pub(super) fn gathers(
        &self,
        graph: &Graph,
        is_divided: &SecondaryMap<NodeId, bool>,
        overlaps: bool,
    ) -> Vec<(NodeId, Vec<NodeId>)> {
        let mut first: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        for (id, node) in graph.nodes().iter().filter(|(_, node)| node.phase != Phase::Optimizer) {
            for &value in &node.inputs {
                let producer = graph.values()[value].producer;
                if is_divided[producer] && graph.nodes()[producer].phase == Phase::Parameter {
                    first.entry(producer).or_insert(id);
                }
            }
        }
        let mut units: BTreeMap<usize, (NodeId, Vec<NodeId>)> = BTreeMap::new();
        for (parameter, reader) in first {
            let unit = units.entry(self.unit_of(graph, parameter)).or_insert((reader, Vec::new()));
            unit.0 = unit.0.min(reader);
            unit.1.push(parameter);
        }
        let mut units: Vec<(NodeId, Vec<NodeId>)> = units.into_values().collect();
        units.sort();
        if overlaps {
            let readers: Vec<NodeId> = units.iter().map(|unit| unit.0).collect();
            for (unit, &before) in units.iter_mut().skip(1).zip(&readers) {
                unit.0 = before;
            }
        }
        units
    }
}
