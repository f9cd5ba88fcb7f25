//! Which sizes of a step fit into a budget, and how fast they are. Invariant: each size has a plan
//! that was made and checked for it, or the reason why there is none; no figure is scaled from
//! another.

use std::collections::BTreeMap;

use tightfit::effort::Effort;
use tightfit::exit::{Coded, Refusal};
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::sizes::{LEAST, Range, SizeError, Sizes, Trial, largest};
use tightfit::split::{Parts, SplitError, split};
use tightfit::units::{Bytes, Seconds};
use tightfit_engine::{Budget, Divided, FitTask, FittedGraph, FittingError};

use crate::batches::Batches;
use crate::failure::{Failure, Result};
use crate::figures::Figures;
use crate::interrupt;

/// The largest size that is asked for.
pub const MOST: u64 = 1 << 24;
/// The longest search for the plan that holds the least, which says where to look next.
const BRIEF: Seconds = Seconds(0.1);
/// How much longer a search takes that is patient.
const PATIENT: f64 = 2.0;
/// And the last one, for the largest size.
const LONGER: f64 = 4.0;
/// Sizes below the largest one of which a plan is made, too: these shares of it.
const SHARES: [f64; 5] = [1.0 / 16.0, 0.125, 0.25, 0.5, 0.75];

/// A size, and its plan, or why there is none.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// The size.
    pub size: u64,
    /// The figures of its plan.
    pub plan: Result<Plan, Lacking>,
}

/// The figures of a plan.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// All but the next.
    pub figures: Figures,
    /// In which parts the step is computed.
    pub parts: Parts,
    /// The most bytes held, with what the process takes besides the slab.
    pub held: Bytes,
    /// The time of a step without a plan, as it is.
    pub unplanned: Seconds,
    /// The time that no plan in these parts beats, if something is proven.
    pub bound: Option<Seconds>,
    /// What an update takes per second of the planned step.
    pub per_second: f64,
    /// What no plan in these parts exceeds.
    pub most_per_second: Option<f64>,
}

impl Plan {
    /// Whether it is faster than another one, if there is one.
    fn beats(self, other: Result<Plan, Lacking>) -> bool {
        other.is_ok_and(|other| self.figures.step.0 < other.figures.step.0)
    }
}

/// Why a size has no plan.
#[derive(Clone, Copy, Debug)]
pub struct Lacking {
    /// No plan needs less.
    pub needed: Option<Bytes>,
    /// Whether that is more than the budget; otherwise none was found.
    pub is_proven: bool,
}

/// What is asked of each size.
pub struct Question<'a> {
    /// The step.
    pub sizes: Sizes<'a>,
    /// How many micro-batches of that size an update has.
    pub batches: Batches,
    /// The machine.
    pub machine: &'a Machine,
    /// The whole budget.
    pub budget: Bytes,
    /// The planner.
    pub planner: Planner,
    /// How hard it searches at each size.
    pub effort: Effort<'a>,
}

/// What was found.
pub struct Found {
    /// The whole budget.
    pub budget: Bytes,
    /// All sizes that were tried, the smallest first.
    pub tried: Vec<Tried>,
    /// The largest one that fits.
    pub size: u64,
    /// The one with the most samples per second.
    pub fastest: u64,
    /// Whether it is proven that the next larger one does not fit.
    pub is_proven: bool,
    /// The next larger one that may be known.
    pub next: u64,
    /// Why that is no step at all, if it is none.
    pub end: Option<SizeError>,
}

/// The state of a search.
struct Asked<'a> {
    question: &'a Question<'a>,
    tried: BTreeMap<u64, Tried>,
    /// The refusal of the smallest size that was refused.
    refused: Option<(u64, FittingError)>,
    /// Why sizes are no steps.
    barred: BTreeMap<u64, SizeError>,
}

impl Question<'_> {
    /// The largest size that fits, and figures of smaller ones.
    pub fn answer(&self) -> Result<Found> {
        let (tried, barred) = (BTreeMap::new(), BTreeMap::new());
        let mut asked = Asked { question: self, tried, refused: None, barred };
        let grid = self.sizes.grid();
        let range = Range { least: LEAST, most: MOST, grid };
        let start = self.sizes.size();
        let size = largest(start, range, self.budget, |size, patient| asked.trial(size, patient))?;
        let Some(size) = size else {
            return Err(match asked.refused {
                Some((size, error)) => {
                    let name = self.sizes.dimension().name();
                    Failure::from(error).context(format!("a {name} of {size}"))
                }
                None => SizeError::None { dimension: self.sizes.dimension().name() }.into(),
            });
        };
        for share in SHARES {
            let smaller = ((size as f64 * share).round() as u64).next_multiple_of(grid).max(LEAST);
            if !interrupt::raised() && !asked.tried.contains_key(&smaller) {
                asked.plan(smaller, 1.0, false)?;
            }
        }
        // Close to the budget, more time finds much faster plans.
        if !interrupt::raised() {
            let before = asked.tried[&size];
            asked.plan(size, LONGER, false)?;
            let is_better = |now: &Tried| now.plan.is_ok_and(|plan| plan.beats(before.plan));
            if !asked.tried.get(&size).is_some_and(is_better) {
                asked.tried.insert(size, before);
            }
        }
        let speed = |tried: &&Tried| tried.plan.map_or(0.0, |plan| plan.per_second);
        let fastest = asked.tried.values().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        let next = size + grid;
        let above = asked.tried.get(&next).and_then(|tried| tried.plan.err());
        Ok(Found {
            budget: self.budget,
            fastest: fastest.map_or(size, |tried| tried.size),
            size,
            is_proven: above.is_some_and(|lacking| lacking.is_proven),
            next,
            end: asked.barred.remove(&next),
            tried: asked.tried.into_values().collect(),
        })
    }

    fn fit(&self, sized: &Graph, task: &FitTask<'_>) -> Result<Divided> {
        // A size with too few rows is as it is.
        let given = self.batches.parts(self.planner);
        let batches = match given.map(|parts| split(sized, parts)) {
            Some(Err(SplitError::Few { .. })) => self.batches.in_parts(Parts::WHOLE),
            _ => self.batches,
        };
        batches.fit(sized, &|_, graph| Profile::new(graph, self.machine), task)
    }

    /// The bytes that suffice for a size in these parts, if it can be divided.
    fn least(&self, sized: &Graph, parts: Parts, brief: &FitTask<'_>) -> Option<Bytes> {
        let parts = match self.batches.parts(self.planner) {
            Some(given) if split(sized, given).is_ok() => given,
            None if split(sized, parts).is_ok() => parts,
            _ => Parts::WHOLE,
        };
        let batches = self.batches.in_parts(parts);
        let divided = batches.fit(sized, &|_, graph| Profile::new(graph, self.machine), brief);
        divided.ok()?.planned.ok().map(|planned| planned.budget)
    }

    fn task(&self, budget: Budget, longer: f64) -> FitTask<'_> {
        let mut effort = self.effort;
        effort.deadline = Seconds(effort.deadline.0 * longer);
        FitTask {
            machine: self.machine,
            budget,
            beside: Bytes::ZERO,
            planner: self.planner,
            effort,
        }
    }
}

impl Asked<'_> {
    /// What a size says about where the largest one is.
    fn trial(&mut self, size: u64, patient: bool) -> Result<Trial> {
        if interrupt::raised() {
            return Ok(Trial::Unknown);
        }
        self.plan(size, if patient { PATIENT } else { 1.0 }, true)
    }

    /// Plans a size. If it may be near the largest one, the bytes that suffice for it are of
    /// interest.
    fn plan(&mut self, size: u64, longer: f64, is_near: bool) -> Result<Trial> {
        let question = self.question;
        let sized = match question.sizes.at(size) {
            Ok(graph) => graph,
            Err(error) => {
                self.barred.insert(size, error);
                return Ok(Trial::Barred);
            }
        };
        let within = Budget::Absolute(question.budget);
        let Divided { parts, planned, whole, .. } =
            question.fit(&sized, &question.task(within, longer))?;
        let (plan, trial) = match planned {
            Ok(planned) => {
                let mut brief = question.task(Budget::Smallest, 1.0);
                brief.effort.deadline = Seconds(brief.effort.deadline.0.min(BRIEF.0));
                // Of larger sizes, the loss will be in chunks.
                let parts_there = if parts == Parts::WHOLE { Parts::of_loss(16) } else { parts };
                let least = || question.least(&sized, parts_there, &brief);
                let smallest = if is_near { least() } else { None };
                let unplanned = whole.as_ref().unwrap_or(&planned.unplanned).timeline().seconds;
                (Ok(self.figures(size, parts, &planned, unplanned)), Trial::Fits(smallest))
            }
            Err(error) => {
                let Some(refusal) = error.refusal() else { return Err(error.into()) };
                let Refusal { is_proven, needed, reached, .. } = refusal;
                if self.refused.as_ref().is_none_or(|(other, _)| size < *other) {
                    self.refused = Some((size, error));
                }
                let trial = if is_proven { Trial::Exceeds } else { Trial::Open };
                (Err(Lacking { needed, is_proven }), trial(reached))
            }
        };
        self.tried.insert(size, Tried { size, plan });
        Ok(trial)
    }

    fn figures(&self, size: u64, parts: Parts, planned: &FittedGraph, unplanned: Seconds) -> Plan {
        let count = size as f64 * f64::from(self.question.batches.micro_batches());
        let figures = Figures::of(&planned.fitted, unplanned);
        let bound = planned.fitted.bound().map(|bound| bound.seconds);
        let per_second = |seconds: Seconds| count / seconds.0;
        Plan {
            figures,
            parts,
            held: figures.peak + planned.reserve.total(),
            unplanned,
            bound,
            per_second: per_second(figures.step),
            most_per_second: bound.filter(|bound| bound.0 > 0.0).map(per_second),
        }
    }
}
