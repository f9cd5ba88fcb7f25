//! How long a sequence takes with what it moves. Invariant: runs follow one another, each lane
//! moves one thing after another from when it is offloaded or prefetched, and a run waits for what
//! it reads and a release for what it releases; the step is one of a run that has settled.

use cranelift_entity::SecondaryMap;

use crate::analysis::moves::{Motion, Move};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::Route;
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Steps after which a run is taken to have settled.
const LAPS: usize = 16;

/// Seconds of one step of `runs` with `moves`, in rising order, over a route.
pub fn seconds_with(
    graph: &Graph,
    profile: &Profile,
    runs: &[NodeId],
    moves: &[Move],
    route: Route,
) -> Seconds {
    let mut clock = Clock {
        now: 0.0,
        free: [0.0; 2],
        leaves: SecondaryMap::new(),
        arrives: SecondaryMap::new(),
    };
    let block = profile.hierarchy.tiers[route.tier].block.0.max(1);
    let link = |lane| profile.hierarchy.lanes[lane].link;
    let links = [link(route.out), link(route.back)];
    let moved = |storage: StorageId| -> Bytes { graph.storages()[storage].align_up(block) };
    let mut before = (f64::NAN, [f64::NAN; 2]);
    for _ in 0..LAPS {
        let begun = clock.now;
        let mut moves = moves.iter().peekable();
        for (position, &node) in (0..).zip(runs) {
            while let Some(next) = moves.next_if(|next| next.before <= position) {
                clock.moved(next, links.map(|link| link.seconds(moved(next.storage)).0));
            }
            for &storage in graph.reads(node) {
                if let Some(arrives) = clock.arrives[storage].take() {
                    clock.now = clock.now.max(arrives);
                }
            }
            clock.now += profile.seconds[node].0;
        }
        for next in moves {
            clock.moved(next, links.map(|link| link.seconds(moved(next.storage)).0));
        }
        // What the lanes have still to do, and how long it took, say all that differs.
        let after = (clock.now - begun, clock.free.map(|free| (free - clock.now).max(0.0)));
        if after == before {
            break;
        }
        before = after;
    }
    Seconds(before.0)
}

/// Time on the device and on the lanes out and back.
struct Clock {
    now: f64,
    free: [f64; 2],
    leaves: SecondaryMap<StorageId, Option<f64>>,
    arrives: SecondaryMap<StorageId, Option<f64>>,
}

impl Clock {
    fn moved(&mut self, next: &Move, [out, back]: [f64; 2]) {
        match next.motion {
            Motion::Offload => {
                self.free[0] = self.now.max(self.free[0]) + out;
                self.leaves[next.storage] = Some(self.free[0]);
            }
            Motion::Release => {
                if let Some(left) = self.leaves[next.storage].take() {
                    self.now = self.now.max(left);
                }
            }
            Motion::Prefetch => {
                self.free[1] = self.now.max(self.free[1]) + back;
                self.arrives[next.storage] = Some(self.free[1]);
            }
        }
    }
}
