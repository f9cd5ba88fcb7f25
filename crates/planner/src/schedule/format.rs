//! tightfit-plan/1 on disk: a schedule as JSON, and why bytes are not one. Invariant: reading what
//! was written gives the same schedule.
//!
//! ```text
//! { "format": "tightfit-plan/1", "graph": SHA-256, "graph_name": …, "planner": …,
//!   "budget_bytes": …, "slab_bytes": …, "below_bytes": { tier: bytes, … }, "rank": …,
//!   "buffers": [[bytes, address], [bytes, address, tier], …],
//!   "placeholders": { NODE NAME: buffer, NODE NAME: [buffers], … },
//!   "instructions": [
//!     ["run" | "recompute", NODE NAME, [input buffers], [output buffers], workspace or null],
//!     ["run" | "recompute", NODE NAME, …, workspace or null, micro-batch],
//!     ["free", buffer],
//!     ["start", transfer, lane, "copy", from buffer, to buffer],
//!     ["wait", transfer], …] }
//! ```
//!
//! Tier 0 (the device), micro-batch 0, rank 0 and tiers without an arena are omitted. A placeholder
//! that lies in several buffers when the step begins, such as on the device and in a tier below,
//! has a list of them.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};
use thiserror::Error;

use crate::exit::coded;
use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId};
use crate::reading::Excess;
use crate::schedule::instruction::{Buffer, Instruction, Schedule};
use crate::schedule::transfer::{Movement, Transfer};
use crate::units::Bytes;

/// The format for reading and writing.
pub const FORMAT: &str = "tightfit-plan/1";

/// Why bytes are not a plan for a graph.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The text is not JSON, or does not have the structure of the format.
    #[error("not a {FORMAT} file: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is longer than any plan.
    #[error(transparent)]
    Excess(#[from] Excess),
    /// The file is of another format, or of another version of it.
    #[error("the format is {found}, but this program reads \"{FORMAT}\"")]
    Version {
        /// The format that the file names, as JSON.
        found: String,
    },
    /// The plan was made for another graph.
    #[error(
        "the plan was made for another graph: it names hash {planned}, the graph's is {actual}; \
         pass that graph, with batches of the same size and number and the same --split, or \
         plan this one"
    )]
    OtherGraph {
        /// The hash of the graph that the plan was made for.
        planned: String,
        /// The hash of the graph that was given.
        actual: String,
    },
    /// The plan names a node that the graph does not have.
    #[error("the plan names node `{node}`, which the graph does not have")]
    UnknownNode {
        /// The name of the node.
        node: String,
    },
    /// The plan names a buffer that it does not declare.
    #[error("the plan names buffer {buffer}, but has {count} buffers")]
    UnknownBuffer {
        /// The number of the buffer.
        buffer: u64,
        /// The number of buffers that it declares.
        count: usize,
    },
    /// The buffer of a placeholder is neither a number nor a list of numbers.
    #[error("the plan gives placeholder `{node}` no buffer, but {found}")]
    Placeholder {
        /// The name of the placeholder.
        node: String,
        /// The JSON found in place of the number.
        found: String,
    },
    /// An instruction does not have the structure of any instruction.
    #[error(
        "instruction {index} is not one of [\"run\"|\"recompute\", node, inputs, outputs, \
         workspace], [\"free\", buffer], [\"start\", transfer, lane, \"copy\", from, to] and \
         [\"wait\", transfer]"
    )]
    Instruction {
        /// The position of the instruction in the schedule.
        index: usize,
    },
    /// The sizes of the plan are beyond what any graph may have.
    #[error("sizes of the plan exceed {} bytes", Bytes::LIMIT.0)]
    TooLarge,
    /// The number of a tier, rank, lane, transfer or micro-batch is too large for a table.
    #[error("the plan speaks of {what} {number}; such numbers are below {limit}")]
    Number {
        /// The kind of thing that has the number.
        what: &'static str,
        /// The number that the plan gives.
        number: u64,
        /// Exclusive upper limit; for transfers the number of the plan's instructions.
        limit: u64,
    },
}

coded!(Content: PlanFileError);

/// The schedule as tightfit-plan/1.
pub fn write(graph: &Graph, schedule: &Schedule) -> Json {
    let name = |node: NodeId| &graph.nodes()[node].name;
    let mut buffers_of: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
    for &(node, buffer) in &schedule.placeholders {
        buffers_of.entry(node).or_default().push(buffer.as_u32());
    }
    let placeholders: Map<String, Json> = buffers_of
        .into_iter()
        .map(|(node, buffers)| match buffers[..] {
            [buffer] => (name(node).clone(), json!(buffer)),
            _ => (name(node).clone(), json!(buffers)),
        })
        .collect();
    let buffer = |buffer: &Buffer| match buffer.tier {
        DEVICE => json!([buffer.bytes, buffer.address]),
        tier => json!([buffer.bytes, buffer.address, tier.as_u32()]),
    };
    let mut plan = json!({
        "format": FORMAT,
        "graph": schedule.graph,
        "graph_name": graph.name(),
        "planner": schedule.planner,
        "budget_bytes": schedule.budget,
        "slab_bytes": schedule.slab,
        "buffers": schedule.buffers.values().map(buffer).collect::<Vec<_>>(),
        "placeholders": placeholders,
        "instructions": schedule
            .instructions
            .iter()
            .map(|instruction| write_instruction(graph, instruction))
            .collect::<Vec<_>>(),
    });
    let below: Map<String, Json> = schedule
        .below
        .iter()
        .filter(|(_, bytes)| **bytes > Bytes::ZERO)
        .map(|(tier, bytes)| (tier.as_u32().to_string(), json!(bytes)))
        .collect();
    if !below.is_empty() {
        plan["below_bytes"] = Json::Object(below);
    }
    if schedule.rank.as_u32() > 0 {
        plan["rank"] = json!(schedule.rank.as_u32());
    }
    plan
}

fn write_instruction(graph: &Graph, instruction: &Instruction) -> Json {
    let ids = |buffers: &[BufferId]| buffers.iter().map(|id| id.as_u32()).collect::<Vec<_>>();
    let verb = instruction.verb();
    match instruction {
        Instruction::Run(call) | Instruction::Recompute(call) => {
            let name = &graph.nodes()[call.node].name;
            let workspace = call.workspace.map(|buffer| buffer.as_u32());
            let (inputs, outputs) = (ids(&call.inputs), ids(&call.outputs));
            match call.micro_batch.as_u32() {
                0 => json!([verb, name, inputs, outputs, workspace]),
                number => json!([verb, name, inputs, outputs, workspace, number]),
            }
        }
        Instruction::Free(buffer) => json!([verb, buffer.as_u32()]),
        Instruction::Start(Transfer { id, lane, movement }) => match movement {
            Movement::Copy { from, to } => {
                json!([verb, id.as_u32(), lane.as_u32(), "copy", from.as_u32(), to.as_u32()])
            }
        },
        Instruction::Wait(transfer) => json!([verb, transfer.as_u32()]),
    }
}
