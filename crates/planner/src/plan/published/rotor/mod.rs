//! Rotor: the fastest persistent schedule of a chain of units, by dynamic programming over parts of
//! the chain and memory. Invariant: the program's memory figures only order its schedules; each one
//! becomes a sequence of runs and is simulated, so the promised peak is the real one.
//!
//! Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for
//! heterogeneous chains: how to train deep neural networks with limited memory", 2019 (rotor).
//! Departures: see `doc/theory/rotor.md`.

mod costs;

use cranelift_entity::SecondaryMap;

use crate::analysis::{liveness, memory_curve};
use crate::effort::Meter;
use crate::graph::{Graph, Phase};
use crate::id::{NodeId, StorageId};
use crate::plan::published::chain::units;
use crate::plan::published::family::fastest;
use crate::plan::published::rotor::costs::CostTable;
use crate::plan::rematerialize::{legal, may_run_again, mutated_storages};
use crate::plan::{Instance, Plan, PlanError, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// Parts into which the unplanned peak beyond the static bytes is divided.
const SLOTS: usize = 500;

/// Most blocks in a chain; longer chains are merged into this many.
const LONGEST: usize = 48;

/// Most schedules that are simulated.
const SCHEDULES: usize = 40;

/// The fastest schedule over all amounts of memory whose peak fits.
pub fn rotor(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, profile, order } = instance;
    let chain = Chain::new(graph, order);
    let blocks = (chain.length > 0).then(|| chain.blocks(graph, profile, order));
    let table = blocks.as_ref().map(CostTable::new);
    meter.spend(16 * order.len() as u64 + table.as_ref().map_or(0, CostTable::work));
    let amounts = table.as_ref().map_or(Vec::new(), CostTable::amounts);
    let every = amounts.len().div_ceil(SCHEDULES).max(1);
    let mut chosen: Vec<usize> = amounts.into_iter().rev().step_by(every).collect();
    chosen.reverse();
    let member = |number: usize, _: &mut Meter<'_>| match (&table, number.checked_sub(1)) {
        (_, None) => Some(order.to_vec()),
        (None, Some(_)) => None,
        (Some(table), Some(number)) => {
            Some(chain.runs(graph, order, &table.schedule(*chosen.get(number)?)))
        }
    };
    fastest(instance, budget, Planner::Rotor, member, meter)
}

/// The forward pass, cut into blocks.
struct Chain {
    length: usize,
    /// The block of each node before the first backward node.
    block: SecondaryMap<NodeId, Option<usize>>,
    /// For each block the nodes that run again with it.
    again: Vec<Vec<NodeId>>,
    /// The nodes of all blocks that run again.
    runs_again: SecondaryMap<NodeId, bool>,
    /// Storages that are made again with their block.
    movable: SecondaryMap<StorageId, bool>,
    /// Those that the next block reads.
    border: SecondaryMap<StorageId, bool>,
    /// Those that a backward node reads.
    saved: SecondaryMap<StorageId, bool>,
}

impl Chain {
    fn new(graph: &Graph, order: &[NodeId]) -> Chain {
        // The chain ends with the last forward node that the backward pass reads. Other nodes among
        // the forward nodes (updates that moved up, copies that autograd saves) belong to the block
        // of the node before them.
        let is_forward = |node: NodeId| graph.nodes()[node].phase.is_forward();
        let mut behind = 0;
        let mut position: SecondaryMap<NodeId, usize> = SecondaryMap::new();
        for (at, &node) in order.iter().enumerate() {
            position[node] = at;
            if graph.nodes()[node].phase == Phase::Backward {
                let read = graph
                    .reads(node)
                    .iter()
                    .filter_map(|&storage| graph.producer(storage))
                    .filter(|&made| is_forward(made));
                behind = read.map(|made| position[made] + 1).fold(behind, usize::max);
            }
        }
        let ahead = &order[..behind];
        let units = units(graph, ahead);
        let count = units.last().map_or(0, |last| last + 1);
        let length = count.min(LONGEST);
        let mut block: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
        for (&node, unit) in ahead.iter().zip(units) {
            block[node] = Some(unit * length / count.max(1));
        }
        let mut chain = Chain {
            length,
            block,
            again: vec![Vec::new(); length],
            runs_again: SecondaryMap::new(),
            movable: SecondaryMap::new(),
            border: SecondaryMap::new(),
            saved: SecondaryMap::new(),
        };
        // What a block beyond the next one reads is held throughout, and so is what cannot be made
        // again.
        let mut skips: SecondaryMap<NodeId, bool> = SecondaryMap::new();
        for &node in order {
            for &storage in graph.reads(node) {
                let Some(producer) = graph.producer(storage) else { continue };
                match (chain.block[producer], chain.block[node]) {
                    (Some(made), Some(read)) if read > made + 1 => skips[producer] = true,
                    (Some(made), Some(read)) if read > made => chain.border[storage] = true,
                    (Some(_), None) => chain.saved[storage] = true,
                    _ => {}
                }
            }
        }
        let is_mutated = mutated_storages(graph);
        for &node in ahead {
            if let Some(block) = chain.block[node]
                .filter(|_| !skips[node] && may_run_again(graph, &is_mutated, node))
            {
                chain.again[block].push(node);
                chain.runs_again[node] = true;
                for &storage in graph.fresh(node).iter().filter(|&&storage| !graph.is_kept(storage))
                {
                    chain.movable[storage] = true;
                }
            }
        }
        chain
    }

    /// The block whose activations a backward node needs, beyond the input of the block after it.
    fn needed(&self, graph: &Graph, node: NodeId) -> Option<usize> {
        let reads = graph.reads(node).iter().filter(|&&storage| self.movable[storage]);
        let blocks = reads.filter_map(|&storage| {
            Some(self.block[graph.producer(storage)?]? + usize::from(self.border[storage]))
        });
        blocks.min().map(|block| block.min(self.length - 1))
    }

    /// The figures of each block, in bytes beyond the static ones.
    fn blocks(&self, graph: &Graph, profile: &Profile, order: &[NodeId]) -> Blocks {
        let resting = graph.static_bytes();
        let unplanned = order.into();
        let lives = liveness(graph, profile, &unplanned);
        let curve = memory_curve(graph, profile, &unplanned, &lives);
        let mut blocks = Blocks::new(
            self.length,
            Bytes((curve.peak.saturating_sub(resting).0 / SLOTS as u64).max(1)),
        );
        // Bytes of activations that the chain holds, at each run of the unplanned sequence.
        let mut change = vec![(0, 0); order.len() + 1];
        for life in lives.intervals.values().filter(|life| self.movable[life.storage]) {
            let bytes = graph.storages()[life.storage].0;
            if let Some(born) = life.born {
                change[born as usize].0 += bytes;
                change[life.dies as usize + 1].1 += bytes;
            }
        }
        let (mut activations, mut frontier) = (0, self.length);
        for (position, &node) in order.iter().enumerate() {
            activations = activations + change[position].0 - change[position].1;
            let others = curve.held[position].saturating_sub(resting).0.saturating_sub(activations);
            match self.block[node] {
                Some(block) => {
                    blocks.forward[block] +=
                        profile.seconds[node].0 * f64::from(u8::from(self.runs_again[node]))
                }
                None => {
                    if let Some(block) = self.needed(graph, node).filter(|&block| block < frontier)
                    {
                        for passed in block..frontier {
                            blocks.before[passed] = others;
                        }
                        frontier = block;
                    }
                    if frontier < self.length {
                        blocks.backward[frontier] = blocks.backward[frontier].max(others);
                    }
                }
            }
        }
        for (block, nodes) in self.again.iter().enumerate() {
            (blocks.output[block], blocks.all[block]) = (0, 0);
            for &storage in nodes
                .iter()
                .flat_map(|&node| graph.fresh(node))
                .filter(|&&storage| self.movable[storage])
            {
                let bytes = graph.storages()[storage].0;
                blocks.output[block] += if self.border[storage] { bytes } else { 0 };
                blocks.all[block] +=
                    if self.border[storage] || self.saved[storage] { bytes } else { 0 };
            }
            blocks.passing[block] =
                self.own_peak(graph, profile, nodes, |storage| self.border[storage]);
            blocks.saving[block] = self.own_peak(graph, profile, nodes, |storage| {
                self.border[storage] || self.saved[storage]
            });
        }
        blocks
    }

    /// Most bytes of its own that a block holds while it runs; `stays` says what is kept.
    fn own_peak(
        &self,
        graph: &Graph,
        profile: &Profile,
        nodes: &[NodeId],
        stays: impl Fn(StorageId) -> bool,
    ) -> u64 {
        let mut readers: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
        for (position, &node) in nodes.iter().enumerate() {
            for &storage in graph.fresh(node).iter().chain(graph.reads(node)) {
                readers[storage] = Some(position);
            }
        }
        let (mut held, mut peak) = (0, 0);
        let mut made: SecondaryMap<StorageId, bool> = SecondaryMap::new();
        for (position, &node) in nodes.iter().enumerate() {
            for &storage in graph.fresh(node) {
                made[storage] = true;
                held += graph.storages()[storage].0;
            }
            peak = peak.max(held + profile.workspace[node].0);
            for &storage in graph.fresh(node).iter().chain(graph.reads(node)) {
                if made[storage] && readers[storage] == Some(position) && !stays(storage) {
                    held -= graph.storages()[storage].0;
                    made[storage] = false;
                }
            }
        }
        peak
    }

    /// The sequence that a schedule becomes: blocks run again as soon as the backward pass reaches
    /// what they serve.
    fn runs(&self, graph: &Graph, order: &[NodeId], schedule: &[Move]) -> Vec<NodeId> {
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); self.length];
        let mut ran = vec![false; self.length];
        let mut waiting = Vec::new();
        for &next in schedule {
            match next {
                Move::Forward(block) if ran[block] => waiting.push(block),
                Move::Forward(block) => ran[block] = true,
                Move::Backward(block) => before[block].append(&mut waiting),
            }
        }
        let mut frontier = self.length;
        let mut runs = Vec::with_capacity(order.len() * 2);
        for &node in order {
            if let Some(block) = Some(node)
                .filter(|&node| self.block[node].is_none())
                .and_then(|node| self.needed(graph, node))
            {
                for passed in (block..frontier).rev() {
                    runs.extend(before[passed].iter().flat_map(|&again| &self.again[again]));
                }
                frontier = frontier.min(block);
            }
            runs.push(node);
        }
        legal(graph, &runs)
    }
}

/// One move of a schedule of the chain.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Move {
    Forward(usize),
    Backward(usize),
}

/// Figures of the blocks of a chain; bytes are beyond the static ones.
struct Blocks {
    slot: Bytes,
    /// Seconds of one forward pass.
    forward: Vec<f64>,
    /// Bytes of the output.
    output: Vec<u64>,
    /// Bytes of the output and of everything that the backward pass reads.
    all: Vec<u64>,
    /// Own peak of a forward pass that leaves only the output.
    passing: Vec<u64>,
    /// Own peak of a forward pass that leaves everything.
    saving: Vec<u64>,
    /// Bytes in addition to the chain's activations when the backward pass reaches the block.
    before: Vec<u64>,
    /// Most bytes in addition to the chain's activations while the block's backward pass runs.
    backward: Vec<u64>,
}

impl Blocks {
    fn new(length: usize, slot: Bytes) -> Blocks {
        let zero = || vec![0; length];
        Blocks {
            slot,
            forward: vec![0.0; length],
            output: zero(),
            all: zero(),
            passing: zero(),
            saving: zero(),
            before: zero(),
            backward: zero(),
        }
    }

    /// Bytes that must fit count as whole slots, rounded up.
    fn needed(&self, bytes: u64) -> usize {
        bytes.div_ceil(self.slot.0) as usize
    }

    /// Bytes held count to the nearest slot: rounding up would add a slot for each block.
    fn held(&self, bytes: u64) -> usize {
        ((bytes + self.slot.0 / 2) / self.slot.0) as usize
    }
}
