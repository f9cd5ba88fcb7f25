//! A refusal of a plan of modules in words. Invariant: every figure of a sentence is a field of the
//! data.

use std::fmt;

use crate::plan::modules::infeasible::ModuleInfeasible;
use crate::units::Bytes;

impl fmt::Display for ModuleInfeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claim = if self.proven { "no plan fits" } else { "no plan was found that fits" };
        let least = if self.proven {
            "the least that any choice of modules reaches"
        } else {
            "the least that was found in time"
        };
        writeln!(
            f,
            "{claim} {} ({} bytes); {least} is {} ({} bytes)",
            self.budget.rounded(),
            self.budget.0,
            self.least.rounded_up(),
            self.least.0
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
