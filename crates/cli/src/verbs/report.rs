//! `tightfit report`: where the bytes and the seconds go, as one page or as one drawing. Invariant:
//! a plan is shown only if the checker lets it pass.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tightfit::graph::Graph;
use tightfit::graph::limits::MOST_TRACE;
use tightfit::machine::Machine;
use tightfit::schedule::Schedule;
use tightfit::units::Bytes;
use tightfit_engine::{Divided, FitTask};
use tightfit_report::{
    Course, FrontierPoint, Measured, Planned, Report, Trace, TraceError, frontier_svg, modules_svg,
    page, stack_svg,
};

use crate::batches::Batches;
use crate::effort::Search;
use crate::exit_code::ExitCode;
use crate::failure::{Context, Result};
use crate::frontier::{self, drawn, frontier};
use crate::input::{self, OnTiers};
use crate::output::Written;
use crate::values::{NoPoints, points};
use crate::{interrupt, output, places, progress};

/// Show a step as one HTML page: memory over time by role, the peak explained, modules, savings,
/// time by budget.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit report corpus/graphs/cuda/gpt2_medium_b4_s1024.json.gz --budget 60% --budget 50% \
-o report.html
  tightfit plan corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 70% -o plan.json
  tightfit report corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --plan plan.json -o report.html
  tightfit report corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --plan plan.json --svg modules \
-o modules.svg
  tightfit train corpus/steps/gpt-small --budget 320MiB --steps 5 -o plan.json --trace measured.json
  tightfit report corpus/steps/gpt-small --plan plan.json --measured measured.json -o report.html")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// A plan (tightfit-plan/1) for that graph, to be shown next to the unplanned step; again for
    /// more plans
    #[arg(long)]
    plan: Vec<PathBuf>,
    /// Plan this budget, as `tightfit plan` does, and show that; again for more budgets
    #[arg(long, allow_hyphen_values = true)]
    budget: Vec<String>,
    /// A trace of the last plan, as `train --trace` writes it, to be shown with the prediction
    #[arg(long, value_name = "TRACE")]
    measured: Option<PathBuf>,
    /// Write the page, or the drawing, here; - is standard output
    #[arg(short, long)]
    output: PathBuf,
    /// Only this drawing, as SVG
    #[arg(long, value_name = "DRAWING")]
    svg: Option<Drawing>,
    /// Budgets of the page's "Time by budget", each of which is planned; 0 leaves it out
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = points)]
    points: u32,
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    on: OnTiers,
}

/// One drawing of a report.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Drawing {
    /// Memory over the step, by role
    Memory,
    /// Time by budget, with the bound
    Frontier,
    /// Bytes at the peak, by module
    Modules,
}

/// A plan to be shown.
pub struct Shown {
    /// Its name.
    pub name: String,
    /// The step that it was made for: as it is, or in chunks.
    pub graph: Graph,
    /// The plan.
    pub schedule: Schedule,
}

/// What to show.
pub struct Task<'a> {
    /// The step.
    pub graph: &'a Graph,
    /// One batch of it, and how many it has.
    pub batches: (&'a Graph, Batches),
    /// The machine for which it is planned.
    pub machine: &'a Machine,
    /// Plans to be shown next to the unplanned step.
    pub plans: Vec<Shown>,
    /// A trace of the last plan, to be shown next to the prediction.
    pub measured: Option<Trace>,
    /// One drawing instead of the page.
    pub svg: Option<Drawing>,
    /// Budgets of the frontier, or none of them.
    pub points: u32,
    /// How each of them is searched.
    pub search: frontier::Search<'a>,
}

/// The page, or the drawing. A plan is checked, and the frontier planned.
pub fn text(task: Task<'_>) -> Result<String> {
    let Task { graph, machine, .. } = task;
    let profile = input::profile(graph, machine);
    let unplanned = tightfit::unplanned(graph, &profile)?;
    let mut planned = Vec::new();
    for plan in task.plans {
        let profile = input::profile(&plan.graph, machine);
        let timeline = input::checked(&plan.graph, &profile, machine, &plan.schedule)?;
        planned.push((plan, timeline));
    }
    let before = Course::of(graph, unplanned.schedule(), unplanned.timeline());
    let after: Vec<(&str, Course<'_>)> = planned
        .iter()
        .map(|(Shown { name, graph, schedule }, timeline)| {
            (name.as_str(), Course::of(graph, schedule, timeline))
        })
        .collect();
    // The step in chunks, unplanned, of each plan that is for such a step.
    let mut divided_steps = Vec::new();
    for (Shown { graph: divided, .. }, _) in &planned {
        divided_steps.push(match divided.hash() == graph.hash() {
            true => None,
            false => Some(tightfit::unplanned(divided, &input::profile(divided, machine))?),
        });
    }
    let chunks: Vec<Option<Course<'_>>> = planned
        .iter()
        .zip(&divided_steps)
        .map(|((plan, _), step)| {
            let step = step.as_ref()?;
            Some(Course::of(&plan.graph, step.schedule(), step.timeline()))
        })
        .collect();
    let last = after.last().map_or(&before, |(_, course)| course);
    let measured = match &task.measured {
        Some(trace) => {
            let times = trace.times(last)?;
            if !trace.measured {
                return Err(TraceError::Predicted.into());
            }
            Some(Measured { trace, times })
        }
        None => None,
    };
    let points: Vec<FrontierPoint> = if has_frontier(task.points, task.svg) {
        drawn(&frontier(task.batches, machine, &unplanned, task.search, task.points)?)
    } else {
        Vec::new()
    };
    let sides: Vec<(&str, &Course<'_>)> = std::iter::once(("Unplanned", &before))
        .chain(after.iter().map(|(name, course)| (*name, course)))
        .collect();
    let plans: Vec<Planned<'_>> = after
        .iter()
        .zip(&chunks)
        .map(|((name, course), chunks)| Planned { name, course, chunks: chunks.as_ref() })
        .collect();
    Ok(match task.svg {
        Some(Drawing::Memory) => {
            stack_svg(&format!("Memory over one training step of {}", graph.name()), &sides)
        }
        Some(Drawing::Modules) => {
            modules_svg(&format!("Memory of {} by module", graph.name()), &sides)
        }
        Some(Drawing::Frontier) => frontier_svg(
            &format!("{} on {}: time of a step by budget", graph.name(), machine.name),
            unplanned.timeline().seconds,
            &points,
        ),
        None => page(&Report {
            machine: &machine.name,
            unplanned: &before,
            planned: &plans,
            reserve: tightfit_engine::reserve(graph, machine).total(),
            frontier: &points,
            measured,
        }),
    })
}

/// Plans of the budgets that are requested, with their names.
fn planned(arguments: &Arguments, sized: &Graph, machine: &Machine) -> Result<Vec<Shown>> {
    let (planner, effort) = (arguments.search.planner, arguments.search.effort());
    let is_alone = arguments.plan.len() + arguments.budget.len() == 1;
    let plan = |text: &String| {
        let task = FitTask { machine, budget: text.parse()?, beside: Bytes::ZERO, planner, effort };
        let Divided { graph, planned, .. } = progress::during("planning", effort.deadline, || {
            arguments.batches.fit(sized, &|_, graph| input::profile(graph, machine), &task)
        })?;
        let schedule = planned?.fitted.schedule().clone();
        let name = if is_alone { "Planned".to_string() } else { format!("Planned, {text}") };
        Ok(Shown { name, graph, schedule })
    };
    arguments.budget.iter().map(plan).collect()
}

/// Whether a frontier is planned.
fn has_frontier(points: u32, svg: Option<Drawing>) -> bool {
    points > 0 && svg.is_none_or(|drawing| drawing == Drawing::Frontier)
}

/// Reads, checks, plans the frontier and writes.
pub fn report(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.svg == Some(Drawing::Frontier) && arguments.points == 0 {
        return Err(NoPoints.into());
    }
    output::writable(&arguments.output)?;
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let mut sources = input::files(&arguments.graph)?;
    sources.extend(arguments.plan.iter().cloned());
    places::distinct(&[("--output", Some(&arguments.output))], &sources)?;
    let sized = arguments.batches.sized(graph)?;
    let graph = arguments.batches.accumulated(sized.clone())?;
    let machine = arguments.on.machine(is_step)?;
    let stem = |path: &PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let alike = |path: &PathBuf| arguments.plan.iter().filter(|&o| stem(o) == stem(path)).count();
    let plan = |path: &PathBuf| {
        let name = match (arguments.plan.len(), alike(path)) {
            (1, _) if arguments.budget.is_empty() => "Planned".to_string(),
            (_, 1) => format!("Planned, {}", stem(path).unwrap_or_default()),
            // Files of the same name in several folders.
            _ => format!("Planned, {}", path.display()),
        };
        let (graph, schedule) =
            arguments.batches.of_plan(&sized, |graph| input::plan(path, graph))?;
        Ok(Shown { name, graph, schedule })
    };
    let read = arguments.plan.iter().map(plan).collect::<Result<Vec<_>>>()?;
    if has_frontier(arguments.points, arguments.svg) || !arguments.budget.is_empty() {
        interrupt::listen();
    }
    let mut plans = planned(arguments, &sized, &machine)?;
    plans.extend(read);
    let measured = match &arguments.measured {
        Some(path) => {
            let file = || path.display().to_string();
            let text = input::bytes(path, MOST_TRACE, "a trace").with_context(file)?;
            Some(Trace::read(&text).with_context(file)?)
        }
        None => None,
    };
    let search = arguments.search.of_each();
    let text =
        progress::during("planning budget by budget", search.of_all(arguments.points), || {
            text(Task {
                graph: &graph,
                batches: (&sized, arguments.batches),
                machine: &machine,
                plans,
                measured,
                svg: arguments.svg,
                points: arguments.points,
                search,
            })
        })?;
    let what = if arguments.svg.is_some() { "a drawing" } else { "a page for any browser" };
    let mut written = Written::default();
    written.write(&arguments.output, text.as_bytes(), what)?;
    written.tell()?;
    if interrupt::raised() {
        note!("note: interrupted: the page has the best plans so far");
    }
    Ok(interrupt::code())
}
