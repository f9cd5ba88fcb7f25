//! Capuchin: drop the activation that saves the most bytes per second of recomputation, until the
//! budget is met. Invariant: candidates and their figures are the same for both stopping rules, and
//! an explanation follows exactly the choices that the planner makes.
//!
//! Source: Peng et al., "Capuchin", ASPLOS 2020, section 5.3 (recomputation). Departures: see
//! `doc/theory/capuchin.md`.

mod explain;
mod msps;
mod ours;
mod published;
mod swap;

pub use explain::{Candidate, Choice, Explanation, Rule, explain};
pub use msps::Figures;
pub use ours::capuchin;
pub use published::{End, capuchin_published};
pub use swap::capuchin_swap;
