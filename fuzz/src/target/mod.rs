//! The targets: parts of the program, with how their cases are made and judged. Invariant: a
//! verdict depends on the files of the case alone.

pub mod check;
pub mod execute;
pub mod make;
mod planted;
pub mod raw;
mod readers;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use tightfit::effort::Effort;
use tightfit_engine::Session;

use crate::target::execute::Trained;
use crate::verdict::Verdict;

/// Bound on the search for plans, so that a case takes milliseconds.
pub const EFFORT: Effort<'static> = Effort::work(1, 600);
/// Most bytes of all storages of a graph that is executed.
pub const MOST_BYTES: u128 = 256 << 20;
/// Most elements that its nodes read and write.
pub const MOST_OPERATIONS: u128 = 1 << 26;

/// A part of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The reader of graphs and the analyses that follow it.
    Graph,
    /// The reader of steps and their data.
    Step,
    /// The reader of plans.
    Plan,
    /// The reader of module statistics.
    Modules,
    /// The reader of weights.
    Weights,
    /// From schedule to checker to engine.
    Check,
    /// Training at 100 % and at `min`.
    Execute,
    /// No part of the program, but deliberate faults by which the campaign is tested.
    Planted,
}

impl Target {
    /// All parts, with their names.
    pub const ALL: [(Target, &'static str); 8] = [
        (Target::Graph, "graph"),
        (Target::Step, "step"),
        (Target::Plan, "plan"),
        (Target::Modules, "modules"),
        (Target::Weights, "weights"),
        (Target::Check, "check"),
        (Target::Execute, "execute"),
        (Target::Planted, "planted"),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Target::Graph => "graph",
            Target::Step => "step",
            Target::Plan => "plan",
            Target::Modules => "modules",
            Target::Weights => "weights",
            Target::Check => "check",
            Target::Execute => "execute",
            Target::Planted => "planted",
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(name: &str) -> Result<Target, String> {
        let known = Target::ALL.iter().find(|(_, known)| *known == name);
        known.map(|&(target, _)| target).ok_or_else(|| {
            let names: Vec<&str> = Target::ALL[..7].iter().map(|&(_, name)| name).collect();
            format!("there is no target `{name}`; the targets are {}", names.join(", "))
        })
    }
}

/// A refusal by some part of the program.
pub fn refused(part: &str, error: &dyn Display) -> Verdict {
    let text = error.to_string();
    if text.trim().is_empty() {
        return Verdict::Wrong(format!("{part} refuses without a word"));
    }
    Verdict::Refused(part.to_string())
}

/// Judges cases, one after another, and caches what is expensive to make.
#[derive(Default)]
pub struct Judge {
    session: Option<Session>,
    originals: BTreeMap<String, Trained>,
}

impl Judge {
    /// The verdict on the files of a folder.
    pub fn judge(&mut self, target: Target, folder: &Path) -> Verdict {
        let bytes = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
        match target {
            Target::Graph => readers::graph(&bytes("graph.json")),
            Target::Step => readers::step(folder),
            Target::Plan => readers::plan(&bytes("graph.json"), &bytes("plan.json")),
            Target::Modules => readers::modules(&bytes("modules.json")),
            Target::Weights => {
                if self.session.is_none() {
                    self.session = make::session().ok();
                }
                let Some(session) = &mut self.session else {
                    return Verdict::Wrong("the seed of weights cannot be trained".to_string());
                };
                readers::weights(&folder.join("weights.safetensors"), session, make::WEIGHTS_OF)
            }
            Target::Check => check::judge(&bytes("graph.json"), &bytes("plan.json")),
            Target::Execute => execute::judge(folder, &mut self.originals),
            Target::Planted => planted::judge(&bytes("fault")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_called_by_its_name() {
        for (target, name) in Target::ALL {
            assert_eq!((target.name(), name.parse()), (name, Ok(target)));
        }
        assert!("kernel".parse::<Target>().unwrap_err().contains("execute"));
    }
}
