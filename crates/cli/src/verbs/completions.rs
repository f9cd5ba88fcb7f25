//! `tightfit completions` and `tightfit man`: what shells and `man` know of the program. Invariant:
//! both are made from the same definitions as the help, so neither lags behind it.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit_code::ExitCode;
use crate::failure::{Context, Failure, Result};
use crate::output;

/// Print what a shell needs to complete verbs, options and their values.
#[derive(Args)]
#[command(after_help = "\
Examples:
  source <(tightfit completions bash)
  mkdir -p ~/.local/share/bash-completion/completions
  tightfit completions bash \
    > ~/.local/share/bash-completion/completions/tightfit
  tightfit completions zsh > ~/.zfunc/_tightfit
  tightfit completions fish > ~/.config/fish/completions/tightfit.fish

The first line completes in this shell; put it into ~/.bashrc for every new one.
Bash reads the folder of the next two where the package bash-completion is
installed. Zsh needs ~/.zfunc in fpath, before compinit. Make the folders first
where they are missing.")]
pub struct CompletionsArguments {
    /// Which shell
    shell: Shell,
}

/// Prints.
pub fn completions(arguments: &CompletionsArguments, mut program: Command) -> Result<ExitCode> {
    let mut script = Vec::new();
    let name = program.get_name().to_string();
    clap_complete::generate(arguments.shell, &mut program, name, &mut script);
    let script = String::from_utf8(script).map_err(Failure::other)?;
    say!("{}", script.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

/// Write the manual pages: one of the program, and one of each verb.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tightfit man ~/.local/share/man/man1        (then: man tightfit, man tightfit-train)")]
pub struct ManArguments {
    /// The folder that they go into, which is made if it is missing
    folder: PathBuf,
}

/// Writes.
pub fn man(arguments: &ManArguments, mut program: Command) -> Result<ExitCode> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{} could not be made", folder.display()))?;
    // This gives verbs their full names.
    program.build();
    let verbs = program.get_subcommands().filter(|verb| verb.get_name() != "help");
    let commands: Vec<&Command> = std::iter::once(&program).chain(verbs).collect();
    for command in &commands {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let mut page = Vec::new();
        clap_mangen::Man::new((*command).clone()).render(&mut page)?;
        output::write_whole(&folder.join(format!("{name}.1")), &page)?;
    }
    say!("{} pages written to {}", commands.len(), folder.display())?;
    Ok(ExitCode::SUCCESS)
}
