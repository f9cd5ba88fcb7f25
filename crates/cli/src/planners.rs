//! Planners as arguments. Invariant: every planner that has a name can be chosen, and help says in
//! one sentence what each does.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use tightfit::plan::Planner;

/// Takes a planner's name.
pub fn planner() -> impl TypedValueParser<Value = Planner> {
    let known = Planner::ALL.iter().chain(&Planner::TO_COMPARE);
    let values = known.map(|&(planner, name)| PossibleValue::new(name).help(sentence(planner)));
    PossibleValuesParser::new(values).try_map(|name| named(&name))
}

/// The planner called `name`; for another name, an error that lists the names.
pub fn named(name: &str) -> Result<Planner, String> {
    Planner::from_name(name).ok_or_else(|| {
        let ours = Planner::ALL.map(|(_, name)| name).join(", ");
        let others = Planner::TO_COMPARE.map(|(_, name)| name).join(", ");
        format!("planners are {ours}, and, to compare with, {others}")
    })
}

fn sentence(planner: Planner) -> &'static str {
    match planner {
        Planner::None => "Recompute nothing: the unplanned step",
        Planner::Chen => "Keep every √n-th segment's inputs and recompute the rest (Chen 2016)",
        Planner::Capuchin => {
            "Recompute greedily what saves most bytes per second, measured again after each choice \
             (Peng 2020, corrected)"
        }
        Planner::Xla => "Recompute the largest outputs first (OpenXLA's rematerialization)",
        Planner::Dtr => "Evict by cost, bytes and staleness as the step runs (Kirisame 2021)",
        Planner::Knapsack => {
            "Save what is worth most within a capacity (torch.compile's activation memory budget)"
        }
        Planner::Rotor => "Checkpoint a chain of units optimally (Beaumont 2019)",
        Planner::Sac => {
            "Checkpoint modules and save operators under them as PyTorch's sac_milp decides, for \
             graphs with modules"
        }
        Planner::Exact => "Solve a mixed integer program, for steps of up to 80 nodes (Jain 2020)",
        Planner::Auto => {
            "Search, ask all of the above but sac and exact, take the fastest, and prove a bound"
        }
        Planner::CapuchinPublished => "To compare with: Capuchin's greedy rule as published",
        Planner::CapuchinSwap => "To compare with: swap what free time hides, then recompute",
        Planner::Offload => "To compare with: move what is held to the tier, recompute nothing",
        Planner::CheckpointAlways => "To compare with: recompute every micro-batch's forward pass",
        Planner::CheckpointExceptLast => {
            "To compare with: recompute every micro-batch's forward pass but the last one's"
        }
        _ => "",
    }
}
