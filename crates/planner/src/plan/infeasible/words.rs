//! A refusal in words. Invariant: every figure of a sentence is a field of the data; only the sum
//! of what is too small to be listed is computed here.

use std::fmt;

use crate::plan::Planner;
use crate::plan::infeasible::{Infeasible, Prediction};
use crate::units::Bytes;

/// Live tensors that are listed one by one.
const LISTED: usize = 10;

/// A module as a sentence names it.
fn place(module: &str) -> String {
    match module {
        "" => "the root module".to_string(),
        module => format!("module `{}`", in_a_line(module)),
    }
}

/// A name in one line, so that no name looks like a line of this text.
fn in_a_line(name: &str) -> String {
    name.replace('\n', "\\n")
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Other planners may reach less.
        let of = match self.plan.planner {
            Planner::Auto => String::new(),
            planner => format!(" for {}", planner.name()),
        };
        let claim = if self.is_proven() { "no plan fits" } else { "no plan was found that fits" };
        writeln!(
            f,
            "{claim} {} ({} bytes); the smallest budget known to be feasible{of} is {} ({} bytes), \
             and no schedule needs less than {} ({} bytes)",
            self.budget.rounded_up(),
            self.budget.0,
            self.reached.rounded_up(),
            self.reached.0,
            self.needed.rounded_up(),
            self.needed.0
        )?;
        if let Some(prediction) = &self.prediction {
            let Prediction { choices, predicted, simulated, .. } = prediction;
            let end = if *predicted > self.budget { ", and no candidate is left" } else { "" };
            writeln!(
                f,
                "activations chosen: {choices}; the predicted peak is {predicted} ({} bytes){end}; \
                 the simulated peak is {simulated} ({} bytes)",
                predicted.0, simulated.0
            )?;
        }
        if self.peak <= self.budget && self.budget < self.reached {
            writeln!(
                f,
                "{} ({} bytes) are alive at most, which is within the budget; it is addresses that \
                 do not fit: they are aligned, and gaps remain",
                self.peak, self.peak.0
            )?;
        }
        match &self.binding {
            Some(binding) => writeln!(
                f,
                "the plan for that peaks at node `{}` ({}), where these are alive:",
                in_a_line(&binding.name),
                place(&binding.module)
            )?,
            None => writeln!(f, "the step computes nothing; these are alive from the start:")?,
        }
        for tensor in self.live.iter().take(LISTED) {
            let size = tensor.bytes.to_string();
            match tensor.phase {
                // The process's, and so no module's.
                "reserve" => writeln!(f, "  {size:>10}  {} (reserve)", tensor.name)?,
                phase => writeln!(
                    f,
                    "  {size:>10}  {} ({phase}, {})",
                    in_a_line(&tensor.name),
                    place(&tensor.module)
                )?,
            }
        }
        if self.live.len() > LISTED {
            let rest: Bytes = self.live[LISTED..].iter().map(|tensor| tensor.bytes).sum();
            let count = self.live.len() - LISTED;
            writeln!(f, "  {:>10}  in {count} smaller ones", rest.to_string())?;
        }
        Ok(())
    }
}
