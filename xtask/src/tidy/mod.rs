//! The rules of the house that no compiler checks. Invariant: each rule is a function from the
//! files to what is wrong with them, and has a test in which it finds something.

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

use std::path::Path;

use anyhow::{Result, bail};

use tree::{Finding, Tree};

type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 9] = [
    openings::check,
    imports::check,
    circles::check,
    citations::check,
    code_map::check,
    names::check,
    sizes::check,
    leftovers::check,
    links::check,
];

/// Holds all files that git tracks, or would track, to all rules.
pub fn tidy(root: &Path) -> Result<()> {
    let tree = Tree::of_repository(root)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {} files, nothing wrong", tree.files.len());
    Ok(())
}
