//! Where rows lie in a tensor. Invariant: the dimensions of a span are consecutive, their extents
//! multiply to the number of rows times what each one has, and dimensions of extent one that come
//! before them belong to them, so that a tensor has one span for its rows.

/// The dimensions that number the rows: batch and position, for instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first dimension.
    pub first: usize,
    /// How many there are.
    pub dims: usize,
    /// How many consecutive indices of them are one row: one, or, where rows are sequences, the
    /// number of its positions.
    pub each: u64,
}

impl Span {
    /// The span after dimensions of `before` elements in a tensor of this shape.
    pub fn after(before: u64, rows: u64, shape: &[u64]) -> Option<Span> {
        let first = end_of(|elements| elements == before, shape)?;
        let dims = end_of(|indices| each(indices, rows).is_some(), &shape[first..])?.max(1);
        let indices = shape[first..].iter().take(dims).product();
        Some(Span { first, dims, each: each(indices, rows)? })
    }

    /// The span that consists of these dimensions, in order, and of such of extent one.
    pub fn of(dims: &[usize], rows: u64, shape: &[u64]) -> Option<Span> {
        let (mut first, last) = (*dims.first()?, *dims.last()?);
        if dims.iter().any(|&dim| dim >= shape.len()) {
            return None;
        }
        while first > 0 && shape[first - 1] == 1 {
            first -= 1;
        }
        let others = (first..=last).filter(|dim| !dims.contains(dim));
        let is_whole = dims.is_sorted() && others.clone().all(|dim| shape[dim] == 1);
        let each = each(dims.iter().map(|&dim| shape[dim]).product(), rows)?;
        is_whole.then_some(Span { first, dims: last + 1 - first, each })
    }

    /// The same rows in a tensor with the same elements in the same order.
    pub fn viewed(self, from: &[u64], rows: u64, to: &[u64]) -> Option<Span> {
        Span::after(from[..self.first].iter().product(), rows, to)
    }

    /// The dimensions that have more than one row.
    pub fn long(self, shape: &[u64]) -> impl Iterator<Item = usize> + '_ {
        (self.first..self.first + self.dims).filter(|&dim| shape[dim] > 1)
    }

    /// The shape with one dimension for all of them, of this many rows.
    pub fn flat(self, shape: &[u64], rows: u64) -> Vec<u64> {
        let mut flat = shape.to_vec();
        flat.splice(self.first..self.first + self.dims, [rows * self.each]);
        flat
    }

    /// The number that a dimension of a tensor of `rank` dimensions has in its flat form; `None`
    /// for one of the span.
    pub fn renumbered(self, dim: i64, rank: usize) -> Option<i64> {
        match at(dim, rank)? {
            at if self.contains(at) => None,
            at if at < self.first => Some(at as i64),
            at => Some((at + 1 - self.dims) as i64),
        }
    }

    /// Whether a dimension is one of its own.
    pub fn contains(self, dim: usize) -> bool {
        (self.first..self.first + self.dims).contains(&dim)
    }
}

/// The place of a dimension of a tensor of `rank` dimensions, which may be counted from the end.
pub fn at(dim: i64, rank: usize) -> Option<usize> {
    usize::try_from(if dim < 0 { dim + rank.cast_signed() as i64 } else { dim }).ok()
}

/// The first dimension before which there is such a number of elements.
fn end_of(is_such: impl Fn(u64) -> bool, shape: &[u64]) -> Option<usize> {
    let products = shape.iter().scan(1, |product, extent| {
        *product *= extent;
        Some(*product)
    });
    std::iter::once(1).chain(products).position(is_such)
}

/// How many of these indices each row has, if all have as many.
fn each(indices: u64, rows: u64) -> Option<u64> {
    (indices >= rows && rows > 0 && indices.is_multiple_of(rows)).then(|| indices / rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(first: usize, dims: usize) -> Span {
        Span { first, dims, each: 1 }
    }

    #[test]
    fn rows_are_found_in_other_shapes() {
        let rows = span(0, 1);
        assert_eq!(rows.viewed(&[6, 5], 6, &[2, 3, 5]), Some(span(0, 2)));
        assert_eq!(rows.viewed(&[6, 5], 6, &[1, 6, 5]), Some(span(0, 2)));
        assert_eq!(rows.viewed(&[6, 5], 6, &[6, 1, 5]), Some(rows));
        assert_eq!(rows.viewed(&[6, 5], 6, &[10, 3]), Some(Span { each: 5, ..span(0, 2) }));
        assert_eq!(rows.viewed(&[7, 5], 7, &[5, 6]), None);
        let columns = span(1, 1);
        assert_eq!(columns.viewed(&[5, 6], 6, &[5, 2, 3]), Some(span(1, 2)));
        assert_eq!(columns.viewed(&[5, 6], 6, &[10, 3]), None);
    }

    #[test]
    fn rows_may_be_sequences() {
        let sequences = Span { each: 3, ..span(0, 1) };
        assert_eq!(sequences.viewed(&[6, 5], 2, &[2, 3, 5]), Some(span(0, 1)));
        assert_eq!(span(0, 1).viewed(&[2, 3, 5], 2, &[6, 5]), Some(sequences));
        assert_eq!(sequences.flat(&[6, 5], 1), [3, 5]);
        assert_eq!(Span::of(&[0], 2, &[6, 5]), Some(sequences));
        assert_eq!(Span::of(&[0], 4, &[6, 5]), None);
    }

    #[test]
    fn dimensions_make_a_span_if_nothing_lies_between() {
        assert_eq!(Span::of(&[0, 1], 6, &[2, 3, 5]), Some(span(0, 2)));
        assert_eq!(Span::of(&[1], 6, &[1, 6, 5]), Some(span(0, 2)));
        assert_eq!(Span::of(&[0, 2], 6, &[2, 1, 3]), Some(span(0, 3)));
        assert_eq!(Span::of(&[0, 2], 6, &[2, 5, 3]), None);
        assert_eq!(Span::of(&[1, 0], 6, &[2, 3]), None);
        assert_eq!(Span::of(&[0], 6, &[2, 3]), None);
        assert_eq!(Span::of(&[0], 6, &[]), None);
        assert_eq!(Span::of(&[0], 0, &[0]), None);
    }

    #[test]
    fn flat_forms_have_fewer_dimensions() {
        let rows = span(1, 2);
        assert_eq!(rows.flat(&[5, 2, 3, 7], 4), [5, 4, 7]);
        assert_eq!(rows.renumbered(3, 4), Some(2));
        assert_eq!(rows.renumbered(-1, 4), Some(2));
        assert_eq!(rows.renumbered(0, 4), Some(0));
        assert_eq!(rows.renumbered(2, 4), None);
    }
}
