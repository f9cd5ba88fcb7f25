//! Slots in a row for the blocks of an access. Invariant: what is in use stays where it is; other
//! blocks move within the region as long as that is enough, and to the host tier otherwise.

use super::error::ResidencyError;
use super::id::{BlockId, SlotId};
use super::moves::Purpose;
use super::occupancy::Occupancy;

/// Copying within the device is at least this many times as fast as copying to it, over any link
/// that machines have today.
const FASTER_WITHIN: u32 = 16;

/// Ways to free slots in a row, in the order in which they are tried.
const WAYS: [fn(&mut Occupancy, u32, u64); 3] = [
    |occupancy, chunks, time| clear_run(occupancy, chunks, time, false),
    |occupancy, chunks, _| close_gaps(occupancy, chunks),
    |occupancy, chunks, time| clear_run(occupancy, chunks, time, true),
];

/// Brings what is wanted and not on the device. There are enough free slots, but maybe not in a
/// row. `time` is when the access is, as next uses are counted.
///
/// # Errors
/// Even with everything movable out of the way, what is in use leaves no such row.
pub fn place(
    occupancy: &mut Occupancy,
    wanted: &[BlockId],
    time: u64,
) -> Result<(), ResidencyError> {
    for block in missing(occupancy, wanted) {
        let mut is_there = occupancy.bring(block, Purpose::Demand);
        for way in WAYS {
            if !is_there {
                way(occupancy, occupancy.chunks(block), time);
                is_there = occupancy.bring(block, Purpose::Demand);
            }
        }
        if !is_there {
            return anew(occupancy, wanted);
        }
    }
    Ok(())
}

/// The missing blocks, the largest first: the more slots in a row, the harder they are to find.
fn missing(occupancy: &Occupancy, wanted: &[BlockId]) -> Vec<BlockId> {
    let mut missing: Vec<BlockId> =
        wanted.iter().copied().filter(|&block| !occupancy.is_on_device(block)).collect();
    missing.sort_by_key(|&block| std::cmp::Reverse(occupancy.chunks(block)));
    missing
}

/// Clears the run of slots that is cheapest to clear. What cannot go elsewhere on the device is
/// evicted, if it may be; otherwise everything stays.
fn clear_run(occupancy: &mut Occupancy, chunks: u32, time: u64, may_evict: bool) {
    // A block that is used soon costs more, and any block costs more than none.
    let cost = |block: BlockId| {
        let standing = occupancy.standing(block);
        let until = standing.key.saturating_sub(time).max(1);
        (standing.users == 0).then_some(1 + u64::from(u32::MAX) / until)
    };
    let Some(first) = occupancy.region.cheapest_run(chunks, cost) else { return };
    let made = occupancy.moves.len();
    let mut is_clear = true;
    for slot in first.as_u32()..first.as_u32() + chunks {
        let Some(block) = occupancy.region.owner(SlotId::from_u32(slot)) else { continue };
        occupancy.region.hide(first, chunks);
        if occupancy.relocate(block, Purpose::Demand) {
            continue;
        }
        if !may_evict || occupancy.standing(block).wanted {
            is_clear = false;
            break;
        }
        occupancy.evict(block, Purpose::Demand);
    }
    occupancy.region.show(first, chunks);
    if !is_clear {
        occupancy.undo(made);
    }
}

/// Moves blocks together so that the free slots between them are in a row, if that takes no longer
/// than evicting as many chunks as are needed.
fn close_gaps(occupancy: &mut Occupancy, chunks: u32) {
    let stays = |block: BlockId| occupancy.standing(block).users > 0;
    let most = chunks.saturating_mul(FASTER_WITHIN);
    let Some(span) = occupancy.region.shortest_span(chunks, most, stays) else { return };
    let (mut slot, mut free) = (span.start, span.start);
    while slot < span.end {
        let Some(block) = occupancy.region.owner(SlotId::from_u32(slot)) else {
            slot += 1;
            continue;
        };
        slot += occupancy.chunks(block);
        occupancy.relocate_to(block, SlotId::from_u32(free), Purpose::Demand);
        free += occupancy.chunks(block);
    }
}

/// Takes everything off the device that is not in use, and brings what is wanted.
fn anew(occupancy: &mut Occupancy, wanted: &[BlockId]) -> Result<(), ResidencyError> {
    let unused: Vec<BlockId> = occupancy
        .blocks()
        .filter(|(_, standing)| standing.slot.is_some() && standing.users == 0)
        .map(|(block, _)| block)
        .collect();
    for block in unused {
        occupancy.evict(block, Purpose::Demand);
    }
    for block in missing(occupancy, wanted) {
        if !occupancy.bring(block, Purpose::Demand) {
            let free = occupancy.region.slots() - occupancy.region.taken();
            return Err(ResidencyError::Fragmented { chunks: occupancy.chunks(block), free });
        }
    }
    Ok(())
}
