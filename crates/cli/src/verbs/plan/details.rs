//! What `tightfit plan` shows in addition to a plan's figures. Invariant: a variant is refused if
//! the planner has none, and a refused budget is explained before the refusal is.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tightfit::graph::Graph;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::timeline::{Recomputed, Swapped};
use tightfit_engine::{FittedGraph, FittingError};

use super::explain::{self, Explained};
use super::recomputed::{print_recomputed, recomputed_json};
use super::swapped::{print_swapped, swapped_json};
use crate::failure::Result;
use crate::output::{Printed, Unprinted};
use crate::values::NoVariants;

/// What to show in addition to the figures.
#[derive(Args)]
pub struct Details {
    /// Which rule of capuchin chooses [default: ours]
    #[arg(long, value_enum)]
    variant: Option<Variant>,
    /// Have capuchin swap what free time hides before it recomputes, if there is a --tier
    #[arg(long, conflicts_with = "variant")]
    swap: bool,
    /// List what is recomputed, with its saving and its cost
    #[arg(long)]
    recomputed: bool,
    /// Explain what is recomputed, and what is swapped in which free time: with capuchin, its
    /// candidates and its choices in their order
    #[arg(long)]
    explain: bool,
    /// How many rows a list shows of what is recomputed or swapped, or of candidates
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
}

/// The variants of capuchin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Variant {
    /// Until the simulated peak fits
    Ours,
    /// Until the predicted savings cover what is over the budget
    Published,
}

/// What is shown of a plan.
pub struct Shown<'a> {
    details: &'a Details,
    graph: &'a Graph,
    planned: &'a FittedGraph,
    explained: Option<Explained<'a>>,
}

impl Details {
    /// The planner in the requested variant.
    pub fn planner(&self, planner: Planner) -> Result<Planner, NoVariants> {
        match (self.variant, planner) {
            (None, Planner::Capuchin) if self.swap => Ok(Planner::CapuchinSwap),
            (None, planner) if self.swap => {
                Err(NoVariants { planner: planner.name(), option: "--swap" })
            }
            (None, planner) => Ok(planner),
            (Some(Variant::Ours), Planner::Capuchin) => Ok(Planner::Capuchin),
            (Some(Variant::Published), Planner::Capuchin) => Ok(Planner::CapuchinPublished),
            (Some(_), planner) => Err(NoVariants { planner: planner.name(), option: "--variant" }),
        }
    }

    /// The details of a plan.
    pub fn of_plan<'a>(
        &'a self,
        graph: &'a Graph,
        profile: &Profile,
        planner: Planner,
        planned: &'a FittedGraph,
    ) -> Result<Shown<'a>> {
        let explained = match self.explain {
            true => explain::of_plan(graph, profile, planner, planned)?,
            false => None,
        };
        Ok(Shown { details: self, graph, planned, explained })
    }

    /// How far the planner came before it refused a budget, if an explanation was requested and
    /// there is one: printed, or for JSON as members in addition to those that all failures have.
    pub fn of_refusal(
        &self,
        graph: &Graph,
        profile: &Profile,
        planner: Planner,
        (error, json): (&FittingError, bool),
    ) -> Result<Option<Value>, Unprinted> {
        let refused =
            self.explain.then(|| explain::of_refusal(graph, profile, planner, error)).flatten();
        let Some((explained, proof)) = refused else { return Ok(None) };
        if !json {
            tell!("{}: no plan of {} fits", graph.name(), planner.name())?;
            explained.print(self.top)?;
            return Ok(None);
        }
        Ok(Some(json!({
            "graph": graph.name(),
            "planner": planner.name(),
            "predicted_peak_bytes": proof.prediction.map(|prediction| prediction.predicted),
            "simulated_peak_bytes": proof.prediction.map(|prediction| prediction.simulated),
            "explanation": explained.json(),
        })))
    }
}

/// All reasons known for what a plan does, as `--explain --json` prints them.
pub fn explained(
    graph: &Graph,
    profile: &Profile,
    planner: Planner,
    planned: &FittedGraph,
) -> Result<Value> {
    let details =
        Details { variant: None, swap: false, recomputed: true, explain: true, top: usize::MAX };
    let mut result = json!({});
    details.of_plan(graph, profile, planner, planned)?.add_to(&mut result);
    Ok(result)
}

impl Shown<'_> {
    fn recomputed(&self) -> Vec<Recomputed> {
        self.planned.fitted.timeline().recomputed(self.planned.unplanned.timeline())
    }

    fn swapped(&self) -> Vec<Swapped> {
        let fitted = &self.planned.fitted;
        fitted.timeline().swapped(self.graph, fitted.schedule())
    }

    /// Adds these details to the result in JSON.
    pub fn add_to(&self, result: &mut Value) {
        result["swapped"] = json!(swapped_json(self.graph, &self.swapped()));
        result["recomputed"] = json!(recomputed_json(self.graph, &self.recomputed()));
        if let Some(explained) = &self.explained {
            result["explanation"] = explained.json();
        }
    }

    /// Prints what was requested.
    pub fn print(&self) -> Printed {
        if let Some(explained) = &self.explained {
            explained.print(self.details.top)?;
        }
        if self.details.explain {
            print_swapped(self.graph, &self.swapped(), self.details.top)?;
        }
        if self.details.explain || self.details.recomputed {
            print_recomputed(self.graph, &self.recomputed(), self.details.top)?;
        }
        Ok(())
    }
}
