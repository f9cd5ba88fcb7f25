//! Planners with a fixed rule in one slab. Invariant: a refusal is the planner's own answer, and
//! the budget that it names suffices for addresses.
//!
//! A rule plans for a budget reduced by the bytes that were missing, until addresses pack; if they
//! never do, its smallest plan is laid out.

use crate::effort::Meter;
use crate::fit::slab::{Laid, Slab, within};
use crate::goal::Goal;
use crate::plan::{self, Infeasible, NotFound, Plan, PlanError, Planner};
use crate::schedule::Schedule;
use crate::tuning::rule::{BUDGET, COMPACT, COMPACTION, SMALLEST};
use crate::units::{Bytes, Seconds};

/// A planner with a fixed rule.
#[derive(Clone, Copy)]
pub struct Rule<'a> {
    pub planner: Planner,
    pub slab: Slab<'a>,
}

impl Rule<'_> {
    /// A schedule within the budget; `first` is set to the time until its first plan.
    pub fn fit(
        &self,
        budget: Bytes,
        meter: &mut Meter<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Schedule, PlanError> {
        let smallest = |meter: &Meter<'_>| {
            let laid = self.lowest(budget, meter)?;
            within(budget, laid).map_err(|smallest| {
                PlanError::Infeasible(Box::new(self.slab.refusal(budget, *smallest)))
            })
        };
        match self.until(BUDGET.get(), budget, meter, first) {
            Ok(Some(schedule)) => Ok(schedule),
            Ok(None) => smallest(meter),
            Err(PlanError::NotFound(ended)) => smallest(meter).map_err(|error| {
                // The size that is named is that of a slab.
                let reached = match error {
                    PlanError::Infeasible(proof) => proof.reached,
                    _ => self.size(&ended.plan, ended.reached, meter),
                };
                PlanError::NotFound(NotFound { budget, reached, ..*ended }.into())
            }),
            // A solver whose time was up may still reach its smallest slab; it then continues.
            Err(unsolved @ PlanError::Unsolved { .. }) => match smallest(meter) {
                Ok(lowest) => self
                    .until(1.0, budget, meter, first)
                    .map(|faster| faster.unwrap_or(lowest.clone()))
                    .or(Ok(lowest)),
                Err(error @ PlanError::Infeasible(_)) => Err(error),
                Err(_) => Err(unsolved),
            },
            Err(error) => Err(error),
        }
    }

    /// Plans with a budget reduced by what was missing until addresses pack, in a share of the
    /// effort.
    fn until(
        &self,
        part: f64,
        budget: Bytes,
        meter: &mut Meter<'_>,
        first: &mut Option<Seconds>,
    ) -> Result<Option<Schedule>, PlanError> {
        let mut target = budget;
        loop {
            let mut turn = meter.until(part);
            let plan = plan::plan_within(self.slab.instance, target, self.planner, &mut turn);
            meter.spend(turn.spent() - meter.spent());
            let plan = match plan {
                Ok(plan) => plan,
                Err(PlanError::Infeasible(proof)) if proof.prediction.is_some() => {
                    return Err(self.mispredicted(*proof, budget, meter));
                }
                Err(PlanError::Infeasible(_)) => return Ok(None),
                Err(error) => return Err(error),
            };
            first.get_or_insert(meter.elapsed());
            let lay = |limit: Bytes, until: f64| {
                self.slab.lay_out(&plan, Goal::Within(limit), meter.rest_until(until))
            };
            let schedule = lay(budget, part);
            let peak = plan.peak;
            if schedule.slab <= budget {
                // Addresses that fit may still be spread out.
                let compact = Bytes((peak.0 as f64 * COMPACT.get()) as u64);
                let smaller = (schedule.slab > compact)
                    .then(|| lay(compact, (meter.share() + COMPACTION.get()).min(1.0)));
                let smaller = smaller.filter(|smaller| smaller.slab < schedule.slab);
                return Ok(Some(Schedule { budget, ..smaller.unwrap_or(schedule) }));
            }
            // With a budget that this plan is within, the planner would give the same plan again.
            let Some(less) = peak.0.checked_sub(1) else { return Ok(None) };
            target = target.saturating_sub(schedule.slab - budget).min(Bytes(less));
        }
    }

    /// The refusal of a planner that decides by predictions: another of its plans that happens to
    /// fit would not be its answer. The budget that is named suffices for addresses, too; the
    /// planner may choose differently with a larger budget than it predicted, so it plans again
    /// with that.
    fn mispredicted(&self, proof: Infeasible, budget: Bytes, meter: &Meter<'_>) -> PlanError {
        let Rule { planner, slab: Slab { instance, .. } } = *self;
        let size = |plan: &Plan, least: Bytes| least.max(self.size(plan, least, meter));
        let mut reached = size(&proof.plan, proof.reached);
        loop {
            let mut turn = meter.until(1.0);
            let larger = match plan::plan_within(instance, reached, planner, &mut turn) {
                Ok(plan) => size(&plan, reached),
                Err(PlanError::Infeasible(above)) => size(&above.plan, above.reached),
                // Time is up; recomputing nothing requires no decision.
                Err(_) => {
                    reached = size(&instance.unplanned(planner), reached);
                    break;
                }
            };
            if larger <= reached {
                break;
            }
            reached = larger;
        }
        PlanError::Infeasible(Box::new(Infeasible { budget, reached, ..proof }))
    }

    /// The bytes of a plan's slab, laid out to fit a limit with the remaining effort.
    fn size(&self, plan: &Plan, limit: Bytes, meter: &Meter<'_>) -> Bytes {
        self.slab.lay_out(plan, Goal::Within(limit), meter.rest_until(1.0)).slab
    }

    /// The smallest slab for the smallest plan.
    pub fn smallest(&self, meter: &Meter<'_>) -> Result<Laid, PlanError> {
        self.lowest(Bytes::ZERO, &meter.until(SMALLEST.get()))
    }

    /// The same, or one that is small enough.
    fn lowest(&self, enough: Bytes, meter: &Meter<'_>) -> Result<Laid, PlanError> {
        let Rule { planner, slab } = *self;
        // With the whole floor, as if this were the first request.
        let mut fresh = meter.above(meter.effort().floor);
        let plan = plan::smallest(slab.instance, planner, &mut fresh)?;
        Ok((slab.smallest_of(&plan, enough, Slab::rest(meter, 1.0)), plan))
    }
}
