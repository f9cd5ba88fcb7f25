//! What lies where. Invariant: bytes held in a tier are those of its buffers that are not free, and
//! no two of them overlap.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::SecondaryMap;

use crate::check::violation::Violation;
use crate::graph::Graph;
use crate::id::{BufferId, DEVICE, NodeId, StorageId, TierId, TransferId};
use crate::profile::Profile;
use crate::schedule::{ALIGNMENT, Schedule, Transfer};
use crate::units::Bytes;

/// What lies in a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Content {
    /// Nothing: it is not allocated.
    #[default]
    Free,
    /// A call's workspace.
    Scratch,
    /// A storage at a version.
    Holds(StorageId, u32),
    /// What a transfer brings, and nobody may touch before it was waited for.
    Arriving(TransferId),
}

/// The state of the abstract execution.
pub struct AbstractMachine<'a> {
    pub graph: &'a Graph,
    pub profile: &'a Profile,
    pub schedule: &'a Schedule,
    pub content: SecondaryMap<BufferId, Content>,
    /// How many buffers hold each storage, in whatever version and tier.
    pub copies: SecondaryMap<StorageId, u32>,
    /// Held buffers by tier and address, for the overlap test.
    by_address: BTreeSet<(TierId, u64, BufferId)>,
    /// Nodes that ran.
    pub ran: SecondaryMap<NodeId, bool>,
    /// The last of them that drew from the running generator.
    pub drew: Option<NodeId>,
    /// Transfers under way.
    pub in_flight: BTreeMap<TransferId, &'a Transfer>,
    /// Transfers that were started.
    pub started: BTreeSet<TransferId>,
    /// Bytes held in each tier.
    pub held: SecondaryMap<TierId, Bytes>,
    /// The instruction that is executed.
    pub index: usize,
}

impl<'a> AbstractMachine<'a> {
    pub fn new(graph: &'a Graph, profile: &'a Profile, schedule: &'a Schedule) -> Self {
        AbstractMachine {
            graph,
            profile,
            schedule,
            content: SecondaryMap::new(),
            copies: SecondaryMap::new(),
            by_address: BTreeSet::new(),
            ran: SecondaryMap::new(),
            drew: None,
            in_flight: BTreeMap::new(),
            started: BTreeSet::new(),
            held: SecondaryMap::new(),
            index: 0,
        }
    }

    /// Every placeholder lies in one buffer of the device before the first instruction.
    pub fn load_placeholders(&mut self) -> Result<(), Violation> {
        let graph = self.graph;
        let mut given: SecondaryMap<NodeId, Vec<BufferId>> = SecondaryMap::new();
        for &(node, buffer) in &self.schedule.placeholders {
            given[node].push(buffer);
        }
        let placeholders = graph.nodes().iter().filter(|(_, node)| node.phase.is_placeholder());
        for (node, placeholder) in placeholders {
            let mine = &given[node];
            let name = &placeholder.name;
            let [buffer] = mine[..] else {
                return Err(Violation::Placeholder { node: name.clone(), count: mine.len() });
            };
            let output = placeholder.outputs[0].expect("a placeholder has one output");
            let storage = graph.values()[output].storage;
            self.on_device(name, buffer)?;
            self.fits(name, "its value", graph.storages()[storage], buffer)?;
            self.allocate(buffer, Content::Holds(storage, 0), name)?;
        }
        Ok(())
    }

    /// What lies in a buffer, in words.
    pub fn describe(&self, buffer: BufferId) -> String {
        match self.content[buffer] {
            Content::Free => "nothing".to_string(),
            Content::Scratch => "scratch memory".to_string(),
            Content::Holds(storage, version) => {
                let name =
                    self.graph.producer(storage).map_or("?", |node| &self.graph.nodes()[node].name);
                format!("what `{name}` made (version {version})")
            }
            Content::Arriving(transfer) => format!("what {transfer} is bringing"),
        }
    }

    pub fn fits(
        &self,
        node: &str,
        what: &str,
        needed: Bytes,
        buffer: BufferId,
    ) -> Result<(), Violation> {
        let given = self.schedule.buffers[buffer].bytes;
        if needed <= given {
            return Ok(());
        }
        let (node, what) = (node.to_string(), what.to_string());
        Err(Violation::TooSmall { index: self.index, node, what, needed, buffer, given })
    }

    /// Calls compute on the device.
    pub fn on_device(&self, node: &str, buffer: BufferId) -> Result<(), Violation> {
        let tier = self.schedule.buffers[buffer].tier;
        if tier == DEVICE {
            return Ok(());
        }
        Err(Violation::OffDevice { index: self.index, node: node.to_string(), buffer, tier })
    }

    /// Allocates a free buffer, clear of everything held in its tier.
    pub fn allocate(
        &mut self,
        buffer: BufferId,
        content: Content,
        user: &str,
    ) -> Result<(), Violation> {
        let index = self.index;
        if self.content[buffer] != Content::Free {
            let (node, found) = (user.to_string(), self.describe(buffer));
            return Err(Violation::Overwrites { index, node, buffer, found });
        }
        let place = self.schedule.buffers[buffer];
        let (tier, address) = (place.tier, place.address);
        let end = address.saturating_add(place.bytes.0);
        let arena = self.schedule.arena(tier);
        if end > arena.0 {
            return Err(Violation::OutsideSlab { buffer, end, slab: arena.0 });
        }
        if place.bytes > Bytes::ZERO && !address.is_multiple_of(ALIGNMENT) {
            return Err(Violation::Misaligned { buffer, address, alignment: ALIGNMENT });
        }
        self.put(buffer, content);
        self.held[tier] += place.bytes;
        if let Some(capacity) = self.profile.hierarchy.tiers[tier].capacity
            && self.held[tier] > capacity
        {
            let (held, capacity) = (self.held[tier].0, capacity.0);
            return Err(Violation::OverCapacity { index, tier, held, capacity });
        }
        if place.bytes == Bytes::ZERO {
            return Ok(());
        }
        let here = (tier, address, buffer);
        let below = self.by_address.range(..here).next_back();
        let above = self.by_address.range(here..).next();
        for &(other_tier, _, other) in [below, above].into_iter().flatten() {
            let neighbour = self.schedule.buffers[other];
            if other_tier == tier
                && address < neighbour.address + neighbour.bytes.0
                && neighbour.address < end
            {
                return Err(Violation::Overlap { index, buffer, other });
            }
        }
        self.by_address.insert(here);
        Ok(())
    }

    /// Gives a buffer back, whatever lies in it.
    pub fn release(&mut self, buffer: BufferId) {
        let place = self.schedule.buffers[buffer];
        self.by_address.remove(&(place.tier, place.address, buffer));
        self.put(buffer, Content::Free);
        self.held[place.tier] -= place.bytes;
    }

    /// Changes what lies in a buffer.
    pub fn put(&mut self, buffer: BufferId, content: Content) {
        if let Content::Holds(storage, _) = self.content[buffer] {
            self.copies[storage] -= 1;
        }
        if let Content::Holds(storage, _) = content {
            self.copies[storage] += 1;
        }
        self.content[buffer] = content;
    }

    /// Gives a buffer back whose content is not needed any more.
    pub fn free(&mut self, buffer: BufferId) -> Result<Bytes, Violation> {
        self.stays("free", buffer)?;
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
            Content::Holds(..) | Content::Scratch | Content::Arriving(_) => self.release(buffer),
        }
        Ok(self.held[DEVICE])
    }

    /// Nothing is missing, nothing is left over, and nothing is under way.
    pub fn finish(&self) -> Result<(), Violation> {
        let graph = self.graph;
        if let Some(&transfer) = self.in_flight.keys().next() {
            return Err(Violation::NeverWaitedFor { transfer });
        }
        if let Some(node) = graph.compute_nodes().into_iter().find(|&node| !self.ran[node]) {
            return Err(Violation::NeverRuns { node: graph.nodes()[node].name.clone() });
        }
        let mut last: SecondaryMap<StorageId, u32> = SecondaryMap::new();
        for value in graph.values().values() {
            last[value.storage] = last[value.storage].max(value.version);
        }
        let on_device = |&buffer: &BufferId| self.schedule.buffers[buffer].tier == DEVICE;
        let held: BTreeSet<(StorageId, u32)> = self
            .schedule
            .buffers
            .keys()
            .filter(on_device)
            .filter_map(|buffer| match self.content[buffer] {
                Content::Holds(storage, version) => Some((storage, version)),
                Content::Free | Content::Scratch | Content::Arriving(_) => None,
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
                let producer = graph.producer(storage);
                let value = producer.map_or("?", |node| &graph.nodes()[node].name).to_string();
                return Err(Violation::Missing { value });
            }
        }
        // Of what is kept the last version stays, once on the device; copies of it may lie below.
        let mut stays: BTreeSet<StorageId> = BTreeSet::new();
        for buffer in self.schedule.buffers.keys() {
            let on_device = self.schedule.buffers[buffer].tier == DEVICE;
            match self.content[buffer] {
                Content::Free => {}
                Content::Holds(storage, version)
                    if graph.is_kept(storage)
                        && version == last[storage]
                        && (!on_device || stays.insert(storage)) => {}
                Content::Holds(..) | Content::Scratch | Content::Arriving(_) => {
                    return Err(Violation::Leaked { buffer, found: self.describe(buffer) });
                }
            }
        }
        Ok(())
    }
}
