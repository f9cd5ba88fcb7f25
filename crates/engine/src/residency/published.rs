//! Which blocks the published policy evicts. Invariant: it depends on the recorded order, on what
//! is on the device now, and on nothing that was decided before.
//!
//! Source: ColossalAI's `AutoTensorPlacementPolicy.evict_tensors`, with its floating-point
//! arithmetic; there the sorted list of tensors is cached, which replays an outdated layout.

use tightfit::units::Bytes;

use super::error::ResidencyError;
use super::id::BlockId;
use super::order::Order;

/// The bytes that model data may take in the warm-up, in which non-model data is given a share.
pub fn warm_up_budget(capacity: Bytes, non_model_share: f64) -> f64 {
    let capacity = capacity.0 as f64;
    capacity - capacity * non_model_share
}

/// The bytes that model data may take before an access whose non-model bytes are known.
pub fn steady_budget(capacity: Bytes, share: f64, non_model: Bytes) -> f64 {
    capacity.0 as f64 * share - non_model.0 as f64
}

/// Blocks by their next use after an access, the farthest first; what is not used again within the
/// iteration counts as used at its end. Equals keep their order.
pub fn by_next_use(order: &Order, position: u32, blocks: &[BlockId]) -> Vec<BlockId> {
    let next =
        |block| order.next_use(block, position.saturating_add(1)).unwrap_or(order.accesses());
    let mut sorted: Vec<(u32, BlockId)> =
        blocks.iter().map(|&block| (next(block), block)).collect();
    sorted.sort_by_key(|&(next, _)| std::cmp::Reverse(next));
    sorted.into_iter().map(|(_, block)| block).collect()
}

/// The first of `candidates`, given with their bytes, whose eviction lets `demand` fit in addition
/// to `used` within the budget. If `used` alone exceeds it, some are evicted even for no demand.
///
/// # Errors
/// All of them together do not suffice.
pub fn evictions(
    candidates: impl IntoIterator<Item = (BlockId, Bytes)>,
    budget: f64,
    used: Bytes,
    demand: Bytes,
) -> Result<Vec<BlockId>, ResidencyError> {
    // The smallest whole number of bytes that is at least demand − (budget − used), exactly.
    let needed = i128::from(demand.0) + i128::from(used.0) - budget.floor() as i128;
    let needed = Bytes(u64::try_from(needed.max(0)).unwrap_or(u64::MAX));
    let (mut evicted, mut freed) = (Vec::new(), Bytes::ZERO);
    for (block, bytes) in candidates {
        if freed >= needed {
            break;
        }
        evicted.push(block);
        freed = Bytes(freed.0.saturating_add(bytes.0));
    }
    if freed < needed {
        return Err(ResidencyError::NotEnough { needed, freed });
    }
    Ok(evicted)
}
