//! A step while it is recorded. Invariant: it has every change of the bytes that are passed on,
//! those of the step's own windows with the position of their allocation; except for memory from
//! before the step that is freed during a pass: it need not be freed the next time.

use crate::backing::Size;
use crate::trace::{Change, Life, Trace};

/// What is known so far of a step that is recorded.
#[derive(Debug, Default)]
pub struct Recording {
    allocations: Vec<(Size, Life)>,
    passes: Vec<usize>,
    changes: Vec<Change>,
    /// For each pass how many changes there were when it began, and when it ended.
    spans: Vec<(usize, usize)>,
    /// How many changes there were when the current pass began.
    begun: Option<usize>,
}

impl Recording {
    /// Bytes were passed on; those of the step's own window get a position.
    pub fn came(&mut self, size: Size, is_own: bool) -> Option<usize> {
        let of = is_own.then_some(self.allocations.len());
        if is_own {
            self.allocations.push((size, Life::Lasting));
        }
        self.changes.push(Change { of, comes: true, size });
        of
    }

    /// Bytes that were allocated during the step were given back. `is_beside`: by another thread
    /// than the one whose window is open.
    pub fn went(&mut self, size: Size, of: Option<usize>, is_beside: bool) {
        let made = self.allocations.len();
        if let Some((_, life)) = of.and_then(|index| self.allocations.get_mut(index)) {
            *life = if is_beside { Life::Step } else { Life::Until(made) };
        }
        self.changes.push(Change { of, comes: false, size });
    }

    /// Bytes that were there before the step were given back.
    pub fn left(&mut self, size: Size) {
        if self.begun.is_none() {
            self.changes.push(Change { of: None, comes: false, size });
        }
    }

    /// A pass begins.
    pub fn begins(&mut self) {
        self.begun = Some(self.changes.len());
    }

    /// The pass ended.
    pub fn passed(&mut self) {
        self.passes.push(self.allocations.len());
        let end = self.changes.len();
        self.spans.push((self.begun.take().unwrap_or(end), end));
    }

    /// What was recorded.
    pub fn trace(mut self) -> Trace {
        self.changes.truncate(self.spans.last().map_or(0, |&(_, end)| end));
        let Recording { allocations, passes, changes, spans, .. } = self;
        Trace { allocations, passes, changes, spans }
    }
}
