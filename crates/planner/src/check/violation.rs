//! Why a schedule must not run. Invariant: each way of being wrong is a variant of its own, which
//! says where it is and what was found there.

use thiserror::Error;

use crate::exit::coded;
use crate::id::{BufferId, LaneId, MicroBatchId, TierId, TransferId};
use crate::units::Bytes;

/// Why a schedule must not run.
#[derive(Debug, Error, PartialEq)]
pub enum Violation {
    /// The schedule names the hash of another graph.
    #[error("the schedule was made for another graph")]
    OtherGraph,
    /// The schedule mentions a buffer that it does not declare.
    #[error("the schedule mentions {buffer}, but has {count} buffers")]
    UnknownBuffer {
        /// The buffer.
        buffer: BufferId,
        /// The number of buffers that it declares.
        count: usize,
    },
    /// The schedule mentions a node that the graph does not have.
    #[error("the schedule mentions node {node}, but the graph has {count} nodes")]
    UnknownNode {
        /// The number of the node.
        node: u32,
        /// The number of nodes of the graph.
        count: usize,
    },
    /// A node that computes has a buffer before the step begins.
    #[error("the schedule gives `{node}` a buffer before the step, but it is no placeholder")]
    NotPlaceholder {
        /// The name of the node.
        node: String,
    },
    /// A placeholder has no buffer, or one of the batch has several.
    #[error(
        "placeholder `{node}` has {count} buffers: it must have one, or several where it is kept"
    )]
    Placeholder {
        /// The name of the node.
        node: String,
        /// The number of its buffers.
        count: usize,
    },
    /// A placeholder or a view is called.
    #[error("instruction {index}: `{node}` is a placeholder or a view: such nodes do not run")]
    DoesNotRun {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
    },
    /// A first run is marked as a recomputation, or the other way round.
    #[error("instruction {index}: `{node}` is marked as a {marked}, but {history}")]
    Marked {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
        /// What the instruction is marked as.
        marked: &'static str,
        /// Whether the node has run before, in words.
        history: &'static str,
    },
    /// A node that writes in place runs a second time.
    #[error("instruction {index}: `{node}` writes in place and must not run again")]
    MutatesAgain {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
    },
    /// Nodes draw from the running generator, or send and receive, in another order than the
    /// graph's.
    #[error(
        "instruction {index}: `{node}` draws from the running generator after `{later}`, which \
         comes after it in the graph"
    )]
    DrawsOutOfOrder {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
        /// The node that drew before it.
        later: String,
    },
    /// A call has another number of buffers than the node has operands.
    #[error("instruction {index}: `{node}` has {given} {what} buffers, but needs {needed}")]
    Operands {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
        /// Which operands: `input`, `output` or `workspace`.
        what: &'static str,
        /// The number of buffers of the call.
        given: usize,
        /// The number that the node needs.
        needed: usize,
    },
    /// A call reads a value from a buffer that does not hold it.
    #[error("instruction {index}: `{node}` reads `{value}` from {buffer}, which holds {found}")]
    NotThere {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
        /// The value, by the name of its producer.
        value: String,
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds instead, in words.
        found: String,
    },
    /// A call or a transfer writes to a buffer that holds something else.
    #[error("instruction {index}: `{node}` writes over {buffer}, which holds {found}")]
    Overwrites {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node, or the transfer.
        node: String,
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds, in words.
        found: String,
    },
    /// A call that writes in place leaves its result elsewhere than its operand.
    #[error(
        "instruction {index}: `{node}` must write the new version of `{value}` where the old one \
         lies"
    )]
    NewVersionElsewhere {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
        /// The value that is overwritten, by the node that produced its storage.
        value: String,
    },
    /// A call returns a view of an input in another buffer than that input's.
    #[error("instruction {index}: `{node}` must leave the view that it makes where its input lies")]
    ViewElsewhere {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
    },
    /// A buffer is smaller than what it is to hold.
    #[error(
        "instruction {index}: `{node}` needs {} bytes for {what}, but {buffer} has {}",
        .needed.0, .given.0
    )]
    TooSmall {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node, or the transfer.
        node: String,
        /// What is to be held, in words.
        what: String,
        /// The bytes that this needs.
        needed: Bytes,
        /// The buffer.
        buffer: BufferId,
        /// The bytes of the buffer.
        given: Bytes,
    },
    /// A buffer begins at an address that kernels cannot rely on.
    #[error("{buffer} lies at byte {address}, which is no multiple of {alignment}")]
    Misaligned {
        /// The buffer.
        buffer: BufferId,
        /// The address of its first byte.
        address: u64,
        /// The number of bytes that the address must be a multiple of.
        alignment: u64,
    },
    /// A buffer is allocated over another one that is held.
    #[error("instruction {index}: {buffer} overlaps {other}, which is held")]
    Overlap {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The buffer.
        buffer: BufferId,
        /// The buffer that is held.
        other: BufferId,
    },
    /// A buffer reaches beyond the end of the slab.
    #[error("{buffer} ends at byte {end}, outside the slab of {slab} bytes")]
    OutsideSlab {
        /// The buffer.
        buffer: BufferId,
        /// The address one past its last byte.
        end: u64,
        /// The bytes of the slab, or of the arena in another tier.
        slab: u64,
    },
    /// A buffer is freed that holds nothing.
    #[error("instruction {index} frees {buffer}, which is not held")]
    FreesNothing {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The buffer.
        buffer: BufferId,
    },
    /// A buffer is freed that must outlive the step.
    #[error("instruction {index} frees {buffer}, which holds {found}: it must outlive the step")]
    FreesKept {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds, in words.
        found: String,
    },
    /// More bytes are held on the device than the budget allows.
    #[error(
        "instruction {index} (`{node}`): {} are held, {} more than the budget of {} (in bytes: \
         {held}, {over}, {budget})", Bytes(*held), Bytes(*over), Bytes(*budget)
    )]
    OverBudget {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node that runs, or the verb of the instruction.
        node: String,
        /// The bytes held during the instruction.
        held: u64,
        /// The bytes beyond the budget.
        over: u64,
        /// The bytes of the budget.
        budget: u64,
    },
    /// The slab is larger than the budget.
    #[error(
        "the slab of {} exceeds the budget of {} (in bytes: {slab}, {budget})",
        Bytes(*slab), Bytes(*budget)
    )]
    SlabOverBudget {
        /// The bytes of the slab.
        slab: u64,
        /// The bytes of the budget.
        budget: u64,
    },
    /// A node of the graph is never called.
    #[error("`{node}` never runs")]
    NeverRuns {
        /// The name of the node.
        node: String,
    },
    /// An output is not on the device when the step is over.
    #[error("`{value}` is missing at the end of the step")]
    Missing {
        /// The value, by the node that produced its storage.
        value: String,
    },
    /// A kept storage is not, at its last version, where the step found it, so the next step would
    /// not find it there.
    #[error(
        "when the step is over, {buffer} holds {found}; the next step looks for the last version \
         of `{value}` there"
    )]
    NotWhereItBegan {
        /// The kept storage, by its placeholder.
        value: String,
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds, in words.
        found: String,
    },
    /// The source of a transfer in flight when a step begins is not the place of anything kept.
    #[error(
        "{transfer} is under way when a step begins, and moves {buffer}, in which nothing is kept \
         from step to step"
    )]
    CrossesUnkept {
        /// The transfer.
        transfer: TransferId,
        /// The source buffer.
        buffer: BufferId,
    },
    /// A transfer in flight when a step begins has arrived when it is over, so it is not in flight
    /// when the next one begins.
    #[error("{transfer} is under way when a step begins, but has arrived when the step is over")]
    ArrivesTooSoon {
        /// The transfer.
        transfer: TransferId,
    },
    /// The arena of a tier below the device is larger than the tier.
    #[error("the schedule takes {arena} bytes of {tier}, more than its capacity of {capacity}")]
    OverCapacity {
        /// The tier.
        tier: TierId,
        /// The bytes of the arena.
        arena: u64,
        /// The bytes that the tier has.
        capacity: u64,
    },
    /// A buffer holds something at the end of the step that does not outlive it.
    #[error("{buffer} still holds {found} at the end of the step")]
    Leaked {
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds, in words.
        found: String,
    },
    /// The schedule mentions a memory that the machine does not have.
    #[error(
        "the schedule moves tensors to {tier}, which the machine does not have: {count} of memory \
         in all; name a machine with the tier that the plan was made for (--tier)",
        count = memories(*count)
    )]
    UnknownTier {
        /// The tier.
        tier: TierId,
        /// The number of tiers of the machine.
        count: usize,
    },
    /// A transfer occupies a lane that the machine does not have.
    #[error("{transfer} occupies {lane}, but the machine has {count} lanes")]
    UnknownLane {
        /// The transfer.
        transfer: TransferId,
        /// The lane.
        lane: LaneId,
        /// The number of lanes of the machine.
        count: usize,
    },
    /// A call computes another part of the batch than its node does.
    #[error("a call of `{node}` is of {micro_batch}, but the node belongs to {expected}")]
    OtherMicroBatch {
        /// The name of the node that is called.
        node: String,
        /// The micro-batch of the call.
        micro_batch: MicroBatchId,
        /// The micro-batch of the node.
        expected: MicroBatchId,
    },
    /// Two transfers have the same number.
    #[error("instruction {index}: {transfer} was started before")]
    StartedBefore {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
    },
    /// An instruction waits for a transfer that was not started or is over.
    #[error("instruction {index} waits for {transfer}, which is not under way")]
    WaitsForNothing {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
    },
    /// The step ends while a transfer may still be under way.
    #[error("{transfer} is never waited for")]
    NeverWaitedFor {
        /// The transfer.
        transfer: TransferId,
    },
    /// A transfer moves a buffer that holds no storage.
    #[error("instruction {index}: {transfer} moves {buffer}, which holds {found}")]
    MovesNothing {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds, in words.
        found: String,
    },
    /// A transfer moves a version that a newer one has made useless.
    #[error(
        "instruction {index}: {transfer} moves {buffer}, which holds {found}, but version \
         {newest} is the newest"
    )]
    MovesStale {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
        /// The buffer.
        buffer: BufferId,
        /// What the buffer holds, in words.
        found: String,
        /// The newest version of that storage.
        newest: u32,
    },
    /// A transfer moves parts of a tier's blocks.
    #[error(
        "instruction {index}: {transfer} moves {buffer}, whose address and size must be multiples \
         of {} bytes, the block of the tier", .block.0
    )]
    PartOfBlock {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
        /// The buffer.
        buffer: BufferId,
        /// The bytes of a block.
        block: Bytes,
    },
    /// A buffer of a transfer is not in the tier at that end of the lane.
    #[error("instruction {index}: {transfer} occupies {lane}, but {buffer} lies in {tier}")]
    WrongTier {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
        /// The lane that the transfer occupies.
        lane: LaneId,
        /// The buffer.
        buffer: BufferId,
        /// The tier in which the buffer lies.
        tier: TierId,
    },
    /// A call uses a buffer that does not lie on the device.
    #[error("instruction {index}: `{node}` uses {buffer} in {tier}: calls compute on the device")]
    OffDevice {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node.
        node: String,
        /// The buffer.
        buffer: BufferId,
        /// The tier in which the buffer lies.
        tier: TierId,
    },
    /// A buffer is changed while a transfer reads or fills it.
    #[error("instruction {index} ({user}) changes {buffer} while {transfer} is under way")]
    InFlight {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The name of the node that changes it, or the verb of the instruction.
        user: String,
        /// The buffer.
        buffer: BufferId,
        /// The transfer.
        transfer: TransferId,
    },
    /// A lane moves two things at once.
    #[error("{lane} takes up {second} before {first} has arrived: it moves one after another")]
    LaneTwice {
        /// The lane.
        lane: LaneId,
        /// The transfer that is under way.
        first: TransferId,
        /// The one that begins during it.
        second: TransferId,
    },
    /// A transfer begins before it was started, or arrives sooner than its lane allows.
    #[error("instruction {index}: {transfer} is timed sooner than it can begin or arrive")]
    OutOfTime {
        /// The position of the instruction in the schedule.
        index: usize,
        /// The transfer.
        transfer: TransferId,
    },
    /// A call begins before the one before it is over, or before what it waits for has arrived.
    #[error("instruction {index} is timed before what it waits for is over")]
    CallOutOfTime {
        /// The position of the instruction in the schedule.
        index: usize,
    },
}

coded!(Violation: Violation);

/// A number of memories, in words.
fn memories(count: usize) -> String {
    match count {
        1 => "one tier".to_string(),
        count => format!("{count} tiers"),
    }
}
