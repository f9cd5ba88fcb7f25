//! The project's rules that no compiler checks. Invariant: each rule is a function from the files
//! to what is wrong with them, and has a test in which it finds something.

mod circles;
mod citations;
mod code_map;
mod imports;
mod leftovers;
mod links;
mod modules;
mod names;
mod openings;
mod paths;
mod sizes;
mod source;
mod tree;
mod wording;

use anyhow::{Result, bail};

use crate::command::{find, say};
use crate::workspace::Workspace;

use tree::{Finding, Tree};

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 10] = [
    openings::check,
    imports::check,
    circles::check,
    citations::check,
    code_map::check,
    names::check,
    sizes::check,
    leftovers::check,
    links::check,
    wording::check,
];

/// Checks all files that git tracks, or would track, against all rules.
pub fn tidy(workspace: &Workspace) -> Result<()> {
    if !workspace.root.join(".git").exists() || find("git").is_none() {
        say("NO GIT: the rules of the house are not checked; they need git, and a clone");
        return Ok(());
    }
    let tree = Tree::of_repository(workspace)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    for finding in &findings {
        say(&finding.to_string());
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    say(&format!("tidy: {} files, nothing wrong", tree.files.len()));
    Ok(())
}
