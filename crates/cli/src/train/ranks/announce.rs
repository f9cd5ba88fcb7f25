//! What is known of several ranks before their first step. Invariant: every figure is one of the
//! checked plans; predictions are called so.

use tightfit_engine::{Dataset, Step};

use super::figures::{Figures, RankFigures};
use crate::output::{self, several};
use crate::train::announce::count;

/// Prints them.
pub fn announce(step: &Step, data: &Dataset, figures: &Figures) -> output::Printed {
    say!("{}: {}", step.name, step.description)?;
    say!(
        "{:<16}{} parameters; {} an update; data {}",
        "",
        count(step.parameter_count()),
        several(figures.micro_batches as usize, "micro-batch", "es"),
        data.path.display()
    )?;
    let ranks = several(figures.ranks.len(), "rank", "s");
    let threads = several(figures.threads as usize, "thread", "s");
    let messages = several(figures.messages as usize, "message", "s");
    match figures.shards {
        None => say!(
            "{:<16}{:>12}  {ranks} of {threads} each, {}, {messages} an update",
            "schedule",
            figures.schedule,
            several(figures.stages, "stage", "s"),
        ),
        Some(shards) => say!(
            "{:<16}{:>12}  {ranks} of {threads} each; {}; {messages}",
            "shards",
            shards,
            figures.schedule,
        ),
    }?;
    say!("{:<16}{:>12}  on one device", "unplanned peak", figures.whole.to_string())?;
    for (rank, own) in figures.ranks.iter().enumerate() {
        say!(
            "{:<16}{:>12}  of {}; {}; {} nodes recomputed",
            format!("rank{rank}"),
            (own.peak + own.reserve.total()).to_string(),
            own.budget,
            what(own, figures.shards),
            own.recomputed
        )?;
    }
    let alone = figures.alone.0 / figures.makespan().0;
    say!(
        "{:<16}{:>12}  predicted; {} of the ranks' time waiting; {alone:.2} times as fast as one \
         rank alone, unplanned",
        "time of a step",
        output::milliseconds(figures.makespan()),
        output::percent(figures.idle()).trim_start_matches('+')
    )?;
    if let Some(reason) = &figures.not_evaluated {
        say!("{:<16}{:>12}  {reason}", "evaluation", "left out")?;
    }
    Ok(())
}

/// What of the step a rank has in words, and the bytes of what stays there.
fn what(rank: &RankFigures, shards: Option<u32>) -> String {
    if let Some(shards) = shards {
        return format!("1/{shards} of parameters and state, {}", rank.kept);
    }
    let stages: Vec<String> = rank.stages.iter().map(|stage| stage.as_u32().to_string()).collect();
    let own = match stages.as_slice() {
        [] => "no stage".to_string(),
        [stage] => format!("stage {stage}"),
        stages => format!("stages {}", stages.join(", ")),
    };
    format!("{own}; {} of parameters and state", rank.kept)
}
