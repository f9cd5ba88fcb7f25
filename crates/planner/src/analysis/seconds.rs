//! How long a sequence takes with its moves. Invariant: runs follow one another, each lane moves
//! one storage after another, none before its offload or prefetch, and a run waits for what it
//! reads, a release for what it releases and the end for the outputs; the step is one of a steady
//! sequence of steps.

use cranelift_entity::SecondaryMap;

use crate::analysis::crossing::crossing;
use crate::analysis::sequence::{Action, Motion, Sequence};
use crate::graph::Graph;
use crate::id::StorageId;
use crate::machine::{Route, steady};
use crate::profile::Profile;
use crate::units::{Bytes, Seconds};

/// Seconds of one step of a sequence; its moves go over the machine's fastest lanes, and take no
/// time if there are none.
pub fn seconds(graph: &Graph, profile: &Profile, sequence: &Sequence) -> Seconds {
    let route = profile.hierarchy.main_route().filter(|_| sequence.has_moves());
    let Some(route) = route else { return profile.total(&sequence.runs()) };
    over(route, graph, profile, sequence)
}

/// The same over a route.
fn over(route: Route, graph: &Graph, profile: &Profile, sequence: &Sequence) -> Seconds {
    let block = profile.hierarchy.tiers[route.tier].block.0.max(1);
    let link = |lane| profile.hierarchy.lanes[lane].link;
    let links = [link(route.out), link(route.back)];
    let seconds_of = |storage: StorageId| -> [f64; 2] {
        let bytes: Bytes = graph.storages()[storage].align_up(block);
        links.map(|link| link.seconds(bytes).0)
    };
    let moves = sequence.moves();
    let crossing = crossing(graph, sequence);
    let seconds = steady(|before| {
        let mut clock = Clock::default();
        for (next, &arrives) in crossing.iter().map(|&index| &moves[index]).zip(before) {
            let way = way(next.motion);
            clock.free[way] = clock.free[way].max(arrives);
            clock.under_way[way][next.storage] = Some(arrives);
        }
        for action in sequence.actions() {
            match *action {
                Action::Run(node) => {
                    graph.reads(node).iter().for_each(|&storage| clock.wait(1, storage));
                    clock.now += profile.seconds[node].0;
                }
                Action::Move(storage, motion) => clock.moved(storage, motion, seconds_of(storage)),
            }
        }
        graph.output_storages().for_each(|storage| clock.wait(1, storage));
        let left = crossing.iter().map(|&index| &moves[index]).map(|next| {
            let arrives = clock.under_way[way(next.motion)][next.storage];
            (arrives.unwrap_or(0.0) - clock.now).max(0.0)
        });
        (left.collect(), clock.now)
    });
    Seconds(seconds)
}

/// The lane of a move: 0 is out, 1 is back.
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
    /// Times at which transfers in flight out, or back, arrive.
    under_way: [SecondaryMap<StorageId, Option<f64>>; 2],
}

impl Clock {
    fn wait(&mut self, way: usize, storage: StorageId) {
        if let Some(arrives) = self.under_way[way][storage].take() {
            self.now = self.now.max(arrives);
        }
    }

    fn moved(&mut self, storage: StorageId, motion: Motion, seconds: [f64; 2]) {
        let way = way(motion);
        if motion == Motion::Release {
            return self.wait(way, storage);
        }
        self.free[way] = self.now.max(self.free[way]) + seconds[way];
        self.under_way[way][storage] = Some(self.free[way]);
    }
}
