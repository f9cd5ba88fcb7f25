//! All tests of the planner in one binary, by module.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod analysis;
mod check;
mod graph;
mod modules;
mod operator;
mod pipeline;
mod plan;
mod profile;
mod schedule;
mod sharded;
mod sizes;
mod split;

/// What several of them share.
mod fixtures {
    pub mod corpus;
    pub mod generator;
    pub mod graphinfo;
    pub mod module_tree;
    pub mod moves;
    pub mod oracle;
    pub mod symbolic;
}
