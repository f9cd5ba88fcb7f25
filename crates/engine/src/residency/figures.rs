//! What one iteration moved, and how long that took. Invariant: every move counts once, in the
//! direction in which it went.

use std::fmt;
use std::ops::AddAssign;

use tightfit::units::{Bytes, Seconds};

use super::moves::{Move, Place};

/// What one iteration moved, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The accesses that were made.
    pub accesses: u64,
    /// The number of moves.
    pub moves: u64,
    /// Bytes copied from the host to the device.
    pub to_device: Bytes,
    /// Bytes copied from the device to the host.
    pub to_host: Bytes,
    /// Bytes evicted without a copy, since the host had them.
    pub dropped: Bytes,
    /// Bytes copied from one slot to another, to free several slots in a row.
    pub within_device: Bytes,
    /// Seconds to decide on moves and to execute them, as the caller measured it.
    pub layout: Seconds,
    /// The part of these seconds that was spent on evictions.
    pub eviction: Seconds,
}

impl Figures {
    /// All bytes moved between host and device, in either direction.
    pub fn volume(&self) -> Bytes {
        Bytes(self.to_device.0.saturating_add(self.to_host.0))
    }

    /// Counts a move.
    pub(super) fn count(&mut self, step: &Move) {
        self.moves += 1;
        let sum = match (step.from, step.to, step.copies) {
            (Place::Host, _, true) => &mut self.to_device,
            (Place::Device(_), Place::Host, true) => &mut self.to_host,
            (Place::Device(_), Place::Host, false) => &mut self.dropped,
            (Place::Device(_), Place::Device(_), _) => &mut self.within_device,
            (Place::Host, _, false) => return,
        };
        *sum = Bytes(sum.0.saturating_add(step.bytes.0));
    }
}

/// What several iterations moved, in total.
impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        let sum = |a: &mut Bytes, b: Bytes| *a = Bytes(a.0.saturating_add(b.0));
        self.accesses += other.accesses;
        self.moves += other.moves;
        sum(&mut self.to_device, other.to_device);
        sum(&mut self.to_host, other.to_host);
        sum(&mut self.dropped, other.dropped);
        sum(&mut self.within_device, other.within_device);
        self.layout = self.layout + other.layout;
        self.eviction = self.eviction + other.eviction;
    }
}

/// One line of a log.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { accesses, moves, to_device, to_host, dropped, within_device, .. } = self;
        write!(
            f,
            "{accesses} accesses, {moves} moves: {to_device} to the device, {to_host} to the host, \
             {dropped} dropped, {within_device} within the device; layout {:.6} s, of which \
             eviction {:.6} s",
            self.layout.0, self.eviction.0
        )
    }
}
