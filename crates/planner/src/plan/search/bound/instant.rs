//! One instant, the first run of an operator: its network, and what is known of it. Invariant: the
//! network has a finite cut for every legal schedule, made of what that makes again after the
//! instant and of what it holds across; so no minimum cut is above any of them.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds, Price};
use crate::plan::search::bound::cuts::{Capacity, Cuts, DecisionVertex, Line, PricedArc};
use crate::plan::search::bound::flow::Vertex;
use crate::plan::search::bound::{BoundOrder, Hull};
use crate::plan::search::state::problem::{OpId, Problem, TensorId};

/// Where an operator runs for the first time, seen from the instant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Side {
    Before,
    After,
    #[default]
    Either,
}

impl Side {
    /// In the order of their numbers.
    pub const ALL: [Side; 3] = [Side::Before, Side::After, Side::Either];
}

/// No schedule within a budget takes less to recompute.
pub(super) struct Proven {
    pub budget: ByteCount,
    pub least: Picoseconds,
}

/// One instant with its network and what is known of it.
pub struct CutInstant {
    /// The operator whose first run it is.
    pub at: OpId,
    /// The bound without decisions.
    pub hull: Hull,
    /// What every schedule holds while it runs.
    pub(super) needed: ByteCount,
    /// Found by branch and bound.
    pub(super) proven: Vec<Proven>,
    /// The time of recomputing everything once.
    pub(super) most: Picoseconds,
    pub(super) cuts: Cuts,
}

impl CutInstant {
    /// The instant of an operator in the schedules of an order; `None` if the effort was spent
    /// before its first cuts were known.
    pub fn new(
        problem: &Problem,
        order: BoundOrder,
        at: OpId,
        meter: &mut Meter,
    ) -> Option<CutInstant> {
        let side = match order {
            BoundOrder::Given => positions(problem, at),
            BoundOrder::Any => sides(problem, at, &[]),
        };
        let (needed, mut cuts) = Drawn::new(problem, side, at).network(problem, at);
        let all_held = cuts.cut(Price::FREE, &[], meter)?;
        let none_held = cuts.cut(cuts.highest_price, &[], meter)?;
        let hull = Hull::new(vec![all_held, none_held]);
        Some(CutInstant { at, hull, needed, proven: Vec::new(), most: problem.total, cuts })
    }

    /// Time of recomputation that no plan within the budget beats; `None` if no schedule fits.
    pub fn bound(&self, budget: ByteCount) -> Option<Picoseconds> {
        if budget < self.needed {
            return None;
        }
        let proven = self.proven.iter().filter(|proven| budget <= proven.budget);
        let proven = proven.map(|proven| proven.least.wide()).max().unwrap_or_default();
        let least = self.hull.at(budget - self.needed).max(proven);
        // A cut counts each operator once at most: beyond that, nothing fits.
        (least <= self.most.wide()).then(|| least.narrow())
    }

    /// No budget below this many bytes suffices.
    pub fn least_budget(&self) -> ByteCount {
        self.needed + self.hull.least_room(self.most)
    }

    /// The price of a byte that gives the highest bound at a budget; absent if all can be held.
    pub fn price(&self, budget: ByteCount) -> Option<Price> {
        let (price, _) = self.hull.best((budget - self.needed).max(ByteCount::ZERO))?;
        Some(price).filter(|&price| price > Price::FREE)
    }

    /// Adds lines until the hull is exact at this budget, or the effort is spent.
    pub fn solve(&mut self, budget: ByteCount, meter: &mut Meter) {
        self.hull.close_in(&mut self.cuts, budget - self.needed, &[], meter);
    }

    /// The corners around a budget: the first holds more than fits, the second fits. At the ends of
    /// the hull, the same one twice.
    pub fn bracket(&self, budget: ByteCount) -> [&Line; 2] {
        let lines = &self.hull.lines;
        let under =
            lines.partition_point(|line| line.bytes > budget - self.needed).min(lines.len() - 1);
        [&lines[under.saturating_sub(1)], &lines[under]]
    }
}

/// The network of an instant; source and sink come after its vertices.
pub(super) struct Drawn {
    pub vertices: Vertex,
    pub arcs: Vec<PricedArc>,
    pub decidable: Vec<DecisionVertex>,
    /// Where each operator runs for the first time.
    pub side: SecondaryMap<OpId, Side>,
    /// Bytes of kept outputs of the operators that run before, in every schedule.
    pub kept_before: ByteCount,
}

impl Drawn {
    /// The network of the first run of `at` in the schedules in which each operator runs for the
    /// first time on this side.
    pub fn new(problem: &Problem, side: SecondaryMap<OpId, Side>, at: OpId) -> Drawn {
        let (ops, tensors) = (problem.len(), problem.tensors.len());
        // An operator's vertex is on the sink's side if it runs after the instant; a tensor's if it
        // is there after the instant; an operator's second vertex if it does not run before the
        // instant.
        let runs = |op: OpId| op.as_u32();
        let there = |tensor: TensorId| ops as Vertex + tensor.as_u32();
        let not_before = |op: OpId| (ops + tensors) as Vertex + op.as_u32();
        let source = (2 * ops + tensors) as Vertex;
        let sink = source + 1;
        let (mut arcs, mut decidable) = (Vec::new(), Vec::new());
        let mut arc = |from: Vertex, to: Vertex, capacity: Capacity| {
            arcs.push(PricedArc { from, to, capacity })
        };
        let mut kept_before = ByteCount::ZERO;
        for (id, op) in &problem.ops {
            let before = match side[id] {
                Side::After => continue,
                Side::Before => {
                    kept_before += op.kept;
                    source
                }
                Side::Either => {
                    arc(runs(id), not_before(id), Capacity::Infinite);
                    for &earlier in
                        op.after.iter().filter(|&&earlier| side[earlier] == Side::Either)
                    {
                        arc(not_before(id), not_before(earlier), Capacity::Infinite);
                    }
                    if op.kept > ByteCount::ZERO {
                        arc(not_before(id), sink, Capacity::Held(op.kept));
                    }
                    not_before(id)
                }
            };
            arc(
                before,
                runs(id),
                if op.once { Capacity::Infinite } else { Capacity::Time(op.cost) },
            );
            decidable.push(DecisionVertex { op: id, vertex: runs(id) });
            for &tensor in &op.outputs {
                let is_input = problem.ops[at].inputs.contains(&tensor);
                let bytes = if is_input { ByteCount::ZERO } else { problem.tensors[tensor].bytes };
                arc(runs(id), there(tensor), Capacity::Held(bytes));
                if problem.tensors[tensor]
                    .readers
                    .iter()
                    .any(|&reader| reader != at && side[reader] == Side::After)
                {
                    arc(there(tensor), sink, Capacity::Infinite);
                }
            }
            // No input comes from the instant or its descendants: operators that read those are
            // descendants too.
            op.inputs.iter().for_each(|&tensor| arc(there(tensor), runs(id), Capacity::Infinite));
        }
        Drawn { vertices: source, arcs, decidable, side, kept_before }
    }

    /// What every schedule holds while `at` runs, and the cuts.
    pub fn network(self, problem: &Problem, at: OpId) -> (ByteCount, Cuts) {
        let needed = problem.resting + self.kept_before + problem.working_set(at);
        (needed, Cuts::new(self.vertices, self.arcs, self.decidable))
    }
}

/// Where each operator runs for the first time if the order of first runs is that of the problem.
fn positions(problem: &Problem, at: OpId) -> SecondaryMap<OpId, Side> {
    let mut side: SecondaryMap<OpId, Side> = SecondaryMap::with_capacity(problem.len());
    problem.ops.keys().for_each(|id| side[id] = if id < at { Side::Before } else { Side::After });
    side
}

/// Where each operator runs for the first time, seen from the first run of `at`, in any order in
/// which these ran earlier.
pub(super) fn sides(problem: &Problem, at: OpId, earlier: &[OpId]) -> SecondaryMap<OpId, Side> {
    let mut side: SecondaryMap<OpId, Side> = SecondaryMap::with_capacity(problem.len());
    side.resize(problem.len());
    side[OpId::SOURCE] = Side::Before;
    side[at] = Side::After;
    earlier.iter().for_each(|&id| side[id] = Side::Before);
    let last = earlier.iter().copied().max().map_or(at, |id| id.max(at));
    for id in (1..=last.index()).rev().map(OpId::at) {
        if id == at || side[id] == Side::Before {
            for &earlier in &problem.ops[id].after {
                side[earlier] = Side::Before;
            }
        }
    }
    for id in (at.index() + 1..problem.len()).map(OpId::at) {
        if problem.ops[id].after.iter().any(|&earlier| side[earlier] == Side::After) {
            side[id] = Side::After;
        }
    }
    side
}
