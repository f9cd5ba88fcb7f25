//! The `tightfit` command. Invariant: every failure is one clear message on standard error and an
//! exit code of its own; standard output holds results only.

mod bench;
mod calls;
mod effort;
mod exit;
mod figures;
mod frontier;
mod input;
mod interrupt;
mod output;
mod processor;
mod solver;
mod table;
mod train;
mod values;
mod verbs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::verbs::{analyze, calibrate, check, modules, pareto, plan, report, sac, shard, trace};

#[derive(Parser)]
#[command(
    name = "tightfit",
    version,
    about = "Train in the memory you have: plan a training step under a budget in bytes, prove \
        that it fits, run it.",
    after_help = exit::HELP
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Train(train::Arguments),
    Plan(plan::Arguments),
    Pareto(pareto::Arguments),
    Check(check::Arguments),
    Analyze(analyze::Arguments),
    Modules(modules::Arguments),
    Sac(sac::Arguments),
    Shard(shard::Arguments),
    Report(report::Arguments),
    Trace(trace::Arguments),
    Calibrate(calibrate::Arguments),
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let entered = tightfit_engine::process::resident();
    output::end_with_the_reader();
    output::end_with_the_disk();
    let result = match Cli::parse().verb {
        Verb::Train(arguments) => train::train(&arguments, entered),
        Verb::Plan(arguments) => plan::plan(&arguments),
        Verb::Pareto(arguments) => pareto::pareto(&arguments),
        Verb::Check(arguments) => check::check(&arguments),
        Verb::Analyze(arguments) => analyze::analyze(&arguments),
        Verb::Modules(arguments) => modules::modules(&arguments),
        Verb::Sac(arguments) => sac::sac(&arguments),
        Verb::Shard(arguments) => shard::shard(&arguments),
        Verb::Report(arguments) => report::report(&arguments),
        Verb::Trace(arguments) => trace::trace(&arguments),
        Verb::Calibrate(arguments) => calibrate::calibrate(&arguments),
        Verb::Bench(arguments) => bench::bench(&arguments),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", message(&error));
            ExitCode::from(exit::code(&error))
        }
    }
}

/// The error and its causes; a cause that the error cites is not said again.
fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !message.contains(&cause) {
            let colon = if message.is_empty() { "" } else { ": " };
            message = message + colon + cause.trim_end();
        }
    }
    message
}
