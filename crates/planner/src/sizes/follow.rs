//! What grows with the size of a step, from its batch on. Invariant: dimensions that go together
//! in some call grow together, forwards and backwards; each that grows is on a known axis of every
//! call that makes or reads it.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::graph::{Graph, Node, Phase};
use crate::id::{NodeId, ValueId};
use crate::operator::Linear;
use crate::sizes::groups::{Group, Groups, LookUp, look_ups};
use crate::sizes::{Dimension, SizeError};
use crate::tensor::Argument;

/// How each dimension of each value follows from the size; `None` if it does not.
pub type Extents = SecondaryMap<ValueId, Vec<Option<Linear>>>;

/// What of a step grows with its size.
pub struct Followed {
    /// What the size is called.
    pub dimension: Dimension,
    /// The size.
    pub size: u64,
    /// The dimensions that grow.
    pub extents: Extents,
}

impl Followed {
    /// Whether some dimension of a value grows.
    pub fn grows(&self, value: ValueId) -> bool {
        self.extents[value].iter().any(Option::is_some)
    }

    /// How the steps of an axis grow, if one of its members does.
    pub fn steps(&self, group: &Group) -> Option<Linear> {
        steps(group, &self.extents, self.size)
    }
}

/// Everything that grows if dimension `dimension` of the batch, of `size` elements, does. All
/// tensors of the batch that have that size there have another one together.
pub fn follow(
    graph: &Graph,
    groups: &Groups,
    dimension: Dimension,
    size: u64,
) -> Result<Followed, SizeError> {
    if graph.nodes().values().any(|node| node.micro_batch.index() > 0) {
        return Err(SizeError::MicroBatches);
    }
    let mut extents = Extents::new();
    for (value, described) in graph.values() {
        extents[value] = vec![None; described.tensor.shape.len()];
    }
    let inputs = graph.nodes().values().filter(|node| node.phase == Phase::Input);
    for &value in inputs.flat_map(|node| node.outputs.iter().flatten()) {
        let index = dimension.index();
        if graph.values()[value].tensor.shape.get(index) == Some(&size) {
            extents[value][index] = Some(Linear::ONE);
        }
    }
    let look_ups = look_ups(graph, groups);
    let mut spread = Spread { graph, dimension, size, groups, look_ups, extents };
    spread.everywhere()?;
    let extents = spread.extents;
    check(graph, groups, &extents, dimension, size)?;
    Ok(Followed { dimension, size, extents })
}

/// How the steps of an axis grow, if one of its members does.
fn steps(group: &Group, extents: &Extents, size: u64) -> Option<Linear> {
    group.members().find_map(|(value, along)| {
        let steps = extents[value][along.dim]?.in_terms_of(along.extent)?;
        (steps.at(size) == Some(group.axis.extent)).then_some(steps)
    })
}

/// What grows, being found.
struct Spread<'a> {
    graph: &'a Graph,
    dimension: Dimension,
    size: u64,
    groups: &'a Groups,
    look_ups: SecondaryMap<NodeId, Vec<LookUp>>,
    extents: Extents,
}

impl Spread<'_> {
    /// Lets what grows spread through all calls. What is joined grows if a part of it does, once
    /// nothing else is known of it.
    fn everywhere(&mut self) -> Result<(), SizeError> {
        let forwards: Vec<NodeId> = self.graph.nodes().keys().collect();
        let backwards: Vec<NodeId> = forwards.iter().rev().copied().collect();
        loop {
            while self.over(&forwards)? | self.over(&backwards)? {}
            let joined = forwards.iter().find_map(|&id| {
                let joined = Joined::of(self.graph, &self.graph.nodes()[id])?;
                let is_new = self.extents[joined.output][joined.dim].is_none();
                let extent = joined.sum(self.graph, &self.extents)?;
                is_new.then_some((joined.output, joined.dim, extent))
            });
            let Some((output, dim, extent)) = joined else { return Ok(()) };
            self.extents[output][dim] = Some(extent);
        }
    }

    /// Lets what grows spread along the axes of these nodes; whether something new does.
    fn over(&mut self, nodes: &[NodeId]) -> Result<bool, SizeError> {
        let mut is_new = false;
        for &node in nodes {
            for group in &self.groups[node] {
                let Some(steps) = steps(group, &self.extents, self.size) else { continue };
                for (value, along) in group.members() {
                    let large = || SizeError::Large { node: self.graph.nodes()[node].name.clone() };
                    let extent = along.extent.of(steps).ok_or_else(large)?;
                    is_new |= self.grow(node, (value, along.dim), extent)?;
                }
            }
            for LookUp { table, index } in self.look_ups[node].clone() {
                if let Some(extent) = self.extents[table.0][table.1] {
                    is_new |= self.grow(node, index, extent)?;
                } else if let Some(extent) = self.extents[index.0][index.1]
                    && self.dimension == Dimension::Batch
                {
                    // Along the length, what is looked up in may be a table of all positions.
                    is_new |= self.grow(node, table, extent)?;
                }
            }
        }
        Ok(is_new)
    }

    /// Makes a dimension of a value grow; whether that is new.
    fn grow(
        &mut self,
        node: NodeId,
        (value, dim): (ValueId, usize),
        extent: Linear,
    ) -> Result<bool, SizeError> {
        match self.extents[value][dim].replace(extent) {
            None => Ok(true),
            Some(known) if known == extent => Ok(false),
            Some(_) => Err(SizeError::Conflict {
                node: self.graph.nodes()[node].name.clone(),
                dimension: self.dimension.name(),
            }),
        }
    }
}

/// A call of `cat`, along whose dimension extents add up.
struct Joined<'a> {
    parts: Vec<ValueId>,
    output: ValueId,
    dim: usize,
    node: &'a Node,
}

impl<'a> Joined<'a> {
    /// The call, if it is one.
    fn of(graph: &Graph, node: &'a Node) -> Option<Joined<'a>> {
        let output = node.outputs.first().copied().flatten()?;
        let rank = graph.values()[output].tensor.shape.len() as i64;
        let dim = match node.args.get(1) {
            Some(Argument::Int(dim)) => *dim,
            _ => 0,
        };
        let dim = usize::try_from(if dim < 0 { dim + rank } else { dim }).ok()?;
        // Vectors without elements take part in no concatenation.
        let is_empty = |part: &ValueId| graph.values()[*part].tensor.shape == [0];
        let mut parts = node.args.first()?.values();
        parts.retain(|part| !is_empty(part));
        let has_dim = |part: &ValueId| graph.values()[*part].tensor.shape.len() > dim;
        let is_joined = node.op == "aten.cat.default" && parts.iter().all(has_dim);
        is_joined.then_some(Joined { parts, output, dim, node })
    }

    /// The extent of the output, if one of the parts grows.
    fn sum(&self, graph: &Graph, extents: &Extents) -> Option<Linear> {
        let of_part = |part: &ValueId| extents[*part][self.dim];
        if let Some(first) = self.parts.first().and_then(of_part)
            && first.more == 0
            && self.parts.iter().all(|part| of_part(part) == Some(first))
        {
            // One after the other, they repeat what each of them is.
            return Some(Linear { outer: first.outer * self.parts.len() as u64, ..first });
        }
        let mut grown: Option<Linear> = None;
        let mut more = 0i64;
        for &part in &self.parts {
            let Some(extent) = extents[part][self.dim] else {
                let extent = graph.values()[part].tensor.shape[self.dim];
                more = more.checked_add_unsigned(extent)?;
                continue;
            };
            more = more.checked_add(extent.more)?;
            grown = Some(match grown {
                None => extent,
                Some(other) => {
                    let block = other.outer * other.block + extent.outer * extent.block;
                    Linear { outer: 1, block, more: 0 }
                }
            });
        }
        Some(Linear { more, ..grown? })
    }

    /// Whether a value lies along the dimension, and the extents add up there.
    fn holds(&self, graph: &Graph, extents: &Extents, value: ValueId, dim: usize) -> bool {
        let is_part = self.node.inputs.contains(&value) || value == self.output;
        let sum = self.sum(graph, extents);
        is_part && dim == self.dim && sum.is_some() && sum == extents[self.output][dim]
    }
}

/// Refuses what grows beyond what is known of calls, parameters and inputs.
fn check(
    graph: &Graph,
    groups: &Groups,
    extents: &Extents,
    dimension: Dimension,
    size: u64,
) -> Result<(), SizeError> {
    let grown = |value: ValueId| {
        extents[value].iter().enumerate().filter_map(|(dim, extent)| Some((dim, (*extent)?)))
    };
    for (id, node) in graph.nodes() {
        let joined = Joined::of(graph, node);
        let of_call = node.inputs.iter().chain(node.outputs.iter().flatten());
        for &value in of_call {
            for (dim, extent) in grown(value) {
                let lies = |group: &Group| {
                    let steps = group.place(value, dim).map(|along| along.extent);
                    let steps = steps.and_then(|steps| extent.in_terms_of(steps));
                    steps.and_then(|steps| steps.at(size)) == Some(group.axis.extent)
                };
                let joins = |joined: &Joined<'_>| joined.holds(graph, extents, value, dim);
                match node.phase {
                    Phase::Parameter | Phase::Buffer | Phase::State => {
                        let name = node.parameter.clone().unwrap_or_else(|| node.name.clone());
                        let (phase, dimension) = (node.phase.name(), dimension.name());
                        return Err(SizeError::Fixed { name, phase, dimension, dim });
                    }
                    Phase::Input | Phase::Tangent => {}
                    _ if groups[id].iter().any(lies) || joined.as_ref().is_some_and(joins) => {}
                    _ => {
                        let (node, op) = (node.name.clone(), node.op.clone());
                        let dimension = dimension.name();
                        return Err(SizeError::Unknown { node, op, dimension, dim });
                    }
                }
            }
        }
    }
    Ok(())
}
