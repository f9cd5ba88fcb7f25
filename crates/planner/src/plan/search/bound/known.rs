//! All that is proven of one graph, for schedules of one order: in a search, of any. Invariant: no
//! schedule beats the bound of any instant, so the highest counts.

use crate::effort::Meter;
use crate::plan::quantity::{ByteCount, Picoseconds};
use crate::plan::search::bound::last::LastOf;
use crate::plan::search::bound::{BoundOrder, CutInstant};
use crate::plan::search::state::problem::{OpId, Problem};

/// Instants with what is proven at each.
#[derive(Default)]
pub struct Bounds {
    /// First runs of single operators.
    pub instants: Vec<CutInstant>,
    /// Last first runs of operators that are alike.
    kinds: Vec<LastOf>,
}

impl Bounds {
    /// Time of recomputation that no schedule within the budget beats; `None` if none fits.
    pub fn within(&self, budget: ByteCount) -> Option<Picoseconds> {
        let mut all = self.all(budget);
        all.try_fold(Picoseconds::ZERO, |most, bound| Some(bound?.max(most)))
    }

    /// The same if some schedule fits.
    pub fn floor(&self, budget: ByteCount) -> Picoseconds {
        self.all(budget).flatten().max().unwrap_or_default()
    }

    fn all(&self, budget: ByteCount) -> impl Iterator<Item = Option<Picoseconds>> + '_ {
        let of_instants = self.instants.iter().map(move |instant| instant.bound(budget));
        of_instants.chain(self.kinds.iter().map(move |kind| kind.bound(budget)))
    }

    /// No budget below this many bytes suffices.
    pub fn least_budget(&self) -> Option<ByteCount> {
        let of_instants = self.instants.iter().map(CutInstant::least_budget);
        of_instants.chain(self.kinds.iter().map(LastOf::least_budget)).max()
    }

    /// Adds the first run of an operator, with its hull at a budget, unless it is known.
    pub fn add(&mut self, problem: &Problem, at: OpId, budget: ByteCount, meter: &mut Meter) {
        if !self.is_known(at)
            && let Some(mut instant) = CutInstant::new(problem, BoundOrder::Any, at, meter)
        {
            instant.solve(budget, meter);
            self.instants.push(instant);
        }
    }

    /// Adds the last first run of those that are like an operator, if there are any, with a line at
    /// a budget.
    pub fn add_last(&mut self, problem: &Problem, at: OpId, budget: ByteCount, meter: &mut Meter) {
        if meter.is_over() {
            return;
        }
        let known = self.kinds.iter().position(|kind| kind.contains(at));
        let kind = known.unwrap_or_else(|| {
            self.kinds.push(LastOf::like(problem, at, meter));
            self.kinds.len() - 1
        });
        let floor = self.floor(budget);
        self.kinds[kind].solve(problem, budget, floor, meter);
    }

    /// Whether the first run of an operator is known, or the last one of those that are like it, if
    /// that binds more.
    pub fn is_known(&self, at: OpId) -> bool {
        let is_last = |kind: &LastOf| kind.binds() && kind.contains(at);
        self.instants.iter().any(|instant| instant.at == at) || self.kinds.iter().any(is_last)
    }

    /// All instants whose cuts are of an order; plans are made of either.
    pub fn cuts(&mut self, order: BoundOrder) -> impl Iterator<Item = &mut CutInstant> {
        let instants = self.instants.iter_mut().filter(move |_| order == BoundOrder::Any);
        let kinds = self.kinds.iter_mut().filter(move |_| order == BoundOrder::Given);
        instants.chain(kinds.filter_map(LastOf::guide_mut))
    }
}
