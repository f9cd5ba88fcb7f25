//! Offsets for the allocations of a step. Invariant: a `Placement` exists only checked: no two
//! allocations that are held at the same time overlap, and each lies within the slab, aligned. The
//! check shares nothing with the code that finds offsets.

use thiserror::Error;

use crate::backing::Size;
use crate::tenants::{Offset, Tenants};
use crate::trace::{Life, Settled};

/// Offsets are multiples of this many bytes: PyTorch's own allocator for CUDA aligns to as much,
/// and kernels choose their code by alignment.
pub const ALIGNMENT: usize = 512;

/// Why offsets are not valid for these allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MisplacedError {
    /// There is not one offset for each allocation that can lie in the slab.
    #[error("{offsets} offsets were given for {allocations} allocations")]
    Count {
        /// How many there are.
        offsets: usize,
        /// How many there should be.
        allocations: usize,
    },
    /// An offset that is no multiple of the alignment.
    #[error("allocation {0} is not aligned")]
    Misaligned(usize),
    /// An allocation that extends beyond the slab.
    #[error("allocation {0} does not lie within the slab")]
    Outside(usize),
    /// An allocation that overlaps another one held at the same time.
    #[error("allocation {0} overlaps another one that is held at the same time")]
    Overlap(usize),
}

/// Where each allocation of a step lies, checked.
#[derive(Clone, Debug)]
pub struct Placement {
    settled: Settled,
    /// For each allocation of the step its offset; absent if it is passed on.
    offsets: Vec<Option<Offset>>,
    slab: Size,
    placed: usize,
}

impl Placement {
    /// Checks offsets, one for each of [`Settled::intervals`], in a slab of a size.
    pub fn checked(
        settled: Settled,
        offsets: &[Offset],
        slab: Size,
    ) -> Result<Placement, MisplacedError> {
        let lives = &settled.allocations;
        let allocations = lives.iter().filter(|(_, life)| *life != Life::Lasting).count();
        if allocations != offsets.len() {
            return Err(MisplacedError::Count { offsets: offsets.len(), allocations });
        }
        let mut given = offsets.iter().copied();
        let of_all: Vec<Option<Offset>> = lives
            .iter()
            .map(|&(_, life)| if life == Life::Lasting { None } else { given.next() })
            .collect();
        let mut tenants = Tenants::default();
        let mut leaving: Vec<Vec<Offset>> = vec![Vec::new(); lives.len() + 1];
        for (index, (&(size, life), offset)) in lives.iter().zip(&of_all).enumerate() {
            for offset in &leaving[index] {
                tenants.release(*offset);
            }
            let Some(offset) = *offset else { continue };
            if !offset.0.is_multiple_of(ALIGNMENT) {
                return Err(MisplacedError::Misaligned(index));
            }
            if offset.0.checked_add(size.0).is_none_or(|end| end > slab.0) {
                return Err(MisplacedError::Outside(index));
            }
            tenants.claim(offset, size).map_err(|_| MisplacedError::Overlap(index))?;
            if let Life::Until(until) = life
                && let Some(leaving) = leaving.get_mut(until.max(index + 1))
            {
                leaving.push(offset);
            }
        }
        Ok(Placement { settled, offsets: of_all, slab, placed: allocations })
    }

    /// The size of the slab that it needs.
    pub fn slab(&self) -> Size {
        self.slab
    }

    /// How many allocations lie in the slab.
    pub fn placed(&self) -> usize {
        self.placed
    }

    /// The recordings of the step.
    pub fn settled(&self) -> &Settled {
        &self.settled
    }

    /// The size and the offset of an allocation of the step; absent after the last one.
    pub(crate) fn allocation(&self, index: usize) -> Option<(Size, Option<Offset>)> {
        Some((self.settled.allocations.get(index)?.0, *self.offsets.get(index)?))
    }

    /// How many allocations have been made when a pass ends; absent if there is no such pass.
    pub(crate) fn end(&self, pass: usize) -> Option<usize> {
        self.settled.passes.get(pass).copied()
    }
}
