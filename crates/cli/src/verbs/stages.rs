//! `tightfit stages`: where to cut a model into stages, in which order its ranks perform what, and
//! what they recompute. Invariant: every figure comes from checked plans of the ranks, or, if whole
//! layers are requested, from the stage planner's model and simulation; nothing is executed.

pub mod answer;
mod by_tensors;
mod shown;
mod torch;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tightfit::pipeline::{PipelineSchedule, write_csv};
use tightfit::units::Seconds;
use tightfit_engine::Budget;
use tightfit_report::pipeline_svg;

use answer::{Task, answer};

use crate::batches::Batches;
use crate::effort::Search;
use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::input::{self, OnMachine};
use crate::output::Written;
use crate::values::link;
use crate::{conclusion, interrupt, output, places};

/// Cut a model into the stages of a pipeline: which layers on which device, in which order, and
/// what is recomputed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit stages corpus/graphs/cuda/llama_1b_b2_s2048.json.gz --devices 8 --budget 40GB \
--microbatches 16 --state 16 --link 50GB/s,10us
  tightfit stages corpus/steps/gpt-small --devices 2 --budget 300MiB --microbatches 8 --json")]
pub struct Arguments {
    /// A graph file (tightfit-graph/1, plain or gzip) or a step's folder
    graph: PathBuf,
    /// How many devices there are; each has one stage, or two if the order says so
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    devices: u32,
    /// Bytes of each device: 40GB, 320MiB; 60%: of the unplanned peak on one device
    #[arg(long, allow_hyphen_values = true)]
    budget: String,
    #[command(flatten)]
    batches: Batches,
    /// Bytes a second from one device to another, and how long the first of them takes, as in
    /// 50GB/s,10us [default: as fast as the machine's memory]
    #[arg(long, value_name = "BW[,LAT]", value_parser = link)]
    link: Option<(f64, Seconds)>,
    /// Bytes that each element of a parameter takes, its gradient and the optimizer's state
    /// included, in place of what the graph has
    #[arg(long, value_name = "BYTES", value_parser = state, allow_hyphen_values = true)]
    state: Option<f64>,
    /// Only this order, by its name
    #[arg(long, value_name = "NAME", value_parser = schedule)]
    schedule: Option<PipelineSchedule>,
    /// Have stages begin with the first calls of these modules, in the order of the forward pass:
    /// as many as there are stages after the first one
    #[arg(long, value_name = "MODULE,…", value_delimiter = ',')]
    cut: Vec<String>,
    /// Recompute whole layers, as checkpointing in PyTorch does, by a model of layers: faster if
    /// micro-batches are many; no device's tensors are planned, and nothing is checked
    #[arg(long)]
    whole_layers: bool,
    /// Write the best plan for PyTorch to -o, of whole layers cut between modules: cut, order and
    /// recomputation as `tightfit.distributed` reads them, and the lists of modules that torchtitan
    /// takes
    #[arg(long, value_enum, value_name = "WHAT", requires = "output")]
    emit: Option<Emitted>,
    /// Where to write what is emitted (tightfit-stages/1)
    #[arg(short, long, value_name = "FILE", requires = "emit")]
    output: Option<PathBuf>,
    /// Write the order of the best plan here, as `torch.distributed.pipelining` reads it
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Draw here what each device does when, as the best plan has it
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    on: OnMachine,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Upper limit on the bytes that an optimizer keeps for each element.
const MOST_STATE: f64 = 1024.0;

/// Bytes of each element of a parameter.
pub fn state(text: &str) -> Result<f64, String> {
    let state = text.parse().ok().filter(|state: &f64| (0.0..=MOST_STATE).contains(state));
    state.ok_or_else(|| format!("write a number of bytes from 0 to {MOST_STATE}"))
}

/// An order by its name.
pub fn schedule(name: &str) -> Result<PipelineSchedule, String> {
    PipelineSchedule::from_name(name).ok_or_else(|| {
        let names = PipelineSchedule::ALL.map(|(_, name)| name);
        format!("orders are {}", names.join(", "))
    })
}

/// What can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emitted {
    /// A plan that PyTorch runs.
    Torch,
}

/// Plans and prints.
pub fn stages(arguments: &Arguments) -> Result<ExitCode> {
    let budget: Budget = arguments.budget.parse()?;
    for path in [&arguments.csv, &arguments.output, &arguments.svg].into_iter().flatten() {
        output::writable(path)?;
    }
    let (graph, is_step) = input::graph(&arguments.graph)?;
    let graph = arguments.batches.split(arguments.batches.sized(graph)?)?;
    let results = [
        ("--csv", arguments.csv.as_ref()),
        ("--output", arguments.output.as_ref()),
        ("--svg", arguments.svg.as_ref()),
    ];
    places::distinct(&results, &input::files(&arguments.graph)?)?;
    let machine = arguments.on.machine(is_step)?;
    interrupt::listen();
    let task = Task {
        devices: arguments.devices,
        budget,
        batches: arguments.batches,
        link: arguments.link,
        state: arguments.state,
        schedule: arguments.schedule,
        cut: arguments.cut.clone(),
        at_modules: arguments.emit.is_some(),
        search: (!arguments.whole_layers && arguments.emit.is_none()).then_some(arguments.search),
    };
    let answer = answer(&graph, &machine, &task, &interrupt::raised)?;
    let Some(best) = answer.found.first() else {
        const SAID: &str = "interrupted before there was a plan";
        return Ok(conclusion::interrupted(interrupt::code(), arguments.json, SAID));
    };
    let mut written = Written::default();
    if let Some(path) = &arguments.csv {
        written.write(path, write_csv(&best.plan().rows).as_bytes(), "the order")?;
    }
    if let Some(path) = &arguments.svg {
        let title =
            format!("{} on {} devices: {}", graph.name(), task.devices, best.plan().schedule);
        let drawn = pipeline_svg(&title, &answer.times(best));
        written.write(path, drawn.as_bytes(), "a drawing")?;
    }
    if let Some(path) = &arguments.output {
        let emitted = format!("{}\n", answer.for_torch());
        written.write(path, emitted.as_bytes(), "the plan for PyTorch")?;
    }
    match arguments.json {
        true => output::answer(answer.json(best))?,
        false => {
            let micro_batches = arguments.batches.micro_batches();
            answer.show(best, &machine.name, micro_batches)?;
            written.tell()?
        }
    }
    Ok(interrupt::code())
}
