//! `tightfit train`: train a step inside a budget. Invariant: nothing runs that was not checked;
//! what is asked to be saved is saved however the run ends, as long as it ends in order.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tightfit::effort::Effort;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::{CallSeconds, Profile};
use tightfit::schedule;
use tightfit::schedule::{Residents, Schedule};
use tightfit::units::{Bytes, Seconds};
use tightfit::{Fitted, fit};
use tightfit_engine::process;
use tightfit_engine::weights;
use tightfit_engine::{Dataset, Evaluation, FastestStep, Session, Step, Timings};
use tightfit_report::{Course, Trace};

use crate::budget::Budget;
use crate::effort::Limits;
use crate::input;
use crate::input::FittedGraph;
use crate::seconds;
use crate::seconds::{Costs, Subject};
use crate::{calibrate, exit, interrupt, output};

mod dump;

/// Train an exported step inside one slab of memory.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit train corpus/steps/gpt-small --budget 320MiB --steps 30
  tightfit train corpus/steps/mlp-digits --budget 70% --steps 200 --save digits.safetensors
  tightfit train corpus/steps/gpt-small --budget min --resume w.safetensors --save w.safetensors")]
pub struct Arguments {
    /// A step's folder, as `tightfit.export` writes it
    step: PathBuf,
    /// Bytes, 320MiB, 2.5GB, 60% of the unplanned peak, or min
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    /// How many steps to run, after those of --resume
    #[arg(long, default_value_t = 100)]
    steps: u32,
    /// Train on this file instead of the step's own data
    #[arg(long)]
    data: Option<PathBuf>,
    /// Learning rate [default: the step's]
    #[arg(long, value_parser = learning_rate, allow_hyphen_values = true)]
    lr: Option<f64>,
    /// Seed of initialisation, batches, dropout and the planner's search [default: 1, or that of
    /// --resume]
    #[arg(long)]
    seed: Option<u64>,
    /// Write weights and optimizer state (safetensors) here at the end
    #[arg(long)]
    save: Option<PathBuf>,
    /// Go on from weights, optimizer state, step number and seed of this file
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Evaluate on the validation data every N steps, besides at the end
    #[arg(long, value_name = "N")]
    eval_every: Option<u32>,
    /// Most validation batches of an evaluation; 0 for none
    #[arg(long, default_value_t = 16)]
    eval_batches: usize,
    /// One planner by name, or auto for the best plan of all
    #[arg(long, default_value = "auto", value_parser = input::planner)]
    planner: Planner,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    costs: Costs,
    /// Worker threads [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=input::MOST_THREADS))]
    threads: Option<u32>,
    /// Write the last step's batch, gradients and updated weights (safetensors) here; gradients
    /// then stay to the end of the step and take part in the plan
    #[arg(long, conflicts_with_all = ["eval_every", "output", "trace"])]
    dump: Option<PathBuf>,
    /// Show where the time went, by operator, beside the prediction
    #[arg(long)]
    profile: bool,
    /// Write the plan that runs (tightfit-plan/1) here
    #[arg(short, long, value_name = "PLAN")]
    output: Option<PathBuf>,
    /// Write when each call of the fastest step ran, and memory by role, as Chrome trace events
    /// here
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON object per step, and a last one with the peaks
    #[arg(long)]
    json: bool,
}

fn learning_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    rate.ok_or_else(|| "a learning rate is a finite number that is not negative".to_string())
}

/// Both graphs of a step, fitted.
struct Planned {
    training: FittedGraph,
    training_profile: Profile,
    evaluation: Option<(Profile, Schedule)>,
}

/// Trains and reports. `entered`: resident bytes when the program started.
pub fn train(arguments: &Arguments, entered: Option<Bytes>) -> anyhow::Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    let mut step = Step::open(&arguments.step)?;
    let mut data = Dataset::open(&step.data, &step.folder, arguments.data.as_deref())?;
    input::suits(&data, &step)?;
    if let Some(rate) = arguments.lr {
        step.optimizer.learning_rate = rate;
    }
    for path in [&arguments.save, &arguments.dump, &arguments.output, &arguments.trace]
        .into_iter()
        .flatten()
    {
        output::writable(path)?;
    }
    if arguments.dump.is_some() {
        step.training = dump::with_gradients(&step.training)?;
    }
    let machine = calibrate::machine(arguments.threads);
    let seed = match &arguments.resume {
        Some(path) => {
            let progress = weights::progress(path, &step.name)?;
            if let Some(seed) = arguments.seed.filter(|&seed| seed != progress.seed) {
                bail!(
                    "--seed {seed} contradicts {}, whose run has seed {}",
                    path.display(),
                    progress.seed
                );
            }
            progress.seed
        }
        None => arguments.seed.unwrap_or(1),
    };
    interrupt::listen();
    let subject = Subject {
        folder: &arguments.step,
        data: arguments.data.as_deref(),
        budget: &arguments.budget,
        planner: arguments.planner,
    };
    let seconds = seconds::of_step(&step.training, &machine, arguments.costs, &subject);
    let planned =
        plan(&step, &machine, &seconds, budget, arguments.planner, &arguments.limits.effort(seed))?;
    let fitted = &planned.training.fitted;
    let slab = planned.training.budget - planned.training.reserve;
    let evaluation = planned.evaluation.as_ref().map(|(profile, schedule)| (profile, schedule));
    let mut session = Session::new(
        &step,
        (&planned.training_profile, &fitted.schedule),
        evaluation,
        slab,
        machine.threads as usize,
        seed,
    )?;
    if let Some(path) = &arguments.output {
        output::write_whole(
            path,
            format!("{}\n", schedule::write(&step.training, &fitted.schedule)).as_bytes(),
        )?;
    }
    if let Some(path) = &arguments.resume {
        weights::load(path, &mut session, &step.name)?;
    }
    if interrupt::raised() {
        eprintln!("interrupted before the first step; nothing was saved");
        return Ok(ExitCode::from(exit::INTERRUPTED));
    }
    // Only now is it certain that the run can start.
    if !arguments.json {
        announce(&step, &data, &planned, &machine);
        if let Some(path) = &arguments.resume {
            println!("resuming after {} steps from {}", session.next_step, path.display());
        }
    }

    let begun = session.next_step;
    let mut fastest = arguments.trace.as_ref().map(|_| FastestStep::default());
    let measured = run(arguments, &mut session, &mut data, fastest.as_mut())?;
    let stepped = session.next_step > begun;
    // Before the evaluation, which computes where gradients lie.
    if let Some(path) = &arguments.dump {
        dump::write(path, &step, &session, &mut data, stepped)?;
    }
    let last = match arguments.eval_batches {
        0 => None,
        _ if !stepped && arguments.steps > 0 => None,
        batches => session.evaluate(&data, batches)?,
    };
    if let Some(path) = &arguments.save {
        weights::save(path, &session, &step.name)?;
    }
    if let (Some(path), Some(fastest)) = (&arguments.trace, &fastest) {
        trace(path, &step.training, &planned.training.fitted, &machine, fastest)?;
    }
    if !arguments.costs.roofline && measured.steps.len() >= ENOUGH {
        seconds::remember(&machine, measured.call_seconds(&step.training, machine.threads));
    }
    if arguments.profile && !arguments.json {
        show_profile(&step.training, &planned.training_profile, &measured);
    }
    report(arguments, &planned, &measured, last, entered, &session, interrupt::raised());
    Ok(if interrupt::raised() { ExitCode::from(exit::INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn plan(
    step: &Step,
    machine: &Machine,
    seconds: &CallSeconds,
    budget: Budget,
    planner: Planner,
    effort: &Effort<'_>,
) -> anyhow::Result<Planned> {
    let training_profile = Profile::measured(&step.training, machine, seconds);
    let training =
        input::fit_into(&step.training, &training_profile, machine, budget, planner, effort)?;
    let residents = Residents::of(&step.training, &training.fitted.schedule);
    let slab = training.budget - training.reserve;
    // Evaluation makes do with what training leaves free; where that is too little, it is left out,
    // and said so.
    let evaluate = |graph: &Graph| {
        let profile = Profile::measured(graph, machine, seconds);
        fit(graph, &profile, slab, planner, &residents, effort)
            .ok()
            .map(|fitted| (profile, fitted.schedule))
    };
    Ok(Planned {
        evaluation: step.evaluation.as_ref().and_then(evaluate),
        training,
        training_profile,
    })
}

fn announce(step: &Step, data: &Dataset, planned: &Planned, machine: &Machine) {
    let FittedGraph { fitted, budget, reserve, unplanned } = &planned.training;
    let (schedule, timeline) = (&fitted.schedule, &fitted.timeline);
    println!("{}: {}", step.name, step.description);
    println!(
        "{:<16}{} parameters; {} threads; data {}",
        "",
        count(step.parameter_count()),
        machine.threads,
        data.path.display()
    );
    println!("{:<16}{:>12}", "unplanned peak", unplanned.timeline.peak.to_string());
    println!(
        "{:<16}{:>12}  slab of {} and a reserve of {reserve} for the matrix product",
        "budget",
        budget.to_string(),
        *budget - *reserve
    );
    println!(
        "{:<16}{:>12}  checked; planner {}",
        "planned peak",
        timeline.peak.to_string(),
        schedule.planner
    );
    let overhead = timeline.seconds.0 / unplanned.timeline.seconds.0 - 1.0;
    println!(
        "{:<16}{:>12}  {}",
        "recomputed",
        format!("{} nodes", schedule.recomputed()),
        recomputed_operators(&step.training, schedule)
    );
    println!(
        "{:<16}{:>12}  predicted ({} a step)",
        "slowdown",
        output::percent(overhead),
        milliseconds(timeline.seconds.0)
    );
    if planned.evaluation.is_none() && step.evaluation.is_some() {
        println!("{:<16}{:>12}  it does not fit beside the parameters", "evaluation", "left out");
    }
}

/// Which operators are recomputed, by how often.
fn recomputed_operators(graph: &Graph, schedule: &Schedule) -> String {
    let mut counts: BTreeMap<&str, usize> = Default::default();
    for instruction in &schedule.instructions {
        if let tightfit::schedule::Instruction::Recompute(call) = instruction {
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

/// With three digits or more.
fn milliseconds(seconds: f64) -> String {
    let digits = (2.0 - (seconds * 1e3).log10().floor()).clamp(0.0, 4.0) as usize;
    format!("{:.digits$} ms", seconds * 1e3)
}

fn count(number: u64) -> String {
    match number {
        n if n >= 1_000_000 => format!("{:.1} M", n as f64 / 1e6),
        n if n >= 1_000 => format!("{:.1} k", n as f64 / 1e3),
        n => n.to_string(),
    }
}

/// Counted steps from which the next prediction learns.
const ENOUGH: usize = 3;

fn run(
    arguments: &Arguments,
    session: &mut Session,
    data: &mut Dataset,
    mut fastest: Option<&mut FastestStep>,
) -> anyhow::Result<Timings> {
    let bar = progress_bar(arguments);
    let mut measured = Timings::default();
    for done in 0..arguments.steps {
        if interrupt::raised() {
            break;
        }
        let start = Instant::now();
        // The first step also faults the slab's pages in.
        let counts = done > 0 || arguments.steps == 1;
        let loss = session.step_timed(data, &mut |call| {
            if counts {
                measured.add(&call);
            }
            if let Some(fastest) = &mut fastest {
                fastest.add(&call);
            }
        })?;
        let seconds = start.elapsed().as_secs_f64();
        if let Some(fastest) = &mut fastest {
            fastest.end(counts);
        }
        measured.steps.extend(counts.then_some(seconds));
        if arguments.json {
            println!("{}", json!({ "step": session.next_step, "loss": loss, "seconds": seconds }));
        }
        bar.set_message(format!(
            "loss {loss:.4}  {:.0} {}/s",
            session.units_per_batch() as f64 / seconds,
            data.unit()
        ));
        bar.inc(1);
        if !loss.is_finite() {
            bar.println(format!("step {}: the loss is {loss}", session.next_step));
        }
        let due = arguments.eval_batches > 0
            && arguments.eval_every.is_some_and(|every| {
                every > 0 && (done + 1) % every == 0 && done + 1 < arguments.steps
            });
        if let Some(evaluation) =
            if due { session.evaluate(data, arguments.eval_batches)? } else { None }
        {
            if arguments.json {
                println!(
                    "{}",
                    json!({ "step": session.next_step, "validation_loss": evaluation.loss, "validation_accuracy": evaluation.accuracy })
                );
            } else {
                bar.println(format!("step {}: {}", session.next_step, describe(&evaluation)));
            }
        }
    }
    bar.finish();
    Ok(measured)
}

/// Writes the calls of the fastest step.
fn trace(
    path: &Path,
    graph: &Graph,
    fitted: &Fitted,
    machine: &Machine,
    fastest: &FastestStep,
) -> anyhow::Result<()> {
    let Some(calls) = fastest.calls() else {
        eprintln!("note: no step was measured, so {} was not written", path.display());
        return Ok(());
    };
    let times: Vec<(Seconds, Seconds)> =
        calls.iter().map(|call| (Seconds(call.start), Seconds(call.seconds))).collect();
    let course = Course::of(graph, &fitted.schedule, &fitted.timeline);
    output::write_whole(path, Trace::measured(&course, &machine.name, &times).write().as_bytes())
}

fn progress_bar(arguments: &Arguments) -> ProgressBar {
    let target =
        if arguments.json { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(u64::from(arguments.steps)), target);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed} (eta {eta})")
    {
        bar.set_style(style);
    }
    if std::io::stderr().is_terminal() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

/// Milliseconds a step by operator, largest first.
fn show_profile(graph: &Graph, profile: &Profile, measured: &Timings) {
    let mut rows: BTreeMap<&str, (f64, f64, u64)> = BTreeMap::new();
    for (&node, timings) in &measured.nodes {
        let row = rows.entry(&graph.nodes()[node].op).or_default();
        *row = (
            row.0 + timings.seconds,
            row.1 + profile.seconds[node].0 * timings.runs as f64,
            row.2 + timings.runs,
        );
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let steps = measured.steps.len().max(1) as f64;
    println!("{:<64} {:>6} {:>10} {:>10}", "operator", "calls", "ms", "predicted");
    for (op, (seconds, predicted, calls)) in rows {
        println!(
            "{op:<64} {:>6.0} {:>10.2} {:>10.2}",
            calls as f64 / steps,
            seconds / steps * 1e3,
            predicted / steps * 1e3
        );
    }
}

fn describe(evaluation: &Evaluation) -> String {
    let accuracy = evaluation
        .accuracy
        .map_or(String::new(), |share| format!(", accuracy {:.2} %", share * 100.0));
    let (some, all) = evaluation.batches;
    let part = if some < all { format!(" ({some} of {all} batches)") } else { String::new() };
    format!("validation loss {:.4}{accuracy}{part}", evaluation.loss)
}

fn report(
    arguments: &Arguments,
    planned: &Planned,
    measured: &Timings,
    last: Option<Evaluation>,
    entered: Option<Bytes>,
    session: &Session,
    interrupted: bool,
) {
    let FittedGraph { fitted, budget, reserve, unplanned } = &planned.training;
    let process =
        process::peak_resident().zip(entered).map(|(peak, entered)| peak.saturating_sub(entered));
    let predicted = fitted.timeline.seconds.0 / unplanned.timeline.seconds.0 - 1.0;
    let ratio = measured.median().map(|median| median / fitted.timeline.seconds.0);
    if arguments.json {
        let result = json!({
            "budget_bytes": budget, "reserve_bytes": reserve, "slab_bytes": session.slab_bytes(), "high_water_bytes": fitted.timeline.high_water,
            "peak_bytes": fitted.timeline.peak, "unplanned_peak_bytes": unplanned.timeline.peak, "process_peak_bytes": process,
            "predicted_overhead": predicted, "measured_overhead": measured.overhead(), "step_seconds": measured.median(),
            "predicted_step_seconds": fitted.timeline.seconds, "step_ratio": ratio, "recomputed_nodes": fitted.schedule.recomputed(), "planner": fitted.schedule.planner,
            "steps": session.next_step, "seed": session.seed, "validation_loss": last.map(|e| e.loss), "validation_accuracy": last.and_then(|e| e.accuracy),
            "saved": arguments.save, "interrupted": interrupted,
        });
        println!("{result}");
        return;
    }
    if interrupted {
        println!("interrupted after step {}", session.next_step);
    }
    let known =
        |bytes: Option<Bytes>| bytes.map_or("unknown".to_string(), |bytes| bytes.to_string());
    println!(
        "{:<16}{:>12}  slab high-water mark",
        "measured peak",
        fitted.timeline.high_water.to_string()
    );
    println!(
        "{:<16}{:>12}  process (VmHWM at exit less VmRSS at entry); budget {budget}",
        "",
        known(process)
    );
    if let (Some(median), Some(overhead), Some(ratio)) =
        (measured.median(), measured.overhead(), ratio)
    {
        println!(
            "{:<16}{:>12}  measured, {} predicted",
            "slowdown",
            output::percent(overhead),
            output::percent(predicted)
        );
        println!(
            "{:<16}{:>12}  measured (median), {} predicted: {ratio:.2} times as long",
            "time of a step",
            milliseconds(median),
            milliseconds(fitted.timeline.seconds.0)
        );
    }
    if let Some(evaluation) = last {
        println!("{:<16}{}", "", describe(&evaluation));
    }
    match &arguments.save {
        Some(path) => println!("{:<16}{}", "weights saved", path.display()),
        None => println!("{:<16}pass --save FILE to keep them", "weights dropped"),
    }
}
