//! What is known of several ranks before their first step. Invariant: every figure is one of the
//! checked plans; predictions are labelled as such.

use tightfit_engine::{Dataset, Step};

use super::figures::{Figures, RankFigures};
use crate::output::{self, several};
use crate::places;
use crate::train::announce::count;

/// Prints this.
pub fn announce(step: &Step, data: &Dataset, figures: &Figures) -> output::Printed {
    tell!("{}: {}", step.name, step.description)?;
    entry!(
        "",
        "{} parameters; {} an update; data {}",
        count(step.parameter_count()),
        several(figures.micro_batches as usize, "micro-batch", "es"),
        places::short(&data.path).display()
    )?;
    let ranks = several(figures.ranks.len(), "rank", "s");
    let threads = several(figures.threads as usize, "thread", "s");
    let messages = several(figures.messages as usize, "message", "s");
    match figures.shards {
        None => row!(
            "schedule",
            figures.schedule,
            "{ranks} of {threads} each, {}, {messages} an update",
            several(figures.stages, "stage", "s")
        ),
        Some(shards) => {
            row!("shards", shards, "{ranks} of {threads} each; {}; {messages}", figures.schedule)
        }
    }?;
    row!("unplanned peak", figures.whole, "on one device, without the process")?;
    for (rank, own) in figures.ranks.iter().enumerate() {
        row!(
            format!("rank{rank}"),
            (own.peak + own.reserve.total()),
            "of {}, process included; {}; {} calls run again",
            own.budget,
            what(own, figures.shards),
            own.recomputed
        )?;
    }
    let alone = figures.alone.0 / figures.makespan().0;
    row!(
        "time of a step",
        output::milliseconds(figures.makespan()),
        "predicted; {} of the ranks' time waiting; {alone:.2} times as fast as one \
         rank alone, unplanned",
        output::percent(figures.idle()).trim_start_matches('+')
    )?;
    if let Some(reason) = &figures.not_evaluated {
        row!("evaluation", "left out", "{reason}")?;
    }
    Ok(())
}

/// A rank's part of the step in words, and the bytes of what stays there.
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
