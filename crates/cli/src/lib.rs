//! The program `tightfit` as a library: [`run`] is all of it, for the binary of that name and for
//! the Python package, which has it inside. What other rooms of this crate know of inputs, budgets
//! and results is public for the Python package alone.
//!
//! Invariant: every failure of the program is one clear message on standard error and an exit code
//! of its own; standard output holds results only. Nothing but [`run`] changes how the process
//! treats signals and panics.

mod bench;
pub mod calls;
pub mod effort;
pub mod exit;
pub mod figures;
pub mod frontier;
pub mod input;
mod interrupt;
pub mod output;
mod processor;
pub mod program;
pub mod solver;
mod table;
mod train;
pub mod values;
pub mod verbs;

use std::ffi::OsString;
use std::io::{self, Write};

use clap::{Parser, Subcommand};
use tightfit::units::Bytes;

use crate::exit::ExitCode;
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

/// Does what the arguments say, the name of the program first, as the whole of a process: a pipe
/// whose reader has gone, a full disk and a second Ctrl-C end the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let entered = tightfit_engine::process::resident();
    output::end_with_the_reader();
    output::end_with_the_disk();
    let code = match Cli::try_parse_from(arguments) {
        Ok(Cli { verb }) => dispatch(verb, entered),
        Err(refused) => {
            // As clap's own `exit` has it: nobody is left to tell that nothing could be printed.
            let _ = refused.print();
            ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(exit::USAGE))
        }
    };
    // Rust's runtime does this where it has the last word; here it may be Python's.
    let _ = io::stdout().flush();
    code
}

fn dispatch(verb: Verb, entered: Option<Bytes>) -> ExitCode {
    let result = match verb {
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
            // What was not found might have been, had the search not been interrupted.
            match exit::code(&error) {
                exit::NOT_FOUND if interrupt::raised() => exit::INTERRUPTED.into(),
                code => code.into(),
            }
        }
    }
}

/// The error and its causes; a cause that the error cites is not said again.
pub fn message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !message.contains(&cause) {
            let colon = if message.is_empty() { "" } else { ": " };
            message = message + colon + cause.trim_end();
        }
    }
    message
}
