//! Why a budget for modules cannot be met. Invariant: `least` bytes suffice, and if that is proven,
//! nothing less does, up to the tolerance of a floating-point solver (about a millionth of the
//! baseline peak). `words` renders the data in sentences.

mod words;

use crate::exit::{Alive, Refusal};
use crate::units::Bytes;

/// A refused budget, with its proof.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleInfeasible {
    /// The budget that was requested.
    pub budget: Bytes,
    /// The smallest peak that a plan reaches.
    pub least: Bytes,
    /// Whether no plan has a smaller peak; otherwise the solver's time was up.
    pub proven: bool,
    /// The fully qualified name of the module in whose backward pass that plan peaks.
    pub module: String,
    /// What is held there, by kind.
    pub held: Vec<(&'static str, Bytes)>,
}

impl ModuleInfeasible {
    /// The figures for a program.
    pub fn refusal(&self) -> Refusal {
        let alive =
            |&(kind, bytes): &(&str, Bytes)| Alive { name: kind.to_string(), made: None, bytes };
        Refusal {
            needed: self.proven.then_some(self.least),
            reached: Some(self.least),
            module: Some(self.module.clone()),
            alive: Some(self.held.iter().map(alive).collect()),
            ..Refusal::of(self.budget, self.proven)
        }
    }
}
