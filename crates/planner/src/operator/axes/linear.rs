//! Extents that follow from a number of steps. Invariant: [`Linear::of`] and
//! [`Linear::in_terms_of`] undo each other, as far as that can be done in whole numbers.

/// `outer` × steps × `block` + `more`: an extent that follows from the steps along an axis. In the
/// merged dimension of a batch, its rows and their columns, the batch has `outer` 1 and all
/// elements of a sample as its `block`; the columns have all rows of all samples as `outer`, and
/// `block` 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linear {
    /// How often the axis is repeated.
    pub outer: u64,
    /// Consecutive elements for each step along the axis.
    pub block: u64,
    /// Elements beyond those, as of a padding; fewer, if it is negative.
    pub more: i64,
}

impl Linear {
    /// As many as there are steps.
    pub const ONE: Linear = Linear { outer: 1, block: 1, more: 0 };

    /// As many as there are steps, and `more`.
    pub const fn beyond(more: i64) -> Linear {
        Linear { more, ..Linear::ONE }
    }

    /// The extent at this many steps; `None` if it is negative, or too large.
    pub fn at(self, steps: u64) -> Option<u64> {
        self.outer.checked_mul(steps)?.checked_mul(self.block)?.checked_add_signed(self.more)
    }

    /// The extent as it follows from what `steps` follow from.
    pub fn of(self, steps: Linear) -> Option<Linear> {
        let each = self.outer.checked_mul(self.block)?;
        Some(Linear {
            outer: self.outer.checked_mul(steps.outer)?,
            block: steps.block.checked_mul(self.block)?,
            more: steps.more.checked_mul(i64::try_from(each).ok()?)?.checked_add(self.more)?,
        })
    }

    /// The steps along an axis, where this is what the extent follows from, and `extent` is how it
    /// follows from the steps; `None` if they are elsewhere in the extent.
    pub fn in_terms_of(self, extent: Linear) -> Option<Linear> {
        let each = i64::try_from(extent.outer.checked_mul(extent.block)?).ok()?;
        let more = self.more.checked_sub(extent.more)?;
        let divides = self.outer.is_multiple_of(extent.outer)
            && self.block.is_multiple_of(extent.block)
            && more.checked_rem(each)? == 0;
        let (outer, block) = (self.outer / extent.outer, self.block / extent.block);
        divides.then(|| Linear { outer, block, more: more / each })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tightfit_testing::config;

    use super::*;

    fn linear() -> impl Strategy<Value = Linear> {
        (1u64..9, 1u64..9, -3i64..4).prop_map(|(outer, block, more)| Linear { outer, block, more })
    }

    proptest! {
        #![proptest_config(config(256))]

        #[test]
        fn what_follows_from_what_follows(steps in linear(), extent in linear(), size in 3u64..40) {
            let whole = extent.of(steps).unwrap();
            prop_assert_eq!(steps.at(size).and_then(|steps| extent.at(steps)), whole.at(size));
            prop_assert_eq!(whole.in_terms_of(extent), Some(steps));
        }
    }
}
