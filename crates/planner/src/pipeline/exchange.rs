//! Which rank has what, and what goes from one to another. Invariant: whatever a node of a rank
//! reads is made there, or sent there by the one rank designated for it; and both sides give a
//! message the same number.
//!
//! A message is one tensor: for a micro-batch, an activation or a gradient that one stage makes and
//! another reads; or, once for all micro-batches, what an update on one rank makes for updates on
//! another. A tensor that is read through views is sent as it was made, and viewed at the receiver.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};

use crate::id::{MicroBatchId, NodeId, RankId, StageId, StorageId, ValueId};
use crate::pipeline::action::{Action, Pass, Rows};
use crate::pipeline::divide::{Division, Role};
use crate::pipeline::error::PipelineError;
use crate::units::Seconds;

/// A tensor that goes from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// The value of the step.
    pub value: ValueId,
    /// The rank that makes it.
    pub from: RankId,
    /// The rank that reads it.
    pub to: RankId,
    /// The micro-batch that it belongs to; `None` for the update.
    pub micro_batch: Option<MicroBatchId>,
}

/// A value that was sent and may have to be waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    /// Its value in the step.
    pub value: ValueId,
    /// Its micro-batch; `None` for the update.
    pub micro_batch: Option<MicroBatchId>,
    /// The number of the message.
    pub message: usize,
}

/// A part of a step that runs as one: a pass of a stage, or the update of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Pass(StageId, Pass),
    Update(RankId),
}

/// Which rank has what.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    /// The ranks that run each node; the first one sends what it makes.
    runs_on: SecondaryMap<NodeId, Vec<RankId>>,
    /// The ranks that hold what stays from step to step.
    owners: SecondaryMap<StorageId, BTreeSet<RankId>>,
    /// Placeholders that each rank reads.
    given: PrimaryMap<RankId, BTreeSet<NodeId>>,
    /// All messages, by their numbers.
    pub messages: Vec<Message>,
    /// The first number of the messages of a value to a rank: for the micro-batches in turn, or for
    /// the update.
    numbers: BTreeMap<(bool, ValueId, RankId), usize>,
    /// The values that each part reads and that are sent to its rank for each micro-batch.
    received: BTreeMap<Part, Vec<ValueId>>,
}

impl Exchange {
    /// Which rank has what for this placement of stages.
    pub fn new(
        division: &Division<'_>,
        placement: &PrimaryMap<StageId, RankId>,
        ranks: usize,
        micro_batches: u32,
    ) -> Result<Exchange, PipelineError> {
        let graph = division.graph;
        let mut exchange = Exchange {
            runs_on: SecondaryMap::new(),
            owners: SecondaryMap::new(),
            given: (0..ranks).map(|_| BTreeSet::new()).collect(),
            messages: Vec::new(),
            numbers: BTreeMap::new(),
            received: BTreeMap::new(),
        };
        let mut parts: BTreeMap<Part, Vec<NodeId>> = BTreeMap::new();
        for id in graph.nodes().keys() {
            if let Role::Pass(stage, pass) = division.roles[id] {
                exchange.runs_on[id] = vec![placement[stage]];
                parts.entry(Part::Pass(stage, pass)).or_default().push(id);
            }
        }
        exchange.own(division, placement)?;
        exchange.update_on(division);
        for id in graph.nodes().keys().filter(|&id| division.roles[id] == Role::Update) {
            for &rank in &exchange.runs_on[id] {
                parts.entry(Part::Update(rank)).or_default().push(id);
            }
        }
        // The values that each part reads from elsewhere.
        let mut wanted: BTreeSet<(bool, ValueId, RankId)> = BTreeSet::new();
        for (&part, nodes) in &parts {
            let rank = match part {
                Part::Pass(stage, _) => placement[stage],
                Part::Update(rank) => rank,
            };
            for (is_of_update, value) in exchange.reads(division, (part, rank), nodes) {
                wanted.insert((is_of_update, value, rank));
                if !is_of_update {
                    exchange.received.entry(part).or_default().push(value);
                }
            }
        }
        // The rest is not read; one rank keeps it.
        for (placeholder, _) in graph.placeholder_storages() {
            if !exchange.given.values().any(|given| given.contains(&placeholder)) {
                exchange.given[RankId::from_u32(0)].insert(placeholder);
            }
        }
        for key @ (is_of_update, value, to) in wanted {
            let from = exchange.home(division, value);
            exchange.numbers.insert(key, exchange.messages.len());
            let numbers = if is_of_update { 0..1 } else { 0..micro_batches };
            let micro_batch = |k| (!is_of_update).then(|| MicroBatchId::from_u32(k));
            let message = |k| Message { value, from, to, micro_batch: micro_batch(k) };
            exchange.messages.extend(numbers.map(message));
        }
        Ok(exchange)
    }

    /// Whether a rank runs a node.
    pub fn runs(&self, node: NodeId, rank: RankId) -> bool {
        self.runs_on[node].contains(&rank)
    }

    /// Whether a rank reads a placeholder.
    pub(super) fn is_given(&self, placeholder: NodeId, rank: RankId) -> bool {
        self.given[rank].contains(&placeholder)
    }

    /// The rank that makes a value, or its mean over the micro-batches; for what stays, the first
    /// one that holds it.
    pub fn home(&self, division: &Division<'_>, value: ValueId) -> RankId {
        let producer = division.graph.values()[division.root(value)].producer;
        let storage = division.graph.values()[value].storage;
        let holds = self.owners[storage].first().copied();
        let first = RankId::from_u32(0);
        self.runs_on[producer].first().copied().or(holds).unwrap_or(first)
    }

    /// The number of a message to a rank, for a micro-batch or for the update.
    pub(super) fn number(
        &self,
        value: ValueId,
        to: RankId,
        micro_batch: Option<MicroBatchId>,
    ) -> Option<usize> {
        let first = self.numbers.get(&(micro_batch.is_none(), value, to))?;
        Some(first + micro_batch.map_or(0, EntityRef::index))
    }

    /// The ranks to which a value is sent for each micro-batch, or for the update.
    pub(super) fn readers(&self, value: ValueId, of_update: bool) -> Vec<RankId> {
        let from = (of_update, value, RankId::from_u32(0));
        let to = (of_update, value, RankId::from_u32(u32::MAX - 1));
        self.numbers.range(from..=to).map(|(&(_, _, rank), _)| rank).collect()
    }

    /// The values that an action of a rank reads and that are sent there, with the numbers of the
    /// messages.
    pub(super) fn received_by(&self, rank: RankId, action: &Action) -> Vec<(ValueId, usize)> {
        let of = |pass| self.received.get(&Part::Pass(action.stage, pass));
        let parts = match action.pass {
            Pass::Backward => vec![of(Pass::InputGradient), of(Pass::WeightGradient)],
            pass => vec![of(pass)],
        };
        let values = parts.into_iter().flatten().flatten();
        let numbered = values.map(|&value| {
            let number = self.number(value, rank, Some(action.micro_batch));
            (value, number.expect("what is received has a number"))
        });
        numbered.collect()
    }

    /// When each message is first read, given the times at which the actions of a rank begin;
    /// messages of an update count as later than all of them.
    pub(super) fn first_reads(
        &self,
        rows: &Rows,
        begins: impl Fn(RankId, usize) -> Seconds,
    ) -> Vec<Seconds> {
        let mut first = vec![Seconds(f64::INFINITY); self.messages.len()];
        for (rank, row) in &rows.rows {
            for (index, action) in row.iter().enumerate() {
                for (_, number) in self.received_by(rank, action) {
                    let first = &mut first[number];
                    if begins(rank, index).0 < first.0 {
                        *first = begins(rank, index);
                    }
                }
            }
        }
        first
    }

    /// Determines which rank holds which parameters: those that its passes read. What a pass writes
    /// must not be read by another stage, since its micro-batches would not come in turn.
    fn own(
        &mut self,
        division: &Division<'_>,
        placement: &PrimaryMap<StageId, RankId>,
    ) -> Result<(), PipelineError> {
        let graph = division.graph;
        let mut writers: SecondaryMap<StorageId, Option<StageId>> = SecondaryMap::new();
        let mut readers: SecondaryMap<StorageId, BTreeSet<StageId>> = SecondaryMap::new();
        for id in graph.nodes().keys() {
            let Role::Pass(stage, _) = division.roles[id] else { continue };
            for &storage in graph.reads(id).iter().filter(|&&storage| graph.is_persistent(storage))
            {
                readers[storage].insert(stage);
                self.owners[storage].insert(placement[stage]);
                if graph.mutated(id).contains(&storage) {
                    writers[storage] = Some(stage);
                }
            }
        }
        for (placeholder, storage) in graph.placeholder_storages() {
            let Some(writer) = writers[storage] else { continue };
            if let Some(&reader) = readers[storage].iter().find(|&&stage| stage != writer) {
                let name = graph.nodes()[placeholder].name.clone();
                return Err(PipelineError::Shared { name, writer, reader });
            }
        }
        Ok(())
    }

    /// Where updates run: those that write, on every rank that holds what they write; the others
    /// once, on the first rank that they read from.
    fn update_on(&mut self, division: &Division<'_>) {
        let graph = division.graph;
        let updates: Vec<NodeId> =
            graph.nodes().keys().filter(|&id| division.roles[id] == Role::Update).collect();
        let writes = |id: NodeId| {
            graph.mutated(id).iter().copied().filter(|&storage| graph.is_persistent(storage))
        };
        // What one node writes stays together; repeated until nothing changes, since nodes may
        // share some.
        loop {
            let mut has_changed = false;
            for &id in &updates {
                let all: BTreeSet<RankId> =
                    writes(id).flat_map(|storage| self.owners[storage].clone()).collect();
                for storage in writes(id) {
                    has_changed |= self.owners[storage] != all;
                    self.owners[storage].clone_from(&all);
                }
            }
            if !has_changed {
                break;
            }
        }
        for &id in &updates {
            let written: BTreeSet<RankId> =
                writes(id).flat_map(|storage| self.owners[storage].clone()).collect();
            let mut ranks: Vec<RankId> = written.into_iter().collect();
            if ranks.is_empty() {
                let inputs = graph.nodes()[id].inputs.iter();
                let homes = inputs.map(|&input| self.home(division, input));
                ranks.push(homes.min().unwrap_or(RankId::from_u32(0)));
                for storage in writes(id) {
                    self.owners[storage].insert(ranks[0]);
                }
            }
            self.runs_on[id] = ranks;
        }
    }

    /// The values that the nodes of a part read and that its rank does not make, and whether each
    /// belongs to the update; placeholders are recorded.
    fn reads(
        &mut self,
        division: &Division<'_>,
        (part, rank): (Part, RankId),
        nodes: &[NodeId],
    ) -> BTreeSet<(bool, ValueId)> {
        let graph = division.graph;
        let is_update = matches!(part, Part::Update(_));
        let mut found = BTreeSet::new();
        let mut seen: BTreeSet<ValueId> = BTreeSet::new();
        let mut left: Vec<ValueId> = Vec::new();
        for &node in nodes {
            left.extend(&graph.nodes()[node].inputs);
        }
        while let Some(value) = left.pop() {
            if !seen.insert(value) {
                continue;
            }
            let producer = graph.values()[value].producer;
            let role = division.roles[producer];
            let is_mean = is_update && division.summed.contains(&value);
            if is_mean || role == Role::Update {
                let here = if is_mean {
                    self.home(division, value) == rank
                } else {
                    self.runs(producer, rank)
                };
                if !here {
                    found.insert((true, value));
                }
            } else if graph.nodes()[producer].phase.is_placeholder() {
                self.given[rank].insert(producer);
            } else if graph.is_view(producer) || role == Role::Anywhere {
                left.extend(&graph.nodes()[producer].inputs);
            } else if !self.runs(producer, rank) {
                found.insert((false, value));
            }
        }
        found
    }
}
