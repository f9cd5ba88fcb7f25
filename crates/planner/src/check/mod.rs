//! The judge: executes a schedule abstractly. Invariant: it shares no code with any planner, with
//! lowering or with layout; it knows the graph, the instructions, and what a call costs.
//!
//! The state maps each buffer to what lies in it: nothing, scratch, or one storage at one version.
//! An instruction is legal where every operand's buffer holds the storage and the version that the
//! graph says the operand has, where what it allocates does not overlap anything held, and where
//! the bytes held stay within the budget. At the end everything that outlives the step must be
//! there, at its last version, and every node must have run.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use thiserror::Error;

use crate::graph::Graph;
use crate::id::BufferId;
use crate::id::{NodeId, StorageId};
use crate::profile::Profile;
use crate::schedule::{Call, Instruction, Schedule};
use crate::units::{Bytes, Seconds};

/// One instruction of a legal schedule, in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// The node that runs; `None` = a buffer is freed.
    pub node: Option<NodeId>,
    /// It runs again.
    pub again: bool,
    /// When it starts.
    pub start: Seconds,
    /// How long it takes.
    pub seconds: Seconds,
    /// Bytes held while it runs, workspace included.
    pub held: Bytes,
}

/// What a legal schedule does.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// One entry for each instruction.
    pub moments: Vec<Moment>,
    /// Most bytes held at any moment.
    pub peak: Bytes,
    /// The first instruction that holds them.
    pub at: usize,
    /// Highest byte that any buffer uses.
    pub high_water: Bytes,
    /// Seconds of the whole step.
    pub seconds: Seconds,
}

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
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Content {
    #[default]
    Free,
    Scratch,
    Holds(StorageId, u32),
}

/// Executes `schedule` abstractly under `budget`.
pub fn check(
    graph: &Graph,
    profile: &Profile,
    schedule: &Schedule,
    budget: Bytes,
) -> Result<Timeline, Violation> {
    if schedule.graph != graph.hash() {
        return Err(Violation::OtherGraph);
    }
    mentions_only_what_exists(graph, schedule)?;
    let mut machine = AbstractMachine::new(graph, profile, schedule);
    machine.load_placeholders()?;
    let mut moments = Vec::with_capacity(schedule.instructions.len());
    for (index, instruction) in schedule.instructions.iter().enumerate() {
        machine.index = index;
        let mut moment = match instruction {
            Instruction::Run(call) => machine.call(call, false)?,
            Instruction::Recompute(call) => machine.call(call, true)?,
            Instruction::Free(buffer) => machine.free(*buffer)?,
        };
        moment.start = machine.now;
        machine.now = machine.now + moment.seconds;
        if moment.held > budget {
            let node =
                moment.node.map_or("free".to_string(), |node| graph.nodes()[node].name.clone());
            return Err(Violation::OverBudget {
                index,
                node,
                held: moment.held.0,
                over: moment.held.0 - budget.0,
                budget: budget.0,
            });
        }
        moments.push(moment);
    }
    machine.finish()?;
    // Last, so that an instruction is named where bytes are the reason, and the slab only where
    // addresses are.
    if schedule.slab > budget {
        return Err(Violation::SlabOverBudget { slab: schedule.slab.0, budget: budget.0 });
    }
    let (mut at, mut peak) = (0, machine.at_start);
    for (index, moment) in moments.iter().enumerate() {
        if moment.held > peak {
            (at, peak) = (index, moment.held);
        }
    }
    Ok(Timeline { moments, peak, at, high_water: machine.high_water, seconds: machine.now })
}

/// A schedule is plain data, so its ids may be anything.
fn mentions_only_what_exists(graph: &Graph, schedule: &Schedule) -> Result<(), Violation> {
    let buffer = |buffer: BufferId| match schedule.buffers.is_valid(buffer) {
        true => Ok(()),
        false => Err(Violation::UnknownBuffer { buffer, count: schedule.buffers.len() }),
    };
    let node = |node: NodeId| match graph.nodes().is_valid(node) {
        true => Ok(()),
        false => Err(Violation::UnknownNode { node: node.as_u32(), count: graph.nodes().len() }),
    };
    for &(placeholder, place) in &schedule.placeholders {
        node(placeholder)?;
        buffer(place)?;
        let placeholder = &graph.nodes()[placeholder];
        if !placeholder.phase.is_placeholder() {
            return Err(Violation::NotPlaceholder { node: placeholder.name.clone() });
        }
    }
    for instruction in &schedule.instructions {
        match instruction {
            Instruction::Free(freed) => buffer(*freed)?,
            Instruction::Run(call) | Instruction::Recompute(call) => {
                node(call.node)?;
                call.inputs
                    .iter()
                    .chain(&call.outputs)
                    .chain(&call.workspace)
                    .try_for_each(|&operand| buffer(operand))?;
            }
        }
    }
    Ok(())
}

struct AbstractMachine<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    schedule: &'a Schedule,
    content: SecondaryMap<BufferId, Content>,
    /// How many buffers hold each storage, in whatever version.
    copies: SecondaryMap<StorageId, u32>,
    /// Held buffers by address, for the overlap test.
    by_address: BTreeSet<(u64, BufferId)>,
    ran: SecondaryMap<NodeId, bool>,
    held: Bytes,
    at_start: Bytes,
    high_water: Bytes,
    now: Seconds,
    index: usize,
}

impl<'a> AbstractMachine<'a> {
    fn new(graph: &'a Graph, profile: &'a Profile, schedule: &'a Schedule) -> Self {
        AbstractMachine {
            graph,
            profile,
            schedule,
            content: SecondaryMap::new(),
            copies: SecondaryMap::new(),
            by_address: Default::default(),
            ran: SecondaryMap::new(),
            held: Bytes::ZERO,
            at_start: Bytes::ZERO,
            high_water: Bytes::ZERO,
            now: Seconds(0.0),
            index: 0,
        }
    }

    fn load_placeholders(&mut self) -> Result<(), Violation> {
        let graph = self.graph;
        let mut given: SecondaryMap<NodeId, Vec<BufferId>> = SecondaryMap::new();
        for &(node, buffer) in &self.schedule.placeholders {
            given[node].push(buffer);
        }
        for (node, placeholder) in
            graph.nodes().iter().filter(|(_, node)| node.phase.is_placeholder())
        {
            let mine = &given[node];
            let name = &placeholder.name;
            let [buffer] = mine[..] else {
                return Err(Violation::Placeholder { node: name.clone(), count: mine.len() });
            };
            let storage = graph.values()
                [placeholder.outputs[0].expect("a placeholder has one output")]
            .storage;
            self.fits(name, "its value", graph.storages()[storage], buffer)?;
            self.allocate(buffer, Content::Holds(storage, 0), name)?;
        }
        self.at_start = self.held;
        Ok(())
    }

    fn describe(&self, buffer: BufferId) -> String {
        match self.content[buffer] {
            Content::Free => "nothing".to_string(),
            Content::Scratch => "scratch memory".to_string(),
            Content::Holds(storage, version) => {
                let name =
                    self.graph.producer(storage).map_or("?", |node| &self.graph.nodes()[node].name);
                format!("what `{name}` made (version {version})")
            }
        }
    }

    fn fits(
        &self,
        node: &str,
        what: &str,
        needed: Bytes,
        buffer: BufferId,
    ) -> Result<(), Violation> {
        let given = self.schedule.buffers[buffer].bytes;
        if needed > given {
            return Err(Violation::TooSmall {
                index: self.index,
                node: node.to_string(),
                what: what.to_string(),
                needed,
                buffer,
                given,
            });
        }
        Ok(())
    }

    fn allocate(
        &mut self,
        buffer: BufferId,
        content: Content,
        node: &str,
    ) -> Result<(), Violation> {
        if self.content[buffer] != Content::Free {
            return Err(Violation::Overwrites {
                index: self.index,
                node: node.to_string(),
                buffer,
                found: self.describe(buffer),
            });
        }
        let place = self.schedule.buffers[buffer];
        let end = place.address.saturating_add(place.bytes.0);
        if end > self.schedule.slab.0 {
            return Err(Violation::OutsideSlab { buffer, end, slab: self.schedule.slab.0 });
        }
        self.high_water = self.high_water.max(Bytes(end));
        self.put(buffer, content);
        self.held += place.bytes;
        if place.bytes == Bytes::ZERO {
            return Ok(());
        }
        let below =
            self.by_address.range(..(place.address, buffer)).next_back().map(|&(_, other)| other);
        let above =
            self.by_address.range((place.address, buffer)..).next().map(|&(_, other)| other);
        for other in [below, above].into_iter().flatten() {
            let neighbour = self.schedule.buffers[other];
            if place.address < neighbour.address + neighbour.bytes.0 && neighbour.address < end {
                return Err(Violation::Overlap { index: self.index, buffer, other });
            }
        }
        self.by_address.insert((place.address, buffer));
        Ok(())
    }

    fn release(&mut self, buffer: BufferId) {
        let place = self.schedule.buffers[buffer];
        self.by_address.remove(&(place.address, buffer));
        self.put(buffer, Content::Free);
        self.held -= place.bytes;
    }

    fn put(&mut self, buffer: BufferId, content: Content) {
        if let Content::Holds(storage, _) = self.content[buffer] {
            self.copies[storage] -= 1;
        }
        if let Content::Holds(storage, _) = content {
            self.copies[storage] += 1;
        }
        self.content[buffer] = content;
    }

    fn free(&mut self, buffer: BufferId) -> Result<Moment, Violation> {
        match self.content[buffer] {
            Content::Free => return Err(Violation::FreesNothing { index: self.index, buffer }),
            Content::Holds(storage, _)
                if self.graph.is_kept(storage) && self.copies[storage] == 1 =>
            {
                return Err(Violation::FreesKept {
                    index: self.index,
                    buffer,
                    found: self.describe(buffer),
                });
            }
            _ => self.release(buffer),
        }
        Ok(Moment {
            node: None,
            again: false,
            start: self.now,
            seconds: Seconds(0.0),
            held: self.held,
        })
    }

    fn call(&mut self, call: &Call, again: bool) -> Result<Moment, Violation> {
        let (graph, index, node) = (self.graph, self.index, call.node);
        let name = &graph.nodes()[node].name;
        if !graph.runs(node) {
            return Err(Violation::DoesNotRun { index, node: name.clone() });
        }
        if self.ran[node] != again {
            let (marked, history) = if again {
                ("recomputation", "never ran before")
            } else {
                ("first run", "ran before")
            };
            return Err(Violation::Marked { index, node: name.clone(), marked, history });
        }
        if again && graph.nodes()[node].mutates {
            return Err(Violation::MutatesAgain { index, node: name.clone() });
        }
        self.ran[node] = true;
        self.inputs_are_there(call)?;
        if let Some(buffer) = call.workspace {
            self.fits(name, "its workspace", self.profile.workspace[node], buffer)?;
            self.allocate(buffer, Content::Scratch, name)?;
        } else if self.profile.workspace[node] > Bytes::ZERO {
            return Err(Violation::Operands {
                index,
                node: name.clone(),
                what: "workspace",
                given: 0,
                needed: 1,
            });
        }
        self.write_outputs(call)?;
        let moment = Moment {
            node: Some(node),
            again,
            start: self.now,
            seconds: self.profile.seconds[node],
            held: self.held,
        };
        if let Some(buffer) = call.workspace {
            self.release(buffer);
        }
        Ok(moment)
    }

    fn inputs_are_there(&self, call: &Call) -> Result<(), Violation> {
        let node = &self.graph.nodes()[call.node];
        if call.inputs.len() != node.inputs.len() {
            return Err(Violation::Operands {
                index: self.index,
                node: node.name.clone(),
                what: "input",
                given: call.inputs.len(),
                needed: node.inputs.len(),
            });
        }
        for (&input, &buffer) in node.inputs.iter().zip(&call.inputs) {
            let value = &self.graph.values()[input];
            if self.content[buffer] != Content::Holds(value.storage, value.version) {
                let value = self.graph.nodes()[value.producer].name.clone();
                return Err(Violation::NotThere {
                    index: self.index,
                    node: node.name.clone(),
                    value,
                    buffer,
                    found: self.describe(buffer),
                });
            }
        }
        Ok(())
    }

    fn write_outputs(&mut self, call: &Call) -> Result<(), Violation> {
        let (graph, index) = (self.graph, self.index);
        let node = &graph.nodes()[call.node];
        let outputs: Vec<_> = node.outputs.iter().flatten().copied().collect();
        if call.outputs.len() != outputs.len() {
            return Err(Violation::Operands {
                index,
                node: node.name.clone(),
                what: "output",
                given: call.outputs.len(),
                needed: outputs.len(),
            });
        }
        let mut written: Vec<BufferId> = Vec::new();
        for (&output, &buffer) in outputs.iter().zip(&call.outputs) {
            let value = &graph.values()[output];
            self.fits(&node.name, "its output", graph.storages()[value.storage], buffer)?;
            let next = Content::Holds(value.storage, value.version);
            if graph.mutated(call.node).contains(&value.storage) {
                let there = node.inputs.iter().zip(&call.inputs).any(|(&input, &from)| {
                    from == buffer && graph.values()[input].storage == value.storage
                });
                if !there {
                    let value = graph
                        .producer(value.storage)
                        .map_or("?".to_string(), |first| graph.nodes()[first].name.clone());
                    return Err(Violation::NewVersionElsewhere {
                        index,
                        node: node.name.clone(),
                        value,
                    });
                }
                self.put(buffer, next);
            } else if self.content[buffer] == next && written.contains(&buffer)
                || self.aliases_input(call, value.storage, buffer)
            {
                // Another value of a storage that this call makes, or a view of an input beside a
                // fresh output.
            } else if graph.reads(call.node).contains(&value.storage) {
                // Only a part of the storage would be written there, and all of it would count as
                // being there.
                return Err(Violation::ViewElsewhere { index, node: node.name.clone() });
            } else if self.may_overwrite(call, output, buffer) && !written.contains(&buffer) {
                self.put(buffer, next);
            } else {
                self.allocate(buffer, next, &node.name)?;
            }
            written.push(buffer);
        }
        Ok(())
    }

    /// An output that lies in an input's storage and is not written.
    fn aliases_input(&self, call: &Call, storage: StorageId, buffer: BufferId) -> bool {
        let inputs = self.graph.nodes()[call.node].inputs.iter().zip(&call.inputs);
        inputs
            .into_iter()
            .any(|(&input, &from)| from == buffer && self.graph.values()[input].storage == storage)
    }

    /// The operator allows its first output to be written over an input of the same layout, and
    /// `buffer` holds one that is not kept.
    fn may_overwrite(&self, call: &Call, output: crate::id::ValueId, buffer: BufferId) -> bool {
        let (graph, node) = (self.graph, &self.graph.nodes()[call.node]);
        if !self.profile.in_place || node.outputs.first() != Some(&Some(output)) {
            return false;
        }
        let allowed = graph.overwritable(call.node);
        node.inputs.iter().zip(&call.inputs).any(|(input, &from)| {
            from == buffer
                && allowed.contains(input)
                && !graph.is_kept(graph.values()[*input].storage)
        })
    }

    /// Nothing is missing, and nothing is left over.
    fn finish(&self) -> Result<(), Violation> {
        let graph = self.graph;
        if let Some(node) = graph.program().into_iter().find(|&node| !self.ran[node]) {
            return Err(Violation::NeverRuns { node: graph.nodes()[node].name.clone() });
        }
        let mut last: SecondaryMap<StorageId, u32> = SecondaryMap::new();
        for value in graph.values().values() {
            last[value.storage] = last[value.storage].max(value.version);
        }
        let held: BTreeSet<(StorageId, u32)> = self
            .schedule
            .buffers
            .keys()
            .filter_map(|buffer| match self.content[buffer] {
                Content::Holds(storage, version) => Some((storage, version)),
                Content::Free | Content::Scratch => None,
            })
            .collect();
        let outputs = graph
            .outputs()
            .iter()
            .map(|&value| (graph.values()[value].storage, graph.values()[value].version));
        let persistent = graph
            .placeholder_storages()
            .filter(|(_, storage)| graph.is_kept(*storage))
            .map(|(_, storage)| (storage, last[storage]));
        for (storage, version) in outputs.chain(persistent) {
            if !held.contains(&(storage, version)) {
                let value = graph
                    .producer(storage)
                    .map_or("?".to_string(), |node| graph.nodes()[node].name.clone());
                return Err(Violation::Missing { value });
            }
        }
        for buffer in self.schedule.buffers.keys() {
            match self.content[buffer] {
                Content::Free => {}
                Content::Holds(storage, _) if graph.is_kept(storage) => {}
                _ => return Err(Violation::Leaked { buffer, found: self.describe(buffer) }),
            }
        }
        Ok(())
    }
}
