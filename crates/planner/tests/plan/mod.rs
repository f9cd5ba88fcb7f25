//! Planners: against brute force, their laws, and small, degenerate and real graphs.

mod brute_force;
mod budget_laws;
mod budget_planner;
mod capuchin_cases;
mod corpus_graphs;
mod deadlines;
mod degenerate_steps;
mod explanations;
mod holding;
mod offload_oracle;
mod offloading;
mod peers;
mod properties;
mod rematerialization;
mod rewriting;
mod rounds;
mod selective;
mod smallest;
mod swap_cases;
