//! How cases are made from seeds. Invariant: every change is a function of its own draw, so that a
//! case is a list of changes, each of which can be left out.

pub mod bytes;
pub mod graph;
pub mod json;
pub mod legal;
pub mod modules;
pub mod plan;
pub mod step;
pub mod weights;
