//! Axes of views. Invariant: the same elements lie along an axis before and after.

use crate::operator::axes::{Along, Axis, Literal, Part, axis, long, others, rows};
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
        let literal = (wanted >= 0).then_some(Literal { argument: 1, item: dim, block: 1 });
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

/// `select(x, dim, index)`: all but that dimension.
pub fn selected(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let chosen = dimension(call.integer(1, "dim")?, call.tensor(0)?.shape.len())?;
    others(call, &[0], &[chosen], 1, |dim| dim - usize::from(dim > chosen))
}

/// `slice(x, dim, …)`: all but that dimension.
pub fn sliced(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let dim = call.optional_integer(1, "dim")?.unwrap_or(0);
    let dim = dimension(dim, call.tensor(0)?.shape.len())?;
    others(call, &[0], &[dim], 1, |dim| dim)
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

/// `view(x, size)`: dimensions fall into groups of the same number of elements, the smallest there
/// are. Of each group, the first dimensions of both go together, in steps of which both have a
/// whole number: the elements of a step are consecutive in both.
pub fn viewed(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let (x, size) = (call.tensor(0)?, call.integers(1, "size")?);
    let Some(shape) = inferred(x.elements(), &size) else { return Ok(Vec::new()) };
    let (mut axes, mut from, mut to) = (Vec::new(), 0, 0);
    loop {
        // Extents of one lie anywhere.
        while x.shape.get(from) == Some(&1) {
            from += 1;
        }
        while shape.get(to) == Some(&1) {
            to += 1;
        }
        let (Some(&old), Some(&new)) = (x.shape.get(from), shape.get(to)) else { break };
        let extent = gcd(old, new);
        let (along, place) =
            (Along { dim: from, block: old / extent }, Along { dim: to, block: new / extent });
        let literal = Literal { argument: 1, item: to, block: place.block };
        axes.push(Axis {
            extent,
            arguments: vec![Some(along), None],
            keywords: Vec::new(),
            literals: if size[to] == -1 { Vec::new() } else { vec![literal] },
            outputs: vec![Part::Rows(place)],
        });
        let (mut before, mut after) = (old, new);
        (from, to) = (from + 1, to + 1);
        while before != after {
            let next = if before < after { x.shape.get(from) } else { shape.get(to) };
            let Some(&next) = next else { return Ok(Vec::new()) };
            if before < after {
                (before, from) = (before.saturating_mul(next), from + 1);
            } else {
                (after, to) = (after.saturating_mul(next), to + 1);
            }
        }
    }
    Ok(long(axes))
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
