//! Numbers that count what grows with the size of a step, as the gradient of a mean divides by how
//! many elements were averaged, of a step that was captured at one size alone. Invariant: a factor
//! or divisor grows if it is what the number of elements of a reduction close by makes of it; one
//! that may count otherwise is refused. That is concluded from equality, so a constant that happens
//! to be equal is taken for it.

use std::collections::HashSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Phase};
use crate::id::{NodeId, ValueId};
use crate::sizes::SizeError;
use crate::sizes::elements::{Known, packet, reduced};
use crate::sizes::follow::Followed;
use crate::sizes::form::{Form, TIMES};
use crate::sizes::groups::Groups;
use crate::sizes::varying::Varying;
use crate::tensor::Argument;

/// How a number follows from a number of elements of two or more, if it does; less than all of them
/// are counted only if `lessens`.
fn form(number: f64, count: u64, lessens: bool) -> Option<Form> {
    let count = count as f64;
    let over = |less: f64| {
        let found = TIMES.into_iter().find(|times| number == times / (count - less));
        found.map(|times| Form::Over { times, less })
    };
    match number == count {
        _ if count < 2.0 => None,
        true => Some(Form::Times),
        false => over(0.0).or_else(|| over(1.0).filter(|_| lessens && count > 2.0)),
    }
}

/// The numbers of each node that count what grows; `numbers` are all that may be counted.
pub fn counts(
    graph: &Graph,
    known: &Known,
    followed: &Followed,
    numbers: &HashSet<u64>,
) -> Result<SecondaryMap<NodeId, Vec<Varying>>, SizeError> {
    let mut found: SecondaryMap<NodeId, Vec<Varying>> = SecondaryMap::new();
    let mut depends: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    for (id, node) in graph.nodes() {
        let is_input = |value: &ValueId| followed.grows(*value) || depends[*value];
        let reads = node.inputs.iter().any(is_input);
        for &value in node.outputs.iter().flatten() {
            depends[value] = reads;
        }
        if !matches!(packet(node), "mul" | "div") {
            continue;
        }
        for (argument, given) in node.args.iter().enumerate() {
            let (Argument::Int(_) | Argument::Float(_)) = given else { continue };
            let Some(number) = given.number() else { continue };
            let refused = || {
                let (node, dimension) = (node.name.clone(), followed.dimension.name());
                Err(SizeError::Counted { node, number, dimension })
            };
            let lessens = known.is_of_variance(graph, node);
            let matched = known
                .elements(node)
                .into_iter()
                .find_map(|of| Some((form(number, of.count(graph), lessens)?, of)));
            if let Some((form, of)) = matched {
                let is_derived = node.phase == Phase::Backward && node.differentiates.is_some();
                if of.grow(followed) {
                    // A model's own sum over one dimension may be divided by a constant.
                    if !is_derived && of.long(graph) < 2 {
                        return refused();
                    }
                    found[id].push(Varying { argument, item: None, form, of: Some(of) });
                }
                continue;
            }
            // What a model divides by, its derivative does, too.
            let divided = node.differentiates.and_then(|of| {
                let other = graph.nodes().get(of)?;
                found[of].iter().find(|count| other.args.get(count.argument) == Some(given))
            });
            if let Some(count) = divided.cloned() {
                found[id].push(Varying { argument, ..count });
                continue;
            }
            // In the derivative of a mean of what grows, a number is its factor.
            let is_factor = !TIMES.contains(&number);
            let of_mean = known.reduced(node).iter().any(|of| of.grow(followed));
            // What still grows may be scaled by a fraction for other reasons, as attention is.
            let grows = node.inputs.iter().any(|&value| followed.grows(value));
            let is_open = matches!(given, Argument::Int(_)) || !grows;
            let counts = |count: &u64| number == *count as f64 || number == 1.0 / *count as f64;
            let may_derive = |count: &u64| *count >= LARGE && form(number, *count, false).is_some();
            let is_odd = node.phase == Phase::Backward && number.abs().log2().fract() != 0.0;
            if of_mean && is_factor
                || reads && is_open && numbers.iter().any(counts)
                || reads && (is_odd || !grows) && numbers.iter().any(may_derive)
            {
                return refused();
            }
        }
    }
    Ok(found)
}

/// A fraction of this many elements or more is no constant that models have.
const LARGE: u64 = 16;

/// The extents that grow, and how many elements are put together along them.
pub fn numbers(graph: &Graph, groups: &Groups, followed: &Followed) -> HashSet<u64> {
    let mut found = HashSet::new();
    for (id, node) in graph.nodes() {
        for &value in node.outputs.iter().flatten() {
            let extents = graph.values()[value].tensor.shape.iter().zip(&followed.extents[value]);
            found.extend(extents.filter(|(_, grown)| grown.is_some()).map(|(&extent, _)| extent));
        }
        let of = reduced(graph, &groups[id], node).filter(|of| of.grow(followed));
        found.extend(of.map(|of| of.count(graph)));
    }
    found.remove(&1);
    found
}
