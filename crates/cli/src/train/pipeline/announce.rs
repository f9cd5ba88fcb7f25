//! What is known of a pipeline before its first step. Invariant: every figure is one of the checked
//! plans; predictions are called so.

use tightfit::id::RankId;
use tightfit::units::Bytes;
use tightfit_engine::{Dataset, Step};

use super::choose::Chosen;
use crate::output;
use crate::train::announce::count;

/// Prints them.
pub fn announce(step: &Step, data: &Dataset, chosen: &Chosen) -> output::Printed {
    let Chosen { rows, machine, .. } = chosen;
    say!("{}: {}", step.name, step.description)?;
    say!(
        "{:<16}{} parameters; {} an update; data {}",
        "",
        count(step.parameter_count()),
        micro_batches(rows.micro_batches),
        data.path.display()
    )?;
    say!(
        "{:<16}{:>12}  {} of {} each, {}, {} an update",
        "schedule",
        chosen.schedule,
        several(rows.rows.len(), "rank"),
        several(machine.threads as usize, "thread"),
        several(rows.placement.len(), "stage"),
        several(chosen.divided.first_of_evaluation as usize, "message")
    )?;
    say!("{:<16}{:>12}  on one device", "unplanned peak", chosen.whole.to_string())?;
    for (rank, plan) in &chosen.plans {
        let training = &plan.training;
        say!(
            "{:<16}{:>12}  of {}; {}; {} nodes recomputed",
            rank.to_string(),
            (plan.peak() + training.reserve.total()).to_string(),
            training.budget,
            stages(chosen, rank),
            training.fitted.schedule().recomputed()
        )?;
    }
    let alone = chosen.alone.0 / chosen.makespan().0;
    say!(
        "{:<16}{:>12}  predicted; {} of the ranks' time waiting; {alone:.2} times as fast as one \
         rank alone, unplanned",
        "time of a step",
        output::milliseconds(chosen.makespan()),
        output::percent(chosen.idle()).trim_start_matches('+')
    )?;
    if let Some(reason) = &chosen.divided.not_evaluated {
        say!("{:<16}{:>12}  {reason}", "evaluation", "left out")?;
    }
    Ok(())
}

/// So many of them.
fn micro_batches(count: u32) -> String {
    if count == 1 { "1 micro-batch".to_string() } else { format!("{count} micro-batches") }
}

/// A number of things.
fn several(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The stages of a rank in words, and the bytes of what stays there.
fn stages(chosen: &Chosen, rank: RankId) -> String {
    let stages: Vec<String> =
        chosen.rows.stages_of(rank).iter().map(|stage| stage.as_u32().to_string()).collect();
    let kept: Bytes = chosen.divided.ranks[rank].training.static_bytes();
    let plural = if stages.len() == 1 { "stage" } else { "stages" };
    format!("{plural} {}; {kept} of parameters and state", stages.join(", "))
}
