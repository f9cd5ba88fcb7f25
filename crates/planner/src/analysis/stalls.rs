//! How long a sequence takes with what it moves. Invariant: runs follow one another, each lane
//! moves one thing after another from when it is offloaded or prefetched, and a run waits for what
//! it reads, a release for what it releases and the end for the outputs; the step is one of a run
//! that has settled.

use cranelift_entity::SecondaryMap;

use crate::analysis::moves::{Motion, Move, crossing};
use crate::graph::Graph;
use crate::id::{NodeId, StorageId};
use crate::machine::{Route, steady};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Seconds of one step of `runs` with `moves`, in rising order, over a route.
pub fn seconds_with(
    graph: &Graph,
    profile: &Profile,
    runs: &[NodeId],
    moves: &[Move],
    route: Route,
) -> Seconds {
    let block = profile.hierarchy.tiers[route.tier].block.0.max(1);
    let link = |lane| profile.hierarchy.lanes[lane].link;
    let links = [link(route.out), link(route.back)];
    let seconds_of = |storage: StorageId| -> [f64; 2] {
        let bytes: Bytes = graph.storages()[storage].align_up(block);
        links.map(|link| link.seconds(bytes).0)
    };
    let crossing = crossing(graph, runs, moves);
    let seconds = steady(|before| {
        let mut clock = Clock::default();
        for (next, &arrives) in crossing.iter().map(|&index| &moves[index]).zip(before) {
            let way = way(next.motion);
            clock.free[way] = clock.free[way].max(arrives);
            clock.under_way[way][next.storage] = Some(arrives);
        }
        let left_by = crossing.iter().map(|&index| &moves[index]);
        let mut moves = moves.iter().peekable();
        for (position, &node) in (0..).zip(runs) {
            while let Some(next) = moves.next_if(|next| next.before <= position) {
                clock.moved(next, seconds_of(next.storage));
            }
            for &storage in graph.reads(node) {
                clock.wait(1, storage);
            }
            clock.now += profile.seconds[node].0;
        }
        for next in moves {
            clock.moved(next, seconds_of(next.storage));
        }
        graph.output_storages().for_each(|storage| clock.wait(1, storage));
        let left = left_by.map(|next| {
            let arrives = clock.under_way[way(next.motion)][next.storage];
            (arrives.unwrap_or(0.0) - clock.now).max(0.0)
        });
        (left.collect(), clock.now)
    });
    Seconds(seconds)
}

/// The lane of a move: out, or back.
fn way(motion: Motion) -> usize {
    match motion {
        Motion::Offload | Motion::Release => 0,
        Motion::Prefetch => 1,
    }
}

/// Time on the device and on the lanes out and back.
#[derive(Default)]
struct Clock {
    now: f64,
    free: [f64; 2],
    /// When what is under way out, or back, arrives.
    under_way: [SecondaryMap<StorageId, Option<f64>>; 2],
}

impl Clock {
    fn wait(&mut self, way: usize, storage: StorageId) {
        if let Some(arrives) = self.under_way[way][storage].take() {
            self.now = self.now.max(arrives);
        }
    }

    fn moved(&mut self, next: &Move, seconds: [f64; 2]) {
        let way = way(next.motion);
        if next.motion == Motion::Release {
            return self.wait(way, next.storage);
        }
        self.free[way] = self.now.max(self.free[way]) + seconds[way];
        self.under_way[way][next.storage] = Some(self.free[way]);
    }
}
