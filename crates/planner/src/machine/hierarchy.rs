//! The memories of a machine and the lanes between them. Invariant: tier 0 is the device that
//! computes; a lane moves one thing after another, from one tier to another.

use cranelift_entity::PrimaryMap;

use crate::id::{DEVICE, LaneId, TierId};
use crate::units::{Bytes, Seconds};

/// A memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// The name: `device`, `host` or `disk`.
    pub name: String,
    /// The number of bytes; absent for the device, whose limit is the budget.
    pub capacity: Option<Bytes>,
    /// Tensors that move between this tier and another lie in whole blocks of this many bytes at
    /// both ends.
    pub block: Bytes,
}

/// The cost of moving bytes between tiers or between devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The time before the first byte arrives.
    pub latency: Seconds,
    /// The rate from then on, in bytes per second.
    pub bandwidth: f64,
}

/// A way from one tier to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// The tier where the lane begins.
    pub from: TierId,
    /// The tier where the lane ends.
    pub to: TierId,
    /// The cost of a transfer over the lane.
    pub link: Link,
}

/// All tiers and lanes of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Hierarchy {
    /// The memories, the device first.
    pub tiers: PrimaryMap<TierId, Tier>,
    /// The lanes between them.
    pub lanes: PrimaryMap<LaneId, Lane>,
}

impl Link {
    /// The time that `bytes` take.
    pub fn seconds(&self, bytes: Bytes) -> Seconds {
        Seconds(self.latency.0 + bytes.0 as f64 / self.bandwidth)
    }
}

/// A transfer size at which the latency is negligible.
const LARGE: Bytes = Bytes(16 << 20);

/// The lanes to a tier below the device and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The tier.
    pub tier: TierId,
    /// The lane that leads there.
    pub out: LaneId,
    /// The lane that leads back.
    pub back: LaneId,
}

impl Hierarchy {
    /// Adds a tier below the device, with a lane there and one back.
    pub fn add(&mut self, tier: Tier, out: Link, back: Link) -> TierId {
        let tier = self.tiers.push(tier);
        self.lanes.push(Lane { from: DEVICE, to: tier, link: out });
        self.lanes.push(Lane { from: tier, to: DEVICE, link: back });
        tier
    }

    /// The fastest route for `bytes` to a tier below the device and back; `None` if no lanes lead
    /// there and back.
    pub fn route(&self, bytes: Bytes) -> Option<Route> {
        let seconds = |lane: LaneId| self.lanes[lane].link.seconds(bytes).0;
        let below = self.lanes.iter().filter(|(_, out)| out.from == DEVICE && out.to != DEVICE);
        let routes = below.flat_map(|(out, lane)| {
            let tier = lane.to;
            let back = self.lanes.iter();
            let back = back.filter(move |(_, back)| back.from == tier && back.to == DEVICE);
            back.map(move |(back, _)| Route { tier, out, back })
        });
        let swap = |route: &Route| seconds(route.out) + seconds(route.back);
        routes.min_by(|a, b| swap(a).total_cmp(&swap(b)))
    }

    /// The route of large transfers.
    pub fn main_route(&self) -> Option<Route> {
        self.route(LARGE)
    }

    /// The time that `bytes` take from the device to a tier below and back, over the fastest lanes
    /// that lead there and back; `None` if there are none.
    pub fn swap(&self, bytes: Bytes) -> Option<Seconds> {
        let Route { out, back, .. } = self.route(bytes)?;
        let seconds = |lane: LaneId| self.lanes[lane].link.seconds(bytes);
        Some(seconds(out) + seconds(back))
    }
}

/// The device alone.
impl Default for Hierarchy {
    fn default() -> Hierarchy {
        let mut tiers = PrimaryMap::new();
        tiers.push(Tier { name: "device".to_string(), capacity: None, block: Bytes(1) });
        Hierarchy { tiers, lanes: PrimaryMap::new() }
    }
}
