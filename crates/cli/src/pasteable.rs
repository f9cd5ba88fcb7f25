//! Examples in the help that can be pasted. Invariant: a line of an example has at most 80 columns,
//! and one that continues in the next line ends with the backslash that a shell needs there.

use clap::Command;

/// Columns of a line.
const MOST: usize = 80;
/// How the first line of an example begins, and how the lines after it do.
const FIRST: &str = "  tightfit ";
const NEXT: &str = "      ";
/// How a line ends that continues in the next.
const GOES_ON: &str = " \\";

/// The same command and its subcommands, with their examples folded.
pub fn pasteable(mut command: Command) -> Command {
    if let Some(help) = command.get_after_help() {
        let folded: Vec<String> = help.to_string().lines().map(folded).collect();
        command = command.after_help(folded.join("\n"));
    }
    command.mut_subcommands(pasteable)
}

/// A line of help; an example that is too long is folded before its options.
fn folded(line: &str) -> String {
    if line.len() <= MOST || !line.starts_with(FIRST) {
        return line.to_string();
    }
    let mut lines: Vec<String> = Vec::new();
    let mut last = String::new();
    for group in groups(line) {
        if !last.is_empty() && last.len() + 1 + group.len() + GOES_ON.len() > MOST {
            lines.push(std::mem::replace(&mut last, format!("{NEXT}{group}")) + GOES_ON);
        } else if last.is_empty() {
            last = format!("  {group}");
        } else {
            last = format!("{last} {group}");
        }
    }
    lines.push(last);
    lines.join("\n")
}

/// An option and its value, or a redirection and its file, stay together.
fn groups(line: &str) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    let mut is_open = true;
    for word in line.split_whitespace() {
        let begins = word.starts_with('-') || word == ">";
        match groups.last_mut() {
            Some(group) if is_open && !begins => *group = format!("{group} {word}"),
            _ => groups.push(word.to_string()),
        }
        // The program, its verb and the verb's argument may stand on one line.
        is_open = begins || groups.len() == 1;
    }
    groups
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::Cli;

    #[test]
    fn a_long_example_is_folded_before_its_options() {
        assert_eq!(folded("  tightfit plan x --budget 60%"), "  tightfit plan x --budget 60%");
        let graph = "corpus/graphs/llama_1b_b2_s2048.json.gz";
        assert_eq!(
            folded(&format!("  tightfit report {graph} --plan plan.json --svg modules -o m.svg")),
            format!("  tightfit report {graph} --plan plan.json \\\n      --svg modules -o m.svg")
        );
        let folder = "~/.local/share/bash-completion/completions/tightfit";
        assert_eq!(
            folded(&format!("  tightfit completions bash     > {folder}")),
            format!("  tightfit completions bash \\\n      > {folder}")
        );
    }

    /// Every example of every verb: short lines, and a command line that is understood.
    #[test]
    fn examples_are_understood() {
        let command = pasteable(Cli::command());
        let mut examples = 0;
        for verb in command.get_subcommands() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines =
                help.lines().filter(|line| line.starts_with(FIRST) || line.starts_with(NEXT));
            assert!(lines.clone().all(|line| line.len() <= MOST), "{help}");
            let lines: Vec<&str> = lines.collect();
            for example in lines.join("\n").replace(&format!("{GOES_ON}\n"), " ").lines() {
                let example = example.split(" > ").next().unwrap_or_default();
                let example = example.split('(').next().unwrap_or_default();
                let parsed = Cli::try_parse_from(example.split_whitespace());
                assert!(parsed.is_ok(), "{example}: {}", parsed.err().unwrap());
                examples += 1;
            }
        }
        assert!(examples > 30, "{examples}");
    }
}
