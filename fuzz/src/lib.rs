//! Hostile input for every reader, the checker and the engine. Invariant: a case is a function of
//! the target, the seed and its number, and is judged in a child process, so that a panic, a signal
//! or a hang is a finding with a command that reproduces it.
//!
//! [`target`] says what is tested and by which laws, [`mutate`] how cases are made from seeds,
//! [`campaign`] runs thousands of them.

pub mod campaign;
pub mod case;
pub mod child;
pub mod draw;
pub mod minimise;
pub mod mutate;
mod random;
pub mod target;
pub mod verdict;
pub mod worker;
