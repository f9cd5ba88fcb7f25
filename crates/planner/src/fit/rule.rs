//! Planners with a fixed rule in one slab. Invariant: what is refused is the planner's own answer,
//! and the budget that a refusal names has addresses.
//!
//! A rule is asked for as much less as was missing, until addresses pack, or else for its smallest
//! plan.

use crate::effort::Meter;
use crate::fit::slab::{Laid, Slab, within};
use crate::goal::Goal;
use crate::plan::{self, Infeasible, NotFound, Plan, PlanError, Planner};
use crate::schedule::Schedule;
use crate::units::{Bytes, Seconds};

/// A slab of at most this many times the bytes held is compact.
const COMPACT: f64 = 1.02;
/// The part of the effort that is spent on making a slab compact that fits already.
const COMPACTION: f64 = 0.3;
/// The part of the effort in which a rule plans a budget; the rest is for its smallest slab.
const BUDGET: f64 = 0.3;
/// The part of the effort that goes into the smallest slab where that is all that is asked for.
const SMALLEST: f64 = 0.55;

/// A planner with a fixed rule.
#[derive(Clone, Copy)]
pub struct Rule<'a> {
    pub planner: Planner,
    pub slab: Slab<'a>,
}

impl Rule<'_> {
    /// A schedule within the budget; in `first`, how long its plan took.
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
        match self.until(BUDGET, budget, meter, first) {
            Ok(Some(schedule)) => Ok(schedule),
            Ok(None) => smallest(meter),
            Err(PlanError::NotFound(ended)) => smallest(meter).map_err(|error| {
                // What is named has addresses.
                let reached = match error {
                    PlanError::Infeasible(proof) => proof.reached,
                    _ => self.size(&ended.plan, ended.reached, meter),
                };
                PlanError::NotFound(NotFound { budget, reached, ..*ended }.into())
            }),
            // A solver whose time was up may still reach its smallest slab, and goes on from there.
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

    /// As much less as was missing, until addresses pack; in a part of the effort.
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
                // Addresses that fit may be spread out all the same.
                let compact = Bytes((peak.0 as f64 * COMPACT) as u64);
                let smaller = (schedule.slab > compact)
                    .then(|| lay(compact, (meter.share() + COMPACTION).min(1.0)));
                let smaller = smaller.filter(|smaller| smaller.slab < schedule.slab);
                return Ok(Some(Schedule { budget, ..smaller.unwrap_or(schedule) }));
            }
            // Asked for no less than this plan holds, the planner would give the same plan again.
            let Some(less) = peak.0.checked_sub(1) else { return Ok(None) };
            target = target.saturating_sub(schedule.slab - budget).min(Bytes(less));
        }
    }

    /// The refusal of a planner that goes by predictions: another plan of it that happens to fit
    /// would not be its answer. The budget that it names is one for addresses, too; with more than
    /// it predicted the planner may choose otherwise, so it is asked again.
    fn mispredicted(&self, proof: Infeasible, budget: Bytes, meter: &Meter<'_>) -> PlanError {
        let Rule { planner, slab: Slab { instance, .. } } = *self;
        let size = |plan: &Plan, least: Bytes| least.max(self.size(plan, least, meter));
        let mut reached = size(&proof.plan, proof.reached);
        loop {
            let mut turn = meter.until(1.0);
            let larger = match plan::plan_within(instance, reached, planner, &mut turn) {
                Ok(plan) => size(&plan, reached),
                Err(PlanError::Infeasible(above)) => size(&above.plan, above.reached),
                // Time is up; what recomputes nothing needs no choice.
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

    /// The bytes of the slab of a plan that is to lie within a limit, in what is left of the
    /// effort.
    fn size(&self, plan: &Plan, limit: Bytes, meter: &Meter<'_>) -> Bytes {
        self.slab.lay_out(plan, Goal::Within(limit), meter.rest_until(1.0)).slab
    }

    /// The smallest slab for the smallest plan.
    pub fn smallest(&self, meter: &Meter<'_>) -> Result<Laid, PlanError> {
        self.lowest(Bytes::ZERO, &meter.until(SMALLEST))
    }

    /// The same, or one that is small enough.
    fn lowest(&self, enough: Bytes, meter: &Meter<'_>) -> Result<Laid, PlanError> {
        let Rule { planner, slab } = *self;
        // As if nothing had been asked for before.
        let mut anew = meter.above(meter.effort().floor);
        let plan = plan::smallest(slab.instance, planner, &mut anew)?;
        Ok((slab.smallest_of(&plan, enough, Slab::rest(meter, 1.0)), plan))
    }
}
