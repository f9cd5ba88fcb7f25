//! tightfit-plan/1 on disk: a schedule as JSON. Invariant: reading what was written gives the same
//! schedule; a file that names nodes or buffers that do not exist is an error that says which.
//! Whether the schedule is right is for `check` alone to say.
//!
//! ```text
//! { "format": "tightfit-plan/1", "graph": SHA-256, "graph_name": …, "planner": …, "budget_bytes": …, "slab_bytes": …,
//!   "buffers": [[bytes, address], …], "placeholders": { NODE NAME: buffer, … },
//!   "instructions": [["run" | "recompute", NODE NAME, [input buffers], [output buffers], workspace buffer or null] |
//!                    ["free", buffer], …] }
//! ```

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use thiserror::Error;

use crate::graph::Graph;
use crate::id::BufferId;
use crate::id::NodeId;
use crate::schedule::instruction::{Buffer, Call, Instruction, Schedule};
use crate::units::Bytes;

/// The format that is read and written.
pub const FORMAT: &str = "tightfit-plan/1";

/// Why bytes are not a plan for a graph.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields are
pub enum PlanFileError {
    #[error("not a {FORMAT} file: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the format is {found}, but this program reads \"{FORMAT}\"")]
    Version { found: String },
    #[error(
        "the plan was made for another graph: it names hash {planned}, the graph's is {actual}; \
         pass that graph, or plan this one"
    )]
    OtherGraph { planned: String, actual: String },
    #[error("the plan names node `{node}`, which the graph does not have")]
    UnknownNode { node: String },
    #[error("the plan names buffer {buffer}, but has {count} buffers")]
    UnknownBuffer { buffer: u64, count: usize },
    #[error("the plan gives placeholder `{node}` no buffer, but {found}")]
    Placeholder { node: String, found: String },
    #[error(
        "instruction {index} is not one of [\"run\"|\"recompute\", node, inputs, outputs, \
         workspace] and [\"free\", buffer]"
    )]
    Instruction { index: usize },
    #[error("sizes of the plan exceed {} bytes", Bytes::LIMIT.0)]
    TooLarge,
}

/// The schedule as tightfit-plan/1.
pub fn write(graph: &Graph, schedule: &Schedule) -> Json {
    let name = |node: NodeId| &graph.nodes()[node].name;
    let ids =
        |buffers: &[BufferId]| buffers.iter().map(|buffer| buffer.as_u32()).collect::<Vec<_>>();
    let call = |verb: &str, call: &Call| {
        json!([
            verb,
            name(call.node),
            ids(&call.inputs),
            ids(&call.outputs),
            call.workspace.map(|buffer| buffer.as_u32())
        ])
    };
    let instructions: Vec<Json> = schedule
        .instructions
        .iter()
        .map(|instruction| match instruction {
            Instruction::Run(run) => call("run", run),
            Instruction::Recompute(run) => call("recompute", run),
            Instruction::Free(buffer) => json!(["free", buffer.as_u32()]),
        })
        .collect();
    let placeholders: Map<String, Json> = schedule
        .placeholders
        .iter()
        .map(|&(node, buffer)| (name(node).clone(), json!(buffer.as_u32())))
        .collect();
    json!({
        "format": FORMAT,
        "graph": schedule.graph,
        "graph_name": graph.name(),
        "planner": schedule.planner,
        "budget_bytes": schedule.budget,
        "slab_bytes": schedule.slab,
        "buffers": schedule.buffers.values().map(|buffer| json!([buffer.bytes, buffer.address])).collect::<Vec<_>>(),
        "placeholders": placeholders,
        "instructions": instructions,
    })
}

#[derive(Deserialize)]
struct RawPlan {
    graph: String,
    planner: String,
    budget_bytes: u64,
    slab_bytes: u64,
    buffers: Vec<(u64, u64)>,
    placeholders: Map<String, Json>,
    instructions: Vec<Json>,
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
    let small = |x: u64| if x <= Bytes::LIMIT.0 { Ok(x) } else { Err(PlanFileError::TooLarge) };
    let reader = Reader {
        nodes: graph.nodes().iter().map(|(id, node)| (node.name.as_str(), id)).collect(),
        buffers: raw.buffers.len(),
    };
    let buffers = raw
        .buffers
        .iter()
        .map(|&(bytes, address)| {
            Ok(Buffer { bytes: Bytes(small(bytes)?), address: small(address)? })
        })
        .collect::<Result<_, PlanFileError>>()?;
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
        planner: raw.planner,
        budget: Bytes(small(raw.budget_bytes)?),
        slab: Bytes(small(raw.slab_bytes)?),
        buffers,
        placeholders,
        instructions,
    })
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
        let parts = json.as_array().ok_or_else(wrong)?;
        let list = |json: &Json| -> Result<Vec<BufferId>, PlanFileError> {
            json.as_array()
                .ok_or_else(wrong)?
                .iter()
                .map(|buffer| self.buffer(buffer).ok_or_else(wrong)?)
                .collect()
        };
        let verb = parts.first().and_then(Json::as_str).ok_or_else(wrong)?;
        match (verb, &parts[1..]) {
            ("free", [buffer]) => Ok(Instruction::Free(self.buffer(buffer).ok_or_else(wrong)??)),
            ("run" | "recompute", [node, inputs, outputs, workspace]) => {
                let call = Call {
                    node: self.node(node.as_str().ok_or_else(wrong)?)?,
                    inputs: list(inputs)?,
                    outputs: list(outputs)?,
                    workspace: match workspace {
                        Json::Null => None,
                        buffer => Some(self.buffer(buffer).ok_or_else(wrong)??),
                    },
                };
                Ok(if verb == "run" {
                    Instruction::Run(call)
                } else {
                    Instruction::Recompute(call)
                })
            }
            _ => Err(wrong()),
        }
    }
}
