//! The course of one step: which calls run when, and which tensor is held from which call to which.
//! Invariant: at every call the bytes held there sum up to what the checker's timeline says.

use std::collections::BTreeMap;

use cranelift_entity::SecondaryMap;
use tightfit::graph::Graph;
use tightfit::id::{BufferId, DEVICE, ModuleId, NodeId, StorageId};
use tightfit::schedule::{Instruction, Schedule, Transfer};
use tightfit::timeline::{self, CallInTime, Timeline, TransferInTime};
use tightfit::units::{Bytes, Seconds};

use crate::role::{ByRole, Role, roles};

/// A tensor, or a call's workspace, from the first to the last call over which it is held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Residency {
    /// What is held; `None` = workspace.
    pub storage: Option<StorageId>,
    /// The node that created the storage, or that works in the workspace.
    pub node: NodeId,
    /// Its role.
    pub role: Role,
    /// Its buffer's bytes.
    pub bytes: Bytes,
    /// The first call that finds or makes it.
    pub first: u32,
    /// The last call before it is freed.
    pub last: u32,
}

/// What a transfer carries, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// The node that created the storage.
    pub node: NodeId,
    /// It leaves the device; otherwise it returns.
    pub leaves: bool,
    /// Its buffer's bytes.
    pub bytes: Bytes,
    /// When it is carried.
    pub time: TransferInTime,
}

/// What lies in the tiers below the device over one step.
#[derive(Clone, Debug, Default)]
pub struct Below {
    /// What is held there, in the order in which it appears.
    pub residencies: Vec<Residency>,
    /// Bytes at each call, by role.
    pub by_role: Vec<ByRole<Bytes>>,
    /// Bytes that stay when the step is over, by role.
    pub at_end: ByRole<Bytes>,
}

impl Below {
    /// The most bytes at any call.
    pub fn peak(&self) -> Bytes {
        self.by_role.iter().map(|bytes| bytes.iter().copied().sum()).max().unwrap_or_default()
    }
}

/// One step under one schedule.
#[derive(Clone, Debug)]
pub struct Course<'a> {
    /// The step.
    pub graph: &'a Graph,
    /// Name of the planner.
    pub planner: &'a str,
    /// The budget of the slab.
    pub budget: Bytes,
    /// What runs, in order.
    pub calls: Vec<CallInTime>,
    /// What moves, in the order of the starts.
    pub transfers: Vec<Carried>,
    /// What is held, in the order in which it appears.
    pub residencies: Vec<Residency>,
    /// Bytes at each call, by role.
    pub by_role: Vec<ByRole<Bytes>>,
    /// Bytes that stay when the step is over, by role.
    pub at_end: ByRole<Bytes>,
    /// What lies below the device; empty if nothing moves.
    pub below: Below,
    /// Most bytes held.
    pub peak: Bytes,
    /// The first call that holds them.
    pub at: usize,
    /// Seconds of the whole step.
    pub seconds: Seconds,
    /// The module that each storage is shown under.
    pub homes: SecondaryMap<StorageId, Option<ModuleId>>,
}

impl<'a> Course<'a> {
    /// The course of a schedule. `timeline` must be the checker's timeline of it.
    pub fn of(graph: &'a Graph, schedule: &'a Schedule, timeline: &Timeline) -> Course<'a> {
        let calls = timeline.calls.clone();
        let held = |is_device| residencies(graph, timeline, is_device);
        let ((residencies, at_end), (lower, lower_at_end)) = (held(true), held(false));
        let below = Below {
            by_role: by_role(&lower, calls.len()),
            residencies: lower,
            at_end: lower_at_end,
        };
        Course {
            graph,
            planner: &schedule.planner,
            budget: schedule.budget,
            by_role: by_role(&residencies, calls.len()),
            at_end,
            below,
            at: timeline.at,
            calls,
            transfers: transfers(schedule, timeline),
            residencies,
            peak: timeline.peak,
            seconds: timeline.seconds,
            homes: homes(graph),
        }
    }

    /// What is held at a call, largest first.
    pub fn alive(&self, call: usize) -> Vec<&Residency> {
        let here = |residency: &&Residency| {
            (residency.first as usize) <= call && call <= residency.last as usize
        };
        let mut alive: Vec<&Residency> =
            self.residencies.iter().filter(here).filter(|held| held.bytes > Bytes::ZERO).collect();
        alive.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| self.name(a).cmp(self.name(b))));
        alive
    }

    /// The name of a tensor: the model's, else the node's.
    pub fn name(&self, residency: &Residency) -> &'a str {
        tensor_name(self.graph, residency.node)
    }

    /// Where the bytes of a residency belong in the module tree.
    pub fn module(&self, residency: &Residency) -> &'a str {
        let home = residency.storage.and_then(|storage| self.homes[storage]);
        home.map_or(self.graph.module_of(residency.node), |module| &self.graph.modules()[module])
    }

    /// The first call of a node.
    pub fn first_call(&self, node: NodeId) -> Option<usize> {
        self.calls.iter().position(|call| call.node == node)
    }

    /// When calls wait for transfers: the number of the waiting call, or the number of all calls if
    /// the end of the step waits, with the beginning and the end of the wait.
    pub fn waits(&self) -> Vec<(usize, Seconds, Seconds)> {
        let starts = self.calls.iter().map(|call| call.start).chain([self.seconds]);
        let ends = self.calls.iter().map(|call| call.start + call.seconds);
        let gaps = [Seconds(0.0)].into_iter().chain(ends).zip(starts).enumerate();
        gaps.filter(|(_, (from, to))| to > from)
            .map(|(call, (from, to))| (call, from, to))
            .collect()
    }

    /// Bytes that leave the device in a step, and those that return.
    pub fn moved(&self) -> [Bytes; 2] {
        let sum = |leaves: bool| {
            let moved = self.transfers.iter().filter(|carried| carried.leaves == leaves);
            moved.map(|carried| carried.bytes).sum()
        };
        [sum(true), sum(false)]
    }

    /// Calls that run again.
    pub fn recomputed(&self) -> usize {
        self.calls.iter().filter(|call| call.recomputed).count()
    }
}

/// The transfers of a schedule with their times.
fn transfers(schedule: &Schedule, timeline: &Timeline) -> Vec<Carried> {
    let makers: BTreeMap<BufferId, Vec<&timeline::Residency>> =
        timeline.residencies.iter().fold(BTreeMap::new(), |mut makers, held| {
            makers.entry(held.buffer).or_insert_with(Vec::new).push(held);
            makers
        });
    let started = schedule.instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Start(transfer) => Some(transfer),
        Instruction::Run(_)
        | Instruction::Recompute(_)
        | Instruction::Free(_)
        | Instruction::Wait(_) => None,
    });
    let carried = |(transfer, time): (&Transfer, &TransferInTime)| {
        let [from, to] = transfer.movement.buffers();
        let (leaves, bytes) = (schedule.buffers[from].tier == DEVICE, schedule.buffers[from].bytes);
        // A tier keeps one storage in one buffer.
        let home = if leaves { to } else { from };
        let node = makers.get(&home)?.first()?.node;
        Some(Carried { node, leaves, bytes, time: *time })
    };
    started.zip(&timeline.transfers).filter_map(carried).collect()
}

/// The name of a tensor: parameters, buffers and state have the one that the model gives them.
pub fn tensor_name(graph: &Graph, node: NodeId) -> &str {
    let node = &graph.nodes()[node];
    node.parameter.as_ref().unwrap_or(&node.name)
}

/// Placeholders often belong to no module of their own; they are shown under the module of the
/// first node that reads them.
fn homes(graph: &Graph) -> SecondaryMap<StorageId, Option<ModuleId>> {
    let mut homes: SecondaryMap<StorageId, Option<ModuleId>> =
        SecondaryMap::with_capacity(graph.storages().len());
    let is_named = |module: ModuleId| !graph.modules()[module].is_empty();
    for (id, node) in graph.nodes().iter().filter(|(_, node)| is_named(node.module)) {
        let given = graph.reads(id).iter().filter(|&&storage| {
            let producer = graph.producer(storage).map(|producer| &graph.nodes()[producer]);
            producer.is_some_and(|producer| {
                producer.phase.is_placeholder() && !is_named(producer.module)
            })
        });
        for &storage in given {
            homes[storage].get_or_insert(node.module);
        }
    }
    homes
}

/// What the timeline says is held on the device, or below it, with its role; and what stays at the
/// end. A tensor that no call finds is left out.
fn residencies(
    graph: &Graph,
    timeline: &Timeline,
    on_device: bool,
) -> (Vec<Residency>, ByRole<Bytes>) {
    let roles = roles(graph);
    let calls = timeline.calls.len() as u32;
    let mut found: Vec<Residency> = Vec::with_capacity(timeline.residencies.len());
    let mut at_end = ByRole::<Bytes>::default();
    for held in timeline.residencies.iter().filter(|held| (held.tier == DEVICE) == on_device) {
        let role = match held.storage {
            None => Role::Workspace,
            Some(_) if held.recomputed => Role::Recomputed,
            Some(storage) => roles[storage],
        };
        if held.end.is_none() {
            at_end[role as usize] += held.bytes;
        }
        let last = held.end.unwrap_or(calls).checked_sub(1);
        let Some(last) = last.filter(|&last| last >= held.first) else { continue };
        let timeline::Residency { storage, node, bytes, first, .. } = *held;
        found.push(Residency { storage, node, role, bytes, first, last });
    }
    found.sort_by_key(|residency| {
        (residency.first, residency.node, residency.storage, residency.last)
    });
    (found, at_end)
}

fn by_role(residencies: &[Residency], calls: usize) -> Vec<ByRole<Bytes>> {
    let mut born = vec![ByRole::<Bytes>::default(); calls + 1];
    let mut freed = vec![ByRole::<Bytes>::default(); calls + 1];
    for residency in residencies {
        born[residency.first as usize][residency.role as usize] += residency.bytes;
        freed[residency.last as usize + 1][residency.role as usize] += residency.bytes;
    }
    let mut now = ByRole::<Bytes>::default();
    let step = |(born, freed): (&ByRole<Bytes>, &ByRole<Bytes>)| {
        for role in Role::ALL {
            now[role as usize] = now[role as usize] + born[role as usize] - freed[role as usize];
        }
        now
    };
    born.iter().zip(&freed).take(calls).map(step).collect()
}
