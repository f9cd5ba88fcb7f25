//! The bound of schedules that may also move what they hold: the same network, in which what is not
//! held is made again or away. Invariant: every [`Prices`] gives a time that no legal schedule of a
//! step beats in a run that has settled; all arithmetic is in whole numbers and rounds down.
//!
//! A byte that is away at the instant was moved there and will be moved back, and lanes take time
//! as runs do. So there are two kinds of prices: for a byte held, and for the seconds of lanes; the
//! more these count, the less the seconds of runs do. The prices with the highest bound are found
//! by cutting planes: each cut is a way to cross the instant, and a small linear program finds the
//! prices at which the cheapest known way costs most. `doc/theory/offload.md` has the proof.

use cranelift_entity::SecondaryMap;

use crate::effort::Meter;
use crate::graph::Graph;
use crate::id::{DEVICE, NodeId, StorageId};
use crate::machine::{Hierarchy, Lane};
use crate::plan::milp::{COARSE, Milp};
use crate::plan::quantity::{ByteCount, Picoseconds, Price};
use crate::plan::search::bound::cuts::{Capacity, PricedArc};
use crate::plan::search::bound::flow::{ArcId, ArcList, INFINITE, Network, Vertex};
use crate::plan::search::bound::instant::{Drawn, Side, sides};
use crate::plan::search::state::problem::{OpId, Problem};
use crate::profile::Profile;
use crate::tuning::bound::{LEAST_RISE, MOST_PRICES};

/// The number of parts in 1, for prices that are fractions.
const WHOLE: u64 = 1 << 20;
/// The highest price of the linear program: that of all bytes, in times of the whole step.
const MOST: f64 = 1e4;

/// What a storage that is away at the instant has to move, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    /// It leaves once a step.
    leaves: bool,
    /// It leaves after the step began and before the instant.
    leaves_before: bool,
    /// It returns after the instant and before the step ends; else at some time.
    returns_after: bool,
}

impl Kind {
    /// What a run of this step makes, or the batch.
    const MADE: Kind = Kind { leaves: true, leaves_before: true, returns_after: true };
    const COUNT: usize = 8;

    fn index(self) -> usize {
        let Kind { leaves, leaves_before, returns_after } = self;
        usize::from(leaves) | usize::from(leaves_before) << 1 | usize::from(returns_after) << 2
    }

    fn of(index: usize) -> Kind {
        let bit = |bit: usize| index >> bit & 1 == 1;
        Kind { leaves: bit(0), leaves_before: bit(1), returns_after: bit(2) }
    }
}

/// A lower limit on the seconds of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// Before the instant: the time on the way out of all that leaves there.
    Before,
    /// After the instant: the time on the way back of all that returns there.
    After,
    /// In all of the step: the time on the way out.
    Out,
    /// In all of the step: the time on the way back.
    Back,
}

const LIMITS: [Limit; 4] = [Limit::Before, Limit::After, Limit::Out, Limit::Back];

/// Picoseconds for a byte on all lanes from the device together, and on all lanes back.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    out: f64,
    back: f64,
}

impl Rates {
    /// None unless lanes lead there and back.
    pub fn new(hierarchy: &Hierarchy) -> Option<Rates> {
        let bandwidth = |leads: &dyn Fn(&Lane) -> bool| {
            let lanes = hierarchy.lanes.values().filter(|lane| leads(lane));
            lanes.map(|lane| lane.link.bandwidth).sum::<f64>()
        };
        let out = bandwidth(&|lane| lane.from == DEVICE);
        let back = bandwidth(&|lane| lane.to == DEVICE);
        (out > 0.0 && back > 0.0).then_some(Rates { out: 1e12 / out, back: 1e12 / back })
    }

    /// Picoseconds that a byte which is away counts against a limit.
    fn of(self, limit: Limit, kind: Kind) -> f64 {
        match limit {
            Limit::Before if kind.leaves_before => self.out,
            Limit::Out if kind.leaves => self.out,
            Limit::After if kind.returns_after => self.back,
            Limit::Back => self.back,
            Limit::Before | Limit::Out | Limit::After => 0.0,
        }
    }
}

/// What things cost: the lower bound is linear in each of them.
#[derive(Clone, Copy, Debug)]
struct Prices {
    /// The price of a byte held across the instant.
    held: Price,
    /// The prices of the lanes' seconds against each limit, in parts of [`WHOLE`].
    limits: [u64; 4],
}

impl Prices {
    /// Prices whose parts are limited so that together they take no more than all of each second.
    fn new(held: Price, [before, after, out, back]: [u64; 4]) -> Prices {
        let out = out.min(WHOLE);
        let back = back.min(WHOLE - out);
        let most = WHOLE - out - back;
        Prices { held, limits: [before.min(most), after.min(most), out, back] }
    }

    /// What is left of a second of runs before the instant, after it, and on either side.
    fn runs(&self) -> [u64; 3] {
        let [before, after, out, back] = self.limits;
        let most = WHOLE - out - back;
        [most - before, most - after, most - before.max(after)]
    }

    /// The price of a byte away.
    fn away(&self, rates: Rates, kind: Kind, highest: Price) -> Price {
        let parts = LIMITS.iter().zip(self.limits);
        let price = parts.map(|(&limit, part)| rates.of(limit, kind) * part as f64).sum::<f64>();
        // Reduced by more than the error of the sum.
        Price::round_down(price / WHOLE as f64 * (1.0 - 1e-12), highest)
    }
}

/// A part of a time, rounded down.
fn part_of(time: Picoseconds, part: u64) -> Picoseconds {
    Picoseconds((i128::from(time.0) * i128::from(part) / i128::from(WHOLE)) as i64)
}

/// A way to cross the instant.
#[derive(Clone, Copy, Debug, Default)]
struct Crossing {
    /// Time of what is made again.
    again: Picoseconds,
    /// Bytes held.
    held: ByteCount,
    /// Bytes away, by kind.
    away: [ByteCount; Kind::COUNT],
}

impl Crossing {
    /// Holds bytes, or has them away, whichever costs less; returns that cost.
    fn choose(&mut self, bytes: ByteCount, kind: usize, charge: &Charge) -> Picoseconds {
        let [held, away] = charge.of(bytes, kind);
        match held < away {
            true => self.held += bytes,
            false => self.away[kind] += bytes,
        }
        held.min(away)
    }
}

/// Prices of bytes held and away.
struct Charge {
    held: Price,
    away: [Price; Kind::COUNT],
}

impl Charge {
    fn of(&self, bytes: ByteCount, kind: usize) -> [Picoseconds; 2] {
        [self.held.charge_down(bytes), self.away[kind].charge_down(bytes)]
    }
}

/// The first run of an operator, in schedules that may also move what they hold.
pub struct MovingInstant {
    rates: Rates,
    network: Network,
    arcs: Vec<PricedArc>,
    ids: Vec<ArcId>,
    source: Vertex,
    /// Time of the first runs before the instant, after it, and on either side.
    runs: [Picoseconds; 3],
    /// Bytes there other than the tensors of the network, by kind.
    beside: [ByteCount; Kind::COUNT],
    /// Budget less what the operator itself needs.
    room: ByteCount,
    /// All bytes that may be held.
    most: ByteCount,
    /// The highest price of a byte.
    highest: Price,
}

impl MovingInstant {
    /// None if the operator itself needs more than the budget.
    pub fn new(
        (graph, profile): (&Graph, &Profile),
        problem: &Problem,
        rates: Rates,
        at: OpId,
        budget: ByteCount,
    ) -> Option<MovingInstant> {
        let node = problem.ops[at].node?;
        let room = budget - needed(graph, profile, node);
        if room < ByteCount::ZERO {
            return None;
        }
        let Drawn { vertices, arcs, side, kept_before, .. } =
            Drawn::new(problem, sides(problem, at, &[]), at);
        let mut runs = [Picoseconds::ZERO; 3];
        for (id, op) in &problem.ops {
            runs[side[id] as usize] += op.cost;
        }
        let beside = beside(graph, problem, node, &side, kept_before);
        let held = arcs.iter().map(|arc| match arc.capacity {
            Capacity::Held(bytes) => bytes,
            Capacity::Time(_) | Capacity::Infinite => ByteCount::ZERO,
        });
        let most = held.sum::<ByteCount>() + beside.into_iter().sum();
        let mut drawn = ArcList::default();
        let ids = arcs.iter().map(|arc| drawn.add(arc.from, arc.to)).collect();
        let network = Network::new(vertices as usize + 2, &drawn);
        let highest = Price::highest(most);
        let source = vertices;
        Some(MovingInstant { rates, network, arcs, ids, source, runs, beside, room, most, highest })
    }

    /// Time that no schedule beats, and the way to cross the instant that costs least at these
    /// prices; none if the effort was spent before.
    fn cross(&mut self, prices: &Prices, meter: &mut Meter<'_>) -> Option<(Picoseconds, Crossing)> {
        let away = |kind| prices.away(self.rates, Kind::of(kind), self.highest);
        let charge = Charge { held: prices.held, away: std::array::from_fn(away) };
        let [_, of_again, _] = prices.runs();
        let made = Kind::MADE.index();
        self.network.clear();
        for (arc, &id) in self.arcs.iter().zip(&self.ids) {
            let capacity = match arc.capacity {
                Capacity::Time(time) => part_of(time, of_again).0,
                Capacity::Held(bytes) => {
                    let [held, away] = charge.of(bytes, made);
                    held.min(away).0
                }
                Capacity::Infinite => INFINITE,
            };
            self.network.raise(id, capacity);
        }
        meter.spend(self.arcs.len() as u64 * 2);
        let (source, sink) = (self.source, self.source + 1);
        let value = self.network.augment(source, sink, i64::MAX, || meter.is_over())?;
        let mut value = Picoseconds(value);
        for (&time, part) in self.runs.iter().zip(prices.runs()) {
            value += part_of(time, part);
        }
        let mut crossing = Crossing::default();
        for arc in &self.arcs {
            let is_cut =
                self.network.is_on_source_side(arc.from) && !self.network.is_on_source_side(arc.to);
            match arc.capacity {
                Capacity::Time(time) if is_cut => crossing.again += time,
                Capacity::Held(bytes) if is_cut => {
                    crossing.choose(bytes, made, &charge);
                }
                Capacity::Time(_) | Capacity::Held(_) | Capacity::Infinite => {}
            }
        }
        for (kind, bytes) in self.beside.into_iter().enumerate() {
            value += crossing.choose(bytes, kind, &charge);
        }
        let least = value.wide() - prices.held.charge_up(self.room);
        Some((least.narrow(), crossing))
    }

    /// The highest bound of all prices, or the highest that is found with the effort.
    pub fn solve(&mut self, meter: &mut Meter<'_>) -> Picoseconds {
        let mut best = Picoseconds::ZERO;
        let mut known = Vec::new();
        let corners = [
            Prices::new(Price::FREE, [0; 4]),
            Prices::new(self.highest, [0; 4]),
            Prices::new(self.highest, [WHOLE, WHOLE, 0, 0]),
            Prices::new(self.highest, [0, 0, WHOLE / 2, WHOLE / 2]),
        ];
        for prices in corners {
            let Some((value, crossing)) = self.cross(&prices, meter) else { return best };
            best = best.max(value);
            known.push(crossing);
        }
        let step = self.step();
        while known.len() < MOST_PRICES.get() {
            let Some((prices, promised)) = self.prices(&known, meter) else { break };
            let Some((value, crossing)) = self.cross(&prices, meter) else { break };
            best = best.max(value);
            if promised - best.as_f64() <= step * LEAST_RISE.get() {
                break;
            }
            known.push(crossing);
        }
        best
    }

    /// Time of all first runs.
    fn step(&self) -> f64 {
        self.runs.into_iter().sum::<Picoseconds>().as_f64().max(1.0)
    }

    /// The prices at which the cheapest of the known ways costs most, and that cost.
    fn prices(&self, known: &[Crossing], meter: &Meter<'_>) -> Option<(Prices, f64)> {
        let (step, bytes) = (self.step(), self.most.as_f64().max(1.0));
        let [before, after, either] =
            Side::ALL.map(|side| self.runs[side as usize].as_f64() / step);
        let mut program = Milp::new();
        let value = program.within(0.0, MOST);
        let held = program.within(0.0, MOST);
        let limits = LIMITS.map(|_| program.within(0.0, 1.0));
        let [of_before, of_after, of_out, of_back] = limits;
        // The larger of the first two.
        let of_both = program.within(0.0, 1.0);
        program.row((of_both - of_before).geq(0.0));
        program.row((of_both - of_after).geq(0.0));
        program.row((of_both + of_out + of_back).leq(1.0));
        for crossing in known {
            let again = crossing.again.as_f64() / step;
            let runs = 1.0 + again;
            let mut cost = held * ((crossing.held - self.room).as_f64() / bytes) + runs
                - of_before * before
                - of_after * (after + again)
                - of_both * either
                - (of_out + of_back) * runs;
            for (&limit, part) in LIMITS.iter().zip(limits) {
                let away = crossing.away.iter().enumerate();
                let lanes =
                    away.map(|(kind, away)| self.rates.of(limit, Kind::of(kind)) * away.as_f64());
                cost += part * (lanes.sum::<f64>() / step);
            }
            program.row((cost - value).geq(0.0));
        }
        program.objective -= value;
        let answer = program.solve(COARSE, meter).ok()??;
        let part = |variable| (answer.value(variable).max(0.0) * WHOLE as f64) as u64;
        let price = Price::round_down(answer.value(held).max(0.0) * step / bytes, self.highest);
        Some((Prices::new(price, limits.map(part)), answer.value(value) * step))
    }
}

/// Bytes at the instant other than the tensors of its network and what its operator touches, by
/// kind: what is kept from step to step, and what earlier operators have made for after the step.
fn beside(
    graph: &Graph,
    problem: &Problem,
    node: NodeId,
    side: &SecondaryMap<OpId, Side>,
    kept_before: ByteCount,
) -> [ByteCount; Kind::COUNT] {
    let size = |storage: StorageId| ByteCount::of(graph.storages()[storage]);
    let touched = graph.reads(node);
    // What is away returns for its readers, and leaves after it was written.
    let mut is_read: SecondaryMap<StorageId, bool> = SecondaryMap::new();
    let mut kinds: SecondaryMap<StorageId, Kind> = SecondaryMap::with_default(Kind::of(0));
    for (id, op) in &problem.ops {
        let Some(node) = op.node else { continue };
        for &storage in graph.reads(node) {
            is_read[storage] = true;
            kinds[storage].returns_after |= side[id] == Side::After;
        }
        for &storage in graph.mutated(node) {
            kinds[storage].leaves = true;
            kinds[storage].leaves_before |= side[id] == Side::Before;
        }
    }
    let mut beside = [ByteCount::ZERO; Kind::COUNT];
    for (_, storage) in graph.placeholder_storages() {
        // What no operator reads may be away all the time.
        let is_there = graph.is_kept(storage) && !touched.contains(&storage);
        match graph.is_persistent(storage) {
            true if is_there && is_read[storage] => {
                beside[kinds[storage].index()] += size(storage);
            }
            false if is_there => beside[Kind::MADE.index()] += size(storage),
            true | false => {}
        }
    }
    let is_made = |storage: StorageId| graph.producer(storage).is_some_and(|by| graph.runs(by));
    let of_node = touched.iter().filter(|&&storage| graph.is_kept(storage) && is_made(storage));
    let of_node: ByteCount = of_node.map(|&storage| size(storage)).sum();
    beside[Kind::MADE.index()] += ByteCount((kept_before - of_node).0.max(0));
    beside
}

/// Bytes that every schedule holds while a node runs: what it reads, makes and works in. Its first
/// output may take over the place of an input, also of one that is kept, since that may have a copy
/// elsewhere.
fn needed(graph: &Graph, profile: &Profile, node: NodeId) -> ByteCount {
    let size = |storage: StorageId| ByteCount::of(graph.storages()[storage]);
    let touched = graph.reads(node).iter().chain(graph.fresh(node)).map(|&storage| size(storage));
    let all = touched.sum::<ByteCount>() + ByteCount::of(profile.workspace[node]);
    let first = graph.nodes()[node].outputs.first().copied().flatten();
    let made = first.map(|value| graph.values()[value].storage);
    let Some(made) = made.filter(|made| profile.reuse.is_any() && graph.fresh(node).contains(made))
    else {
        return all;
    };
    let inputs = profile.overwritable(graph, node).into_iter();
    let shared = inputs.map(|input| size(graph.values()[input].storage).min(size(made)));
    all - shared.max().unwrap_or_default()
}
