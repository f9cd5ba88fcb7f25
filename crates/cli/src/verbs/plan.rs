//! `tightfit plan`: fit a step into a budget and show what it costs. Invariant: a step is planned
//! as `train` would run it, so a budget means the same to both.

mod details;
mod explain;
mod recomputed;
mod swapped;

pub use details::explained;
pub use swapped::swapped_json;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tightfit::graph::{self, Graph};
use tightfit::machine::Machine;
use tightfit::plan::{Infeasible, LiveTensor, Planner, rewrite};
use tightfit::profile::Profile;
use tightfit::schedule::Schedule;
use tightfit::split::{Parts, divided_at, parts_of};
use tightfit::units::{Bytes, Seconds};
use tightfit::{BoundOrder, Fitted, schedule};
use tightfit_engine::{Budget, Divided, FitTask, FittedGraph};

use crate::batches::Batches;
use crate::calls::{self, Costs, Subject};
use crate::effort::Search;
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Result};
use crate::figures::{Figures, Moves, late, smallest, unused};
use crate::input::{self, OnTiers};
use crate::output::Written;
use crate::source::Source;
use crate::table::{Cell, Table};
use crate::verbs::plan::details::Details;
use crate::{conclusion, failure, interrupt, output, places, progress};

/// Plan a training step under a budget in bytes.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit plan corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 14GiB
  tightfit plan corpus/steps/gpt-small --budget 60% -o plan.json --svg memory.svg
  tightfit plan corpus/steps/gpt-small --budget min --json
  tightfit plan corpus/graphs/cuda/resnet50_b32.json.gz --budget 70% --emit graph \
-o planned.json.gz
  tightfit plan corpus/graphs/cuda/vit_b16_b32.json.gz --budget 50% --iterations 1000000 --seed 7
  tightfit plan corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --budget 70% \
--planner capuchin --explain")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// Bytes of the whole process: 1000000, 320MiB, 2.5GB; 60%: of the unplanned peak (a step on
    /// cpu: the base, which is what the process itself takes, and 60% of unplanned peak and
    /// packing), where 100% is the unplanned slab, up to 1.1% more than the peak; or min
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    details: Details,
    #[command(flatten)]
    costs: Costs,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    on: OnTiers,
    /// Write the result here; - is standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// What to write: the plan (tightfit-plan/1), or the graph (tightfit-graph/1) in the plan's
    /// order with recomputed nodes as nodes of their own
    #[arg(long, value_enum, default_value_t = Emit::Plan, requires = "output")]
    emit: Emit,
    /// Draw memory over the step, before and after, into this SVG file
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Columns of the table of what is alive where a plan peaks, and the most rows that it shows.
const ALIVE: [&str; 4] = ["size", "tensor", "phase", "module"];
const MOST_ALIVE: usize = 10;

/// The format in which a plan is written.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Emit {
    /// tightfit-plan/1: instructions with addresses
    Plan,
    /// tightfit-graph/1: the rewritten graph, packed if the name ends in .gz
    Graph,
}

impl Emit {
    /// What the file of this format holds.
    fn described(self) -> &'static str {
        match self {
            Emit::Plan => "the plan",
            Emit::Graph => "the graph as planned",
        }
    }

    fn bytes(
        self,
        (graph, profile): (&Graph, &Profile),
        schedule: &Schedule,
        path: &Path,
    ) -> Result<Vec<u8>> {
        Ok(match self {
            Emit::Plan => format!("{}\n", schedule::write(graph, schedule)).into_bytes(),
            Emit::Graph => {
                let packed = path.extension().is_some_and(|extension| extension == "gz");
                graph::write_file(&rewrite(graph, profile, &schedule.runs().into())?.graph, packed)
            }
        })
    }
}

/// Plans, writes and prints.
pub fn plan(arguments: &Arguments) -> Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    let planner = arguments.details.planner(arguments.search.planner)?;
    for path in [&arguments.output, &arguments.svg].into_iter().flatten() {
        output::writable(path)?;
    }
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let start = Instant::now();
    let batches = arguments.batches;
    let sized = batches.sized(graph)?;
    let whole_graph = batches.accumulated(sized.clone())?;
    let building = start.elapsed().as_secs_f64();
    let results = [("--output", arguments.output.as_ref()), ("--svg", arguments.svg.as_ref())];
    places::distinct(&results, &input::files(&arguments.graph)?)?;
    let machine = arguments.on.machine(is_step)?;
    interrupt::listen();
    let profile = |parts, graph: &Graph| {
        // What could not be measured of the step as it is cannot be of its parts.
        let known = calls::known(&machine);
        let is_tried = is_step && !arguments.costs.roofline;
        // The smallest budget does not depend on times.
        let is_needed = known.covers(&whole_graph) && budget != Budget::Smallest;
        if parts != Parts::WHOLE && is_tried && !is_needed {
            return Profile::measured(graph, &machine, &known);
        }
        arguments.profile(graph, is_step, &machine, batches.in_parts(parts))
    };
    let start = Instant::now();
    let effort = arguments.search.effort();
    let task = FitTask { machine: &machine, budget, beside: Bytes::ZERO, planner, effort };
    let fitted =
        progress::during("planning", effort.deadline, || batches.fit(&sized, &profile, &task))?;
    let Divided { parts, graph, profile, planned, whole } = fitted;
    let planned = match planned {
        Ok(planned) => planned,
        Err(error) => {
            let refused = (&error, arguments.json);
            let more = arguments.details.of_refusal(&graph, &profile, planner, refused)?;
            let error = Failure::from(error);
            let error = match parts {
                Parts::WHOLE if batches.forbid_chunks(&graph) => {
                    error.context("without chunks, as with --split off")
                }
                Parts::WHOLE => error,
                parts => {
                    let there = parts_of(&graph);
                    error.context(format!("in {there} chunks, as with --split {parts}"))
                }
            };
            return match more {
                Some(more) => Ok(conclusion::refuse(&error, Some(more))),
                None => Err(error),
            };
        }
    };
    let seconds = Seconds(start.elapsed().as_secs_f64());
    let details = arguments.details.of_plan(&graph, &profile, planner, &planned)?;
    let divided = (parts != Parts::WHOLE).then(|| Chunked {
        parts,
        there: parts_of(&graph),
        of: match divided_at(&graph) {
            Some(product) if parts.layers > 1 => {
                format!("`{product}`, of what follows, and of layers")
            }
            Some(product) => format!("`{product}` and what follows"),
            None => "layers".to_string(),
        },
        calls: profile.total(&graph.compute_nodes()),
    });
    let whole = whole.as_ref().unwrap_or(&planned.unplanned);
    let (graph, machine, planned) = (&graph, &machine, &planned);
    let nodes = whole_graph.compute_nodes().len();
    let answer =
        Answer { arguments, graph, machine, planned, whole, nodes, divided, building, seconds };
    let written = answer.write(&profile)?;
    let code = interrupt::code();
    if arguments.json {
        let mut result =
            answer.json((effort.floor < u64::MAX).then(|| planner.floor(effort.floor)));
        details.add_to(&mut result);
        output::answer(result)?;
    } else {
        answer.print(budget, effort.deadline)?;
        details.print()?;
        written.tell()?;
    }
    Ok(code)
}

impl Arguments {
    /// What the calls of a step of these batches cost; as `train` would measure them, if it is one
    /// that can be trained.
    fn profile(
        &self,
        graph: &Graph,
        is_step: bool,
        machine: &Machine,
        batches: Batches,
    ) -> Profile {
        let subject = Subject {
            folder: &self.graph,
            source: &Source::default(),
            budget: &self.budget,
            planner: self.search.planner,
            tier: self.on.tier(),
            batches,
        };
        match is_step {
            true => {
                let seconds = calls::of_step(graph, machine, self.costs, &subject);
                Profile::measured(graph, machine, &seconds)
            }
            false => Profile::new(graph, machine),
        }
    }
}

/// A part of the step in chunks.
struct Chunked {
    /// How many were asked for, and how sums are made.
    parts: Parts,
    /// How many there are.
    there: Parts,
    /// What has them.
    of: String,
    /// The time of all calls, each run once.
    calls: Seconds,
}

/// A plan, and what is said of it.
struct Answer<'a> {
    arguments: &'a Arguments,
    graph: &'a Graph,
    machine: &'a Machine,
    planned: &'a FittedGraph,
    /// The step as it is, unplanned.
    whole: &'a Fitted,
    /// The nodes that it computes.
    nodes: usize,
    /// How it is divided, if it is.
    divided: Option<Chunked>,
    /// Time to make one graph of all micro-batches, in seconds.
    building: f64,
    /// Time to plan it.
    seconds: Seconds,
}

impl Answer<'_> {
    /// Writes the files that are requested.
    fn write(&self, profile: &Profile) -> Result<Written<'_>> {
        let &Answer { arguments, graph, planned, .. } = self;
        let mut written = Written::default();
        if let Some(path) = &arguments.output {
            let schedule = planned.fitted.schedule();
            let result = arguments.emit.bytes((graph, profile), schedule, path)?;
            written.write(path, &result, arguments.emit.described())?;
        }
        if let Some(path) = &arguments.svg {
            let title = format!("Memory over one training step of {}", graph.name());
            let (unplanned, timeline) = (self.whole.timeline(), planned.fitted.timeline());
            let drawn = tightfit_report::memory_svg(&title, unplanned, timeline, planned.budget);
            written.write(path, drawn.as_bytes(), "a drawing")?;
        }
        Ok(written)
    }

    fn figures(&self) -> Figures {
        Figures::of(&self.planned.fitted, self.whole.timeline().seconds)
    }

    /// As one object; `floor` is the work of the planner that no deadline cuts short.
    fn json(&self, floor: Option<u64>) -> Value {
        let &Answer { graph, machine, planned, .. } = self;
        let (schedule, timeline) = (planned.fitted.schedule(), planned.fitted.timeline());
        let unplanned = self.whole.timeline();
        let Figures { overhead, gap, .. } = self.figures();
        let bound = planned.fitted.bound();
        let mut result = json!({
            "graph": graph.name(),
            "machine": machine.name,
            "planner": schedule.planner,
            "adopted_planner": planned.fitted.adopted().map(Planner::name),
            "budget_bytes": planned.budget,
            "base_bytes": planned.reserve.base,
            "packing_bytes": planned.reserve.packing,
            "reserve_bytes": planned.reserve.total(),
            "peak_bytes": timeline.peak,
            "static_bytes": graph.static_bytes(),
            "unplanned_peak_bytes": unplanned.peak,
            "unplanned_step_seconds": unplanned.seconds,
            "step_seconds": timeline.seconds,
            "overhead": overhead,
            "bound_step_seconds": bound.map(|bound| bound.seconds),
            "bound_order": bound.map(|bound| bound.class.order.name()),
            "gap": gap,
            "split": self.divided.as_ref().map(|divided| divided.parts.to_string()),
            "recomputed_nodes": schedule.recomputed(),
            "building_seconds": self.building,
            "planning_seconds": self.seconds,
            "slab_bytes": schedule.slab,
            "floor": floor,
            "interrupted": interrupt::raised(),
        });
        Moves::of(schedule, timeline).add_to(&mut result);
        let limit = planned.limit.as_ref().map(|proof| failure::members(&proof.refusal()));
        let limit = limit.unwrap_or_default();
        for name in ["needed_bytes", "node", "module", "alive"] {
            result[name] = limit.get(name).cloned().unwrap_or_default();
        }
        result
    }

    /// In words.
    fn print(&self, budget: Budget, deadline: Seconds) -> output::Printed {
        let &Answer { arguments, graph, machine, planned, .. } = self;
        output::heading(format_args!("{} on {}", graph.name(), machine.name))?;
        if arguments.batches.micro_batches() > 1 {
            row!(
                "update",
                output::several(arguments.batches.micro_batches() as usize, "micro-batch", "es"),
                "as one graph, built in {:.0} ms",
                self.building * 1e3
            )?;
        }
        self.print_memory(budget)?;
        self.print_time()?;
        if interrupt::raised() {
            row!("search", "interrupted", "the best plan so far")?;
        } else if let Some(unused) = unused(planned, deadline, self.seconds) {
            row!("search", "cut short", "{unused}")?;
        } else if let Some((found, advice)) = late(planned, deadline, self.seconds) {
            row!("search", found, "{advice}")?;
        }
        planned.limit.as_ref().map_or(Ok(()), show_limit)
    }

    /// Peaks, budget and slab.
    fn print_memory(&self, budget: Budget) -> output::Printed {
        let &Answer { graph, planned, .. } = self;
        let (schedule, timeline) = (planned.fitted.schedule(), planned.fitted.timeline());
        let unplanned = self.whole.timeline();
        let with_process = match planned.reserve.total() {
            Bytes::ZERO => String::new(),
            reserve => format!("; {} with base and packing", unplanned.peak + reserve),
        };
        row!(
            "unplanned peak",
            unplanned.peak,
            "{}, {} of parameters, state and batch{with_process}",
            output::several(self.nodes, "node", "s"),
            graph.static_bytes()
        )?;
        if planned.reserve.total() > Bytes::ZERO {
            row!(
                "budget",
                planned.budget,
                "{}base {} (the process itself), packing {} (of matrix products), slab {}",
                smallest(budget, planned.budget, "; "),
                planned.reserve.base,
                planned.reserve.packing,
                planned.slab()
            )?;
        } else {
            row!("budget", planned.budget, "{}", smallest(budget, planned.budget, ""))?;
        }
        row!("planned peak", timeline.peak, "checked; {} slab after layout", schedule.slab)
    }

    /// Slowdown, moves and bound.
    fn print_time(&self) -> output::Printed {
        let planned = self.planned;
        let (schedule, timeline) = (planned.fitted.schedule(), planned.fitted.timeline());
        let Figures { overhead, gap, .. } = self.figures();
        let adopted = planned.fitted.adopted();
        row!(
            "slowdown",
            output::percent(overhead),
            "{} calls run again; {} instead of {} (predicted; planner {}{}, {:.0} ms)",
            schedule.recomputed(),
            output::milliseconds(timeline.seconds),
            output::milliseconds(self.whole.timeline().seconds),
            schedule.planner,
            adopted.map_or(String::new(), |rule| format!(", which took {}'s plan", rule.name())),
            self.seconds.0 * 1e3
        )?;
        if let Some(Chunked { parts, there, of, calls }) = &self.divided {
            row!(
                "split",
                format!("{there} chunks"),
                "of rows of {of}, as with --split {parts}; the calls take {} instead of {}",
                output::milliseconds(*calls),
                output::milliseconds(self.whole.timeline().seconds)
            )?;
        }
        if let Some(moves) = Moves::of(schedule, timeline).words() {
            row!("moved", "", "{moves}")?;
        }
        let Some((bound, gap)) = planned.fitted.bound().zip(gap) else { return Ok(()) };
        let whose = match bound.class.order {
            BoundOrder::Given => "no schedule that keeps this order is faster",
            BoundOrder::Any => "no schedule is faster than this",
        };
        let whose = match &self.divided {
            Some(divided) => format!("in {} chunks, {whose}", divided.there),
            None => whose.to_string(),
        };
        let least = output::percent(overhead - gap);
        // Every node runs, so only rounding can put a bound below a whole unplanned step.
        let is_rounded = least.starts_with('-') && self.divided.is_none();
        let rounded = if is_rounded { " (of times rounded down to picoseconds)" } else { "" };
        row!("bound", least, "{whose}{rounded}; the plan is within {:.2} points of it", gap * 100.0)
    }
}

/// Why the smallest budget is no smaller.
fn show_limit(limit: &Infeasible) -> output::Printed {
    let Infeasible { reached, needed, live, .. } = limit;
    match reached.saturating_sub(*needed) {
        Bytes::ZERO => {
            row!("smallest budget", "proven", "{} bytes: no schedule needs less", reached.0)?
        }
        more => row!(
            "smallest budget",
            "known",
            "{} bytes; proven: no schedule needs less than {}, {more} less",
            reached.0,
            needed.0
        )?,
    }
    match &limit.binding {
        Some(binding) => entry!("limited by", "what is alive at `{}`:", binding.name)?,
        None if live.is_empty() => return Ok(()),
        None => entry!("limited by", "what is alive from the start:")?,
    }
    let row = |tensor: &LiveTensor| {
        vec![
            Cell::bytes(tensor.bytes),
            Cell::name(&tensor.name),
            Cell::word(tensor.phase),
            Cell::path(&tensor.module),
        ]
    };
    let (listed, others) = live.split_at(MOST_ALIVE.min(live.len()));
    let mut rows: Vec<_> = listed.iter().map(row).collect();
    if !others.is_empty() {
        let bytes = others.iter().map(|tensor| tensor.bytes).sum();
        let smaller = Cell::name(&format!("in {} smaller ones", others.len()));
        rows.push(vec![Cell::bytes(bytes), smaller, Cell::word(""), Cell::word("")]);
    }
    Table::new(&ALIVE, rows).print(usize::MAX)
}
