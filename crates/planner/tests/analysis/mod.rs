//! Analyses: dataflow and module statistics, against cases of other systems, oracles and laws.

mod access;
mod dataflow_cases;
mod dataflow_laws;
mod module_info;
mod module_statistics;
mod operators;
mod parameters;
mod tradeoff;
