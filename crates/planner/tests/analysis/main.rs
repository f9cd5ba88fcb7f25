//! Analyses: dataflow and module statistics, beside cases of other systems, oracles and laws.

#![allow(clippy::unwrap_used)] // a test that cannot go on panics

mod access;
mod dataflow_cases;
mod dataflow_laws;
mod module_info;
mod module_statistics;
mod operators;
mod parameters;
mod tradeoff;

#[path = "../fixtures/corpus/mod.rs"]
mod corpus;
#[path = "../fixtures/generator/mod.rs"]
mod generator;
#[path = "../fixtures/graphinfo/mod.rs"]
mod graphinfo;
#[path = "../fixtures/oracle/mod.rs"]
mod oracle;
