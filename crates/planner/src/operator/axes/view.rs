//! Axes of views. Invariant: the same elements lie along an axis before and after.

use crate::operator::axes::{
    Along, Axis, Linear, Literal, Part, axis, long, others, rows, undivided,
};
use crate::operator::call::{TypedCall, Unsuited, dimension};

/// `expand(x, size)`: every dimension, of which those that repeat are of the size alone.
pub fn expanded(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, size) = (call.tensor(0)?, call.integers(1, "size")?);
    let missing = size.len().saturating_sub(x.shape.len());
    Ok(long(size.iter().enumerate().map(|(dim, &wanted)| {
        let own = dim.checked_sub(missing);
        let given = own.map_or(1, |own| x.shape[own]);
        let extent = u64::try_from(wanted).unwrap_or(given);
        let along = own.filter(|_| given == extent);
        let literal = (wanted >= 0).then_some(Literal::item(1, dim));
        let mut axis = axis(extent, &[along], &[rows(dim)]);
        axis.arguments.resize(call.args.len(), None);
        axis.literals.extend(literal);
        axis
    })))
}

/// `permute(x, dims)`: every dimension.
pub fn permuted(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let x = call.tensor(0)?;
    let rank = x.shape.len();
    let dims = call.integers(1, "dims")?;
    let order: Vec<usize> =
        dims.iter().map(|&dim| dimension(dim, rank)).collect::<Result<_, _>>()?;
    let place = |dim: usize| order.iter().position(|&other| other == dim).unwrap_or(dim);
    others(call, &[0], &[], 1, place)
}

/// `transpose(x, dim, dim)`: every dimension.
pub fn transposed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let rank = call.tensor(0)?.shape.len();
    let (a, b) =
        (dimension(call.integer(1, "dim0")?, rank)?, dimension(call.integer(2, "dim1")?, rank)?);
    let place = |dim| {
        if dim == a {
            b
        } else if dim == b {
            a
        } else {
            dim
        }
    };
    others(call, &[0], &[], 1, place)
}

/// `select(x, dim, index)`: all dimensions, of which that one is needed whole.
pub fn selected(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let chosen = dimension(call.integer(1, "dim")?, shape.len())?;
    let mut axes = others(call, &[0], &[chosen], 1, |dim| dim - usize::from(dim > chosen))?;
    let extent = shape.get(chosen).copied().unwrap_or(0);
    axes.extend(long([undivided(extent, &[Some(chosen)], &[Part::Whole])]));
    Ok(axes)
}

/// `split_with_sizes(x, sizes, dim)`: all but that dimension.
pub fn split(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = call.optional_integer(2, "dim")?.unwrap_or(0);
    let dim = dimension(dim, call.tensor(0)?.shape.len())?;
    others(call, &[0], &[dim], call.integers(1, "split_sizes")?.len(), |dim| dim)
}

/// `squeeze(x, dims)`: all but these dimensions, of which a part with a single step would lose one.
pub fn squeezed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let dims = call.integers(1, "dim")?;
    let dims: Vec<usize> =
        dims.iter().map(|&dim| dimension(dim, shape.len())).collect::<Result<_, _>>()?;
    let goes = |dim: usize| dims.contains(&dim) && shape[dim] == 1;
    others(call, &[0], &dims, 1, |dim| dim - (0..dim).filter(|&below| goes(below)).count())
}

/// `unsqueeze(x, dim)`: every dimension.
pub fn unsqueezed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let new = dimension(call.integer(1, "dim")?, call.tensor(0)?.shape.len() + 1)?;
    others(call, &[0], &[], 1, |dim| dim + usize::from(dim >= new))
}

/// `view(x, size)`: each factor of an extent, as far as it is one in both shapes.
pub fn viewed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, size) = (call.tensor(0)?, call.integers(1, "size")?);
    let Some(shape) = inferred(x.elements(), &size) else { return Ok(Vec::new()) };
    let found = factors(&x.shape, &shape).into_iter().map(|Factor { extent, from, to }| {
        let literal = Literal { argument: 1, item: Some(to.dim), extent: to.extent };
        let literals = if size[to.dim] == -1 { Vec::new() } else { vec![literal] };
        let outputs = vec![Part::Rows(to)];
        Axis { arguments: vec![Some(from), None], literals, outputs, ..axis(extent, &[], &[]) }
    });
    Ok(found.collect())
}

/// A factor of extents of two shapes of the same elements.
pub(super) struct Factor {
    /// The factor.
    pub extent: u64,
    /// Where it is in the first shape.
    pub from: Along,
    /// Where it is in the second one.
    pub to: Along,
}

/// Dimensions fall into groups of the same number of elements, the smallest there are. In each
/// group, the extents of both shapes are cut into common factors, from the first on.
pub(super) fn factors(old: &[u64], new: &[u64]) -> Vec<Factor> {
    let (mut found, mut from, mut to) = (Vec::new(), Cut::default(), Cut::default());
    loop {
        from.advance(old);
        to.advance(new);
        if from.dim == old.len() || to.dim == new.len() {
            return found;
        }
        let extent = gcd(from.rest, to.rest);
        if extent > 1 {
            found.push(Factor { extent, from: from.take(extent), to: to.take(extent) });
        } else if !Cut::leave(&mut from, old, &mut to, new) {
            // No factor leads further into the last group.
            return found;
        }
    }
}

/// How far a shape has been cut into factors: of dimension `dim`, `outer` elements are, and `rest`
/// for each of them are not.
#[derive(Default)]
struct Cut {
    dim: usize,
    outer: u64,
    rest: u64,
}

impl Cut {
    /// Goes on to the next dimension, if nothing is left of this one.
    fn advance(&mut self, shape: &[u64]) {
        if self.outer > 0 && self.rest == 1 {
            (self.dim, self.outer) = (self.dim + 1, 0);
        }
        // Extents of one lie anywhere.
        while self.outer == 0 && shape.get(self.dim) == Some(&1) {
            self.dim += 1;
        }
        if let (0, Some(&extent)) = (self.outer, shape.get(self.dim)) {
            (self.outer, self.rest) = (1, extent);
        }
    }

    /// The next factor of this extent.
    fn take(&mut self, extent: u64) -> Along {
        let place = Linear { outer: self.outer, block: self.rest / extent, more: 0 };
        let along = Along { dim: self.dim, extent: place };
        (self.outer, self.rest) = (self.outer * extent, self.rest / extent);
        along
    }

    /// Goes to the end of a group, in whose rests there is no common factor; whether it has one.
    fn leave(from: &mut Cut, old: &[u64], to: &mut Cut, new: &[u64]) -> bool {
        let (mut before, mut after) = (from.rest, to.rest);
        while before != after {
            let (side, shape, elements) = if before < after {
                (&mut *from, old, &mut before)
            } else {
                (&mut *to, new, &mut after)
            };
            side.dim += 1;
            let Some(&next) = shape.get(side.dim) else { return false };
            *elements = elements.saturating_mul(next);
        }
        (from.rest, to.rest) = (1, 1);
        true
    }
}

/// The extents of a view of all elements, of which one may be −1; `None` without elements.
fn inferred(elements: u64, size: &[i64]) -> Option<Vec<u64>> {
    let known = size.iter().filter_map(|&extent| u64::try_from(extent).ok());
    let known = known.fold(1u64, u64::saturating_mul);
    let rest = elements.checked_div(known).filter(|_| elements > 0)?;
    Some(size.iter().map(|&extent| u64::try_from(extent).unwrap_or(rest)).collect())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
