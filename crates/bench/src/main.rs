//! `tightfit-bench`: measures on this machine. Invariant: figures are printed, never judged: a bad
//! one is not an error.

#[cfg(feature = "ablation")]
mod ablation;
mod curve;
mod dataflow;
mod engine;
mod layout;
mod markdown;
mod modules;
mod planner;
mod processor;
mod scale;
mod stages;

use std::ffi::OsString;

use clap::Parser;
use tightfit_cli::exit_code::ExitCode;
use tightfit_cli::failure::Result;
use tightfit_cli::program;

/// Measure the engine against PyTorch, the planners of steps, modules and stages against others,
/// and how long the layout of buffers and the analyses take.
#[derive(Parser)]
#[command(name = "tightfit-bench", term_width = 80)]
enum Part {
    Engine(engine::Arguments),
    Planner(planner::Arguments),
    Curve(curve::Arguments),
    Layout(layout::Arguments),
    Dataflow(dataflow::Arguments),
    Modules(modules::Arguments),
    Stages(stages::Arguments),
    Scale(scale::Arguments),
    #[cfg(feature = "ablation")]
    Ablation(ablation::Arguments),
}

/// What begins the arguments of the program itself, which runs that are measured start.
const PROGRAM: &str = "tightfit";

fn main() -> std::process::ExitCode {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == PROGRAM) {
        words.remove(0);
        return tightfit_cli::run(words).into();
    }
    if let Ok(this) = std::env::current_exe() {
        program::starts_by(vec![this.into(), PROGRAM.into()]);
    }
    let part = Part::parse_from(words);
    tightfit_cli::run_other(|| measured(&part)).into()
}

/// Measures and prints.
fn measured(part: &Part) -> Result<ExitCode> {
    match part {
        Part::Engine(arguments) => engine::engine(arguments),
        Part::Planner(arguments) => planner::planner(arguments),
        Part::Curve(arguments) => curve::curve(arguments),
        Part::Layout(arguments) => layout::layout(arguments),
        Part::Dataflow(arguments) => dataflow::analyses(arguments),
        Part::Modules(arguments) => modules::modules(arguments),
        Part::Stages(arguments) => stages::stages(arguments),
        Part::Scale(arguments) => scale::scale(arguments),
        #[cfg(feature = "ablation")]
        Part::Ablation(arguments) => ablation::ablation(arguments),
    }
}
