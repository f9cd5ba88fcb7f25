//! `tightfit train`: train a step inside a budget. Invariant: nothing runs that was not checked;
//! what is to be saved is saved however the run ends, as long as it ends in order.

mod announce;
mod dump;
mod ending;
mod finish;
mod placement;
mod profile;
mod ranks;
mod replan;
mod report;
mod resident;
mod run;
mod trace;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use tightfit::graph::Graph;
use tightfit::machine::Machine;
use tightfit::plan::Planner;
use tightfit::profile::Profile;
use tightfit::schedule;
use tightfit::split::{Parts, keeps_bits};
use tightfit::units::Seconds;
use tightfit_engine::weights::Progress;
use tightfit_engine::{
    Budget, Dataset, Divided, Division, Evaluation, Executable, FitTask, FittedGraph, FittedStep,
    Session, Step, TierFolder, Traffic, fit_divided, fit_placed, fit_rest, process, weights,
};

use crate::batches::Batches;
use crate::calls::{self, Costs, Subject};
use crate::effort::Limits;
use crate::exit_code::ExitCode;
use crate::failure::{Context, Result};
use crate::figures::unused;
use crate::places::{self, Replaced};
use crate::planners::planner;
use crate::source::Source;
use crate::tier::Folder;
use crate::values::{MOST_THREADS, bandwidth, file_path, learning_rate};
use crate::{conclusion, input, interrupt, output, processor, progress};
use ending::{OtherSeed, TooManySteps};
use finish::Finish;
use placement::Placement;
use ranks::Ranks;
use replan::{Plans, Replan};
use resident::Resident;

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
    /// Bytes of the whole process: 1000000, 320MiB, 2.5GB; 60%: the base, which is what the process
    /// itself takes, and 60% of unplanned peak and packing; or min
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    /// How many steps to run, after those of --resume
    #[arg(long, default_value_t = 100)]
    steps: u32,
    #[command(flatten)]
    source: Source,
    /// Learning rate [default: the step's]
    #[arg(long, value_parser = learning_rate, allow_hyphen_values = true)]
    lr: Option<f64>,
    /// Seed of initialisation, batches, dropout and the planner's search [default: 1, or that of
    /// --resume]
    #[arg(long)]
    seed: Option<u64>,
    /// Write weights and optimizer state (safetensors) here at the end
    #[arg(long, value_parser = file_path())]
    save: Option<PathBuf>,
    /// Go on from weights, optimizer state, step number and seed of this file
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Go on if the loss is NaN or infinite, and save such weights too; else the run ends there
    /// with exit code 11, and nothing is saved
    #[arg(long)]
    keep_going: bool,
    /// Evaluate on the validation data every N steps, besides at the end
    #[arg(long, value_name = "N")]
    eval_every: Option<u32>,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    ranks: Ranks,
    /// Most validation batches of an evaluation; 0 for none
    #[arg(long, default_value_t = 16)]
    eval_batches: usize,
    /// One planner by name, or auto for the best plan of all
    #[arg(long, default_value = "auto", value_parser = planner())]
    planner: Planner,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    costs: Costs,
    /// Worker threads [default: all processors]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=MOST_THREADS))]
    threads: Option<u32>,
    /// A folder for a file below the slab, to which the plan may move tensors while they are not
    /// needed, and the file's largest size if that is limited, as in /data:64GiB; nothing is left
    /// there when the run is over
    #[arg(long, value_name = "DIR[:SIZE]")]
    tier: Option<String>,
    /// What decides where parameters, buffers and optimizer state lie
    #[arg(long, value_enum, default_value_t = Placement::Planned, value_name = "WHO")]
    placement: Placement,
    /// Most bytes that go to the tier or come back in a second, as in 100MB/s: to see what a slower
    /// one would cost
    #[arg(long, value_parser = bandwidth, requires = "tier", conflicts_with = "ranks")]
    throttle: Option<f64>,
    /// Have calls wait while something moves: to see what moving it at the same time saves
    #[arg(long, requires = "tier", conflicts_with = "ranks")]
    no_overlap: bool,
    /// Plan once more after some steps, 5 if no number is given, from the seconds of their calls
    /// and the rates of the tier as measured; the run goes on with what is predicted to be faster
    #[arg(long, value_name = "STEPS", num_args = 0..=1, require_equals = true,
          default_missing_value = "5", value_parser = clap::value_parser!(u32).range(2..))]
    replan: Option<u32>,
    /// Write the last step's batch, gradients and updated weights (safetensors) here; gradients
    /// then stay to the end of the step and take part in the plan, which --output, --trace and
    /// --eval-every do not go with
    #[arg(long, value_parser = file_path(), conflicts_with_all = ["eval_every", "output", "trace"])]
    dump: Option<PathBuf>,
    /// Show where the time went, by operator, with the prediction; in words, so not with --json
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

/// Trains and reports.
pub fn train(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(way) = arguments.ranks.way() {
        return ranks::train(arguments, way);
    }
    let budget: Budget = arguments.budget.parse()?;
    placement::consistent(arguments)?;
    process::one_heap();
    let (sized, whole, mut data) = opened(arguments)?;
    let (machine, tier) = machine(arguments, &whole, budget)?;
    let seed = begins(arguments, &whole)?.seed;
    interrupt::listen();
    let effort = arguments.limits.effort(arguments.planner, seed);
    let mut beside = data.beside();
    if arguments.dump.is_some() {
        beside += dump::scratch(&whole.training);
    }
    let task = FitTask { machine: &machine, budget, beside, planner: arguments.planner, effort };
    let Plan { step, parts, mut planned, unused } = plan(arguments, &sized, whole, &task)?;
    drop(sized);
    if arguments.json && planned.evaluation.is_none() && step.evaluation.is_some() {
        note!(
            "note: the validation data is left out: its graph does not fit next to the parameters"
        );
    }
    write_plan(arguments, &step, &planned)?;
    // Reading and planning are over: the memory that they took is the slab's from here on.
    process::settle_heap();
    let mut session = session(&step, &planned, tier.as_ref(), machine.threads, seed)?;
    if let Some(path) = &arguments.resume {
        weights::load(path, &mut session, &step.name)?;
    }
    process::settle_heap();
    if interrupt::raised() {
        return Ok(conclusion::interrupted_at_once(interrupt::code(), arguments.json));
    }
    let resident = Resident::before_steps();
    // Only now is it certain that the run can start.
    if !arguments.json {
        announce::announce((&step, parts), &data, budget, &planned, &machine)
            .and_then(|()| unused.map_or(Ok(()), |unused| row!("search", "cut short", "{unused}")))
            .and_then(|()| announce::announce_start(arguments, &session))
            .context("no step was run, and nothing was saved")?;
    }

    let replan = arguments.replan.map(|after| {
        let tier = tier.as_ref();
        Replan::new(after, Plans { arguments, step: &step, task: &task, tier }, &mut planned)
    });
    let course = run::run(arguments, &mut session, &mut data, replan)?;
    let (step, machine, planned) = (&step, &machine, &planned);
    Finish { arguments, step, parts, machine, planned, session, data, course, resident }.finish()
}

/// The processor, with the tier that is requested.
fn machine(
    arguments: &Arguments,
    step: &Step,
    budget: Budget,
) -> Result<(Machine, Option<TierFolder>)> {
    let tier = arguments.tier.as_deref().map(Folder::parse).transpose()?;
    let graph = &step.training;
    let mut machine = processor::machine_within(arguments.threads, graph, budget, tier.is_some());
    if let Some(folder) = &tier {
        folder.add_to(&mut machine, arguments.throttle)?;
    }
    let tier = tier.map(|Folder { folder, size }| {
        let traffic = Traffic { throttle: arguments.throttle, overlaps: !arguments.no_overlap };
        TierFolder { folder, traffic, size }
    });
    Ok((machine, tier))
}

/// The step that runs, and its plan.
struct Plan {
    step: Step,
    /// In which parts the step is computed.
    parts: Parts,
    planned: FittedStep,
    /// What is said of a search that was cut short.
    unused: Option<String>,
}

/// Plans the step of all micro-batches, of which one is `sized`: as it is, or in chunks.
fn plan(arguments: &Arguments, sized: &Step, whole: Step, task: &FitTask<'_>) -> Result<Plan> {
    let batches = arguments.batches;
    // What is known of calls, and how long it took to measure them.
    let (table, measuring) = (RefCell::new(calls::known(task.machine)), Cell::new(0.0));
    let seconds = |parts, graph: &Graph| {
        // The smallest budget does not depend on times.
        if parts != Parts::WHOLE && task.budget == Budget::Smallest {
            return table.borrow().clone();
        }
        let began = Instant::now();
        let subject = Subject {
            folder: &arguments.step,
            source: &arguments.source,
            budget: &arguments.budget,
            planner: arguments.planner,
            tier: arguments.tier.as_deref(),
            batches: batches.in_parts(parts),
        };
        let seconds = calls::of_step(graph, task.machine, arguments.costs, &subject);
        // The search of a small step takes as much memory as its run: memory that reading took is
        // freed first.
        process::give_back();
        table.borrow_mut().update(seconds.clone());
        measuring.set(measuring.get() + began.elapsed().as_secs_f64());
        seconds
    };
    let divided = |parts| whole_of(arguments, sized.clone().split(parts)?);
    let deadline = task.effort.deadline;
    if let Some(policy) = arguments.placement.policy() {
        let parts = batches.parts(arguments.planner).unwrap_or(Parts::WHOLE);
        let step = if parts == Parts::WHOLE { whole } else { divided(parts)? };
        let seconds = seconds(parts, &step.training);
        let fit = || fit_placed(&step, &seconds, task, policy);
        let planned = progress::during("planning", deadline, fit)?;
        return Ok(Plan { step, parts, planned, unused: None });
    }
    let given = batches.parts(arguments.planner);
    given.map_or(Ok(()), |parts| divided(parts).map(drop))?;
    let began = Instant::now();
    let fitted = progress::during("planning", deadline, || {
        let profile =
            |parts, graph: &Graph| Profile::measured(graph, task.machine, &seconds(parts, graph));
        // Whatever is chosen, a run has the same bits.
        let graph = |parts| {
            let keeps =
                given.is_some() || batches.may_change_bits() || keeps_bits(&sized.training, parts);
            keeps.then(|| divided(parts).ok()).flatten().map(|step| step.training)
        };
        let division = Division { given, graph: &graph, profile: &profile };
        fit_divided(whole.training.clone(), division, task)
    });
    let Divided { parts, profile, planned, whole: unplanned, .. } = fitted;
    let planned = planned?;
    let took = Seconds(began.elapsed().as_secs_f64() - measuring.get());
    let unused = unused(&planned, deadline, took);
    let unplanned = unplanned.unwrap_or_else(|| planned.unplanned.clone());
    // A run holds nothing that it does not need.
    let training = FittedGraph { limit: None, unplanned, ..planned };
    let step = if parts == Parts::WHOLE { whole } else { divided(parts)? };
    let planned = fit_rest(&step, (training, profile), &table.borrow(), task);
    Ok(Plan { step, parts, planned, unused })
}

/// The step of all micro-batches, with what is to be dumped.
fn whole_of(arguments: &Arguments, sized: Step) -> Result<Step> {
    let mut step = sized.accumulated(arguments.batches.micro_batches())?;
    if arguments.dump.is_some() {
        step.training = dump::with_gradients(&step.training)?;
    }
    Ok(step)
}

/// The step of one micro-batch, that of all of them, and its data; nothing that the run writes is
/// in the way.
fn opened(arguments: &Arguments) -> Result<(Step, Step, Dataset)> {
    let (sized, data) = open(arguments)?;
    let step = whole_of(arguments, sized.clone())?;
    input::note_repeated_rows(&data, &step);
    Executable::admits(&step.training)?;
    distinct(arguments, &step)?;
    for path in [&arguments.save, &arguments.dump, &arguments.output, &arguments.trace]
        .into_iter()
        .flatten()
    {
        output::writable(path)?;
    }
    Ok((sized, step, data))
}

/// No result replaces another, or a file from which the run begins; weights may replace those that
/// are resumed.
fn distinct(arguments: &Arguments, step: &Step) -> Result<(), Replaced> {
    let mut sources = step.files.clone();
    sources.extend(arguments.source.data.clone());
    let others = [
        ("--dump", arguments.dump.as_ref()),
        ("--output", arguments.output.as_ref()),
        ("--trace", arguments.trace.as_ref()),
    ];
    let with = |option, path| [[(option, path)].as_slice(), &others].concat();
    places::distinct(&with("--save", arguments.save.as_ref()), &sources)?;
    places::distinct(&with("--resume", arguments.resume.as_ref()), &sources)
}

/// The step of one micro-batch and data that suit it, with the requested learning rate.
fn open(arguments: &Arguments) -> Result<(Step, Dataset)> {
    let mut step = arguments.batches.sized_step(Step::open(&arguments.step)?)?;
    let data = arguments.source.open(&step)?;
    input::suits(&data, &step)?;
    // A step that cannot be executed is refused before anything is measured or planned.
    for graph in [Some(&step.training), step.evaluation.as_ref()].into_iter().flatten() {
        Executable::admits(graph)?;
    }
    if let Some(rate) = arguments.lr {
        step.optimizer.learning_rate = rate;
    }
    Ok((step, data))
}

/// Where the run begins, and its seed: those of the run that is resumed, which has to have numbers
/// left for its steps, else as requested.
fn begins(arguments: &Arguments, step: &Step) -> Result<Progress> {
    let Some(path) = &arguments.resume else {
        return Ok(Progress { steps: 0, seed: arguments.seed.unwrap_or(1), checksum: None });
    };
    let progress = weights::progress(path, &step.name)?;
    if let Some(asked) = arguments.seed.filter(|&asked| asked != progress.seed) {
        return Err(OtherSeed { path: path.clone(), seed: progress.seed, asked }.into());
    }
    if progress.steps.checked_add(arguments.steps).is_none() {
        let (path, done, steps) = (path.clone(), progress.steps, arguments.steps);
        return Err(TooManySteps { path, done, steps }.into());
    }
    Ok(progress)
}

/// Writes the plan that runs, if that was requested.
fn write_plan(arguments: &Arguments, step: &Step, planned: &FittedStep) -> Result<()> {
    let Some(path) = &arguments.output else { return Ok(()) };
    let plan = schedule::write(&step.training, planned.training.fitted.schedule());
    output::write_whole(path, format!("{plan}\n").as_bytes())
}

fn session(
    step: &Step,
    planned: &FittedStep,
    tier: Option<&TierFolder>,
    threads: u32,
    seed: u64,
) -> Result<Session> {
    let session = Session::builder(step, planned.training.fitted.checked())
        .evaluation(planned.evaluation.as_ref())
        .slab(planned.training.slab())
        .tier(tier)
        .region(planned.region.as_ref())
        .threads(threads as usize)
        .seed(seed)
        .start()?;
    Ok(session)
}

/// The last evaluation; none after a run that was to do steps and did none.
fn evaluation(
    arguments: &Arguments,
    session: &mut Session,
    data: &mut Dataset,
    stepped: bool,
) -> Result<Option<Evaluation>> {
    Ok(match arguments.eval_batches {
        0 => None,
        _ if !stepped && arguments.steps > 0 => None,
        batches => session.evaluate(data, batches)?,
    })
}
