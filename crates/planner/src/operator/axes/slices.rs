//! Axes of slices, and of what replaces one. Invariant: a slice that loses elements of a dimension
//! needs all of it at once; how many it loses does not depend on the extent.

use crate::operator::axes::{
    Along, Axis, Linear, Literal, Part, axis, long, one, others, rows, undivided,
};
use crate::operator::call::{TypedCall, Unsuited, dimension};

/// What is taken of a dimension.
enum Taken {
    /// All but this many elements at its start and at its end; the end may be given as the extent.
    AllBut(u64, Option<Literal>),
    /// The first ones, up to an end that is given.
    First(u64, Literal),
    /// Others, whose positions are numbers.
    Some,
    /// How many depends on the extent in another way.
    Unknown,
}

impl Taken {
    /// What a call takes whose arguments from `first` on are start, end and step.
    fn of(call: &TypedCall<'_>, first: usize, extent: u64) -> Result<Taken, Unsuited> {
        let start = call.optional_integer(first, "start")?.unwrap_or(0);
        let end = call.optional_integer(first + 1, "end")?.unwrap_or(i64::MAX);
        let step = call.optional_integer(first + 2, "step")?.unwrap_or(1);
        let Ok(start) = u64::try_from(start) else { return Ok(Taken::Unknown) };
        let literal = Literal::whole(first + 1);
        // A negative end counts from the last element.
        let back = if end < 0 { end.unsigned_abs() } else { 0 };
        let end = if end < 0 { extent } else { end.unsigned_abs() };
        Ok(match start.saturating_add(back) {
            0 if end < extent && step == 1 => Taken::First(end, literal),
            _ if end < extent => Taken::Some,
            lost if lost > extent || step != 1 => Taken::Unknown,
            lost => {
                let is_given = back == 0 && end == extent;
                Taken::AllBut(lost, is_given.then_some(literal))
            }
        })
    }
}

/// `slice(x, dim, start, end, step)`: all dimensions. Where it ends at a number before the last
/// element, its extent follows from that number alone.
pub fn sliced(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let dim = dimension(call.optional_integer(1, "dim")?.unwrap_or(0), shape.len())?;
    let mut axes = others(call, &[0], &[dim], 1, |dim| dim)?;
    let extent = shape.get(dim).copied().unwrap_or(0);
    let whole = undivided(extent, &[Some(dim)], &[Part::Whole]);
    axes.extend(long(match Taken::of(call, 2, extent)? {
        Taken::AllBut(0, end) => {
            let literals = end.into_iter().collect();
            vec![Axis { literals, ..axis(extent, &[Some(dim)], &[rows(dim)]) }]
        }
        Taken::AllBut(lost, end) => {
            let before = Linear::beyond(lost.cast_signed());
            let literals = end.map(|literal| Literal { extent: before, ..literal });
            vec![Axis {
                arguments: vec![Some(Along { dim, extent: before })],
                literals: literals.into_iter().collect(),
                ..undivided(extent - lost, &[], &[rows(dim)])
            }]
        }
        Taken::First(end, literal) => {
            let first = undivided(end, &[None], &[rows(dim)]);
            vec![Axis { literals: vec![literal], ..first }, whole]
        }
        Taken::Some => vec![whole],
        Taken::Unknown => Vec::new(),
    }));
    Ok(axes)
}

/// `slice_backward(gradient, size, dim, start, end, step)`: all dimensions of that size.
pub fn sliced_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let size = call.integers(1, "input_sizes")?;
    let dim = dimension(call.integer(2, "dim")?, size.len())?;
    let mut axes = others(call, &[0], &[dim], 1, |dim| dim)?;
    for axis in &mut axes {
        if let Part::Rows(along) = axis.outputs[0] {
            axis.literals.push(Literal::item(1, along.dim));
        }
    }
    let extent = size.get(dim).and_then(|&extent| u64::try_from(extent).ok()).unwrap_or(0);
    let of_size = Literal::item(1, dim);
    axes.extend(long(match Taken::of(call, 3, extent)? {
        Taken::AllBut(lost, end) => {
            let gradient = Along { dim, extent: Linear::beyond(-lost.cast_signed()) };
            let literals = end.into_iter().chain([of_size]).collect();
            let found = undivided(extent, &[], &[rows(dim)]);
            vec![Axis { arguments: vec![Some(gradient)], literals, ..found }]
        }
        Taken::First(..) | Taken::Some => {
            vec![Axis { literals: vec![of_size], ..undivided(extent, &[None], &[rows(dim)]) }]
        }
        Taken::Unknown => Vec::new(),
    }));
    Ok(axes)
}

/// `select_backward(gradient, size, dim, index)`: all dimensions of that size.
pub fn selected_gradient(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let size = call.integers(1, "input_sizes")?;
    let chosen = dimension(call.integer(2, "dim")?, size.len())?;
    Ok(long(size.iter().enumerate().map(|(dim, &extent)| {
        let own = (dim != chosen).then(|| dim - usize::from(dim > chosen));
        let extent = u64::try_from(extent).unwrap_or(0);
        let literals = vec![Literal::item(1, dim)];
        Axis { literals, ..undivided(extent, &[own], &[rows(dim)]) }
    })))
}

/// `select_scatter(x, patch, dim, index)`: all dimensions, the selected one whole.
pub fn patched_index(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let chosen = dimension(call.integer(2, "dim")?, shape.len())?;
    Ok(long(shape.iter().enumerate().map(|(dim, &extent)| {
        let own = (dim != chosen).then(|| dim - usize::from(dim > chosen));
        Axis { divides: dim != chosen, ..axis(extent, &[Some(dim), own], &[rows(dim)]) }
    })))
}

/// `slice_scatter(x, patch, dim, start, end, step)`: all dimensions, of which the patch has a fixed
/// part where it ends before the last element.
pub fn patched(call: &TypedCall<'_>) -> Result<Vec<Axis>, Unsuited> {
    let shape = &call.tensor(0)?.shape;
    let dim = dimension(call.optional_integer(2, "dim")?.unwrap_or(0), shape.len())?;
    let mut axes = others(call, &[0, 1], &[dim], 1, |dim| dim)?;
    let extent = shape.get(dim).copied().unwrap_or(0);
    let over = undivided(extent, &[Some(dim)], &[rows(dim)]);
    axes.extend(long(match Taken::of(call, 3, extent)? {
        Taken::AllBut(lost, end) => {
            let patch = Along { dim, extent: Linear::beyond(-lost.cast_signed()) };
            let literals = end.into_iter().collect();
            vec![Axis { arguments: vec![Some(one(dim)), Some(patch)], literals, ..over }]
        }
        Taken::First(..) | Taken::Some => vec![over],
        Taken::Unknown => Vec::new(),
    }));
    Ok(axes)
}
