//! Fitting with a region: persistent tensors are placed in it at run time, and everything else is
//! scheduled after it. Invariant: region, schedule and reserve together are within the budget, and
//! the tensors of any call fit into the region.

use thiserror::Error;
use tightfit::check::Checked;
use tightfit::effort::Effort;
use tightfit::exit::{Coded, Exit, Refusal};
use tightfit::machine::{Hierarchy, Link, Machine};
use tightfit::plan::{Infeasible, PlanError};
use tightfit::profile::{CallSeconds, Profile};
use tightfit::schedule::Residents;
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, Fitted, Goal, Request, fit, frontier};

use crate::execute::region::{Operands, Region};
use crate::fit::{
    FitTask, FittedGraph, FittedStep, FittingError, fit_evaluation, whole_budget, within_memory,
};
use crate::reserve::{Reserve, reserve};
use crate::residency::{Access, Figures, GraphKey, Phase, Policy, Residency, ResidencyError};
use crate::step::Step;

/// Bytes that the residency manager keeps for each tensor, block and chunk.
const BOOKS: Bytes = Bytes(512);
/// Fractions of what the step as captured takes in addition to its persistent tensors.
const PARTS: [(u64, u64); 4] = [(1, 4), (1, 2), (3, 4), (1, 1)];
/// Iterations from which the bytes moved in one are predicted.
const COUNTED: u32 = 3;

/// Why there is no region for tensors that are placed at run time.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// They cannot be packed into chunks.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
    /// The policy evicts nothing, and not everything fits.
    #[error(
        "{} a budget of {budget} for parameters, buffers and optimizer state, {held} in chunks of \
         {chunk}, in addition to everything else: if nothing is evicted, {} ({} bytes) are enough; \
         or evict what is not needed", claim(budget < least), reached.rounded_up(), reached.0
    )]
    Whole {
        /// The whole budget.
        budget: Bytes,
        /// All chunks.
        held: Bytes,
        /// The bytes of a chunk.
        chunk: Bytes,
        /// A budget that is enough.
        reached: Bytes,
        /// A budget below which it is proven that none is enough.
        least: Bytes,
    },
    /// The tensors of one call do not fit into the region that there is.
    #[error(
        "{} a budget of {budget} to place tensors while the run goes on: the process takes {}, the \
         parameters and state of a single call {region} in chunks of {chunk}, and everything else \
         at least {needed}; {} ({} bytes) are enough",
        claim(budget < least), reserve.total(), reached.rounded_up(), reached.0
    )]
    Region {
        /// The whole budget.
        budget: Bytes,
        /// What the process takes besides the slab.
        reserve: Reserve,
        /// The smallest region.
        region: Bytes,
        /// The bytes of a chunk.
        chunk: Bytes,
        /// What every schedule needs in addition to the region.
        needed: Bytes,
        /// A budget that is enough.
        reached: Bytes,
        /// A budget below which it is proven that none is enough.
        least: Bytes,
    },
}

impl Coded for PlacementError {
    fn exit(&self) -> Exit {
        self.is_proven().map_or(Exit::Other, Exit::of_refusal)
    }

    fn refusal(&self) -> Option<Refusal> {
        match *self {
            PlacementError::Residency(_) => None,
            PlacementError::Whole { budget, least, reached, .. }
            | PlacementError::Region { budget, least, reached, .. } => Some(Refusal {
                needed: Some(least),
                reached: Some(reached),
                ..Refusal::of(budget, budget < least)
            }),
        }
    }
}

/// How a refusal's message begins.
fn claim(is_proven: bool) -> &'static str {
    if is_proven { "there is no room in" } else { "no way was found to make room in" }
}

impl PlacementError {
    /// Whether it is proven that there is no way to run within the budget.
    pub fn is_proven(&self) -> Option<bool> {
        match *self {
            PlacementError::Residency(_) => None,
            PlacementError::Whole { budget, least, .. }
            | PlacementError::Region { budget, least, .. } => Some(budget < least),
        }
    }
}

/// Fits both graphs of a step around a region in which a residency manager places parameters,
/// buffers and optimizer state by a policy.
pub fn fit_placed(
    step: &Step,
    seconds: &CallSeconds,
    task: &FitTask<'_>,
    policy: Policy,
) -> Result<FittedStep, FittingError> {
    let graph = &step.training;
    let lanes = &task.machine.hierarchy.lanes;
    let route = task.machine.hierarchy.main_route();
    let links = route.map(|route| (lanes[route.out].link, lanes[route.back].link));
    // The residency manager moves tensors, not the schedule.
    let machine = Machine { hierarchy: Hierarchy::default(), ..task.machine.clone() };
    let profile = Profile::measured(graph, &machine, seconds);
    let unplanned = tightfit::unplanned(graph, &profile)?;
    let region = Region::new(graph, unplanned.schedule(), policy).map_err(PlacementError::from)?;
    let mut reserve = reserve(graph, task.machine);
    reserve.base += task.beside + books(&region)?;
    let task = &FitTask { machine: &machine, ..*task };
    let budget = whole_budget(task, &unplanned, reserve)?;
    let room = Room { step, profile: &profile, task, region: &region, reserve, links };
    let (fitted, region) = match budget {
        Some(budget) => room.within(budget, &unplanned)?,
        None => room.smallest(&unplanned)?,
    };
    let used = region.slab(fitted.schedule());
    let budget = budget.unwrap_or(used + reserve.total());
    within_memory(budget, task.machine)?;
    let training = FittedGraph { fitted, budget, reserve, unplanned, limit: None };
    let behind = training.slab().saturating_sub(region.bytes());
    let slab = region.persistent() + behind;
    let evaluation = fit_evaluation(step, &training, slab, seconds, task);
    let evaluation = evaluation.filter(|checked| has_room(step, checked, &region));
    Ok(FittedStep { training, profile, evaluation, region: Some(region) })
}

/// What the manager's tables take.
fn books(region: &Region) -> Result<Bytes, PlacementError> {
    let packing = region.packing()?;
    let rows =
        packing.tensors.len() as u64 + packing.blocks.len() as u64 + u64::from(packing.chunks);
    Ok(Bytes(rows * BOOKS.0))
}

/// Whether the tensors of each call of an evaluation fit into the region.
fn has_room(step: &Step, checked: &Checked, region: &Region) -> bool {
    let most = step.evaluation.as_ref().map(|graph| region.most_at_once(graph, checked.schedule()));
    most.is_some_and(|most| most.is_ok_and(|most| most <= region.slots))
}

/// What is to be fitted, and the region around which it is.
struct Room<'a> {
    step: &'a Step,
    profile: &'a Profile,
    task: &'a FitTask<'a>,
    region: &'a Region,
    reserve: Reserve,
    /// The links to the tier and back.
    links: Option<(Link, Link)>,
}

impl Room<'_> {
    /// The fewest slots: those of the tensors of one call; all of them if nothing is evicted.
    fn least(&self, unplanned: &Fitted) -> Result<u32, PlacementError> {
        let Room { step, region, .. } = self;
        Ok(match region.policy {
            Policy::Device => region.packing()?.chunks,
            Policy::Host | Policy::Auto => {
                region.most_at_once(&step.training, unplanned.schedule())?
            }
        })
    }

    /// The smallest region, and the smallest schedule after it.
    fn smallest(&self, unplanned: &Fitted) -> Result<(Fitted, Region), FittingError> {
        let region = self.region.with_slots(self.least(unplanned)?);
        let &FitTask { planner, effort, .. } = self.task;
        let (goal, residents) = (Goal::Smallest, Residents::none());
        let request = Request { goal, planner, residents, effort };
        Ok((fit(&self.step.training, self.profile, &request)?, region))
    }

    /// A region and a schedule that share the slab of a budget such that the predicted time is
    /// least: that of the schedule's calls, plus that of everything that is moved.
    fn within(&self, budget: Bytes, unplanned: &Fitted) -> Result<(Fitted, Region), FittingError> {
        let slab = budget.saturating_sub(self.reserve.total());
        let regions = self.regions(slab, unplanned)?;
        let behind = |region: &Region| region.persistent() + slab.saturating_sub(region.bytes());
        let slabs: Vec<Bytes> = regions.iter().map(behind).collect();
        let Effort { work, deadline, .. } = self.task.effort;
        let parts = slabs.len() as u64;
        let (work, deadline) = (work / parts, Seconds(deadline.0 / parts as f64));
        let effort = Effort { work, deadline, ..self.task.effort };
        let mut best: Option<(f64, Fitted, &Region)> = None;
        let mut refused = None;
        for (region, point) in regions.iter().zip(self.frontier(&slabs, None, effort)) {
            match point {
                Ok(fitted) => {
                    let seconds = fitted.timeline().seconds.0 + self.moving(region, &fitted)?.0;
                    if best.as_ref().is_none_or(|(least, ..)| seconds < *least) {
                        best = Some((seconds, fitted, region));
                    }
                }
                Err(error) => refused = Some(error),
            }
        }
        let Some((_, fitted, region)) = best else {
            return Err(match refused {
                Some(FitError::Plan(PlanError::Infeasible(proof))) => {
                    self.refusal(budget, self.least(unplanned)?, &proof).into()
                }
                Some(error) => error.into(),
                None => PlacementError::Residency(ResidencyError::Outside).into(),
            });
        };
        if slabs.len() == 1 {
            return Ok((fitted, region.clone()));
        }
        let again = self.frontier(&[behind(region)], Some(fitted.clone()), self.task.effort);
        Ok((again.into_iter().find_map(Result::ok).unwrap_or(fitted), region.clone()))
    }

    /// The regions that are tried in a slab, the largest first: the schedule after it gets what the
    /// step as captured takes there, or a part of it, or everything but the smallest region. If
    /// each call finds everything in the tier, only the smallest region is of any use, and if
    /// nothing goes to the tier, only one of all chunks.
    fn regions(&self, slab: Bytes, unplanned: &Fitted) -> Result<Vec<Region>, PlacementError> {
        let Room { region, .. } = self;
        let least = self.least(unplanned)?;
        if region.policy != Policy::Auto {
            return Ok(vec![region.with_slots(least)]);
        }
        let all = region.packing()?.chunks.max(least);
        let behind = unplanned.schedule().slab.saturating_sub(region.persistent());
        let mut slots: Vec<u32> = PARTS
            .iter()
            .map(|(part, of)| {
                let left = slab.saturating_sub(Bytes(behind.0 / of * part));
                u32::try_from(left.0 / region.chunk.0).unwrap_or(u32::MAX).clamp(least, all)
            })
            .chain([least])
            .collect();
        slots.sort_unstable_by_key(|&slots| std::cmp::Reverse(slots));
        slots.dedup();
        Ok(slots.into_iter().map(|slots| region.with_slots(slots)).collect())
    }

    fn frontier(
        &self,
        slabs: &[Bytes],
        known: Option<Fitted>,
        effort: Effort<'_>,
    ) -> Vec<Result<Fitted, FitError>> {
        let planner = self.task.planner;
        let (goal, residents) = (Goal::Smallest, Residents::none());
        let request = Request { goal, planner, residents, effort };
        let points = frontier(&self.step.training, self.profile, slabs, known, &request);
        points.into_iter().map(|point| point.result).collect()
    }

    /// Seconds of the manager's moves in a step, once it knows the order of accesses: found by
    /// running the manager, and assuming that no move overlaps with a call.
    fn moving(&self, region: &Region, fitted: &Fitted) -> Result<Seconds, PlacementError> {
        let Some((out, back)) = self.links else { return Ok(Seconds(0.0)) };
        let accesses = region.accesses(&self.step.training, fitted.schedule());
        let mut residency = Residency::new(region.settings(), region.sizes())?;
        let mut moved = Figures::default();
        for iteration in 0..=COUNTED {
            residency.begin(GraphKey(0))?;
            for Operands { reads, writes } in &accesses {
                let access = Access { reads, writes };
                residency.acquire(access)?;
                residency.release(access, Phase::Forward, Bytes::ZERO)?;
            }
            let figures = residency.end()?;
            // The first one is the warm-up.
            if iteration > 0 {
                moved += figures;
            }
        }
        let seconds = |bytes: Bytes, link: Link| bytes.0 as f64 / link.bandwidth;
        let (out, back) = (seconds(moved.to_host, out), seconds(moved.to_device, back));
        Ok(Seconds(out.max(back) / f64::from(COUNTED)))
    }

    /// What is missing, in terms of the whole budget.
    fn refusal(&self, budget: Bytes, least: u32, proof: &Infeasible) -> PlacementError {
        let Room { region, reserve, .. } = self;
        let persistent = region.persistent();
        let chunk = region.chunk;
        let held = region.of_slots(u64::from(least));
        let beside = |slab: Bytes| slab.saturating_sub(persistent);
        let (needed, found) = (beside(proof.needed), beside(proof.reached));
        let whole = |behind: Bytes| reserve.total() + held + behind;
        let (least, reached) = (whole(needed), whole(found));
        match region.policy {
            Policy::Device => PlacementError::Whole { budget, held, chunk, reached, least },
            Policy::Host | Policy::Auto => {
                let (region, reserve) = (held, *reserve);
                PlacementError::Region { budget, reserve, region, chunk, needed, reached, least }
            }
        }
    }
}
