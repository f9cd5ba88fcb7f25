//! Whether the times of a timeline are possible. Invariant: no lane moves two things at once, no
//! transfer begins before its start or moves faster than its link, and no call that comes after a
//! wait begins before what was waited for has arrived.
//!
//! The timeline is checked against the schedule by separate sums, so that neither has to be
//! trusted.

use cranelift_entity::SecondaryMap;

use crate::check::violation::Violation;
use crate::id::{LaneId, TransferId};
use crate::profile::Profile;
use crate::schedule::{Instruction, Movement, Schedule};
use crate::timeline::{Timeline, TransferInTime};
use crate::units::Seconds;

/// Most that rounding may amount to, as a fraction of the step.
const ROUNDING: f64 = 1e-9;

/// Refuses a timeline that the schedule cannot have on the profile's machine.
///
/// # Errors
/// [`Violation::LaneTwice`] and [`Violation::OutOfTime`].
pub fn lanes(profile: &Profile, schedule: &Schedule, timeline: &Timeline) -> Result<(), Violation> {
    let mut times: SecondaryMap<TransferId, Option<TransferInTime>> = SecondaryMap::new();
    let mut last: SecondaryMap<LaneId, Option<TransferInTime>> = SecondaryMap::new();
    // What crosses the border is still in flight when the next step begins.
    let step = timeline.seconds.0;
    let is_before = |time: f64, other: f64| other - time > ROUNDING * step.max(other);
    for crossing in schedule.crossing() {
        let found = timeline.transfers.iter().find(|transfer| transfer.id == crossing.id);
        if let Some(&transfer) = found {
            let before = TransferInTime { start: Seconds(transfer.start.0 - step), ..transfer };
            times[transfer.id] = Some(before);
            last[transfer.lane] = Some(before);
        }
    }
    for transfer in &timeline.transfers {
        if let Some(before) = last[transfer.lane].replace(*transfer)
            && is_before(transfer.start.0, end(&before))
        {
            let (lane, first, second) = (transfer.lane, before.id, transfer.id);
            return Err(Violation::LaneTwice { lane, first, second });
        }
    }
    let mut started = timeline.transfers.iter();
    let mut calls = timeline.calls.iter();
    // No later instruction happens before this.
    let mut now = 0.0;
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        let late = |transfer| Violation::OutOfTime { index, transfer };
        match instruction {
            Instruction::Run(_) | Instruction::Recompute(_) => {
                let Some(call) = calls.next() else { continue };
                if is_before(call.start.0, now) {
                    return Err(Violation::CallOutOfTime { index });
                }
                now = call.start.0 + call.seconds.0;
            }
            Instruction::Free(_) => {}
            Instruction::Start(transfer) => {
                let Some(time) = started.next() else { return Err(late(transfer.id)) };
                let Movement::Copy { from, .. } = transfer.movement;
                let link = profile.hierarchy.lanes[transfer.lane].link;
                let least = link.seconds(schedule.buffers[from].bytes).0;
                let is_other = time.id != transfer.id || time.lane != transfer.lane;
                if is_other || is_before(time.start.0, now) || is_before(time.seconds.0, least) {
                    return Err(late(transfer.id));
                }
                times[transfer.id] = Some(*time);
            }
            Instruction::Wait(id) => {
                let Some(time) = times[*id] else { return Err(late(*id)) };
                now = f64::max(now, end(&time));
            }
        }
    }
    Ok(())
}

fn end(transfer: &TransferInTime) -> f64 {
    transfer.start.0 + transfer.seconds.0
}
