//! What of a step changes with its size: extents, and numbers among the arguments of calls.
//! Invariant: no number is left that may follow from the size without being known to.

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Recapture};
use crate::id::NodeId;
use crate::operator::{Axis, Linear, Literal, Part};
use crate::sizes::counts;
use crate::sizes::elements::Known;
use crate::sizes::follow::{Followed, follow};
use crate::sizes::groups::{Group, Rows, groups, tables};
use crate::sizes::varying::{Varying, varying};
use crate::sizes::{Dimension, SizeError, certain, limited};

/// What of a step changes with its size.
pub struct Changes {
    /// What grows.
    pub followed: Followed,
    /// The steps of each axis of each node that grows.
    pub steps: SecondaryMap<NodeId, Vec<Linear>>,
    /// The whole numbers among the arguments of each node that are extents that grow.
    pub literals: SecondaryMap<NodeId, Vec<Literal>>,
    /// The other numbers among them that follow from the size.
    pub varying: SecondaryMap<NodeId, Vec<Varying>>,
    /// The tables that must have a row for each element of a dimension, of each node.
    pub tables: SecondaryMap<NodeId, Option<Rows>>,
    /// Of each node with an output that nothing uses, whether such outputs grow.
    pub unused: SecondaryMap<NodeId, Vec<bool>>,
}

impl Changes {
    /// Everything that changes if dimension `dimension` of the batch, of `size` elements, does. If
    /// a second capture was seen, that says which numbers change; else those that may are refused.
    pub fn of(
        graph: &Graph,
        dimension: Dimension,
        size: u64,
        seen: Option<&Recapture>,
    ) -> Result<Changes, SizeError> {
        let groups = groups(graph);
        let followed = follow(graph, &groups, dimension, size)?;
        let (mut literals, mut unused) = (SecondaryMap::new(), SecondaryMap::new());
        let mut steps = SecondaryMap::new();
        for (id, node) in graph.nodes() {
            let grown = |group: &Group| Some((followed.steps(group)?, group.axis.clone()));
            let grown: Vec<(Linear, Axis)> = groups[id].iter().filter_map(grown).collect();
            steps[id] = grown.iter().map(|(steps, _)| *steps).collect::<Vec<_>>();
            let found: Option<Vec<Vec<Literal>>> = grown.iter().map(literals_of).collect();
            let large = || SizeError::Large { node: node.name.clone() };
            literals[id] = found.ok_or_else(large)?.concat();
            let is_grown = |index: usize| {
                let part = |axis: &Axis| axis.outputs.get(index).copied();
                grown.iter().any(|(_, axis)| matches!(part(axis), Some(Part::Rows(_))))
            };
            let outputs = node.outputs.iter().enumerate().filter(|(_, output)| output.is_none());
            unused[id] = outputs.map(|(index, _)| is_grown(index)).collect::<Vec<bool>>();
        }
        let tables = tables(graph, &groups);
        let known = Known::of(graph, &groups);
        let varying = match seen {
            Some(seen) => varying(graph, seen, &followed, &literals, &known)?,
            None => {
                let numbers = counts::numbers(graph, &groups, &followed);
                certain::check(graph, &groups, &followed, &numbers)?;
                limited::check(graph, &followed)?;
                counts::counts(graph, &known, &followed, &numbers)?
            }
        };
        Ok(Changes { followed, steps, literals, varying, tables, unused })
    }
}

/// The numbers that are extents along an axis, as they follow from the size.
fn literals_of((steps, axis): &(Linear, Axis)) -> Option<Vec<Literal>> {
    let grown = axis
        .literals
        .iter()
        .map(|literal| Some(Literal { extent: literal.extent.of(*steps)?, ..*literal }));
    grown.collect()
}
