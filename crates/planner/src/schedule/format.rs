//! tightfit-plan/1 on disk: a schedule as JSON. Invariant: reading what was written gives the same
//! schedule; a file that names nodes or buffers that do not exist is an error that says which.
//! Whether the schedule is right is for `check` alone to say.
//!
//! ```text
//! { "format": "tightfit-plan/1", "graph": SHA-256, "graph_name": …, "planner": …,
//!   "budget_bytes": …, "slab_bytes": …, "below_bytes": { tier: bytes, … }, "rank": …,
//!   "buffers": [[bytes, address], [bytes, address, tier], …],
//!   "placeholders": { NODE NAME: buffer, … },
//!   "instructions": [
//!     ["run" | "recompute", NODE NAME, [input buffers], [output buffers], workspace or null],
//!     ["run" | "recompute", NODE NAME, …, workspace or null, micro-batch],
//!     ["free", buffer],
//!     ["start", transfer, lane, "copy", from buffer, to buffer],
//!     ["wait", transfer], …] }
//! ```
//!
//! Tier 0 (the device), micro-batch 0, rank 0 and tiers without an arena are left out.

use std::collections::{BTreeMap, HashMap};

use cranelift_entity::{EntityRef, SecondaryMap};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use thiserror::Error;

use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, LaneId, MicroBatchId, NodeId, RankId, TierId, TransferId};
use crate::schedule::instruction::{Buffer, Call, Instruction, Schedule};
use crate::schedule::transfer::{Movement, Transfer};
use crate::units::Bytes;

/// The format that is read and written.
pub const FORMAT: &str = "tightfit-plan/1";

/// Tiers, lanes, ranks, transfers and micro-batches have smaller numbers than this, so that tables
/// indexed by them stay small whatever a file says.
const MOST_IDS: u64 = 1 << 16;

/// Why bytes are not a plan for a graph.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// The text is no JSON, or does not have the structure of the format.
    #[error("not a {FORMAT} file: {0}")]
    Json(#[from] serde_json::Error),
    /// The file is of another format, or of another version of it.
    #[error("the format is {found}, but this program reads \"{FORMAT}\"")]
    Version {
        /// The format that the file names, as JSON.
        found: String,
    },
    /// The plan was made for another graph.
    #[error(
        "the plan was made for another graph: it names hash {planned}, the graph's is {actual}; \
         pass that graph, or plan this one"
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
    /// The buffer of a placeholder is no number.
    #[error("the plan gives placeholder `{node}` no buffer, but {found}")]
    Placeholder {
        /// The name of the placeholder.
        node: String,
        /// What stands in the place of the number, as JSON.
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
    #[error("the plan speaks of {what} {number}; such numbers are below {MOST_IDS}")]
    Number {
        /// The kind of thing that has the number.
        what: &'static str,
        /// The number that the plan gives.
        number: u64,
    },
}

/// The schedule as tightfit-plan/1.
pub fn write(graph: &Graph, schedule: &Schedule) -> Json {
    let name = |node: NodeId| &graph.nodes()[node].name;
    let placeholders: Map<String, Json> = schedule
        .placeholders
        .iter()
        .map(|&(node, buffer)| (name(node).clone(), json!(buffer.as_u32())))
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

#[derive(Deserialize)]
struct RawPlan {
    graph: String,
    planner: String,
    budget_bytes: u64,
    slab_bytes: u64,
    #[serde(default)]
    below_bytes: BTreeMap<u64, u64>,
    #[serde(default)]
    rank: u64,
    buffers: Vec<RawBuffer>,
    placeholders: Map<String, Json>,
    instructions: Vec<Json>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawBuffer {
    OnDevice(u64, u64),
    InTier(u64, u64, u64),
}

/// Reads a plan that was made for `graph`.
pub fn read(graph: &Graph, bytes: &[u8]) -> Result<Schedule, PlanFileError> {
    #[derive(Deserialize)]
    struct Header {
        format: Option<Json>,
    }
    let header: Header = serde_json::from_slice(bytes)?;
    if header.format.as_ref().and_then(Json::as_str) != Some(FORMAT) {
        return Err(PlanFileError::Version {
            found: header.format.map_or("missing".to_string(), |format| format.to_string()),
        });
    }
    let raw: RawPlan = serde_json::from_slice(bytes)?;
    let actual = graph.hash().to_string();
    if raw.graph != actual {
        return Err(PlanFileError::OtherGraph { planned: raw.graph, actual });
    }
    let reader = Reader {
        nodes: graph.nodes().iter().map(|(id, node)| (node.name.as_str(), id)).collect(),
        buffers: raw.buffers.len(),
    };
    let buffers = raw.buffers.iter().map(read_buffer).collect::<Result<_, PlanFileError>>()?;
    let mut below = SecondaryMap::new();
    for (tier, bytes) in raw.below_bytes {
        below[id::<TierId>("tier", tier)?] = Bytes(small(bytes)?);
    }
    let mut placeholders = Vec::with_capacity(raw.placeholders.len());
    for (name, json) in &raw.placeholders {
        let wrong = || PlanFileError::Placeholder { node: name.clone(), found: json.to_string() };
        placeholders.push((reader.node(name)?, reader.buffer(json).ok_or_else(wrong)??));
    }
    placeholders.sort_unstable();
    let instructions = raw
        .instructions
        .iter()
        .enumerate()
        .map(|(index, json)| reader.instruction(index, json))
        .collect::<Result<_, _>>()?;
    Ok(Schedule {
        graph: actual,
        rank: id::<RankId>("rank", raw.rank)?,
        planner: raw.planner,
        budget: Bytes(small(raw.budget_bytes)?),
        slab: Bytes(small(raw.slab_bytes)?),
        below,
        buffers,
        placeholders,
        instructions,
    })
}

fn small(x: u64) -> Result<u64, PlanFileError> {
    if x <= Bytes::LIMIT.0 { Ok(x) } else { Err(PlanFileError::TooLarge) }
}

fn id<T: EntityRef>(what: &'static str, number: u64) -> Result<T, PlanFileError> {
    if number < MOST_IDS {
        Ok(T::new(number as usize))
    } else {
        Err(PlanFileError::Number { what, number })
    }
}

fn read_buffer(raw: &RawBuffer) -> Result<Buffer, PlanFileError> {
    let (bytes, address, tier) = match *raw {
        RawBuffer::OnDevice(bytes, address) => (bytes, address, DEVICE),
        RawBuffer::InTier(bytes, address, tier) => (bytes, address, id("tier", tier)?),
    };
    Ok(Buffer { bytes: Bytes(small(bytes)?), address: small(address)?, tier })
}

struct Reader<'a> {
    nodes: HashMap<&'a str, NodeId>,
    buffers: usize,
}

impl Reader<'_> {
    fn node(&self, name: &str) -> Result<NodeId, PlanFileError> {
        self.nodes
            .get(name)
            .copied()
            .ok_or_else(|| PlanFileError::UnknownNode { node: name.to_string() })
    }

    /// `None` where the JSON is no number at all.
    fn buffer(&self, json: &Json) -> Option<Result<BufferId, PlanFileError>> {
        let buffer = json.as_u64()?;
        Some(if buffer < self.buffers as u64 {
            Ok(BufferId::from_u32(buffer as u32))
        } else {
            Err(PlanFileError::UnknownBuffer { buffer, count: self.buffers })
        })
    }

    fn instruction(&self, index: usize, json: &Json) -> Result<Instruction, PlanFileError> {
        let wrong = || PlanFileError::Instruction { index };
        let buffer = |json: &Json| self.buffer(json).ok_or_else(wrong)?;
        let number = |json: &Json| json.as_u64().ok_or_else(wrong);
        let parts = json.as_array().ok_or_else(wrong)?;
        let verb = parts.first().and_then(Json::as_str).ok_or_else(wrong)?;
        match (verb, &parts[1..]) {
            ("free", [freed]) => Ok(Instruction::Free(buffer(freed)?)),
            ("run" | "recompute", [node, inputs, outputs, workspace, rest @ ..]) => {
                let micro_batch = match rest {
                    [] => 0,
                    [micro_batch] => number(micro_batch)?,
                    _ => return Err(wrong()),
                };
                let list = |json: &Json| -> Result<Vec<BufferId>, PlanFileError> {
                    json.as_array().ok_or_else(wrong)?.iter().map(buffer).collect()
                };
                let call = Call {
                    node: self.node(node.as_str().ok_or_else(wrong)?)?,
                    micro_batch: id::<MicroBatchId>("micro-batch", micro_batch)?,
                    inputs: list(inputs)?,
                    outputs: list(outputs)?,
                    workspace: if workspace.is_null() { None } else { Some(buffer(workspace)?) },
                };
                Ok(match verb {
                    "run" => Instruction::Run(call),
                    _ => Instruction::Recompute(call),
                })
            }
            ("start", [transfer, lane, movement, from, to]) => {
                let movement = match movement.as_str() {
                    Some("copy") => Movement::Copy { from: buffer(from)?, to: buffer(to)? },
                    _ => return Err(wrong()),
                };
                let lane = id::<LaneId>("lane", number(lane)?)?;
                let id = id::<TransferId>("transfer", number(transfer)?)?;
                Ok(Instruction::Start(Transfer { id, lane, movement }))
            }
            ("wait", [transfer]) => {
                Ok(Instruction::Wait(id::<TransferId>("transfer", number(transfer)?)?))
            }
            _ => Err(wrong()),
        }
    }
}
