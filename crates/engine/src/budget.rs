//! Budgets as users write them. Invariant: a budget that parses is a positive number of bytes, a
//! share of the unplanned peak, or the smallest that can be met; only this file turns a share into
//! bytes.

use std::str::FromStr;

use thiserror::Error;
use tightfit::Fitted;
use tightfit::exit::coded;
use tightfit::units::Bytes;

use crate::reserve::Reserve;

/// A budget as written, before it is known what a share is a share of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Bytes.
    Absolute(Bytes),
    /// Share of the unplanned peak and of what the matrix product packs; the base comes on top.
    Share(f64),
    /// The smallest that the planner can reach.
    Smallest,
}

/// Why a budget is not valid.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum BudgetError {
    /// No bytes at all, or a share that comes to none.
    #[error(
        "a budget of zero leaves no memory for anything; write bytes, 320MiB, 2.5GB, 60% or min"
    )]
    Zero,
    /// The text is no budget.
    #[error("`{0}` is not a budget; write bytes, 320MiB, 2.5GB, 60% or min")]
    Unreadable(String),
    /// The smallest budget was requested for a plan whose size is already fixed.
    #[error(
        "`min` asks for the smallest plan, and this one has its size; write bytes, 320MiB, 2.5GB \
         or 60%, or leave the budget out for the plan's own"
    )]
    HasItsSize,
    /// The step is to run on this machine, which has less memory than the budget.
    #[error("a budget of {budget} is more than this machine's memory of {memory}")]
    BeyondMemory {
        /// The whole budget.
        budget: Bytes,
        /// This machine's physical memory.
        memory: Bytes,
    },
}

coded!(Budget: BudgetError);

impl Budget {
    /// The bytes, given the unplanned peak and what the process takes besides the slab; `None` for
    /// the smallest. A share counts only what a plan can make smaller, so the base is added to it.
    pub fn bytes(self, unplanned: Bytes, reserve: Reserve) -> Option<Bytes> {
        match self {
            Budget::Absolute(bytes) => Some(bytes),
            Budget::Share(share) => Some(reserve.with_share(share, unplanned)),
            Budget::Smallest => None,
        }
    }

    /// The same, but such that 100 % is enough for the step as captured: aligned addresses take a
    /// few bytes more than the tensors hold.
    pub fn bytes_of(self, unplanned: &Fitted, reserve: Reserve) -> Option<Bytes> {
        let bytes = self.bytes(unplanned.timeline().peak, reserve)?;
        Some(match self {
            Budget::Share(share) if share >= 1.0 => {
                bytes.max(unplanned.schedule().slab + reserve.total())
            }
            Budget::Share(_) | Budget::Absolute(_) | Budget::Smallest => bytes,
        })
    }
}

const UNITS: [(&str, f64); 13] = [
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("tib", 1_099_511_627_776.0),
    ("kb", 1e3),
    ("mb", 1e6),
    ("gb", 1e9),
    ("tb", 1e12),
    ("k", 1024.0),
    ("m", 1_048_576.0),
    ("g", 1_073_741_824.0),
    ("t", 1_099_511_627_776.0),
    ("b", 1.0),
];

/// As people write them: `1000`, `320MiB`, `2.5GB`, `60%`, `min`.
impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Budget, BudgetError> {
        let unreadable = || BudgetError::Unreadable(text.to_string());
        let lower = text.trim().to_ascii_lowercase();
        if lower == "min" {
            return Ok(Budget::Smallest);
        }
        let number = |digits: &str| {
            digits
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|x| x.is_finite() && *x >= 0.0)
                .ok_or_else(unreadable)
        };
        if let Some(share) = lower.strip_suffix('%') {
            let share = number(share)? / 100.0;
            return if share > 0.0 { Ok(Budget::Share(share)) } else { Err(BudgetError::Zero) };
        }
        let unit = UNITS.iter().find_map(|(suffix, factor)| {
            lower.strip_suffix(suffix).map(|digits| (digits, *factor))
        });
        let bytes = match unit {
            Some((digits, factor)) => number(digits)? * factor,
            None => lower.replace('_', "").parse::<u64>().map_err(|_| unreadable())? as f64,
        };
        match bytes {
            _ if bytes < 1.0 => Err(BudgetError::Zero),
            _ if bytes > Bytes::LIMIT.0 as f64 => Err(unreadable()),
            _ => Ok(Budget::Absolute(Bytes(bytes as u64))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_read_as_people_write_them() {
        for (text, bytes) in [
            ("320MiB", 320 << 20),
            ("2.5GB", 2_500_000_000),
            ("1000", 1000),
            ("4k", 4096),
            ("1_000_000", 1_000_000),
            ("7 b", 7),
        ] {
            assert_eq!(text.parse(), Ok(Budget::Absolute(Bytes(bytes))), "{text}");
        }
        assert_eq!("60%".parse(), Ok(Budget::Share(0.6)));
        assert_eq!("min".parse(), Ok(Budget::Smallest));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "MiB", "-1", "nan", "1e400GB", "12XB", "inf%"] {
            assert_eq!(
                text.parse::<Budget>(),
                Err(BudgetError::Unreadable(text.to_string())),
                "{text}"
            );
        }
        for text in ["0", "0%", "0.0MiB"] {
            assert_eq!(text.parse::<Budget>(), Err(BudgetError::Zero), "{text}");
        }
    }
}
