//! How a program ends that meets an error. Invariant: each error says so itself, so a new one does
//! not compile into a program before it does.

use std::error::Error;
use std::io;
use std::num::TryFromIntError;

use crate::reading::{Excess, excess};
use crate::units::Bytes;

/// What went wrong, as a script tells it apart: the exit codes of the `tightfit` program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Exit {
    /// Something that has no code of its own, such as a defect.
    Other = 1,
    /// The request contradicts itself, or the step.
    Usage = 2,
    /// It is proven that no plan fits the budget.
    Infeasible = 3,
    /// A file is missing, or cannot be read or written.
    File = 4,
    /// A file is not what it should be.
    Content = 5,
    /// The engine cannot execute the graph.
    NotExecutable = 6,
    /// The data does not suit the step.
    Data = 7,
    /// The budget makes no sense.
    Budget = 8,
    /// A schedule breaks a rule of the checker.
    Violation = 9,
    /// No plan within the budget was found; there may be one.
    NotFound = 10,
    /// A loss is not finite.
    NotFinite = 11,
    /// Another rank failed, or does not answer.
    OtherRank = 12,
}

impl Exit {
    /// The exit of a refused budget.
    pub fn of_refusal(is_proven: bool) -> Exit {
        if is_proven { Exit::Infeasible } else { Exit::NotFound }
    }
}

/// An error that knows how the program ends.
pub trait Coded: Error {
    /// How the program ends.
    fn exit(&self) -> Exit;

    /// What is known about the budget, if that is what was refused.
    fn refusal(&self) -> Option<Refusal> {
        None
    }
}

/// Implements [`Coded`] for errors at all of which a program ends in the same way:
/// `coded!(Usage: Unsuited, NotFound)`.
#[macro_export]
macro_rules! coded {
    ($exit:ident: $($error:ty),+ $(,)?) => {
        $(impl $crate::exit::Coded for $error {
            fn exit(&self) -> $crate::exit::Exit {
                $crate::exit::Exit::$exit
            }
        })+
    };
}

pub use coded;

/// What is known about a refused budget.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The budget.
    pub budget: Bytes,
    /// Whether no schedule at all fits; otherwise none was found.
    pub is_proven: bool,
    /// No schedule needs less.
    pub needed: Option<Bytes>,
    /// The smallest budget known to be feasible.
    pub reached: Option<Bytes>,
    /// The peak of the smallest plan.
    pub peak: Option<Bytes>,
    /// The name of the node where that plan peaks.
    pub node: Option<String>,
    /// The fully qualified name of the module where it peaks; empty for the root.
    pub module: Option<String>,
    /// What is alive there, largest first; `None` if there is no such plan.
    pub alive: Option<Vec<Alive>>,
}

/// A tensor, or a kind of tensors, that is alive where a plan peaks.
#[derive(Clone, Debug)]
pub struct Alive {
    /// Its name.
    pub name: String,
    /// The module and the phase of the node that made it, if it is one tensor.
    pub made: Option<(String, &'static str)>,
    /// Its size.
    pub bytes: Bytes,
}

impl Refusal {
    /// A budget about which nothing else is known.
    pub fn of(budget: Bytes, is_proven: bool) -> Refusal {
        Refusal {
            budget,
            is_proven,
            needed: None,
            reached: None,
            peak: None,
            node: None,
            module: None,
            alive: None,
        }
    }
}

impl Coded for io::Error {
    /// A file that is too long was read well enough.
    fn exit(&self) -> Exit {
        if excess(self).is_some() { Exit::Content } else { Exit::File }
    }
}

coded!(Other: TryFromIntError);
coded!(Content: Excess, serde_json::Error);
