//! Reads a schedule from the bytes of a plan. Invariant: a file that names nodes or buffers that do
//! not exist gives an error that says which; what is read becomes an instruction at once, and
//! fields that are not needed are not kept. Only `check` decides whether the schedule is right.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use cranelift_entity::{EntityRef, SecondaryMap};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value as Json;

use crate::graph::Graph;
use crate::graph::limits::{
    LONGEST_NAME, MOST_BUFFERS, MOST_INSTRUCTIONS, MOST_OF_A_CALL, MOST_OF_AN_EVENT, MOST_PLAN,
};
use crate::id::{BufferId, LaneId, MOST_IDS, MicroBatchId, NodeId, RankId, TierId, TransferId};
use crate::reading::{AtMost, Bounded, Each, Excess, Table, Text, format_of};
use crate::schedule::format::{FORMAT, PlanFileError};
use crate::schedule::instruction::{Buffer, Call, Instruction, Schedule};
use crate::schedule::transfer::{Movement, Transfer};
use crate::units::Bytes;

/// All of a plan except what names parts of the graph.
#[derive(Deserialize)]
struct RawPlan {
    #[serde(default)]
    format: Bounded<MOST_OF_AN_EVENT>,
    graph: Text<LONGEST_NAME>,
    planner: Text<LONGEST_NAME>,
    budget_bytes: u64,
    slab_bytes: u64,
    #[serde(default)]
    below_bytes: Table<u64, u64, { MOST_IDS as usize }>,
    #[serde(default)]
    rank: u64,
    buffers: AtMost<RawBuffer, MOST_BUFFERS>,
    #[serde(rename = "placeholders")]
    _placeholders: IgnoredAny,
    #[serde(rename = "instructions")]
    _instructions: IgnoredAny,
}

struct RawBuffer {
    bytes: u64,
    address: u64,
    tier: u64,
}

impl<'de> Deserialize<'de> for RawBuffer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawBuffer, D::Error> {
        match AtMost::<u64, 3>::deserialize(deserializer)?.0[..] {
            [bytes, address] => Ok(RawBuffer { bytes, address, tier: 0 }),
            [bytes, address, tier] => Ok(RawBuffer { bytes, address, tier }),
            _ => Err(D::Error::custom("a buffer is [bytes, address] or [bytes, address, tier]")),
        }
    }
}

/// Reads a plan that was made for `graph`.
pub fn read(graph: &Graph, bytes: &[u8]) -> Result<Schedule, PlanFileError> {
    if bytes.len() as u64 > MOST_PLAN {
        return Err(Excess::of_bytes("a plan", MOST_PLAN).into());
    }
    let raw = raw(bytes)?;
    let actual = graph.hash().to_string();
    if raw.graph.0 != actual {
        return Err(PlanFileError::OtherGraph { planned: raw.graph.0, actual });
    }
    let buffers = raw.buffers.0.iter().map(read_buffer).collect::<Result<_, PlanFileError>>()?;
    let mut below = SecondaryMap::new();
    for (tier, bytes) in raw.below_bytes.0 {
        below[id::<TierId>("tier", tier)?] = Bytes(small(bytes)?);
    }
    let mut reader = Reader {
        nodes: graph.nodes().iter().map(|(id, node)| (node.name.as_str(), id)).collect(),
        buffers: raw.buffers.0.len(),
        placeholders: BTreeMap::new(),
        instructions: Vec::new(),
    };
    Parts(&mut reader).deserialize(&mut serde_json::Deserializer::from_slice(bytes))??;
    transfers_are_few(&reader.instructions)?;
    Ok(Schedule {
        graph: actual,
        rank: id::<RankId>("rank", raw.rank)?,
        planner: raw.planner.0,
        budget: Bytes(small(raw.budget_bytes)?),
        slab: Bytes(small(raw.slab_bytes)?),
        below,
        buffers,
        placeholders: reader
            .placeholders
            .into_iter()
            .flat_map(|(node, buffers)| buffers.into_iter().map(move |buffer| (node, buffer)))
            .collect(),
        instructions: reader.instructions,
    })
}

/// The plan, in the supported format.
fn raw(bytes: &[u8]) -> Result<RawPlan, PlanFileError> {
    let raw = serde_json::from_slice::<RawPlan>(bytes);
    let format = match &raw {
        Ok(raw) => Some(raw.format.0.clone()),
        // A file of another format need not have the structure of this one.
        Err(_) => format_of::<MOST_OF_AN_EVENT>(bytes),
    };
    match format {
        Some(Json::Null) => Err(PlanFileError::Version { found: "missing".to_string() }),
        Some(found) if found != FORMAT => Err(PlanFileError::Version { found: found.to_string() }),
        _ => Ok(raw?),
    }
}

fn small(x: u64) -> Result<u64, PlanFileError> {
    if x <= Bytes::LIMIT.0 { Ok(x) } else { Err(PlanFileError::TooLarge) }
}

fn id<T: EntityRef>(what: &'static str, number: u64) -> Result<T, PlanFileError> {
    id_below(MOST_IDS, what, number)
}

fn id_below<T: EntityRef>(limit: u64, what: &'static str, number: u64) -> Result<T, PlanFileError> {
    if number < limit {
        Ok(T::new(number as usize))
    } else {
        Err(PlanFileError::Number { what, number, limit })
    }
}

fn transfer(number: u64) -> Result<TransferId, PlanFileError> {
    id_below(MOST_INSTRUCTIONS as u64, "transfer", number)
}

/// Each transfer is started, so a plan has no more of them than instructions.
fn transfers_are_few(instructions: &[Instruction]) -> Result<(), PlanFileError> {
    let limit = instructions.len() as u64;
    let number = |instruction: &Instruction| match instruction {
        Instruction::Start(transfer) => u64::from(transfer.id.as_u32()),
        Instruction::Wait(transfer) => u64::from(transfer.as_u32()),
        Instruction::Run(_) | Instruction::Recompute(_) | Instruction::Free(_) => 0,
    };
    let numbers = instructions.iter().map(number);
    numbers.max().map_or(Ok(()), |most| id_below::<TransferId>(limit, "transfer", most).map(|_| ()))
}

fn read_buffer(raw: &RawBuffer) -> Result<Buffer, PlanFileError> {
    let tier = id("tier", raw.tier)?;
    Ok(Buffer { bytes: Bytes(small(raw.bytes)?), address: small(raw.address)?, tier })
}

/// Reads what names parts of the graph.
struct Reader<'a> {
    nodes: HashMap<&'a str, NodeId>,
    buffers: usize,
    placeholders: BTreeMap<NodeId, Vec<BufferId>>,
    instructions: Vec<Instruction>,
}

/// The placeholders and the instructions of a plan, one by one.
struct Parts<'a, 'g>(&'a mut Reader<'g>);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Part {
    Placeholders,
    Instructions,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for Parts<'_, '_> {
    type Value = Result<(), PlanFileError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Parts<'_, '_> {
    type Value = Result<(), PlanFileError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plan")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let reader = self.0;
        let mut all = Ok(());
        while let Some(part) = map.next_key()? {
            let read = match part {
                Part::Placeholders => map.next_value_seed(Placeholders(reader))?,
                Part::Instructions => {
                    let add = |Bounded(json): Bounded<MOST_OF_A_CALL>| reader.add(&json);
                    let what = "a plan's list of instructions";
                    map.next_value_seed(Each::new(what, MOST_INSTRUCTIONS, add))?
                }
                Part::Other => {
                    map.next_value::<IgnoredAny>()?;
                    Ok(())
                }
            };
            all = all.and(read);
        }
        Ok(all)
    }
}

struct Placeholders<'a, 'g>(&'a mut Reader<'g>);

impl<'de> DeserializeSeed<'de> for Placeholders<'_, '_> {
    type Value = Result<(), PlanFileError>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Placeholders<'_, '_> {
    type Value = Result<(), PlanFileError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from placeholders to buffers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(Text(node)) = map.next_key::<Text<LONGEST_NAME>>()? {
            let Bounded(found) = map.next_value::<Bounded<MOST_OF_AN_EVENT>>()?;
            if let Err(refusal) = self.0.placeholder(node, &found) {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }
}

impl Reader<'_> {
    fn node(&self, name: &str) -> Result<NodeId, PlanFileError> {
        self.nodes
            .get(name)
            .copied()
            .ok_or_else(|| PlanFileError::UnknownNode { node: name.to_string() })
    }

    fn placeholder(&mut self, node: String, found: &Json) -> Result<(), PlanFileError> {
        let id = self.node(&node)?;
        let wrong = || PlanFileError::Placeholder { node: node.clone(), found: found.to_string() };
        let buffers = match found.as_array() {
            None => vec![self.buffer(found).ok_or_else(wrong)??],
            Some(several) => several
                .iter()
                .map(|buffer| self.buffer(buffer).ok_or_else(wrong)?)
                .collect::<Result<_, PlanFileError>>()?,
        };
        self.placeholders.insert(id, buffers);
        Ok(())
    }

    /// `None` if the JSON is not a number at all.
    fn buffer(&self, json: &Json) -> Option<Result<BufferId, PlanFileError>> {
        let buffer = json.as_u64()?;
        Some(if buffer < self.buffers as u64 {
            Ok(BufferId::from_u32(buffer as u32))
        } else {
            Err(PlanFileError::UnknownBuffer { buffer, count: self.buffers })
        })
    }

    /// Adds the next instruction.
    fn add(&mut self, json: &Json) -> Result<(), PlanFileError> {
        self.instructions.push(self.instruction(self.instructions.len(), json)?);
        Ok(())
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
            ("start", [which, lane, movement, from, to]) => {
                let movement = match movement.as_str() {
                    Some("copy") => Movement::Copy { from: buffer(from)?, to: buffer(to)? },
                    _ => return Err(wrong()),
                };
                let lane = id::<LaneId>("lane", number(lane)?)?;
                let id = transfer(number(which)?)?;
                Ok(Instruction::Start(Transfer { id, lane, movement }))
            }
            ("wait", [which]) => Ok(Instruction::Wait(transfer(number(which)?)?)),
            _ => Err(wrong()),
        }
    }
}
