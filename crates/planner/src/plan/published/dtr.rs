//! Dynamic tensor rematerialization: run the step node by node and, when memory is short, evict a
//! tensor that is cheap to make again, large and stale. Invariant: it uses nothing that an online
//! system would not know; whatever is read is in memory because it stayed, or because the nodes
//! that make it ran again.
//!
//! Source: Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, "Dynamic Tensor
//! Rematerialization", ICLR 2021: the heuristic h_DTR^eq, with eager eviction. Departures: see
//! `doc/theory/dtr.md`.

use cranelift_entity::SecondaryMap;

use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::plan::published::family::heeding;
use crate::plan::rematerialize::{legal, may_run_again, mutated_storages};
use crate::plan::{Instance, Plan, PlanError, Planner};
use crate::profile::Profile;
use crate::units::Bytes;

/// Runs, in multiples of the step's own, after which nothing more is evicted: recursion may grow
/// exponentially.
const MOST_RUNS: usize = 6;

/// Storages of the pool that one operation examines.
const POOL_PER_OPERATION: u64 = 8;

/// The step as it runs online with `budget` bytes.
pub fn dtr(
    instance: Instance<'_>,
    budget: Bytes,
    meter: &mut Meter<'_>,
) -> Result<Plan, PlanError> {
    let Instance { graph, order, .. } = instance;
    let rule = |limit: Bytes, meter: &mut Meter<'_>| {
        let mut runtime = Runtime::new(instance, limit);
        for &node in order {
            runtime.run_first(node, meter);
        }
        legal(graph, &runtime.runs)
    };
    heeding(instance, budget, Planner::Dtr, rule, meter)
}

/// The runtime's knowledge of a storage.
#[derive(Clone, Copy, Default)]
struct Tensor {
    bytes: u64,
    /// Seconds of the node that makes it.
    cost: f64,
    /// It may be evicted and made again.
    evictable: bool,
    resident: bool,
    /// Runs in progress that read it; it stays while there are any.
    locks: u32,
    /// Reads by the step itself that are still to come.
    reads_left: u32,
    /// When it was last made or read.
    accessed: f64,
    /// Its index in the pool.
    slot: usize,
}

struct Runtime<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    limit: u64,
    most_runs: usize,
    tensors: SecondaryMap<StorageId, Tensor>,
    /// For each storage the evictable ones that are made from it, and those that it is made from.
    neighbours: SecondaryMap<StorageId, Vec<StorageId>>,
    evicted: Components,
    /// Evictable storages that are resident.
    pool: Vec<StorageId>,
    /// Storages that were written in place: nodes that read them cannot run again.
    written: SecondaryMap<StorageId, bool>,
    held: u64,
    clock: f64,
    runs: Vec<NodeId>,
}

impl<'a> Runtime<'a> {
    fn new(instance: Instance<'a>, limit: Bytes) -> Runtime<'a> {
        let Instance { graph, profile, order } = instance;
        let is_mutated = mutated_storages(graph);
        let count = graph.storages().len();
        let mut tensors: SecondaryMap<StorageId, Tensor> = SecondaryMap::with_capacity(count);
        let mut neighbours: SecondaryMap<StorageId, Vec<StorageId>> =
            SecondaryMap::with_capacity(count);
        for (storage, &bytes) in graph.storages() {
            tensors[storage].bytes = bytes.0;
        }
        for &node in order {
            let again = may_run_again(graph, &is_mutated, node);
            for &storage in graph.reads(node) {
                tensors[storage].reads_left += 1;
            }
            for &storage in
                graph.fresh(node).iter().filter(|&&storage| again && !graph.is_kept(storage))
            {
                tensors[storage].evictable = true;
                tensors[storage].cost = profile.seconds[node].0;
                for &read in graph.reads(node).iter().filter(|&&read| tensors[read].evictable) {
                    neighbours[storage].push(read);
                    neighbours[read].push(storage);
                }
            }
        }
        let mut runtime = Runtime {
            graph,
            profile,
            limit: limit.0,
            most_runs: order.len() * MOST_RUNS,
            tensors,
            neighbours,
            evicted: Components::new(count),
            pool: Vec::new(),
            written: SecondaryMap::new(),
            held: 0,
            clock: 0.0,
            runs: Vec::with_capacity(order.len() * 2),
        };
        for (_, storage) in graph.placeholder_storages() {
            runtime.appear(storage);
        }
        runtime
    }

    /// Runs a node of the step, after making whatever it reads and does not find.
    fn run_first(&mut self, node: NodeId, meter: &mut Meter<'_>) {
        let graph = self.graph;
        let mut pending = vec![(node, 0)];
        while let Some((next, operand)) = pending.pop() {
            match graph.reads(next).get(operand) {
                Some(&read) => {
                    pending.push((next, operand + 1));
                    self.tensors[read].locks += 1;
                    if !self.tensors[read].resident {
                        match graph.producer(read).filter(|_| self.may_be_made_again(read)) {
                            Some(producer) => pending.push((producer, 0)),
                            // Evicting it was a mistake: it stays from its last access on.
                            None => self.appear(read),
                        }
                    }
                }
                None => self.run(next, meter),
            }
        }
        for &storage in graph.mutated(node) {
            self.written[storage] = true;
        }
        for &read in graph.reads(node) {
            self.tensors[read].reads_left -= 1;
        }
        for &storage in graph.reads(node).iter().chain(graph.fresh(node)) {
            self.release(storage);
        }
    }

    fn may_be_made_again(&self, storage: StorageId) -> bool {
        let reads =
            self.graph.producer(storage).map_or(&[][..], |producer| self.graph.reads(producer));
        self.tensors[storage].evictable && !reads.iter().any(|&read| self.written[read])
    }

    /// Runs a node whose operands are in memory and locked.
    fn run(&mut self, node: NodeId, meter: &mut Meter<'_>) {
        let (reads, fresh) = (self.graph.reads(node), self.graph.fresh(node));
        let made: u64 = fresh.iter().map(|&storage| self.graph.storages()[storage].0).sum();
        let limit = self.limit.saturating_sub(made + self.profile.workspace[node].0);
        self.evict_until(limit, meter);
        meter.spend(1);
        self.runs.push(node);
        self.clock += self.profile.seconds[node].0;
        for &storage in fresh {
            if !self.tensors[storage].resident {
                self.appear(storage);
            }
        }
        for &storage in reads.iter().chain(fresh) {
            self.tensors[storage].accessed = self.clock;
        }
        for &read in reads {
            self.tensors[read].locks -= 1;
        }
    }

    /// A storage that the step will not read again is freed at once; others may still need it to be
    /// made again.
    fn release(&mut self, storage: StorageId) {
        let tensor = self.tensors[storage];
        if tensor.reads_left > 0
            || !tensor.resident
            || tensor.locks > 0
            || self.graph.is_kept(storage)
        {
            return;
        }
        if tensor.evictable {
            self.evict(storage);
        } else if self
            .graph
            .producer(storage)
            .is_some_and(|producer| !self.graph.nodes()[producer].phase.is_forward())
        {
            self.tensors[storage].resident = false;
            self.held -= tensor.bytes;
        }
    }

    fn appear(&mut self, storage: StorageId) {
        let tensor = &mut self.tensors[storage];
        tensor.resident = true;
        tensor.accessed = self.clock;
        self.held += tensor.bytes;
        if tensor.evictable {
            tensor.slot = self.pool.len();
            self.evicted.leave(storage, tensor.cost);
            self.pool.push(storage);
        }
    }

    /// Once time is up nothing more is evicted, so that the step runs to its end at once.
    fn evict_until(&mut self, limit: u64, meter: &mut Meter<'_>) {
        while self.held > limit && self.runs.len() < self.most_runs && !meter.is_late() {
            meter.spend(1 + self.pool.len() as u64 / POOL_PER_OPERATION);
            let Some(storage) = self.least() else { return };
            self.evict(storage);
        }
    }

    fn evict(&mut self, storage: StorageId) {
        let tensor = &mut self.tensors[storage];
        tensor.resident = false;
        self.held -= tensor.bytes;
        let (slot, cost) = (tensor.slot, tensor.cost);
        self.pool.swap_remove(slot);
        if let Some(&moved) = self.pool.get(slot) {
            self.tensors[moved].slot = slot;
        }
        self.evicted.enter(storage, cost);
        for &neighbour in &self.neighbours[storage] {
            self.evicted.join(storage, neighbour);
        }
    }

    /// The unlocked storage of the pool with the least h = (cost + cost of the adjacent evicted
    /// components) / (bytes · staleness); the oldest storage among equals.
    fn least(&mut self) -> Option<StorageId> {
        let mut best: Option<(f64, StorageId)> = None;
        let mut beside: Vec<u32> = Vec::new();
        for &storage in &self.pool {
            let tensor = self.tensors[storage];
            if tensor.locks > 0 || tensor.bytes == 0 {
                continue;
            }
            let worth = tensor.bytes as f64 * (self.clock - tensor.accessed).max(f64::MIN_POSITIVE);
            // Neighbours only add to the cost, so most storages need not examine theirs.
            if best.is_some_and(|(least, _)| tensor.cost / worth > least) {
                continue;
            }
            let mut cost = tensor.cost;
            beside.clear();
            for &neighbour in &self.neighbours[storage] {
                let Some(component) = self.evicted.of(neighbour) else { continue };
                if !beside.contains(&component) {
                    beside.push(component);
                    cost += self.evicted.sum[component as usize];
                }
            }
            let h = (cost / worth, storage);
            if best.is_none_or(|least| h.0.total_cmp(&least.0).then(h.1.cmp(&least.1)).is_lt()) {
                best = Some(h);
            }
        }
        best.map(|(_, storage)| storage)
    }
}

/// Connected evicted storages, as equivalence classes with the sum of their costs. A storage that
/// comes back takes its cost out; the rest of its class stays one class, as published: classes are
/// never split.
struct Components {
    parent: Vec<u32>,
    sum: Vec<f64>,
    /// The element that represents a storage; a fresh one for each eviction.
    element: SecondaryMap<StorageId, Option<u32>>,
}

impl Components {
    fn new(count: usize) -> Components {
        Components {
            parent: Vec::with_capacity(count),
            sum: Vec::with_capacity(count),
            element: SecondaryMap::with_capacity(count),
        }
    }

    /// The class that an evicted storage belongs to.
    fn of(&mut self, storage: StorageId) -> Option<u32> {
        let element = self.element[storage]?;
        Some(self.root(element))
    }

    fn enter(&mut self, storage: StorageId, cost: f64) {
        self.element[storage] = Some(self.parent.len() as u32);
        self.parent.push(self.parent.len() as u32);
        self.sum.push(cost);
    }

    fn leave(&mut self, storage: StorageId, cost: f64) {
        if let Some(element) = self.element[storage].take() {
            let root = self.root(element);
            self.sum[root as usize] = (self.sum[root as usize] - cost).max(0.0);
        }
    }

    fn join(&mut self, a: StorageId, b: StorageId) {
        let (Some(a), Some(b)) = (self.element[a], self.element[b]) else { return };
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.parent[a as usize] = b;
            self.sum[b as usize] += self.sum[a as usize];
        }
    }

    fn root(&mut self, mut element: u32) -> u32 {
        while self.parent[element as usize] != element {
            self.parent[element as usize] = self.parent[self.parent[element as usize] as usize];
            element = self.parent[element as usize];
        }
        element
    }
}
