//! The allocations of a step, and when each was given back. Invariant: a trace contains positions,
//! not times: two steps that make the same calls have the same allocations in it, and a settled
//! trace has for each of them the longest life in any recording.

use crate::backing::Size;

/// How long an allocation of a step is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Life {
    /// It is given back when this many allocations of the step have been made: by the current
    /// pass's thread, or between passes.
    Until(usize),
    /// It is given back before the next step begins, but by another thread than the current pass's:
    /// the next time it may be later.
    Step,
    /// It is still there when the next step begins.
    Lasting,
}

/// Bytes that were allocated or given back while a step was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Which allocation of the step it was; absent for anything else that was passed on.
    pub of: Option<usize>,
    /// Whether they were allocated.
    pub comes: bool,
    /// How many.
    pub size: Size,
}

/// One recorded step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The step's allocations in their order.
    pub(crate) allocations: Vec<(Size, Life)>,
    /// For each pass how many allocations had been made when it ended.
    pub(crate) passes: Vec<usize>,
    /// All changes to the end of the last pass.
    pub(crate) changes: Vec<Change>,
    /// For each pass how many changes there were when it began, and when it ended.
    pub(crate) spans: Vec<(usize, usize)>,
}

impl Trace {
    /// How many passes the step had.
    pub fn passes(&self) -> usize {
        self.passes.len()
    }

    /// How many allocations it made.
    pub fn allocations(&self) -> usize {
        self.allocations.len()
    }

    /// Whether both made the same allocations.
    pub fn agrees(&self, other: &Trace) -> bool {
        let sizes = |trace: &Trace| trace.allocations.iter().map(|(size, _)| *size).collect();
        let (ours, theirs): (Vec<Size>, Vec<Size>) = (sizes(self), sizes(other));
        self.passes == other.passes && ours == theirs
    }

    /// The changes of a pass; none if there is no such pass.
    fn during(&self, pass: usize) -> &[Change] {
        self.spans.get(pass).and_then(|&(begun, end)| self.changes.get(begun..end)).unwrap_or(&[])
    }
}

/// The most bytes at once, above those that were there before, by the chosen changes.
fn most(changes: &[Change], chosen: impl Fn(Option<usize>) -> bool) -> Size {
    let (mut now, mut most) = (0_i128, 0_i128);
    for change in changes.iter().filter(|change| chosen(change.of)) {
        let size = i128::try_from(change.size.0).unwrap_or(i128::MAX / 4);
        now = if change.comes { now.saturating_add(size) } else { now.saturating_sub(size) };
        most = most.max(now);
    }
    Size(usize::try_from(most).unwrap_or(usize::MAX))
}

/// Two recordings of one step that agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The step's allocations: sizes and the longer of both lives.
    pub(crate) allocations: Vec<(Size, Life)>,
    /// For each pass how many allocations had been made when it ended.
    pub(crate) passes: Vec<usize>,
    /// The most bytes outside the slab.
    pub(crate) beside: Size,
    /// The most bytes, whether in the slab or outside it.
    pub(crate) peak: Size,
    /// For each pass the most bytes outside the slab, above those that are there when it begins.
    pub(crate) rises: Vec<Size>,
}

impl Settled {
    /// What two recordings have in common, if they agree.
    pub fn of(first: &Trace, second: &Trace) -> Option<Settled> {
        if !first.agrees(second) {
            return None;
        }
        let both = first.allocations.iter().zip(&second.allocations);
        let allocations: Vec<(Size, Life)> =
            both.map(|(&(size, life), &(_, other))| (size, life.max(other))).collect();
        let is_beside = |of: Option<usize>| {
            let life = of.and_then(|index| allocations.get(index)).map(|&(_, life)| life);
            life.is_none_or(|life| life == Life::Lasting)
        };
        let beside = most(&first.changes, is_beside).max(most(&second.changes, is_beside));
        let peak = most(&first.changes, |_| true).max(most(&second.changes, |_| true));
        let rise =
            |pass| most(first.during(pass), is_beside).max(most(second.during(pass), is_beside));
        let rises = (0..first.passes()).map(rise).collect();
        Some(Settled { passes: first.passes.clone(), allocations, beside, peak, rises })
    }

    /// The allocations that can lie in the slab: the positions of the first and the last allocation
    /// of the step at which each is held, and its size. What outlasts the step cannot: the next
    /// step would write over it.
    pub fn intervals(&self) -> impl Iterator<Item = (usize, usize, Size)> {
        let count = self.allocations.len();
        self.allocations.iter().enumerate().filter_map(move |(first, &(size, life))| match life {
            Life::Until(until) => Some((first, until.saturating_sub(1).max(first), size)),
            Life::Step => Some((first, count - 1, size)),
            Life::Lasting => None,
        })
    }

    /// The most bytes that the step takes outside the slab, above those that are there when it
    /// begins.
    pub fn beside(&self) -> Size {
        self.beside
    }

    /// The most bytes that the step takes without a slab, above those that are there when it
    /// begins.
    pub fn peak(&self) -> Size {
        self.peak
    }

    /// For each pass the most bytes that it takes outside the slab, above those that are there when
    /// the pass begins.
    pub fn rises(&self) -> &[Size] {
        &self.rises
    }
}
