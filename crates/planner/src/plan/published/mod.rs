//! Planners as others published them: what the search is compared with, and what it borrows where
//! that is faster. Invariant: each is a plain function from graph, profile, order, budget and the
//! time that is left to a plan or to a proof that it has none; its work is booked as it is done,
//! and it looks at the time after some ten thousand operations at most.

pub mod capuchin;
mod chain;
mod chen;
mod dtr;
mod family;
mod knapsack;
mod rotor;
mod sac;
mod xla;

pub use capuchin::{capuchin, capuchin_published, capuchin_swap};
pub use chen::chen;
pub use dtr::dtr;
pub use knapsack::knapsack;
pub use rotor::rotor;
pub use sac::sac;
pub use xla::xla;
