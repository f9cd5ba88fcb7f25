//! The network of one instant and its minimum cuts, price by price. Invariant: the value of every
//! [`Line`] is that of a minimum cut, in whole numbers, rounded down.
//!
//! What is settled once and for all leaves the network: [`Cuts::settled`] keeps only the operators
//! that a cheap cut may still put on either side. `doc/theory/bound.md` has the network and the
//! proof.

use std::collections::HashMap;

use crate::analysis::DisjointSets;
use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds, Price};
use crate::plan::search::bound::Tangent;
use crate::plan::search::bound::flow::{ArcId, ArcList, INFINITE, Network, Vertex};
use crate::plan::search::state::problem::OpId;

/// Recomputation takes at least `value − price · room`, where `room` is the budget less what the
/// instant itself needs.
#[derive(Clone, Debug)]
pub struct Line {
    /// The price of a byte held.
    pub price: Price,
    /// The value of the cut.
    pub value: Picoseconds,
    /// Time of the operators that run again.
    pub seconds: Picoseconds,
    /// Bytes held across the instant.
    pub bytes: ByteCount,
    /// Operators that run after the instant though they could have, or must have, run before it; in
    /// order. Without those that are settled.
    pub late: Vec<OpId>,
}

impl Line {
    /// The bound that it gives for any room.
    pub fn tangent(&self) -> Tangent {
        Tangent { price: self.price, value: self.value }
    }
}

/// A decision: does the operator run after the instant?
pub type Decision = (OpId, bool);

/// What crossing an arc of the network costs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capacity {
    /// Time to run again.
    Time(Picoseconds),
    /// Bytes held, at the price.
    Held(ByteCount),
    /// Never crossed.
    Infinite,
}

/// An arc of the network.
#[derive(Clone, Copy)]
pub struct PricedArc {
    /// Where it begins.
    pub from: Vertex,
    /// Where it ends.
    pub to: Vertex,
    /// Its capacity, at any price.
    pub capacity: Capacity,
}

/// The vertex of an operator that may run after the instant: on the sink's side if it does.
#[derive(Clone, Copy)]
pub struct DecisionVertex {
    /// The operator.
    pub op: OpId,
    /// Its vertex.
    pub vertex: Vertex,
}

/// The network of an instant.
pub struct Cuts {
    network: Network,
    arcs: Vec<PricedArc>,
    decidable: Vec<DecisionVertex>,
    /// Each arc in the network, and two for each vertex that may be decided: one is infinite if its
    /// operator is decided to run after the instant, the other if it is decided not to.
    ids: Vec<ArcId>,
    source: Vertex,
    sink: Vertex,
    /// The highest price that arithmetic allows: next to nothing is held.
    pub highest_price: Price,
    /// The flow in the network; absent if that is not a maximum flow.
    flow: Option<Flow>,
    /// Time, bytes and late operators of what has left the network.
    time: Picoseconds,
    bytes: ByteCount,
    late: Vec<OpId>,
    symmetry: Symmetry,
}

/// The flow in a network: at which price and under which decisions it is a maximum one.
struct Flow {
    price: Price,
    value: Picoseconds,
    decisions: Vec<Decision>,
}

/// Parts of a network that do not touch, and which of them are alike.
#[derive(Default)]
struct Symmetry {
    /// The part that an operator belongs to, and its place among the operators of that part.
    place: HashMap<OpId, (usize, usize)>,
    /// The operators of each part, in order.
    parts: Vec<Vec<OpId>>,
    /// The class of each part; those of one class are alike.
    class: Vec<usize>,
}

impl Cuts {
    /// A network over vertices of which `decidable` (in order) may be decided. Source and sink come
    /// last.
    pub fn new(vertices: u32, arcs: Vec<PricedArc>, decidable: Vec<DecisionVertex>) -> Cuts {
        let (source, sink) = (vertices, vertices + 1);
        let mut drawn = ArcList::default();
        let mut ids: Vec<ArcId> = arcs.iter().map(|arc| drawn.add(arc.from, arc.to)).collect();
        for decision in &decidable {
            ids.push(drawn.add(decision.vertex, sink));
            ids.push(drawn.add(source, decision.vertex));
        }
        let bytes: ByteCount = arcs
            .iter()
            .map(
                |arc| {
                    if let Capacity::Held(bytes) = arc.capacity { bytes } else { ByteCount::ZERO }
                },
            )
            .sum();
        Cuts {
            network: Network::new(vertices as usize + 2, &drawn),
            arcs,
            decidable,
            ids,
            source,
            sink,
            highest_price: Price::highest(bytes),
            flow: None,
            time: Picoseconds::ZERO,
            bytes: ByteCount::ZERO,
            late: Vec::new(),
            symmetry: Symmetry::default(),
        }
    }

    /// The minimum cut at a price under decisions; `None` if the effort was spent before.
    pub fn cut(&mut self, price: Price, decisions: &[Decision], meter: &mut Meter) -> Option<Line> {
        let value = match self.flow.take() {
            Some(Flow { price: paid, value, decisions: obeyed })
                if paid <= price && obeyed == decisions =>
            {
                for (arc, &id) in self.arcs.iter().zip(&self.ids) {
                    if let Capacity::Held(bytes) = arc.capacity {
                        self.network
                            .raise(id, (price.charge_down(bytes) - paid.charge_down(bytes)).0);
                    }
                }
                value
            }
            _ => {
                self.network.clear();
                for (arc, &id) in self.arcs.iter().zip(&self.ids) {
                    self.network.raise(
                        id,
                        match arc.capacity {
                            Capacity::Time(time) => time.0,
                            Capacity::Held(bytes) => price.charge_down(bytes).0,
                            Capacity::Infinite => INFINITE,
                        },
                    );
                }
                for &(op, is_late) in decisions {
                    if let Ok(index) =
                        self.decidable.binary_search_by_key(&op, |decision| decision.op)
                    {
                        self.network.raise(
                            self.ids[self.arcs.len() + 2 * index + usize::from(!is_late)],
                            INFINITE,
                        );
                    }
                }
                Picoseconds::ZERO
            }
        };
        meter.spend((self.arcs.len() + self.decidable.len()) as u64 * 2);
        let more = self.network.augment(self.source, self.sink, i64::MAX, || meter.is_over())?;
        let value = value + Picoseconds(more);
        self.flow = Some(Flow { price, value, decisions: decisions.to_vec() });
        let mut line = Line {
            price,
            value: value + self.time + price.charge_down(self.bytes),
            seconds: self.time,
            bytes: self.bytes,
            late: Vec::new(),
        };
        for arc in &self.arcs {
            if self.network.is_on_source_side(arc.from) && !self.network.is_on_source_side(arc.to) {
                match arc.capacity {
                    Capacity::Time(time) => line.seconds += time,
                    Capacity::Held(bytes) => line.bytes += bytes,
                    Capacity::Infinite => {}
                }
            }
        }
        let is_late = |decision: &&DecisionVertex| !self.network.is_on_source_side(decision.vertex);
        line.late = self.decidable.iter().filter(is_late).map(|decision| decision.op).collect();
        Some(line)
    }

    /// All operators that run after the instant in a cut.
    pub fn late(&self, line: &Line) -> Vec<OpId> {
        let mut late = [self.late.as_slice(), &line.late].concat();
        late.sort_unstable();
        late
    }

    /// The network of what is still open to cuts below `limit` at a price: every other operator is
    /// on one side in all of them. `None` if there is no such cut.
    ///
    /// The least cut with an operator on its other side takes one more flow, starting from that of
    /// the minimum cut.
    pub fn settled(&mut self, price: Price, limit: Picoseconds, meter: &mut Meter) -> Option<Cuts> {
        let vertices = self.source;
        let mut sides: Vec<Option<bool>> = vec![None; vertices as usize + 2];
        (sides[self.source as usize], sides[self.sink as usize]) = (Some(false), Some(true));
        if let Some(line) = self.cut(price, &[], meter) {
            let slack = limit.saturating_sub(line.value);
            let before = self.network.flow();
            let work = (self.arcs.len() / 2) as u64;
            for decision in &self.decidable {
                let is_late = line.late.binary_search(&decision.op).is_ok();
                let (from, to) = if is_late {
                    (decision.vertex, self.sink)
                } else {
                    (self.source, decision.vertex)
                };
                meter.spend(work);
                if meter.is_over() {
                    break;
                }
                let Some(more) = self.network.augment(from, to, slack.0, || meter.is_over()) else {
                    break;
                };
                if more > 0 {
                    self.network.set_flow(&before);
                }
                if more >= slack.0 {
                    sides[decision.vertex as usize] = Some(is_late);
                }
            }
            self.flow = None;
        }
        spread(&mut sides, &self.arcs)?;
        Some(self.without(&sides))
    }

    /// The network without the vertices whose side is known.
    fn without(&self, sides: &[Option<bool>]) -> Cuts {
        let mut is_open = vec![false; sides.len()];
        let ends = self.arcs.iter().flat_map(|arc| [arc.from, arc.to]);
        ends.filter(|&vertex| sides[vertex as usize].is_none())
            .for_each(|vertex| is_open[vertex as usize] = true);
        let mut number = vec![0; sides.len()];
        let mut vertices = 0;
        for vertex in (0..sides.len()).filter(|&vertex| is_open[vertex]) {
            number[vertex] = vertices;
            vertices += 1;
        }
        let (mut time, mut bytes, mut arcs) = (self.time, self.bytes, Vec::new());
        let place = |vertex: Vertex| match sides[vertex as usize] {
            None => number[vertex as usize],
            Some(false) => vertices,
            Some(true) => vertices + 1,
        };
        for arc in &self.arcs {
            match (sides[arc.from as usize], sides[arc.to as usize]) {
                (Some(true), _) | (_, Some(false)) => {}
                (Some(false), Some(true)) => match arc.capacity {
                    Capacity::Time(more) => time += more,
                    Capacity::Held(more) => bytes += more,
                    Capacity::Infinite => {}
                },
                _ => arcs.push(PricedArc {
                    from: place(arc.from),
                    to: place(arc.to),
                    capacity: arc.capacity,
                }),
            }
        }
        let open =
            self.decidable.iter().filter(|decision| sides[decision.vertex as usize].is_none());
        let decidable = open
            .map(|decision| DecisionVertex { op: decision.op, vertex: place(decision.vertex) })
            .collect();
        let late = self
            .decidable
            .iter()
            .filter(|decision| sides[decision.vertex as usize] == Some(true))
            .map(|decision| decision.op);
        let late = self.late.iter().copied().chain(late).collect();
        let mut cuts = Cuts {
            time,
            bytes,
            late,
            highest_price: self.highest_price,
            ..Cuts::new(vertices, arcs, decidable)
        };
        cuts.symmetry = Symmetry::new(vertices, &cuts.arcs, &cuts.decidable);
        cuts
    }

    /// `op` and the operators at its place in parts of the network which are like its own and of
    /// which nothing is decided. Such parts can be exchanged, so it is enough to examine `op` late
    /// and all of them not late.
    pub fn symmetric_to(&self, op: OpId, decisions: &[Decision]) -> Vec<OpId> {
        let Some(&(part, place)) = self.symmetry.place.get(&op) else { return vec![op] };
        let mut is_open = vec![true; self.symmetry.parts.len()];
        for (decided, _) in decisions {
            if let Some(&(part, _)) = self.symmetry.place.get(decided) {
                is_open[part] = false;
            }
        }
        if !is_open[part] {
            return vec![op];
        }
        let alike = (0..is_open.len()).filter(|&other| {
            is_open[other] && self.symmetry.class[other] == self.symmetry.class[part]
        });
        alike.map(|other| self.symmetry.parts[other][place]).collect()
    }
}

/// Spreads sides along infinite arcs; `None` if they contradict each other.
fn spread(sides: &mut [Option<bool>], arcs: &[PricedArc]) -> Option<()> {
    let mut leads: Vec<Vec<(Vertex, bool)>> = vec![Vec::new(); sides.len()];
    for arc in arcs.iter().filter(|arc| arc.capacity == Capacity::Infinite) {
        // An arc from the source's side ends on the source's side; one that ends on the sink's side
        // begins there.
        leads[arc.from as usize].push((arc.to, false));
        leads[arc.to as usize].push((arc.from, true));
    }
    let mut fresh: Vec<Vertex> =
        (0..sides.len() as Vertex).filter(|&vertex| sides[vertex as usize].is_some()).collect();
    while let Some(vertex) = fresh.pop() {
        let side = sides[vertex as usize];
        for &(other, is_late) in &leads[vertex as usize] {
            if side == Some(is_late) {
                match sides[other as usize] {
                    None => {
                        sides[other as usize] = side;
                        fresh.push(other);
                    }
                    known if known == side => {}
                    _ => return None,
                }
            }
        }
    }
    Some(())
}

impl Symmetry {
    fn new(vertices: u32, arcs: &[PricedArc], decidable: &[DecisionVertex]) -> Symmetry {
        // Parts: vertices that are linked, apart from source and sink.
        let mut linked = DisjointSets::new(vertices as usize);
        for arc in arcs.iter().filter(|arc| arc.from < vertices && arc.to < vertices) {
            linked.join(arc.from as usize, arc.to as usize);
        }
        let mut part_of: HashMap<usize, usize> = HashMap::new();
        let mut local = vec![(0, 0); vertices as usize];
        let mut sizes: Vec<u32> = Vec::new();
        for vertex in 0..vertices {
            let next = part_of.len();
            let part = *part_of.entry(linked.head(vertex as usize)).or_insert(next);
            if part == sizes.len() {
                sizes.push(0);
            }
            local[vertex as usize] = (part, sizes[part]);
            sizes[part] += 1;
        }
        // What a part looks like: its arcs and decisions, with its vertices numbered in order.
        let mut looks: Vec<Vec<(u32, u32, Capacity)>> = vec![Vec::new(); sizes.len()];
        let name = |vertex: Vertex| {
            if vertex < vertices {
                local[vertex as usize].1
            } else {
                u32::MAX - (vertex - vertices)
            }
        };
        for arc in arcs {
            let inner = if arc.from < vertices { arc.from } else { arc.to };
            looks[local[inner as usize].0].push((name(arc.from), name(arc.to), arc.capacity));
        }
        let mut symmetry = Symmetry { parts: vec![Vec::new(); sizes.len()], ..Symmetry::default() };
        for decision in decidable {
            let (part, index) = local[decision.vertex as usize];
            looks[part].push((index, index, Capacity::Infinite));
            symmetry.place.insert(decision.op, (part, symmetry.parts[part].len()));
            symmetry.parts[part].push(decision.op);
        }
        let mut known: HashMap<Vec<(u32, u32, Capacity)>, usize> = HashMap::new();
        for mut look in looks {
            look.sort_unstable();
            let next = known.len();
            symmetry.class.push(*known.entry(look).or_insert(next));
        }
        symmetry
    }
}
