//! Numbers that count what grows with the size of a step, as the gradient of a mean divides by how
//! many elements were averaged, of a step that was captured at one size alone. Invariant: a factor
//! or divisor grows if it is what the number of elements of a reduction close by makes of it; one
//! that may count otherwise is refused. That is concluded from equality, so a constant that happens
//! to be equal is taken for it.

use std::collections::HashSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Phase};
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
            let factor = Factor { graph, known, followed, node, given, number };
            // What a model divides by, its derivative does, too.
            let original = node.differentiates.and_then(|of| {
                let other = graph.nodes().get(of)?;
                found[of].iter().find(|count| other.args.get(count.argument) == Some(given))
            });
            match factor.meaning(original, reads, numbers) {
                Meaning::Constant => {}
                Meaning::Counts(varying) => found[id].push(Varying { argument, ..varying }),
                Meaning::Unknown => {
                    let (node, dimension) = (node.name.clone(), followed.dimension.name());
                    return Err(SizeError::Counted { node, number, dimension });
                }
            }
        }
    }
    Ok(found)
}

/// A factor or divisor of a call.
struct Factor<'a> {
    graph: &'a Graph,
    known: &'a Known,
    followed: &'a Followed,
    node: &'a Node,
    given: &'a Argument,
    number: f64,
}

/// What a factor is.
enum Meaning {
    Constant,
    Counts(Varying),
    Unknown,
}

impl Factor<'_> {
    /// What it is, where the call that it derives from divides by `original` and the node `reads`
    /// what depends on the size.
    fn meaning(&self, original: Option<&Varying>, reads: bool, numbers: &HashSet<u64>) -> Meaning {
        match (self.counted(), original) {
            (Some(meaning), _) => meaning,
            (None, Some(original)) => Meaning::Counts(original.clone()),
            (None, None) if self.may_count(reads, numbers) => Meaning::Unknown,
            (None, None) => Meaning::Constant,
        }
    }

    /// What it is, if it follows from a number of elements close by.
    fn counted(&self) -> Option<Meaning> {
        let lessens = self.known.is_of_variance(self.graph, self.node);
        let (form, of) = self
            .known
            .elements(self.node)
            .into_iter()
            .find_map(|of| Some((form(self.number, of.count(self.graph), lessens)?, of)))?;
        let is_derived = self.node.phase == Phase::Backward && self.node.differentiates.is_some();
        Some(match of.grow(self.followed) {
            false => Meaning::Constant,
            // A model's own sum over one dimension may be divided by a constant.
            true if !is_derived && of.long(self.graph) < 2 => Meaning::Unknown,
            true => Meaning::Counts(Varying { argument: 0, item: None, form, of: Some(of) }),
        })
    }

    /// Whether it may count what grows all the same.
    fn may_count(&self, reads: bool, numbers: &HashSet<u64>) -> bool {
        let number = self.number;
        // In the derivative of a mean of what grows, a number is its factor.
        let mut reduced = self.known.reduced(self.node).into_iter();
        if reduced.any(|of| of.grow(self.followed)) && !TIMES.contains(&number) {
            return true;
        }
        // What still grows may be scaled by a fraction for other reasons, as attention is.
        let grows = self.node.inputs.iter().any(|&value| self.followed.grows(value));
        let is_open = matches!(self.given, Argument::Int(_)) || !grows;
        let counts = |count: &u64| number == *count as f64 || number == 1.0 / *count as f64;
        let may_derive = |count: &u64| *count >= LARGE && form(number, *count, false).is_some();
        let is_odd = self.node.phase == Phase::Backward && number.abs().log2().fract() != 0.0;
        reads
            && (is_open && numbers.iter().any(counts)
                || (is_odd || !grows) && numbers.iter().any(may_derive))
    }
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
