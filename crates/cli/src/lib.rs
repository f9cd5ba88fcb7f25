//! The program `tightfit` as a library: [`run`] is all of it, for the binary of that name and for
//! the Python package, which contains it. What other modules of this crate know of inputs, budgets
//! and results is public for the Python package and the benches alone.
//!
//! Invariant: every failure of the program is one clear message on standard error and an exit code
//! of its own; standard output holds results only, through one writer whose failures are failures
//! like others. Nothing but [`run`] and [`run_other`] changes how the process treats signals.

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod output;

mod alike;
pub mod batches;
pub mod calls;
pub mod clock;
mod conclusion;
pub mod effort;
pub mod exit_code;
pub mod failure;
pub mod figures;
pub mod frontier;
pub mod input;
pub mod interrupt;
mod pasteable;
mod places;
pub mod planners;
pub mod processor;
pub mod program;
mod progress;
mod shown;
mod sizes;
pub mod solver;
pub mod source;
mod style;
mod table;
pub mod tier;
mod train;
pub mod values;
pub mod verbs;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tightfit::exit::Exit;
use tightfit_engine::process;

use crate::exit_code::ExitCode;
use crate::failure::Result;
use crate::output::Unprinted;
use crate::style::Color;
use crate::verbs::{
    analyze, calibrate, check, completions, largest, modules, pareto, plan, report, sac, shard,
    stages, trace,
};

/// Position, in each verb's help, of the options that every verb has.
const BEHIND_OTHERS: usize = 900;

#[derive(Parser)]
#[command(
    name = "tightfit",
    version = env!("TIGHTFIT_VERSION"),
    term_width = 80,
    about = "Train in the memory you have: plan a training step under a budget in bytes, prove \
        that it fits, run it.",
    after_help = exit_code::HELP
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Show whole names and every column, in lines of more than 80 columns
    #[arg(long, global = true, display_order = BEHIND_OTHERS)]
    wide: bool,
    /// Colour: auto (on a terminal, unless NO_COLOR is set), always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", value_enum)]
    #[arg(hide_possible_values = true, display_order = BEHIND_OTHERS)]
    color: Color,
}

#[derive(Subcommand)]
enum Verb {
    Train(train::Arguments),
    Plan(plan::Arguments),
    Pareto(pareto::Arguments),
    Largest(largest::Arguments),
    Check(check::Arguments),
    Analyze(analyze::Arguments),
    Modules(modules::Arguments),
    Sac(sac::Arguments),
    Shard(shard::Arguments),
    Report(report::Arguments),
    Stages(stages::Arguments),
    Trace(trace::Arguments),
    Calibrate(calibrate::Arguments),
    Completions(completions::CompletionsArguments),
    Man(completions::ManArguments),
}

/// Does what the arguments say, of which the first is the name of the program, as the whole of a
/// process: a second Ctrl-C ends the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    begin();
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    Color::of(&arguments).settle();
    let json = arguments.iter().take_while(|word| *word != "--").any(|word| word == "--json");
    let parsed = command()
        .try_get_matches_from_mut(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let result = match parsed {
        Ok(Cli { verb, wide, color: _ }) => {
            output::widen(wide);
            dispatch(verb)
        }
        Err(refused) => show(&refused, json),
    };
    conclusion::conclude(result, json)
}

/// Does something else as the whole of a process, as the program does what its verbs are for.
pub fn run_other(body: impl FnOnce() -> Result<ExitCode>) -> ExitCode {
    begin();
    conclusion::conclude(body(), false)
}

/// What a process does first.
fn begin() {
    process::begins_with(process::resident());
    output::open_streams();
    interrupt::heed();
    interrupt::outlive_full_files();
}

/// The program's verbs and options, with examples that can be pasted.
fn command() -> clap::Command {
    pasteable::pasteable(Cli::command())
}

/// Prints help, or why the arguments make no sense.
fn show(refused: &clap::Error, json: bool) -> Result<ExitCode> {
    if json && refused.use_stderr() {
        let said = refused.to_string();
        // After an empty line, clap says how to use the program.
        let said = said.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        say!("{}", failure::document(ExitCode::from(Exit::Usage), said))?;
    }
    match refused.print() {
        Err(error) if !refused.use_stderr() => Err(Unprinted::from(error).into()),
        // There is no one left to tell that standard error failed.
        _ => Ok(ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(Exit::Usage as u8))),
    }
}

fn dispatch(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Train(arguments) => train::train(&arguments),
        Verb::Plan(arguments) => plan::plan(&arguments),
        Verb::Pareto(arguments) => pareto::pareto(&arguments),
        Verb::Largest(arguments) => largest::largest(&arguments),
        Verb::Check(arguments) => check::check(&arguments),
        Verb::Analyze(arguments) => analyze::analyze(&arguments),
        Verb::Modules(arguments) => modules::modules(&arguments),
        Verb::Sac(arguments) => sac::sac(&arguments),
        Verb::Shard(arguments) => shard::shard(&arguments),
        Verb::Report(arguments) => report::report(&arguments),
        Verb::Stages(arguments) => stages::stages(&arguments),
        Verb::Trace(arguments) => trace::trace(&arguments),
        Verb::Calibrate(arguments) => calibrate::calibrate(&arguments),
        Verb::Completions(arguments) => completions::completions(&arguments, command()),
        Verb::Man(arguments) => completions::man(&arguments, command()),
    }
}
