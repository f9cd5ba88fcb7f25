//! How tensors are placed. Invariant: settings that passed [`Settings::check`] describe a region
//! whose bytes can be added up.

use tightfit::units::Bytes;

use super::error::ResidencyError;
use super::packing::MOST_CHUNKS;

/// Where tensors lie while nothing computes with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// In the host tier: an access evicts everything else.
    Host,
    /// On the device: nothing is evicted.
    Device,
    /// On the device as far as they fit.
    #[default]
    Auto,
}

/// Which rules say what the policy [`Policy::Auto`] evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResidencyVariant {
    /// As in ColossalAI's Gemini: in the order of registration in the warm-up, what is used last in
    /// the same iteration first when steady; nothing is brought ahead.
    Published,
    /// Next uses extend into the following iteration, and blocks are brought ahead of them.
    #[default]
    Ours,
}

/// What may be evicted for blocks that are brought ahead of their use, in the words of Cao, Felten,
/// Karlin and Li ("A study of integrated prefetching and caching strategies", SIGMETRICS 1995).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ahead {
    /// What would be evicted at the use: no additional byte is moved. If an access evicts what was
    /// used just before it, as in a pass that is only ever made forward, nothing is brought ahead.
    #[default]
    Conservative,
    /// Whatever is used later than the block that is brought: as much as possible is brought ahead,
    /// and more bytes may be moved.
    Aggressive,
}

/// How tensors are placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The bytes of each chunk.
    pub chunk: Bytes,
    /// The alignment of tensors within chunks: a power of two that divides the chunk.
    pub alignment: u64,
    /// Number of chunks that the region of the device holds.
    pub slots: u32,
    /// The bytes that chunks and non-model data share. If non-model data has memory of its own,
    /// those of the region, and no non-model bytes are reported.
    pub capacity: Bytes,
    /// The share of the capacity, from 0 to 1, that is left to non-model data until its size is
    /// known.
    pub warm_up_non_model: f64,
    /// The share of the capacity, from 0 to 1, that the published rules use when steady.
    pub steady_capacity: f64,
    /// Where tensors lie while nothing computes with them.
    pub policy: Policy,
    /// The rules of [`Policy::Auto`].
    pub variant: ResidencyVariant,
    /// Most bytes on the device ahead of their use, for our rules; if zero, every block comes when
    /// it is needed.
    pub prefetch: Bytes,
    /// What may be evicted for them.
    pub ahead: Ahead,
}

impl Settings {
    /// A region of its own, by our rules.
    pub fn region(chunk: Bytes, slots: u32) -> Settings {
        Settings {
            chunk,
            alignment: 1,
            slots,
            capacity: Bytes(chunk.0.saturating_mul(u64::from(slots))),
            warm_up_non_model: 0.0,
            steady_capacity: 1.0,
            policy: Policy::Auto,
            variant: ResidencyVariant::Ours,
            prefetch: Bytes::ZERO,
            ahead: Ahead::Conservative,
        }
    }

    /// As published: a fifth of the capacity for model data in the warm-up, and nine tenths for
    /// everything when steady.
    pub fn published(chunk: Bytes, slots: u32, capacity: Bytes) -> Settings {
        Settings {
            capacity,
            warm_up_non_model: 0.8,
            steady_capacity: 0.9,
            variant: ResidencyVariant::Published,
            ..Settings::region(chunk, slots)
        }
    }

    /// The bytes of this many slots.
    pub(super) fn bytes(&self, slots: u64) -> Bytes {
        Bytes(slots.saturating_mul(self.chunk.0))
    }

    /// Whether the settings can be used.
    ///
    /// # Errors
    /// The region is too large, or a share is not between 0 and 1. The chunk is checked when
    /// tensors are packed.
    pub fn check(&self) -> Result<(), ResidencyError> {
        let bytes = u128::from(self.chunk.0) * u128::from(self.slots);
        if self.slots > MOST_CHUNKS || bytes > u128::from(Bytes::LIMIT.0) {
            let (slots, chunk) = (self.slots, self.chunk);
            return Err(ResidencyError::Region { slots, chunk, most: MOST_CHUNKS });
        }
        let shares = [
            ("warm_up_non_model", self.warm_up_non_model),
            ("steady_capacity", self.steady_capacity),
        ];
        for (name, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                return Err(ResidencyError::Share { name, value });
            }
        }
        Ok(())
    }
}
