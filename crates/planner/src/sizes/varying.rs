//! Numbers of a step that are others in a second capture, at another size. Invariant: a number that
//! is the same in both is a constant, and one that is not follows from the size in a known form.

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Recapture, SeenNumber};
use crate::id::NodeId;
use crate::operator::Literal;
use crate::sizes::SizeError;
use crate::sizes::compare::{Difference, of_calls};
use crate::sizes::elements::{Elements, Known};
use crate::sizes::follow::Followed;
use crate::sizes::form::Form;
use crate::tensor::{Argument, placed};

/// A number among the arguments of a call that follows from the size.
#[derive(Clone, Debug)]
pub struct Varying {
    /// The positional argument.
    pub argument: usize,
    /// Its item, if it is a list.
    pub item: Option<usize>,
    /// How it follows from a count.
    pub form: Form,
    /// What is counted; `None` for the size itself.
    pub of: Option<Elements>,
}

impl Varying {
    /// Whether it is this one, of the same node.
    pub fn is_of(&self, number: &SeenNumber) -> bool {
        (self.argument, self.item) == (number.argument, number.item)
    }

    /// The number at another size, of the same kind as `now`, which is that of the graph.
    pub fn at(
        &self,
        now: &Argument,
        graph: &Graph,
        followed: &Followed,
        to: u64,
    ) -> Option<Argument> {
        let found = self.number_at(now.number()?, graph, followed, to)?;
        match now {
            Argument::Float(_) => Some(Argument::Float(found)),
            _ => (found.fract() == 0.0).then_some(Argument::Int(found as i64)),
        }
    }

    fn number_at(&self, now: f64, graph: &Graph, followed: &Followed, to: u64) -> Option<f64> {
        let (from, to) = counts(self.of.as_ref(), graph, followed, to)?;
        self.form.at((now, from), to)
    }
}

/// How much there is of what is counted, in the graph and at another size.
fn counts(
    of: Option<&Elements>,
    graph: &Graph,
    followed: &Followed,
    to: u64,
) -> Option<(u64, u64)> {
    match of {
        None => Some((followed.size, to)),
        Some(of) => Some((of.count(graph), of.count_at(graph, followed, to)?)),
    }
}

/// The numbers of each node that follow from the size, by what a second capture showed; not those
/// that are known anyway.
pub fn varying(
    graph: &Graph,
    seen: &Recapture,
    followed: &Followed,
    literals: &SecondaryMap<NodeId, Vec<Literal>>,
    known: &Known,
) -> Result<SecondaryMap<NodeId, Vec<Varying>>, SizeError> {
    let mut found: SecondaryMap<NodeId, Vec<Varying>> = SecondaryMap::new();
    let Some(other) = seen.size else { return Ok(found) };
    for SeenNumber { node: name, argument, item, number } in &seen.numbers {
        let Some(node) = graph.node_named(name) else { continue };
        let is_known = |literal: &Literal| (literal.argument, literal.item) == (*argument, *item);
        if literals[node].iter().any(is_known) {
            continue;
        }
        let given = placed(&graph.nodes()[node].args, *argument, *item);
        let Some(now) = given.and_then(Argument::number) else { continue };
        let elements = known.elements(&graph.nodes()[node]).into_iter().map(Some);
        let varying = [None].into_iter().chain(elements).find_map(|of| {
            let (one, two) = counts(of.as_ref(), graph, followed, other)?;
            let form = Form::of((now, one), (*number, two))?;
            // That many more than elements: along another dimension they are others.
            if of.is_some() && form == Form::Plus {
                return None;
            }
            Some(Varying { argument: *argument, item: *item, form, of })
        });
        found[node].push(varying.ok_or_else(|| SizeError::Varies {
            node: name.clone(),
            dimension: followed.dimension.name(),
            one: now,
            other: *number,
        })?);
    }
    Ok(found)
}

/// What a graph at another size, `to`, says of a second capture.
pub fn carried(
    seen: &Recapture,
    graph: &Graph,
    varying: &SecondaryMap<NodeId, Vec<Varying>>,
    followed: &Followed,
    (is_along, to): (bool, u64),
) -> Option<Recapture> {
    let mut numbers = seen.numbers.clone();
    // Where it is at the size of the second capture, the first one takes its place.
    let is_there = is_along && seen.size == Some(to);
    for number in &mut numbers {
        let node = graph.node_named(&number.node)?;
        let place = (number.argument, number.item);
        let found = varying[node].iter().find(|it| it.is_of(number));
        if is_there {
            number.number = placed(&graph.nodes()[node].args, place.0, place.1)?.number()?;
        } else if let Some(varying) = found.filter(|_| !is_along) {
            number.number = varying.number_at(number.number, graph, followed, to)?;
        }
    }
    let size = if is_there { Some(followed.size) } else { seen.size };
    Some(Recapture { size, numbers, ..seen.clone() })
}

/// All numbers that are others in a second capture, or the first difference between its calls.
pub fn numbers(one: &Graph, other: &Graph) -> Result<Vec<SeenNumber>, Difference> {
    let mut found = Vec::new();
    for (a, b) in one.nodes().values().zip(other.nodes().values()) {
        if let Some(difference) = of_calls(a, b) {
            return Err(difference);
        }
        for (argument, (x, y)) in a.args.iter().zip(&b.args).enumerate() {
            let (Argument::List(items), Argument::List(others)) = (x, y) else {
                found.extend(differs(a, (argument, None), x, y));
                continue;
            };
            for (item, (x, y)) in items.iter().zip(others).enumerate() {
                found.extend(differs(a, (argument, Some(item)), x, y));
            }
        }
    }
    Ok(found)
}

fn differs(
    node: &Node,
    (argument, item): (usize, Option<usize>),
    one: &Argument,
    other: &Argument,
) -> Option<SeenNumber> {
    let is_number = |it: &Argument| matches!(it, Argument::Int(_) | Argument::Float(_));
    let number = other.number().filter(|_| one != other && is_number(one) && is_number(other))?;
    Some(SeenNumber { node: node.name.clone(), argument, item, number })
}
