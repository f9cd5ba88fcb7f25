//! The `tightfit` command. Invariant: nothing happens here that [`tightfit_cli::run`] does not do.

use std::process::ExitCode;

fn main() -> ExitCode {
    tightfit_cli::run(std::env::args_os()).into()
}
