//! A step while it is recorded. Invariant: every change of the bytes that are passed on is in it,
//! those of the step's own windows with the position of their allocation.

use crate::backing::Size;
use crate::trace::{Change, Life, Trace};

/// What is known so far of a step that is recorded.
#[derive(Debug, Default)]
pub struct Recording {
    allocations: Vec<(Size, Life)>,
    passes: Vec<usize>,
    changes: Vec<Change>,
    /// How many changes there were when the last pass ended.
    end: usize,
}

impl Recording {
    /// Bytes were passed on; those of the step's own window get their position.
    pub fn came(&mut self, size: Size, is_own: bool) -> Option<usize> {
        let of = is_own.then_some(self.allocations.len());
        if is_own {
            self.allocations.push((size, Life::Lasting));
        }
        self.changes.push(Change { of, comes: true, size });
        of
    }

    /// Bytes were given back; by another thread than the one whose window is open, or not.
    pub fn went(&mut self, size: Size, of: Option<usize>, is_beside: bool) {
        let made = self.allocations.len();
        if let Some((_, life)) = of.and_then(|index| self.allocations.get_mut(index)) {
            *life = if is_beside { Life::Step } else { Life::Until(made) };
        }
        self.changes.push(Change { of, comes: false, size });
    }

    /// A pass ended.
    pub fn passed(&mut self) {
        self.passes.push(self.allocations.len());
        self.end = self.changes.len();
    }

    /// What was recorded.
    pub fn trace(mut self) -> Trace {
        self.changes.truncate(self.end);
        Trace { allocations: self.allocations, passes: self.passes, changes: self.changes }
    }
}
