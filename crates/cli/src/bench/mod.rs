//! `tightfit bench`: measure on this machine. Invariant: figures are printed, never judged: a bad
//! one is not an error.

#[cfg(feature = "ablation")]
mod ablation;
mod dataflow;
mod engine;
mod layout;
mod markdown;
mod modules;
mod planner;
mod scale;
mod stages;

use clap::{Args, Subcommand};

use crate::exit_code::ExitCode;
use crate::failure::Result;

/// Measure the engine against PyTorch, the planners of steps, modules and stages against others,
/// and how long the layout of buffers and the analyses take.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Engine(engine::Arguments),
    Planner(planner::Arguments),
    Layout(layout::Arguments),
    Dataflow(dataflow::Arguments),
    Modules(modules::Arguments),
    Stages(stages::Arguments),
    Scale(scale::Arguments),
    #[cfg(feature = "ablation")]
    Ablation(ablation::Arguments),
}

/// Measures and prints.
pub fn bench(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.what {
        What::Engine(arguments) => engine::engine(arguments),
        What::Planner(arguments) => planner::planner(arguments),
        What::Layout(arguments) => layout::layout(arguments),
        What::Dataflow(arguments) => dataflow::analyses(arguments),
        What::Modules(arguments) => modules::modules(arguments),
        What::Stages(arguments) => stages::stages(arguments),
        What::Scale(arguments) => scale::scale(arguments),
        #[cfg(feature = "ablation")]
        What::Ablation(arguments) => ablation::ablation(arguments),
    }
}
