//! Where one step ends and the next begins. Invariant: the step is a cycle: at its end, what is
//! kept lies at its last version in the buffers in which the beginning found it, and what is in
//! flight at its end is in flight at its beginning.
//!
//! A transfer crosses the border if it is waited for before it is started. It is in flight when the
//! step begins, was started at the end of the step before, and is started again at the end of this
//! one.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;

use crate::check::state::{AbstractMachine, Content};
use crate::check::violation::Violation;
use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId, StorageId};

impl AbstractMachine<'_> {
    /// Before the first instruction every placeholder lies where the schedule says, and whatever
    /// crosses the border is in flight. The batch lies in one buffer of the device; what is kept
    /// lies in one or several buffers of any tier.
    pub fn begin(&mut self) -> Result<(), Violation> {
        let graph = self.graph;
        let mut given: SecondaryMap<NodeId, Vec<BufferId>> = SecondaryMap::new();
        for &(node, buffer) in &self.schedule.placeholders {
            given[node].push(buffer);
        }
        let placeholders = graph.nodes().iter().filter(|(_, node)| node.phase.is_placeholder());
        for (node, placeholder) in placeholders {
            let (mine, name) = (&given[node], &placeholder.name);
            let is_persistent = placeholder.phase.is_persistent();
            if mine.is_empty() || mine.len() > 1 && !is_persistent {
                return Err(Violation::Placeholder { node: name.clone(), count: mine.len() });
            }
            let output = placeholder.outputs[0].expect("a placeholder has one output");
            let storage = graph.values()[output].storage;
            for &buffer in mine {
                if !is_persistent {
                    self.on_device(name, buffer)?;
                }
                self.fits(name, "its value", graph.storages()[storage], buffer)?;
                self.allocate(buffer, Content::Holds(storage, 0), name)?;
            }
        }
        // The source of what is in flight then lies, at the end of every step, where that step
        // found it; only kept storages do.
        let kept: BTreeSet<BufferId> = self
            .schedule
            .placeholders
            .iter()
            .filter(|(node, _)| graph.nodes()[*node].phase.is_persistent())
            .map(|&(_, buffer)| buffer)
            .collect();
        for transfer in self.schedule.crossing() {
            let [buffer, _] = transfer.movement.buffers();
            if !kept.contains(&buffer) {
                return Err(Violation::CrossesUnkept { transfer: transfer.id, buffer });
            }
            self.launch(transfer)?;
            self.crossing.insert(transfer.id);
        }
        Ok(())
    }

    /// Nothing is missing, nothing is left over, and nothing is in flight except what crosses the
    /// border.
    pub fn finish(&self) -> Result<(), Violation> {
        let graph = self.graph;
        let mut left = self.in_flight.keys().filter(|id| !self.crossing.contains(id));
        if let Some(&transfer) = left.next() {
            return Err(Violation::NeverWaitedFor { transfer });
        }
        if let Some(node) = graph.compute_nodes().into_iter().find(|&node| !self.ran[node]) {
            return Err(Violation::NeverRuns { node: graph.nodes()[node].name.clone() });
        }
        let last = last_versions(graph);
        let name = |storage| {
            let producer = graph.producer(storage);
            producer.map_or("?", |node| &graph.nodes()[node].name).to_string()
        };
        // What the next step expects, by buffer.
        let mut expected: BTreeMap<BufferId, Content> = BTreeMap::new();
        for &(node, buffer) in &self.schedule.placeholders {
            for &storage in graph.fresh(node).iter().filter(|&&storage| graph.is_kept(storage)) {
                let content = Content::Holds(storage, last[storage]);
                if self.content[buffer] != content {
                    let (value, found) = (name(storage), self.describe(buffer));
                    return Err(Violation::NotWhereItBegan { value, buffer, found });
                }
                expected.insert(buffer, content);
            }
        }
        for &transfer in &self.crossing {
            let under_way = self.in_flight.get(&transfer);
            let under_way = under_way.ok_or(Violation::ArrivesTooSoon { transfer })?;
            expected.insert(under_way.movement.target(), Content::Arriving(transfer));
        }
        // In addition, each output once on the device.
        let on_device = |buffer: BufferId| self.schedule.buffers[buffer].tier == DEVICE;
        let held: BTreeSet<(StorageId, u32)> = self
            .schedule
            .buffers
            .keys()
            .filter(|&buffer| on_device(buffer))
            .filter_map(|buffer| match self.content[buffer] {
                Content::Holds(storage, version) => Some((storage, version)),
                Content::Free | Content::Scratch | Content::Arriving(_) => None,
            })
            .collect();
        for &value in graph.outputs() {
            let value = &graph.values()[value];
            if !held.contains(&(value.storage, value.version)) {
                return Err(Violation::Missing { value: name(value.storage) });
            }
        }
        let placed: BTreeSet<StorageId> = graph.placeholder_storages().map(|(_, s)| s).collect();
        let mut stays: BTreeSet<StorageId> = BTreeSet::new();
        for buffer in self.schedule.buffers.keys() {
            let content = self.content[buffer];
            let is_output = match content {
                Content::Holds(storage, version) => {
                    on_device(buffer)
                        && graph.is_kept(storage)
                        && !placed.contains(&storage)
                        && version == last[storage]
                        && stays.insert(storage)
                }
                Content::Free => true,
                Content::Scratch | Content::Arriving(_) => false,
            };
            if !is_output && expected.get(&buffer) != Some(&content) {
                return Err(Violation::Leaked { buffer, found: self.describe(buffer) });
            }
        }
        Ok(())
    }
}

fn last_versions(graph: &Graph) -> SecondaryMap<StorageId, u32> {
    let mut last: SecondaryMap<StorageId, u32> = SecondaryMap::new();
    for value in graph.values().values() {
        last[value.storage] = last[value.storage].max(value.version);
    }
    last
}
