//! The contents of buffers. Invariant: bytes held in a tier are those of its buffers that are not
//! free, and no two of them overlap.

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
    /// Arriving with a transfer; may not be touched before that was waited for.
    Arriving(TransferId),
}

/// The state of the abstract execution.
pub struct AbstractMachine<'a> {
    pub graph: &'a Graph,
    pub profile: &'a Profile,
    pub schedule: &'a Schedule,
    pub content: SecondaryMap<BufferId, Content>,
    /// The newest version of each storage.
    pub newest: SecondaryMap<StorageId, u32>,
    /// The number of buffers that hold each storage at its newest version, in any tier.
    pub copies: SecondaryMap<StorageId, u32>,
    /// Held buffers by tier and address, for the overlap test.
    by_address: BTreeSet<(TierId, u64, BufferId)>,
    /// Nodes that ran.
    pub ran: SecondaryMap<NodeId, bool>,
    /// The last of them that drew from the running generator.
    pub drew: Option<NodeId>,
    /// Transfers in flight.
    pub in_flight: BTreeMap<TransferId, &'a Transfer>,
    /// Transfers started in this step.
    pub started: BTreeSet<TransferId>,
    /// Transfers that are waited for before they are started: in flight when the step begins, and
    /// again when it is over.
    pub crossing: BTreeSet<TransferId>,
    /// Bytes held in each tier.
    pub held: SecondaryMap<TierId, Bytes>,
    /// The position of the current instruction.
    pub index: usize,
}

impl<'a> AbstractMachine<'a> {
    pub fn new(graph: &'a Graph, profile: &'a Profile, schedule: &'a Schedule) -> Self {
        AbstractMachine {
            graph,
            profile,
            schedule,
            content: SecondaryMap::new(),
            newest: SecondaryMap::new(),
            copies: SecondaryMap::new(),
            by_address: BTreeSet::new(),
            ran: SecondaryMap::new(),
            drew: None,
            in_flight: BTreeMap::new(),
            started: BTreeSet::new(),
            crossing: BTreeSet::new(),
            held: SecondaryMap::new(),
            index: 0,
        }
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

    /// Releases a buffer, whatever lies in it.
    pub fn release(&mut self, buffer: BufferId) {
        let place = self.schedule.buffers[buffer];
        self.by_address.remove(&(place.tier, place.address, buffer));
        self.put(buffer, Content::Free);
        self.held[place.tier] -= place.bytes;
    }

    /// Changes what lies in a buffer.
    pub fn put(&mut self, buffer: BufferId, content: Content) {
        if let Content::Holds(storage, version) = self.content[buffer]
            && version == self.newest[storage]
        {
            self.copies[storage] -= 1;
        }
        self.content[buffer] = content;
        if let Content::Holds(storage, version) = content {
            if version > self.newest[storage] {
                (self.newest[storage], self.copies[storage]) = (version, 0);
            }
            if version == self.newest[storage] {
                self.copies[storage] += 1;
            }
        }
    }

    /// Releases a buffer whose content is no longer needed.
    pub fn free(&mut self, buffer: BufferId) -> Result<Bytes, Violation> {
        self.stays("free", buffer)?;
        match self.content[buffer] {
            Content::Free => return Err(Violation::FreesNothing { index: self.index, buffer }),
            Content::Holds(storage, version)
                if self.graph.is_kept(storage)
                    && version == self.newest[storage]
                    && self.copies[storage] == 1 =>
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
}
