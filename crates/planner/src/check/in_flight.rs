//! What is in flight. Invariant: from the start of a transfer until it was waited for, its source
//! may be read, but neither written nor freed, and its destination is neither read, written nor
//! freed; then the destination holds what the source held when the transfer started.

use crate::check::ends;
use crate::check::state::{AbstractMachine, Content};
use crate::check::violation::Violation;
use crate::id::{BufferId, DEVICE, TransferId};
use crate::schedule::{Movement, Transfer};
use crate::units::Bytes;

impl<'a> AbstractMachine<'a> {
    /// Begins a transfer; returns the bytes held on the device from here on.
    pub fn start(&mut self, transfer: &'a Transfer) -> Result<Bytes, Violation> {
        if !self.started.insert(transfer.id) || self.in_flight.contains_key(&transfer.id) {
            return Err(Violation::StartedBefore { index: self.index, transfer: transfer.id });
        }
        self.launch(transfer)?;
        Ok(self.held[DEVICE])
    }

    /// Puts a transfer in flight.
    pub fn launch(&mut self, transfer: &'a Transfer) -> Result<(), Violation> {
        let (index, id, lane) = (self.index, transfer.id, transfer.lane);
        let hierarchy = &self.profile.hierarchy;
        for (buffer, end) in ends(self.profile, lane, transfer.movement) {
            let tier = self.schedule.buffers[buffer].tier;
            if tier != end {
                return Err(Violation::WrongTier { index, transfer: id, lane, buffer, tier });
            }
        }
        let block = transfer.movement.buffers().map(|buffer| {
            let tier = self.schedule.buffers[buffer].tier;
            hierarchy.tiers[tier].block
        });
        let block = block[0].max(block[1]);
        for buffer in transfer.movement.buffers() {
            let place = self.schedule.buffers[buffer];
            let is_whole = |number: u64| number.is_multiple_of(block.0.max(1));
            if !is_whole(place.address) || !is_whole(place.bytes.0) {
                return Err(Violation::PartOfBlock { index, transfer: id, buffer, block });
            }
        }
        match transfer.movement {
            Movement::Copy { from, to } => {
                let Content::Holds(storage, version) = self.content[from] else {
                    let (transfer, buffer, found) = (id, from, self.describe(from));
                    return Err(Violation::MovesNothing { index, transfer, buffer, found });
                };
                let newest = self.newest[storage];
                if version < newest {
                    let (transfer, buffer, found) = (id, from, self.describe(from));
                    return Err(Violation::MovesStale { index, transfer, buffer, found, newest });
                }
                let name = id.to_string();
                self.fits(&name, "what it moves", self.graph.storages()[storage], to)?;
                self.allocate(to, Content::Arriving(id), &name)?;
            }
        }
        self.in_flight.insert(id, transfer);
        Ok(())
    }

    /// Ends a transfer; returns the bytes held on the device.
    pub fn wait(&mut self, id: TransferId) -> Result<Bytes, Violation> {
        let Some(transfer) = self.in_flight.remove(&id) else {
            return Err(Violation::WaitsForNothing { index: self.index, transfer: id });
        };
        match transfer.movement {
            Movement::Copy { from, to } => self.put(to, self.content[from]),
        }
        Ok(self.held[DEVICE])
    }

    /// Refuses to change a buffer that a transfer reads or fills.
    pub fn stays(&self, user: &str, buffer: BufferId) -> Result<(), Violation> {
        let touching = self.in_flight.iter().find(|(_, transfer)| match transfer.movement {
            Movement::Copy { from, to } => from == buffer || to == buffer,
        });
        let Some((&transfer, _)) = touching else { return Ok(()) };
        Err(Violation::InFlight { index: self.index, user: user.to_string(), buffer, transfer })
    }
}
