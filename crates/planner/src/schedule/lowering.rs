//! Options of lowering. Invariant: plain data; by default, nothing is fixed.

use crate::effort::Effort;
use crate::goal::Goal;
use crate::schedule::persistent::Residents;
use crate::units::Bytes;

/// How a plan is laid out.
#[derive(Clone, Copy)]
pub struct Lowering<'a> {
    /// How large the slab may be.
    pub goal: Goal,
    /// A slab of this many bytes is small enough, whatever the goal.
    pub enough: Bytes,
    /// Placeholders that stay where they are.
    pub residents: &'a Residents,
    /// How hard to look for addresses.
    pub effort: Effort<'a>,
}

impl Lowering<'static> {
    /// Options for a goal, with nothing in the slab yet and the default effort.
    pub fn to(goal: Goal) -> Lowering<'static> {
        let enough = Bytes::ZERO;
        Lowering { goal, enough, residents: Residents::none(), effort: Effort::default() }
    }
}

impl<'a> Lowering<'a> {
    /// The same if this many bytes of the slab hold no buffer.
    pub fn beside(self, bytes: Bytes) -> Lowering<'a> {
        let goal = match self.goal {
            Goal::Within(slab) => Goal::Within(slab.saturating_sub(bytes)),
            Goal::Smallest => Goal::Smallest,
        };
        Lowering { goal, enough: self.enough.saturating_sub(bytes), ..self }
    }
}
