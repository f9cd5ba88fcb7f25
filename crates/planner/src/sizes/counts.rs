//! Numbers that count what grows with the size of a step, as the gradient of a mean divides by how
//! many elements were averaged. Invariant: a factor or divisor grows if it is what the number of
//! elements of a reduction close by makes of it; one that may count otherwise is refused. That is
//! concluded from equality, so a constant that happens to be equal is taken for it.

use std::collections::HashSet;

use cranelift_entity::SecondaryMap;

use crate::graph::{Graph, Node, Phase};
use crate::id::{NodeId, ValueId};
use crate::operator::Part;
use crate::sizes::SizeError;
use crate::sizes::follow::Followed;
use crate::sizes::groups::{Group, Groups};
use crate::tensor::Argument;

/// A number among the arguments of a call that counts elements.
#[derive(Clone, Debug)]
pub struct Count {
    /// The positional argument.
    pub argument: usize,
    /// What it counts.
    of: Elements,
    /// How it follows from their number.
    form: Form,
}

impl Count {
    /// The number at another size, of the same kind as `now`, by the shape of each value.
    pub fn at<'a>(&self, shape: impl Fn(ValueId) -> &'a [u64], now: &Argument) -> Argument {
        let count = self.of.count(shape(self.of.value));
        match (self.form, now) {
            (Form::Whole, Argument::Float(_)) => Argument::Float(count as f64),
            (Form::Whole, _) => Argument::Int(count as i64),
            (Form::Over { times, less }, _) => Argument::Float(times / (count as f64 - less)),
        }
    }
}

/// Elements of a tensor along some of its dimensions.
#[derive(Clone, Debug)]
struct Elements {
    value: ValueId,
    dims: Vec<usize>,
}

impl Elements {
    fn count(&self, shape: &[u64]) -> u64 {
        self.dims.iter().map(|&dim| shape[dim]).fold(1, u64::saturating_mul)
    }

    fn grow(&self, followed: &Followed) -> bool {
        self.dims.iter().any(|&dim| followed.extents[self.value][dim].is_some())
    }

    /// How many of the dimensions have two elements or more.
    fn long(&self, shape: &[u64]) -> usize {
        self.dims.iter().filter(|&&dim| shape[dim] > 1).count()
    }
}

/// How a number follows from a number of elements.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// It is that.
    Whole,
    /// It is so much over it, or over a few less, as in a variance.
    Over { times: f64, less: f64 },
}

/// What derivatives of means, squares and variances have over the number of elements.
const TIMES: [f64; 6] = [1.0, -1.0, 2.0, -2.0, 0.5, -0.5];

impl Form {
    /// How a number follows from a number of elements of two or more, if it does; less than all of
    /// them are counted only if `lessens`.
    fn of(number: f64, count: u64, lessens: bool) -> Option<Form> {
        let count = count as f64;
        let over = |less: f64| {
            let found = TIMES.into_iter().find(|times| number == times / (count - less));
            found.map(|times| Form::Over { times, less })
        };
        match number == count {
            _ if count < 2.0 => None,
            true => Some(Form::Whole),
            false => over(0.0).or_else(|| over(1.0).filter(|_| lessens && count > 2.0)),
        }
    }
}

/// The numbers of each node that count what grows; `numbers` are all that may be counted.
pub fn counts(
    graph: &Graph,
    groups: &Groups,
    followed: &Followed,
    numbers: &HashSet<u64>,
) -> Result<SecondaryMap<NodeId, Vec<Count>>, SizeError> {
    let mut found: SecondaryMap<NodeId, Vec<Count>> = SecondaryMap::new();
    let mut depends: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    // The elements that were summed in each element of a value, or that each of its own was.
    let mut origins: SecondaryMap<ValueId, Option<Elements>> = SecondaryMap::new();
    let derived = Derived::of(graph, groups);
    for (id, node) in graph.nodes() {
        let is_input = |value: &ValueId| followed.grows(*value) || depends[*value];
        let reads = node.inputs.iter().any(is_input);
        for &value in node.outputs.iter().flatten() {
            depends[value] = reads;
            origins[value] = origin(graph, &groups[id], node, value, &origins);
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
            let shape = |value: ValueId| graph.values()[value].tensor.shape.as_slice();
            let of_inputs = node.inputs.iter().filter_map(|&value| origins[value].clone());
            let known: Vec<Elements> = derived.reduced(node).into_iter().chain(of_inputs).collect();
            let lessens = derived.is_of_variance(graph, node);
            let matched = known
                .iter()
                .find_map(|of| Some((of, Form::of(number, of.count(shape(of.value)), lessens)?)));
            if let Some((of, form)) = matched {
                let is_derived = node.phase == Phase::Backward && node.differentiates.is_some();
                if of.grow(followed) {
                    // A model's own sum over one dimension may be divided by a constant.
                    if !is_derived && of.long(shape(of.value)) < 2 {
                        return refused();
                    }
                    found[id].push(Count { argument, of: of.clone(), form });
                }
                continue;
            }
            // What a model divides by, its derivative does, too.
            let divided = node.differentiates.and_then(|of| {
                let other = graph.nodes().get(of)?;
                found[of].iter().find(|count| other.args.get(count.argument) == Some(given))
            });
            if let Some(count) = divided.cloned() {
                found[id].push(Count { argument, ..count });
                continue;
            }
            // In the derivative of a mean of what grows, a number is its factor.
            let is_factor = !TIMES.contains(&number);
            let of_mean = derived.reduced(node).iter().any(|of| of.grow(followed));
            // What still grows may be scaled by a fraction for other reasons, as attention is.
            let grows = node.inputs.iter().any(|&value| followed.grows(value));
            let is_open = matches!(given, Argument::Int(_)) || !grows;
            let counts = |count: &u64| number == *count as f64 || number == 1.0 / *count as f64;
            let may_derive =
                |count: &u64| *count >= LARGE && Form::of(number, *count, false).is_some();
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

/// The operator's name without its overload.
pub fn packet(node: &Node) -> &str {
    node.op.strip_prefix("aten.").and_then(|name| name.split('.').next()).unwrap_or("")
}

/// Reductions whose derivatives calls compute.
struct Derived {
    /// For each node, the reductions among the parts of its operator: one that PyTorch takes apart,
    /// such as a loss, is known by the first of its parts.
    reductions: SecondaryMap<NodeId, Vec<(NodeId, Elements)>>,
}

impl Derived {
    fn of(graph: &Graph, groups: &Groups) -> Derived {
        let mut reductions: SecondaryMap<NodeId, Vec<(NodeId, Elements)>> = SecondaryMap::new();
        let sources: HashSet<NodeId> =
            graph.nodes().values().filter_map(|node| node.differentiates).collect();
        for &id in &sources {
            let (mut from, mut found) = (Vec::new(), Vec::new());
            let parts = graph.nodes().iter().skip_while(|(other, _)| *other != id);
            let is_part = |other: NodeId| other == id || !sources.contains(&other);
            for (other, node) in parts.take_while(|(other, _)| is_part(*other)) {
                let follows = other == id || node.inputs.iter().any(|input| from.contains(input));
                if !follows || matches!(node.phase, Phase::Backward | Phase::Optimizer) {
                    continue;
                }
                match reduced(graph, &groups[other], node) {
                    Some(of) => found.push((other, of)),
                    None => from.extend(node.outputs.iter().copied().flatten()),
                }
            }
            reductions[id] = found;
        }
        Derived { reductions }
    }

    /// What the reductions whose derivative a node computes put together.
    fn reduced(&self, node: &Node) -> Vec<Elements> {
        let found = node.differentiates.map(|of| &self.reductions[of]);
        found.into_iter().flatten().map(|(_, elements)| elements.clone()).collect()
    }

    fn is_of_variance(&self, graph: &Graph, node: &Node) -> bool {
        let of = node.differentiates.map(|of| &self.reductions[of]);
        let mut of = of.into_iter().flatten().map(|(node, _)| packet(&graph.nodes()[*node]));
        of.any(|packet| matches!(packet, "var" | "std" | "var_mean"))
    }
}

/// What a call puts together in each element of its output, if it does.
fn reduced(graph: &Graph, groups: &[Group], node: &Node) -> Option<Elements> {
    let &value = node.inputs.first()?;
    let elements = |value: ValueId| graph.values()[value].tensor.elements();
    let output = node.outputs.first().copied().flatten()?;
    let goes = |group: &&Group| !matches!(group.axis.outputs.first(), Some(Part::Rows(_)));
    let read = groups.iter().filter(goes).flat_map(|group| &group.read);
    let mut dims: Vec<usize> =
        read.filter(|(member, _)| *member == value).map(|(_, along)| along.dim).collect();
    dims.sort_unstable();
    dims.dedup();
    let is_reduced = !dims.is_empty() && elements(output) < elements(value);
    is_reduced.then_some(Elements { value, dims })
}

/// Which elements an element of an output is the sum of, or was one of: those of a reduction, those
/// that `expand` makes of one, or else those of an input that has as many elements.
fn origin(
    graph: &Graph,
    groups: &[Group],
    node: &Node,
    output: ValueId,
    origins: &SecondaryMap<ValueId, Option<Elements>>,
) -> Option<Elements> {
    if let Some(of) = reduced(graph, groups, node) {
        return Some(of);
    }
    if packet(node) == "expand" {
        let made = groups.iter().filter(|group| group.read.is_empty());
        let dims: Vec<usize> =
            made.flat_map(|group| &group.made).map(|(_, along)| along.dim).collect();
        if !dims.is_empty() {
            return Some(Elements { value: output, dims });
        }
    }
    let elements = |value: ValueId| graph.values()[value].tensor.elements();
    let mut alike = node.inputs.iter().filter(|&&input| elements(input) == elements(output));
    alike.find_map(|&input| origins[input].clone())
}

/// The extents that grow, and how many elements are put together along them.
pub fn numbers(graph: &Graph, groups: &Groups, followed: &Followed) -> HashSet<u64> {
    let mut found = HashSet::new();
    for (id, node) in graph.nodes() {
        for &value in node.outputs.iter().flatten() {
            let extents = graph.values()[value].tensor.shape.iter().zip(&followed.extents[value]);
            found.extend(extents.filter(|(_, grown)| grown.is_some()).map(|(&extent, _)| extent));
        }
        let of = reduced(graph, &groups[id], node).filter(|of| of.grow(followed));
        found.extend(of.map(|of| of.count(&graph.values()[of.value].tensor.shape)));
    }
    found.remove(&1);
    found
}
