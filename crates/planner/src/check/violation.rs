//! Why a schedule must not run. Invariant: each way of being wrong is a variant of its own, which
//! says where it is and what was found there.

use thiserror::Error;

use crate::id::{BufferId, LaneId, MicroBatchId, TierId, TransferId};
use crate::units::Bytes;

/// Why a schedule must not run.
#[derive(Debug, Error, PartialEq)]
#[allow(missing_docs)] // each message says what its fields are
pub enum Violation {
    #[error("the schedule was made for another graph")]
    OtherGraph,
    #[error("the schedule mentions {buffer}, but has {count} buffers")]
    UnknownBuffer { buffer: BufferId, count: usize },
    #[error("the schedule mentions node {node}, but the graph has {count} nodes")]
    UnknownNode { node: u32, count: usize },
    #[error("the schedule gives `{node}` a buffer before the step, but it is no placeholder")]
    NotPlaceholder { node: String },
    #[error("placeholder `{node}` has {count} buffers: it must have one")]
    Placeholder { node: String, count: usize },
    #[error("instruction {index}: `{node}` is a placeholder or a view: such nodes do not run")]
    DoesNotRun { index: usize, node: String },
    #[error("instruction {index}: `{node}` is marked as a {marked}, but {history}")]
    Marked { index: usize, node: String, marked: &'static str, history: &'static str },
    #[error("instruction {index}: `{node}` writes in place and must not run again")]
    MutatesAgain { index: usize, node: String },
    #[error("instruction {index}: `{node}` has {given} {what} buffers, but needs {needed}")]
    Operands { index: usize, node: String, what: &'static str, given: usize, needed: usize },
    #[error("instruction {index}: `{node}` reads `{value}` from {buffer}, which holds {found}")]
    NotThere { index: usize, node: String, value: String, buffer: BufferId, found: String },
    #[error("instruction {index}: `{node}` writes over {buffer}, which holds {found}")]
    Overwrites { index: usize, node: String, buffer: BufferId, found: String },
    #[error(
        "instruction {index}: `{node}` must write the new version of `{value}` where the old one \
         lies"
    )]
    NewVersionElsewhere { index: usize, node: String, value: String },
    #[error("instruction {index}: `{node}` must leave the view that it makes where its input lies")]
    ViewElsewhere { index: usize, node: String },
    #[error("instruction {index}: `{node}` needs {} bytes for {what}, but {buffer} has {}", .needed.0, .given.0)]
    TooSmall {
        index: usize,
        node: String,
        what: String,
        needed: Bytes,
        buffer: BufferId,
        given: Bytes,
    },
    #[error("{buffer} lies at byte {address}, which is no multiple of {alignment}")]
    Misaligned { buffer: BufferId, address: u64, alignment: u64 },
    #[error("instruction {index}: {buffer} overlaps {other}, which is held")]
    Overlap { index: usize, buffer: BufferId, other: BufferId },
    #[error("{buffer} ends at byte {end}, outside the slab of {slab} bytes")]
    OutsideSlab { buffer: BufferId, end: u64, slab: u64 },
    #[error("instruction {index} frees {buffer}, which is not held")]
    FreesNothing { index: usize, buffer: BufferId },
    #[error("instruction {index} frees {buffer}, which holds {found}: it must outlive the step")]
    FreesKept { index: usize, buffer: BufferId, found: String },
    #[error(
        "instruction {index} (`{node}`): {held} bytes are held, {over} more than the budget of \
         {budget}"
    )]
    OverBudget { index: usize, node: String, held: u64, over: u64, budget: u64 },
    #[error("the slab of {slab} bytes exceeds the budget of {budget}")]
    SlabOverBudget { slab: u64, budget: u64 },
    #[error("`{node}` never runs")]
    NeverRuns { node: String },
    #[error("`{value}` is missing at the end of the step")]
    Missing { value: String },
    #[error("{buffer} still holds {found} at the end of the step")]
    Leaked { buffer: BufferId, found: String },
    #[error("the schedule mentions {tier}, but the machine has {count} tiers")]
    UnknownTier { tier: TierId, count: usize },
    #[error("{transfer} occupies {lane}, but the machine has {count} lanes")]
    UnknownLane { transfer: TransferId, lane: LaneId, count: usize },
    #[error("the schedule mentions {micro_batch}, but the step has one micro-batch, number 0")]
    UnknownMicroBatch { micro_batch: MicroBatchId },
    #[error("instruction {index}: {transfer} was started before")]
    StartedBefore { index: usize, transfer: TransferId },
    #[error("instruction {index} waits for {transfer}, which is not under way")]
    WaitsForNothing { index: usize, transfer: TransferId },
    #[error("{transfer} is never waited for")]
    NeverWaitedFor { transfer: TransferId },
    #[error("instruction {index}: {transfer} moves {buffer}, which holds {found}")]
    MovesNothing { index: usize, transfer: TransferId, buffer: BufferId, found: String },
    #[error("instruction {index}: {transfer} occupies {lane}, but {buffer} lies in {tier}")]
    WrongTier { index: usize, transfer: TransferId, lane: LaneId, buffer: BufferId, tier: TierId },
    #[error("instruction {index}: `{node}` uses {buffer} in {tier}: calls compute on the device")]
    OffDevice { index: usize, node: String, buffer: BufferId, tier: TierId },
    #[error("instruction {index} ({user}) changes {buffer} while {transfer} is under way")]
    InFlight { index: usize, user: String, buffer: BufferId, transfer: TransferId },
    #[error("instruction {index}: {tier} holds {held} bytes, more than its capacity of {capacity}")]
    OverCapacity { index: usize, tier: TierId, held: u64, capacity: u64 },
}
