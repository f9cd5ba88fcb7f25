//! Which cut and which order a pipeline has. Invariant: a candidate that was not planned would take
//! at least as long as one that was, even with nothing recomputed and by the model of layers, or
//! time was up; and one is planned in any case, unless planning was interrupted.

use std::borrow::Cow;

use crate::pipeline::action::Rows;
use crate::pipeline::error::PipelineError;
use crate::pipeline::rows::{PipelineSchedule, Unsuited};
use crate::pipeline::stages::{Devices, LayerCost, StagePlan, cuts, given_cut, in_time};
use crate::units::Seconds;

/// An order in which ranks may perform their actions.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// One that has a name.
    Known(PipelineSchedule),
    /// One given action by action.
    Given {
        /// Where it is from.
        name: String,
        /// The actions of each rank.
        rows: Rows,
    },
}

impl Order {
    fn name(&self) -> &str {
        match self {
            Order::Known(schedule) => schedule.name(),
            Order::Given { name, .. } => name,
        }
    }

    fn rows(&self, ranks: u32, micro_batches: u32) -> Result<Cow<'_, Rows>, Unsuited> {
        match self {
            Order::Known(schedule) => schedule.rows(ranks, micro_batches).map(Cow::Owned),
            Order::Given { rows, .. } => Ok(Cow::Borrowed(rows)),
        }
    }
}

/// A model as layers, and the devices for it.
#[derive(Clone, Copy, Debug)]
pub struct LayeredModel<'a> {
    /// The costs of its layers.
    pub layers: &'a [LayerCost],
    /// One past the last layer of each stage, if the cut was requested.
    pub ends: Option<&'a [usize]>,
    /// The devices.
    pub devices: &'a Devices,
}

/// The time that planning has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// As much as it takes.
    Unlimited,
    /// Some is left.
    Left,
    /// None is left.
    Up,
    /// It was interrupted.
    Interrupted,
}

impl LayeredModel<'_> {
    /// Cuts of the orders that are worth planning tensor by tensor, the fastest by the model of
    /// layers first; when time is up, only of the orders reached by then.
    ///
    /// # Errors
    /// [`PipelineError`] if no order suits the model, the devices and the micro-batches.
    pub fn candidates(
        &self,
        orders: &[Order],
        micro_batches: u32,
        time: &dyn Fn() -> Time,
    ) -> Result<Vec<StagePlan>, PipelineError> {
        let &LayeredModel { layers, ends, devices } = self;
        let mut orders: Vec<&Order> = orders.iter().collect();
        if time() != Time::Unlimited {
            // This one holds little, so it fits more often than others.
            orders.sort_by_key(|&order| *order != Order::Known(PipelineSchedule::OneFOneB));
        }
        let (mut found, mut first): (Vec<StagePlan>, Option<PipelineError>) = (Vec::new(), None);
        for order in orders {
            // The first order that has a cut gets one in any case.
            let is_over = || match time() {
                Time::Unlimited | Time::Left => false,
                Time::Up => !found.is_empty(),
                Time::Interrupted => true,
            };
            if is_over() {
                break;
            }
            let rows = match order.rows(devices.ranks, micro_batches) {
                Ok(rows) => rows,
                Err(error) => {
                    first = first.or(Some(error.into()));
                    continue;
                }
            };
            let stages = rows.placement.len();
            if stages > layers.len() {
                let layers = layers.len();
                first = first.or(Some(PipelineError::TooManyStages { stages, layers }));
                continue;
            }
            let named = (order.name(), &*rows);
            let of_order = match ends {
                Some(ends) => given_cut((layers, ends), devices, named),
                None => cuts(layers, devices, named, &is_over),
            };
            found.extend(of_order);
        }
        found.sort_by(|a, b| a.makespan.0.total_cmp(&b.makespan.0));
        match first.filter(|_| found.is_empty()) {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }

    /// The time of a candidate if nothing had to be recomputed.
    fn least(&self, candidate: &StagePlan) -> Seconds {
        let recomputed = vec![false; self.layers.len()];
        let nothing = StagePlan { recomputed, ..candidate.clone() };
        in_time(self.layers, self.devices, &nothing).makespan
    }

    /// Plans candidates, and says what became of each.
    pub fn decide<P: Planning>(
        &self,
        mut candidates: Vec<StagePlan>,
        planning: &mut P,
    ) -> Decided<P> {
        let mut decided = Decided { planned: Vec::new(), skipped: Vec::new(), refused: None };
        while !candidates.is_empty() {
            let waiting = candidates.len();
            let candidate = candidates.remove(decided.next(&candidates, planning.time()));
            let least = self.least(&candidate);
            let is_slower = |best| !planning.may_beat(least, best);
            if decided.planned.first().is_some_and(is_slower) || decided.is_enough(planning.time())
            {
                decided.skipped.push((candidate, least));
                continue;
            }
            match planning.plan(&candidate, waiting) {
                Ok(planned) => decided.planned.push(planned),
                Err(error) => {
                    let need = |error| planning.need(error);
                    if decided.refused.as_ref().is_none_or(|least| need(&error) < need(least)) {
                        decided.refused = Some(error);
                    }
                }
            }
            decided.planned.sort_by(|a, b| planning.cost(a).total_cmp(&planning.cost(b)));
        }
        decided
    }
}

/// How candidates are planned, and compared.
pub trait Planning {
    /// A candidate that was planned.
    type Planned;
    /// Why one was not.
    type Refusal;
    /// What a refusal asks for.
    type Need: Ord;

    /// Plans a candidate, one of this many that still wait.
    ///
    /// # Errors
    /// If it does not fit.
    fn plan(
        &mut self,
        candidate: &StagePlan,
        waiting: usize,
    ) -> Result<Self::Planned, Self::Refusal>;

    /// What is compared: less is better.
    fn cost(&self, planned: &Self::Planned) -> f64;

    /// Whether a candidate that takes at least this long may be better than one that was planned.
    fn may_beat(&self, least: Seconds, best: &Self::Planned) -> bool;

    /// What a refusal asks for; of refusals the one that asks least is kept.
    fn need(&self, refusal: &Self::Refusal) -> Self::Need;

    /// The time that it has.
    fn time(&self) -> Time;
}

/// What became of candidates.
pub struct Decided<P: Planning> {
    /// Those that were planned, the best first.
    pub planned: Vec<P::Planned>,
    /// Those that were not, and the time that each takes if nothing had to be recomputed.
    pub skipped: Vec<(StagePlan, Seconds)>,
    /// Of all refusals the one that asks least.
    pub refused: Option<P::Refusal>,
}

impl<P: Planning> Decided<P> {
    /// The candidate to plan next: the fastest by the model of layers; but if time is limited and
    /// was not enough so far, the one of which a device holds least.
    fn next(&self, candidates: &[StagePlan], time: Time) -> usize {
        if !self.planned.is_empty() || self.refused.is_none() || time == Time::Unlimited {
            return 0;
        }
        let held = |plan: &StagePlan| plan.peaks.values().max().copied();
        (0..candidates.len()).min_by_key(|&index| held(&candidates[index])).unwrap_or(0)
    }

    /// Whether no more are planned.
    fn is_enough(&self, time: Time) -> bool {
        match time {
            Time::Unlimited | Time::Left => false,
            Time::Up => !self.planned.is_empty() || self.refused.is_some(),
            Time::Interrupted => true,
        }
    }
}
