//! A graph to be planned at several budgets. Invariant: figures come only from plans that the
//! checker has passed at exactly the requested budget.

use std::path::Path;

use serde_json::{Value, json};
use tightfit::check::check;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::units::{Bytes, Seconds};
use tightfit::{FitError, FittedPoint, Goal, Request, fit, frontier};
use tightfit_cli::failure::{Context, Failure, Result};
use tightfit_cli::figures::Figures;
use tightfit_cli::input::{self, OnMachine};
use tightfit_cli::tier;

use super::Bench;

/// A graph with the figures by which every budget is measured.
pub struct Subject {
    pub name: String,
    pub graph: Graph,
    pub profile: Profile,
    /// Of the unplanned step.
    pub peak: Bytes,
    pub seconds: Seconds,
}

/// One budget, planned.
pub struct Planned {
    pub planner: Planner,
    pub budget: Bytes,
    /// Absent if the planner has no plan.
    pub figures: Option<Figures>,
    pub first: Seconds,
    pub total: Seconds,
}

impl Subject {
    /// Reads a graph, on the machine that graphs are planned for.
    pub fn read(path: &Path) -> Result<Subject> {
        Subject::read_on(path, Ok)
    }

    /// The same with a tier below the device, by the name of its preset.
    pub fn read_with_tier(path: &Path, tier: &str) -> Result<Subject> {
        Subject::read_on(path, |machine| tier::preset(machine, tier))
    }

    fn read_on(path: &Path, change: impl FnOnce(Machine) -> Result<Machine>) -> Result<Subject> {
        let (graph, is_step) = input::graph(path)?;
        let machine = change(OnMachine::default().machine(is_step)?)?;
        let profile = Profile::new(&graph, &machine);
        let unplanned = tightfit::unplanned(&graph, &profile)?;
        let timeline = unplanned.timeline();
        Ok(Subject {
            name: graph.name().to_string(),
            peak: timeline.peak,
            seconds: timeline.seconds,
            graph,
            profile,
        })
    }

    /// The budget of a fraction of the activation peak.
    pub fn budget(&self, fraction: f64) -> Bytes {
        let fixed = self.graph.static_bytes();
        fixed + Bytes((self.peak.saturating_sub(fixed).0 as f64 * fraction) as u64)
    }

    /// Plans for several budgets in rising order, each of which may learn from the ones below it.
    pub fn frontier(
        &self,
        bench: &Bench,
        budgets: &[Bytes],
        planner: Planner,
    ) -> Result<Vec<Planned>> {
        bench.doing(format!("{}, {}", self.name, planner.name()));
        let points = frontier(
            &self.graph,
            &self.profile,
            budgets,
            None,
            &Request { goal: Goal::Smallest, planner, effort: bench.effort, ..Request::default() },
        );
        bench.bar.inc(points.len() as u64);
        points.into_iter().map(|point| self.judged(point, planner)).collect()
    }

    /// Plans for one budget.
    pub fn plan(&self, bench: &Bench, budget: Bytes, planner: Planner) -> Result<Planned> {
        self.frontier(bench, &[budget], planner)?
            .pop()
            .context("a frontier has a point for each budget")
    }

    /// The smallest slab that a planner reaches; none if its time was up before.
    pub fn smallest(&self, bench: &Bench, planner: Planner) -> Result<Option<Bytes>> {
        bench.doing(format!("{}, {}, as small as possible", self.name, planner.name()));
        let request = Request { planner, effort: bench.effort, ..Request::default() };
        let result = fit(&self.graph, &self.profile, &request);
        bench.bar.inc(1);
        match result {
            Err(FitError::Plan(_)) => Ok(None),
            Err(error) => Err(error).with_context(|| self.name.clone()),
            Ok(fitted) => {
                let slab = fitted.schedule().slab;
                check(&self.graph, &self.profile, fitted.schedule(), slab)
                    .with_context(|| self.name.clone())?;
                Ok(Some(slab))
            }
        }
    }

    /// The largest working set of one node: what it reads and makes, and its workspace.
    pub fn working_set(&self) -> Bytes {
        let Subject { graph, profile, .. } = self;
        let of = |node| {
            let storages = graph.reads(node).iter().chain(graph.fresh(node));
            storages.map(|&storage| graph.storages()[storage]).sum::<Bytes>()
                + profile.workspace[node]
        };
        graph.compute_nodes().into_iter().map(of).max().unwrap_or(Bytes::ZERO)
    }

    fn judged(&self, point: FittedPoint, planner: Planner) -> Result<Planned> {
        let FittedPoint { budget, result, first, total } = point;
        let here =
            || format!("{} at {} bytes with planner {}", self.name, budget.0, planner.name());
        let figures = match result {
            Err(FitError::Plan(_)) => None,
            Err(error) => return Err(error).with_context(here),
            Ok(fitted) => {
                check(&self.graph, &self.profile, fitted.schedule(), budget).with_context(here)?;
                let figures = Figures::of(&fitted, self.seconds);
                let least = figures.gap.is_none_or(|gap| gap >= -1e-9);
                if !least {
                    return Err(Failure::other(format_args!(
                        "{}: the plan is faster than its own bound; one of them is wrong",
                        here()
                    )));
                }
                Some(figures)
            }
        };
        Ok(Planned { planner, budget, figures, first, total })
    }
}

impl Planned {
    /// All figures; null if there is no plan or no bound.
    pub fn json(&self) -> Value {
        let figures = self.figures;
        json!({
            "planner": self.planner.name(),
            "budget_bytes": self.budget,
            "feasible": figures.is_some(),
            "step_us": figures.map(|figures| figures.step.micros()),
            "overhead_percent": figures.map(|figures| figures.overhead * 100.0),
            "bound_percent": figures.and_then(|figures| figures.bound).map(|bound| bound * 100.0),
            "gap": figures.and_then(|figures| figures.gap).map(|gap| gap * 100.0),
            "peak_bytes": figures.map(|figures| figures.peak),
            "slab_bytes": figures.map(|figures| figures.slab),
            "recomputed_nodes": figures.map(|figures| figures.recomputed),
            "first_seconds": self.first,
            "seconds": self.total,
        })
    }
}
