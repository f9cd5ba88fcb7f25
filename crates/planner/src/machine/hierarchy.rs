//! The memories of a machine and the lanes between them. Invariant: tier 0 is the device that
//! computes; a lane moves one thing after another, from one tier to another.

use cranelift_entity::PrimaryMap;

use crate::id::{LaneId, TierId};
use crate::units::{Bytes, Seconds};

/// A memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// The name: `device`, `host` or `disk`.
    pub name: String,
    /// The number of bytes; absent for the device, whose limit is the budget.
    pub capacity: Option<Bytes>,
}

/// What moving bytes costs, between tiers or between devices.
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
    /// What a transfer over the lane costs.
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
    /// How long `bytes` take.
    pub fn seconds(&self, bytes: Bytes) -> Seconds {
        Seconds(self.latency.0 + bytes.0 as f64 / self.bandwidth)
    }
}

impl Hierarchy {
    /// How long `bytes` take from the device to a tier below and back, over the fastest lanes that
    /// lead there and back; none where there are none.
    pub fn swap(&self, bytes: Bytes) -> Option<Seconds> {
        let device = self.tiers.keys().next()?;
        let out = self.lanes.values().filter(|lane| lane.from == device && lane.to != device);
        let both = out.flat_map(|out| {
            let back = self.lanes.values().filter(|back| back.from == out.to && back.to == device);
            back.map(|back| out.link.seconds(bytes) + back.link.seconds(bytes))
        });
        both.min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// The device alone.
impl Default for Hierarchy {
    fn default() -> Hierarchy {
        let mut tiers = PrimaryMap::new();
        tiers.push(Tier { name: "device".to_string(), capacity: None });
        Hierarchy { tiers, lanes: PrimaryMap::new() }
    }
}
