//! What is known of a run before its first step. Invariant: every figure is one of the checked
//! plan; predictions are labelled as such.

use std::collections::BTreeMap;
use std::path::Path;

use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::schedule::{Instruction, Schedule};
use tightfit::split::{Parts, parts_of};
use tightfit::units::Bytes;
use tightfit_engine::{Budget, Dataset, FittedGraph, FittedStep, Session, Step, step};

use super::Arguments;
use crate::figures::{overhead, smallest};
use crate::{output, places};

/// Prints this, for the requested budget.
pub fn announce(
    (step, parts): (&Step, Parts),
    data: &Dataset,
    asked: Budget,
    planned: &FittedStep,
    machine: &Machine,
) -> output::Printed {
    let FittedGraph { fitted, budget, reserve, unplanned, .. } = &planned.training;
    let (schedule, timeline) = (fitted.schedule(), fitted.timeline());
    tell!("{}: {}", step.name, step.description)?;
    entry!(
        "",
        "{} parameters; {} threads; {}data {}",
        count(step.parameter_count()),
        machine.threads,
        match step::inputs(&step.training, "input").len() {
            1 => String::new(),
            several => format!("{several} micro-batches an update; "),
        },
        places::short(&data.path).display()
    )?;
    row!(
        "unplanned peak",
        unplanned.timeline().peak,
        "{} with base and packing",
        unplanned.timeline().peak + reserve.total()
    )?;
    row!(
        "budget",
        budget,
        "{}base {} (the process itself), packing {} (of matrix products), slab {}",
        smallest(asked, *budget, "; "),
        reserve.base,
        reserve.packing,
        planned.training.slab()
    )?;
    row!("planned peak", planned.peak(), "checked; planner {}", schedule.planner)?;
    if let Some(region) = &planned.region {
        row!(
            "region",
            region.bytes(),
            "{} chunks of {} for {} of parameters, buffers and state",
            region.slots,
            region.chunk,
            region.tensor_bytes()
        )?;
    }
    let overhead = overhead(timeline.seconds, unplanned.timeline().seconds);
    row!(
        "recomputed",
        format!("{} calls", schedule.recomputed()),
        "{}",
        recomputed_operators(&step.training, schedule)
    )?;
    if parts != Parts::WHOLE {
        let chunks = format!("{} chunks", parts_of(&step.training));
        row!("split", chunks, "of rows, as with --split {parts}")?;
    }
    let [out, back] = schedule.moved();
    if out + back > Bytes::ZERO {
        let below: Bytes = schedule.below.values().copied().sum();
        row!(
            "tier",
            (out + back),
            "moved in a step: {out} out of the slab, {back} back; {below} lie below"
        )?;
    }
    let apart = if planned.region.is_some() { ", without what is moved" } else { "" };
    row!(
        "slowdown",
        output::percent(overhead),
        "predicted ({} a step{apart})",
        output::milliseconds(timeline.seconds)
    )?;
    if planned.evaluation.is_none() && step.evaluation.is_some() {
        row!("evaluation", "left out", "it does not fit next to the parameters")?;
    }
    Ok(())
}

/// Says, before it is too late, that nothing of a run will be kept.
pub fn announce_saving(save: Option<&Path>) -> output::Printed {
    match save {
        Some(_) => Ok(()),
        None => entry!("weights", "not saved: pass --save FILE to keep them"),
    }
}

/// The same, and from which weights the run goes on.
pub fn announce_start(arguments: &Arguments, session: &Session) -> output::Printed {
    announce_saving(arguments.save.as_deref())?;
    match &arguments.resume {
        Some(path) => say!("resuming after {} steps from {}", session.next_step, path.display()),
        None => Ok(()),
    }
}

/// Which operators are recomputed, and how often.
fn recomputed_operators(graph: &Graph, schedule: &Schedule) -> String {
    let mut counts: BTreeMap<&str, usize> = Default::default();
    for instruction in &schedule.instructions {
        if let Instruction::Recompute(call) = instruction {
            let op = graph.nodes()[call.node].op.as_str();
            *counts.entry(op.split('.').nth(1).unwrap_or(op)).or_default() += 1;
        }
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let shown: Vec<String> =
        counts.iter().take(5).map(|(op, count)| format!("{count} {op}")).collect();
    let rest = if counts.len() > 5 { ", …" } else { "" };
    shown.join(", ") + rest
}

/// A number in few digits.
pub fn count(number: u64) -> String {
    match number {
        n if n >= 1_000_000 => format!("{:.1} M", n as f64 / 1e6),
        n if n >= 1_000 => format!("{:.1} k", n as f64 / 1e3),
        n => n.to_string(),
    }
}
