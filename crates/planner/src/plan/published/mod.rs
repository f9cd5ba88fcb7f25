//! Planners as others published them: baselines for the search, which also borrows from them if
//! that is faster. Invariant: each is a plain function from graph, profile, order, budget and the
//! remaining time to a plan or to a proof that there is none; its work is counted as it is done,
//! and it checks the time after some ten thousand operations at most.

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
