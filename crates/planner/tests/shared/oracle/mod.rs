//! The oracle of every planner, for small graphs: exact, and intended to be easy to read.
//! Invariant: it shares no code with liveness, planners, lowering or checker; it asks the graph for
//! its nodes and nobody for an opinion.
//!
//! A step is a game on a board. The board shows which storages are there (each at its current
//! version) and how many nodes of `order` ran. A move runs the next node, repeats a forward node,
//! or frees a storage. A move is legal where everything that is read is there and what it needs at
//! once fits the budget. [`fastest`] finds the cheapest way through all boards (Dijkstra), so no
//! plan over the same order of first runs can be better.
#![allow(dead_code)] // each test binary uses its part

pub mod any_order;
pub mod passes;

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use tightfit::graph::Graph;
use tightfit::id::{NodeId, StorageId, ValueId};
use tightfit::profile::Profile;

/// What a plan costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Its run time.
    pub seconds: f64,
    /// Its peak in bytes.
    pub peak: u64,
}

/// Cheaper in time first, then in bytes.
impl Ord for Cost {
    fn cmp(&self, other: &Cost) -> Ordering {
        self.seconds.total_cmp(&other.seconds).then(self.peak.cmp(&other.peak))
    }
}

impl PartialOrd for Cost {
    fn partial_cmp(&self, other: &Cost) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Cost {}

/// Where the game stands: how many nodes of the order ran, and which storages are there, one bit
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Board {
    ran: usize,
    there: u64,
}

/// The fastest schedule within `budget` bytes and, among the fastest, one with the smallest peak;
/// `None` where no schedule fits.
pub fn fastest(graph: &Graph, profile: &Profile, order: &[NodeId], budget: u64) -> Option<Cost> {
    assert!(graph.storages().len() <= 64, "the oracle is for small graphs");
    let game = Game::new(graph, profile, order);
    let start = Board { ran: 0, there: game.placeholders() };
    let cost = Cost { seconds: 0.0, peak: game.bytes(start.there) };
    let mut reached: HashMap<Board, Cost> = HashMap::from([(start, cost)]);
    let mut open = BinaryHeap::from([std::cmp::Reverse((cost, start))]);
    if cost.peak > budget {
        return None;
    }
    while let Some(std::cmp::Reverse((cost, board))) = open.pop() {
        if board.ran == order.len() {
            return Some(cost);
        }
        if reached[&board] < cost {
            continue;
        }
        for (next, seconds, needs) in game.moves(board) {
            let cost = Cost { seconds: cost.seconds + seconds, peak: cost.peak.max(needs) };
            if needs <= budget && reached.get(&next).is_none_or(|known| cost < *known) {
                reached.insert(next, cost);
                open.push(std::cmp::Reverse((cost, next)));
            }
        }
    }
    None
}

/// Every point that no schedule improves in both time and bytes, fastest first.
pub fn frontier(graph: &Graph, profile: &Profile, order: &[NodeId]) -> Vec<Cost> {
    let mut points = Vec::new();
    let mut budget = u64::MAX;
    while let Some(point) = fastest(graph, profile, order, budget) {
        points.push(point);
        let Some(less) = point.peak.checked_sub(1) else { break };
        budget = less;
    }
    points
}

/// The rules of the game.
struct Game<'a> {
    graph: &'a Graph,
    profile: &'a Profile,
    order: &'a [NodeId],
    /// For each number of nodes that ran: how often each storage was written in place.
    written: Vec<Vec<u32>>,
    /// For each number of nodes that ran: the storages that anybody may still want.
    wanted: Vec<u64>,
}

impl<'a> Game<'a> {
    fn new(graph: &'a Graph, profile: &'a Profile, order: &'a [NodeId]) -> Game<'a> {
        let mut game = Game {
            graph,
            profile,
            order,
            written: vec![vec![0; graph.storages().len()]],
            wanted: Vec::new(),
        };
        for &node in order {
            let mut written = game.written.last().unwrap().clone();
            for &storage in graph.mutated(node) {
                written[storage.as_u32() as usize] += 1;
            }
            game.written.push(written);
        }
        game.wanted = (0..=order.len()).map(|ran| game.still_wanted(ran)).collect();
        game
    }

    fn placeholders(&self) -> u64 {
        bits(self.graph.placeholder_storages().map(|(_, storage)| storage))
    }

    fn bytes(&self, there: u64) -> u64 {
        self.graph
            .storages()
            .iter()
            .filter(|(storage, _)| there & bit(*storage) != 0)
            .map(|(_, bytes)| bytes.0)
            .sum()
    }

    /// What later nodes read, what repeating an earlier node for them reads, and what outlives the
    /// step.
    fn still_wanted(&self, ran: usize) -> u64 {
        let mut wanted =
            bits(self.graph.storages().keys().filter(|&storage| self.graph.is_kept(storage)));
        for &node in &self.order[ran..] {
            wanted |= bits(self.graph.reads(node).iter().copied());
        }
        for &node in self.order[..ran].iter().rev().filter(|&&node| self.may_repeat(ran, node)) {
            if wanted & bits(self.graph.fresh(node).iter().copied()) != 0 {
                wanted |= bits(self.graph.reads(node).iter().copied());
            }
        }
        wanted
    }

    /// A forward node may run again while everything that it reads and makes is as it was at its
    /// first run.
    fn may_repeat(&self, ran: usize, node: NodeId) -> bool {
        let call = &self.graph.nodes()[node];
        let written = |storage: StorageId| self.written[ran][storage.as_u32() as usize];
        let as_it_was = |value: &ValueId| {
            written(self.graph.values()[*value].storage) == self.graph.values()[*value].version
        };
        let untouched = |storage: &StorageId| written(*storage) == 0;
        call.phase.is_forward()
            && !call.mutates
            && call.inputs.iter().all(as_it_was)
            && self.graph.fresh(node).iter().all(untouched)
    }

    /// Each legal move: the board after it, its seconds, and the bytes that it needs at once.
    fn moves(&self, board: Board) -> Vec<(Board, f64, u64)> {
        let mut moves = Vec::new();
        self.run(board, self.order[board.ran], board.ran + 1, &mut moves);
        for &node in
            self.order[..board.ran].iter().filter(|&&node| self.may_repeat(board.ran, node))
        {
            self.run(board, node, board.ran, &mut moves);
        }
        for storage in self
            .graph
            .storages()
            .keys()
            .filter(|&storage| board.there & bit(storage) != 0 && !self.graph.is_kept(storage))
        {
            moves.push((Board { there: board.there & !bit(storage), ..board }, 0.0, 0));
        }
        moves
    }

    /// Outputs and workspace come on top of what is there, except that an output may take over an
    /// input's bytes.
    fn run(&self, board: Board, node: NodeId, ran: usize, moves: &mut Vec<(Board, f64, u64)>) {
        let graph = self.graph;
        let reads = bits(graph.reads(node).iter().copied());
        if board.there & reads != reads {
            return;
        }
        let fresh: u64 = graph.fresh(node).iter().map(|&storage| graph.storages()[storage].0).sum();
        let needs = self.bytes(board.there) + fresh + self.profile.workspace[node].0;
        let made = board.there | bits(graph.fresh(node).iter().copied());
        let seconds = self.profile.seconds[node].0;
        moves.push((Board { ran, there: made & self.wanted[ran] }, seconds, needs));
        for taken in overwritable(graph, self.profile, node) {
            let there = made & !bit(taken) & self.wanted[ran];
            moves.push((Board { ran, there }, seconds, needs - graph.storages()[taken].0));
        }
    }
}

fn bit(storage: StorageId) -> u64 {
    1 << storage.as_u32()
}

fn bits(storages: impl Iterator<Item = StorageId>) -> u64 {
    storages.fold(0, |set, storage| set | bit(storage))
}

/// Storages of inputs whose bytes the first output of a node may take over.
fn overwritable(graph: &Graph, profile: &Profile, node: NodeId) -> Vec<StorageId> {
    let call = &graph.nodes()[node];
    let (Some(_), Some(Some(output)), true) =
        (call.operator, call.outputs.first(), profile.in_place)
    else {
        return Vec::new();
    };
    let out = graph.values()[*output].storage;
    let inputs = graph.overwritable(node).into_iter().map(|value| graph.values()[value].storage);
    let fits = |storage: &StorageId| {
        !graph.is_kept(*storage) && graph.storages()[*storage] == graph.storages()[out]
    };
    if graph.fresh(node).contains(&out) { inputs.filter(fits).collect() } else { Vec::new() }
}

/// Plays a sequence of runs through, freeing each storage as soon as nobody reads it any more, and
/// says what it costs or why it is illegal.
pub fn replay(graph: &Graph, profile: &Profile, runs: &[NodeId]) -> Result<Cost, String> {
    let name = |node: NodeId| &graph.nodes()[node].name;
    let mut there: Vec<StorageId> =
        graph.placeholder_storages().map(|(_, storage)| storage).collect();
    let mut written = vec![0u32; graph.storages().len()];
    let bytes =
        |there: &[StorageId]| there.iter().map(|&storage| graph.storages()[storage].0).sum::<u64>();
    let mut cost = Cost { seconds: 0.0, peak: bytes(&there) };
    for (position, &node) in runs.iter().enumerate() {
        if !graph.runs(node) {
            return Err(format!("`{}` does not run", name(node)));
        }
        if graph.nodes()[node].mutates && runs[..position].contains(&node) {
            return Err(format!("`{}` writes in place and runs again", name(node)));
        }
        for &input in &graph.nodes()[node].inputs {
            let value = &graph.values()[input];
            if !there.contains(&value.storage) {
                return Err(format!(
                    "`{}` at {position} reads {input}, which is not there",
                    name(node)
                ));
            }
            if written[value.storage.as_u32() as usize] != value.version {
                return Err(format!(
                    "`{}` at {position} reads {input}, which has been overwritten",
                    name(node)
                ));
            }
        }
        // Until it is made anew, is it read again?
        let read_again = |storage: StorageId| {
            let later = runs[position + 1..].iter();
            later
                .take_while(|&&later| !graph.fresh(later).contains(&storage))
                .any(|&later| graph.reads(later).contains(&storage))
        };
        let taken =
            overwritable(graph, profile, node).into_iter().find(|&storage| !read_again(storage));
        let fresh = graph.fresh(node);
        let needs = bytes(&there) + bytes(fresh) + profile.workspace[node].0
            - taken.map_or(0, |storage| graph.storages()[storage].0);
        cost = Cost { seconds: cost.seconds + profile.seconds[node].0, peak: cost.peak.max(needs) };
        for &storage in fresh {
            written[storage.as_u32() as usize] = 0;
            if !there.contains(&storage) {
                there.push(storage);
            }
        }
        for &storage in graph.mutated(node) {
            written[storage.as_u32() as usize] += 1;
        }
        there.retain(|&storage| graph.is_kept(storage) || read_again(storage));
    }
    match graph.compute_nodes().into_iter().find(|node| !runs.contains(node)) {
        Some(node) => Err(format!("`{}` never runs", name(node))),
        None => Ok(cost),
    }
}
