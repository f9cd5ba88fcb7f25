//! Why a budget for modules cannot be met. Invariant: `least` bytes suffice, and where it is proven
//! nothing less does, up to the tolerance of a solver in floating-point numbers (about a millionth
//! of the baseline peak).

use std::fmt;

use crate::units::Bytes;

/// A budget refused, with its proof.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleInfeasible {
    /// The budget that was asked for.
    pub budget: Bytes,
    /// The peak of the plan with the smallest one.
    pub least: Bytes,
    /// No plan has a smaller one; else the solver's time was up.
    pub proven: bool,
    /// The module where that plan has its peak.
    pub module: String,
    /// What is there then.
    pub held: Vec<(&'static str, Bytes)>,
}

impl fmt::Display for ModuleInfeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let least = if self.proven {
            "the least that any choice of modules reaches"
        } else {
            "the least that was found in time"
        };
        writeln!(
            f,
            "no plan fits {} ({} bytes); {least} is {} ({} bytes)",
            self.budget, self.budget.0, self.least, self.least.0
        )?;
        writeln!(
            f,
            "it binds in the backward pass of module `{}`, where these are held:",
            self.module
        )?;
        for (what, bytes) in self.held.iter().filter(|(_, bytes)| *bytes > Bytes::ZERO) {
            writeln!(f, "  {:>10}  {what}", bytes.to_string())?;
        }
        Ok(())
    }
}
